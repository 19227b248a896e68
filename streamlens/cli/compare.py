"""`streamlens compare`: which part of the model separates one context from another.

1. Both prompts are taken apart at one token that stands in both, and the difference of the two streams is a ledger.
2. `--swap` puts each write of B into A, one after another, and runs the rest of the model again: what differs need not
   be what matters.
"""

from pathlib import Path
from typing import Any

import click

from streamlens.cli.decompose import position_of, reader_of, require_for
from streamlens.cli.options import ModelChoice, Output, html_option, model_options, output_options, require_page
from streamlens.cli.prompts import read_prompts
from streamlens.errors import InputError


@click.command("compare")
@click.argument("prompt_a")
@click.argument("prompt_b")
@click.option("--token", metavar="TEXT|INDEX", required=True, help="The token that is compared, in A and in B.")
@click.option("--token-b", metavar="TEXT|INDEX", help="The token in B, where it is another one.")
@click.option("--for", "wanted", metavar="TOKEN", help="The next token whose logit is read, with its space.")
@click.option("--against", metavar="TOKEN", help="Subtract this token's logit.")
@click.option(
    "--level", type=click.Choice(["sublayer", "head"]), default="sublayer", show_default=True, help="How fine."
)
@click.option(
    "--scale",
    type=click.Choice(["a", "b", "mean"]),
    default="a",
    show_default=True,
    help="Whose final norm reads the differences.",
)
@click.option("--swap", is_flag=True, help="Also put each write of B into A, and rerun the model.")
@click.option("--top", type=click.IntRange(min=1), default=12, show_default=True, help="Writes that get a row.")
@html_option
@model_options()
@output_options
def command(
    prompt_a: str,
    prompt_b: str,
    token: str,
    token_b: str | None,
    wanted: str | None,
    against: str | None,
    level: str,
    scale: str,
    swap: bool,
    top: int,
    html: Path | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """What separates a token in context A from the same token in context B. Signs: A - B.

    With --swap the table and the frame (csv, parquet) hold what putting each write of B into A does to A;
    JSON holds both.

    \b
    streamlens compare "After crossing the river, she rested on the bank" \\
        "She checked her savings account balance at the bank" \\
        --token bank --for " river" --against " money"
    """
    require_for(wanted, against)
    if swap and wanted is None:
        raise click.UsageError(
            'A swap is read at a logit; name the token: --for " river".', click.get_current_context()
        )
    require_page(html)
    texts = [prompt.text for prompt in read_prompts([prompt_a, prompt_b])]
    if len(texts) != 2:
        raise InputError(f"A comparison is of two prompts; these arguments hold {len(texts)}.")

    from streamlens.cli.each import counted, load_model
    from streamlens.cli.output import Result, emit, note

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli import compared

    place: Any = position_of(token) if token_b is None else (position_of(token), position_of(token_b))
    with counted("swaps", quiet=out.quiet or not swap) as progress:
        found = compared.entry(
            model,
            *texts,
            token=place,
            reader=reader_of(model, wanted, against),
            level=level,
            scale=scale,
            swapped=swap,
            bos=choice.prepend_bos,
            progress=progress,
        )
    if html is not None:
        from streamlens.cli.comparison_page import write_comparison

        write_comparison(html, found, top=top)
    result = Result(
        payload=compared.payload(found),
        frame=lambda: compared.frame(found),
        show=lambda console: compared.show(console, found, top=top),
    )
    emit([result], out)
    if html is not None:
        note(f"wrote {html}", quiet=out.quiet)
    return 0
