"""`streamlens visibility`: what a reader sees of every write at one token, or who reads whom in the whole model.

1. With a reader: the visible share of every write beside that of a random one, and what changes for the reader.
2. With `--map`: every write against every reader of the model that comes after it.
"""

from pathlib import Path
from typing import Any

import click

from streamlens.cli.decompose import position_of
from streamlens.cli.options import ModelChoice, Output, html_option, model_options, output_options, require_page
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts
from streamlens.cli.readers import ReaderChoice, reader_for, reader_options, require_reader


@click.command("visibility")
@prompt_options
@reader_options
@click.option("--map", "whole", is_flag=True, help="Every write by every later reader of the model instead.")
@click.option(
    "--mode",
    type=click.Choice(["frozen", "local", "finite"]),
    help="The norm in front of the reader: its scale held, its Jacobian, or what really happens. [default: frozen]",
)
@click.option(
    "--energy",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="For a reader of full rank: the share of its squared singular values in an effective row space.",
)
@click.option("--token", metavar="TEXT|INDEX", default="-1", help="The token to look at. [default: the last]")
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Rows of the table.")
@html_option
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    reads: ReaderChoice,
    whole: bool,
    mode: str | None,
    energy: float | None,
    token: str,
    top: int,
    html: Path | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """What a reader can see of each write, beside what it would see of a random vector.

    A share is geometry: it does not say that the reader uses what it sees.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens visibility "After crossing the river, she rested on the bank" --token bank --head L10H8.q
    streamlens visibility "After crossing the river, she rested on the bank" --token bank --map --html map.html
    """
    prompts = read_prompts(prompt, column=column)
    require_page(html, prompts=len(prompts))
    if whole and (reads.given or mode is not None):
        raise click.UsageError(
            "--map takes all readers, scales held: no reader, no --mode.", click.get_current_context()
        )
    saved = None if whole else require_reader(reads)

    from streamlens.cli.each import answer, load_model

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli import seen

    reader = None if whole else reader_for(model, reads, saved)

    def work(number: int, given: Prompt) -> Any:
        run = {"token": position_of(token), "bos": choice.prepend_bos, "energy": energy}
        if reader is None:
            found = seen.everything(model, given.text, **run)
        else:
            found = seen.one(model, given.text, reader, mode=mode or "frozen", **run)
        if html is not None:
            seen.write_page(html, found)
        return seen.result(found, number, top=top)

    return answer(prompts, work, out, html=html)
