"""`streamlens read`: what every write gives a saved reader, and proof that it adds up to the reader's value.

`decompose --for` for any reader: a probe, a direction, one row of an encoder or of a head.
"""

from pathlib import Path
from typing import Any

import click

from streamlens.cli.decompose import position_of
from streamlens.cli.options import ModelChoice, Output, html_option, model_options, output_options, require_page
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts
from streamlens.cli.readers import ReaderChoice, reader_for, reader_options, require_reader
from streamlens.errors import InputError


@click.command("read")
@prompt_options
@reader_options
@click.option("--token", metavar="TEXT|INDEX", help="The token to look at; by default all of them.")
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Parts that get a row.")
@html_option
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    reads: ReaderChoice,
    token: str | None,
    top: int,
    html: Path | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """What each part of the model gives a reader, where that reader reads.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens read "After crossing the river, she rested on the bank" \\
        --reader sense.safetensors --token bank
    """
    prompts = read_prompts(prompt, column=column)
    require_page(html, prompts=len(prompts))
    saved = require_reader(reads)

    from streamlens.cli.each import answer, load_model
    from streamlens.cli.output import Result

    model = load_model(choice, quiet=out.quiet)
    reader = reader_for(model, reads, saved)
    if len(reader.rows) > 1:
        raise InputError(f"{reader.name} has {len(reader.rows)} rows; one is read at a time.", hint="Name it: --row N.")
    from streamlens.cli.books import entry, frame, payload
    from streamlens.cli.tables import show

    def work(number: int, given: Prompt) -> Any:
        found = entry(
            model,
            given.text,
            token=position_of(token),
            reader=reader,
            bos=choice.prepend_bos,
            whole=html is not None,
        )
        if html is not None:
            from streamlens.cli.page import write

            write(html, found, top=top)
        return Result(
            payload=payload(found),
            frame=lambda: frame(found, number),
            show=lambda console: show(console, found, top=top),
        )

    return answer(prompts, work, out, html=html)
