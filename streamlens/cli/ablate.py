"""`streamlens ablate`: switch branches off, run the rest of the model again, and account for what followed.

1. The edits are read from their text form before a model is loaded.
2. Each prompt is run with and without them, and read at one token: by default where the edits act.
3. The answer is the ablation ledger: the split of the reader's change, then what every other write did. `--html` draws
   it (`ablation_page.py`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from streamlens.cli.decompose import position_of, reader_of, require_for
from streamlens.cli.options import (
    Command,
    ModelChoice,
    Output,
    html_option,
    model_options,
    output_options,
    require_page,
)
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts


def reading_options(command: Command) -> Command:
    """`--token`, `--for`, `--against`, `--read-at`, `--freeze`, `--reference`: what `ablate` and `sweep` share."""
    options = [
        click.option("--token", metavar="TEXT|INDEX", help="Edit at this token only; by default at every token."),
        click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read, with its space."),
        click.option("--against", metavar="TOKEN", help="Subtract this token's logit."),
        click.option(
            "--read-at", metavar="TEXT|INDEX", help="Where to read. [default: where it is edited, or the last token]"
        ),
        click.option(
            "--freeze",
            metavar="LABEL|all|patterns",
            multiple=True,
            help="Hold this later write, all of them, or attention patterns as they were. Repeatable.",
        ),
        click.option(
            "--reference",
            metavar="TEXT|FILE",
            multiple=True,
            help="The prompts of the method mean, the one prompt of resample. Repeatable.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command("ablate")
@prompt_options
@click.option("-e", "--edit", "texts", metavar="EDIT", multiple=True, required=True, help="See above. Repeatable.")
@reading_options
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Responding writes shown.")
@html_option
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    texts: tuple[str, ...],
    token: str | None,
    wanted: str | None,
    against: str | None,
    read_at: str | None,
    freeze: tuple[str, ...],
    reference: tuple[str, ...],
    top: int,
    html: Path | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """Switch parts of the model off and account for everything that follows.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    EDIT is SITE[<SOURCE][@TOKEN][=HOW]. All edits are made at once. HOW is a factor, mean, resample or,
    if left out, zero.

    \b
    L9.attn        an attention (or mlp) write is zeroed
    L9H2@bank      one head, at one token
    L12.mlp=0.5    halved
    L9H2<river     what a head takes from one token
    L9.attn=mean   its mean over the --reference prompts

    \b
    streamlens ablate "After crossing the river, she rested on the bank" \\
        -e L1.attn@bank --for " river" --against " money"
    """
    require_for(wanted, against)
    prompts = read_prompts(prompt, column=column)
    require_page(html, prompts=len(prompts))
    references = reference_texts(reference)
    edits = parsed(texts, position_of(token), as_reference(references))

    from streamlens.cli.each import answer, load_model
    from streamlens.cli.output import Result

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli.ablated import entry, frame, payload, show

    reader = reader_of(model, wanted, against)
    where = place_of(edits) if read_at is None else position_of(read_at)

    def work(number: int, given: Prompt) -> Any:
        found = entry(
            model,
            given.text,
            edits,
            reader=reader,
            position=where,
            freeze=frozen(freeze),
            bos=choice.prepend_bos,
            whole=html is not None,
        )
        if html is not None:
            from streamlens.cli.ablation_page import write_ablation

            write_ablation(html, found, reference=references)
        return Result(
            payload=payload(found),
            frame=lambda: frame(found, number),
            show=lambda console: show(console, found, top=top),
        )

    return answer(prompts, work, out, html=html)


def reference_texts(given: Sequence[str]) -> list[str]:
    """The prompts that `--reference` names.

    Raises:
        InputError: A file, line or row that is no prompt.
    """
    return [prompt.text for prompt in read_prompts(given)]


def as_reference(texts: Sequence[str]) -> str | list[str] | None:
    """One prompt, several or none, as `Edit` takes them."""
    return texts[0] if len(texts) == 1 else list(texts) or None


def parsed(texts: Sequence[str], position: str | int | None, prompts: str | Sequence[str] | None) -> list[Any]:
    """The edits of the command line; `position` holds where one names none.

    Raises:
        InputError: A text that is no edit.
    """
    from streamlens.edits import Edit

    return [Edit.parse(text, position=position, prompts=prompts) for text in texts]


def place_of(edits: Sequence[Any]) -> Any:
    """The one position at which all edits act; the last where they differ or act everywhere."""
    places = {edit.position for edit in edits}
    (place,) = places if len(places) == 1 else (None,)
    return -1 if place is None else place


def frozen(names: Sequence[str]) -> str | list[str] | None:
    """`--freeze` as `ablate` takes it."""
    return names[0] if len(names) == 1 else list(names) or None
