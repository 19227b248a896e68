"""`streamlens decompose`: the writes of a prompt, and what they say for a token.

1. Everything that can be wrong with the call is checked before the model is loaded.
2. Each prompt becomes an `Entry`: its ledger, its readout if `--for` was given, its tokens and the position.
3. The entry is printed, or turned into JSON or its frame (`books.py`), or into a page (`page.py`).
"""

from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import ModelChoice, Output, html_option, model_options, output_options, require_page
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts
from streamlens.errors import ModelError


@click.command("decompose")
@prompt_options
@click.option("--token", metavar="TEXT|INDEX", help="The token to look at; by default all of them.")
@click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read, with its space.")
@click.option("--against", metavar="TOKEN", help="Subtract this token's logit.")
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Parts that get a row.")
@click.option(
    "--level",
    type=click.Choice(["sublayer", "head", "neuron", "source"]),
    default="sublayer",
    show_default=True,
    help="Split attention writes into heads (or heads by source token), or MLP writes into neurons.",
)
@click.option(
    "--site", "sites", metavar="LABEL", multiple=True, help="Split only this write, e.g. L9.attn. Repeatable."
)
@html_option
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    token: str | None,
    wanted: str | None,
    against: str | None,
    top: int,
    level: str,
    sites: tuple[str, ...],
    html: Path | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """What each part of the model wrote into the residual stream, and proof that it adds up.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens decompose "After crossing the river, she rested on the bank" \\
        --token bank --for " river" --against " money"
    """
    prompts = read_prompts(prompt, column=column)
    require_for(wanted, against)
    require_page(html, prompts=len(prompts))
    if sites and level == "sublayer":
        raise click.UsageError("--site chooses what --level splits; give --level head.", click.get_current_context())

    from streamlens.cli.each import answer, load_model
    from streamlens.cli.output import Result

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli.books import Split, entry, frame, payload
    from streamlens.cli.tables import show

    reader = reader_of(model, wanted, against)

    def work(number: int, given: Prompt) -> Any:
        found = entry(
            model,
            given.text,
            token=position_of(token),
            reader=reader,
            bos=choice.prepend_bos,
            whole=html is not None,
            split=None if level == "sublayer" else Split(level, sites or None, top),
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


def position_of(token: str | None) -> str | int | None:
    """`--token` as typed: digits are an index, anything else is text."""
    from streamlens.positions import index_or_text

    return None if token is None else index_or_text(token)


def require_for(wanted: str | None, against: str | None) -> None:
    """`--against` needs `--for`."""
    if against is not None and wanted is None:
        raise click.UsageError("--against is the other side of --for, which is missing.", click.get_current_context())


def reader_of(model: Any, wanted: str | None, against: str | None) -> Any:
    """The reader of `--for` and `--against`; None without them.

    Raises:
        ModelError: The model has no linear head.
    """
    from streamlens.readouts.readers.reader import Reader

    if wanted is None:
        return None
    if model.wiring.head is None:
        raise ModelError(
            f"--for reads a logit, and {model.name} has no linear head. {model.wiring.no_head}",
            hint="Leave --for out to see the writes. In Python, Reader.direction reads along any vector.",
        )
    return Reader.logits(model, [wanted]) if against is None else Reader.logit_diff(model, wanted, against)
