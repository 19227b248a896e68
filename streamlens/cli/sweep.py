"""`streamlens sweep`: switch one branch off after another, and see which ones matter and how.

1. The clean run is made once; every variant reruns only what its edit can change, many in one batch.
2. The table holds the largest effects by size: direct and indirect part, rescale, and what they sum to (`swept.py`).
3. `--estimate gradient` runs no variant: one backward pass estimates them all (`estimated.py`). `--check` runs them too
   and says how well the estimate ranks them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from streamlens.cli.ablate import as_reference, frozen, reading_options, reference_texts
from streamlens.cli.decompose import position_of, reader_of, require_for
from streamlens.cli.options import ModelChoice, Output, html_option, model_options, output_options, require_page
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts
from streamlens.errors import InputError

#: methods that take what they put in from `--reference`
REFERRING = ("mean", "resample")


@click.command("sweep")
@prompt_options
@click.option(
    "--over", type=click.Choice(["sublayers", "heads"]), default="sublayers", show_default=True, help="One by one."
)
@click.option(
    "--method",
    metavar="zero|FACTOR|mean|resample",
    default="zero",
    show_default=True,
    help="0.5 halves each write; mean and resample take --reference.",
)
@reading_options
@click.option("--estimate", type=click.Choice(["gradient"]), help="Estimate from one backward pass; run no variant.")
@click.option("--check", is_flag=True, help="With --estimate: run them too, and compare.")
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Variants shown.")
@html_option
@model_options()
@output_options
def command(
    prompt: tuple[str, ...],
    column: str | None,
    over: str,
    method: str,
    token: str | None,
    wanted: str | None,
    against: str | None,
    read_at: str | None,
    freeze: tuple[str, ...],
    reference: tuple[str, ...],
    estimate: str | None,
    check: bool,
    top: int,
    html: Path | None,
    choice: ModelChoice,
    out: Output,
) -> int:
    """Switch every sublayer or head off, one after another, and split what changes.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input. Without --for
    the effects are what becomes of the next token: the divergence, and the likeliest one.

    \b
    streamlens sweep "After crossing the river, she rested on the bank" \\
        --token bank --for " river" --against " money"
    """
    require_for(wanted, against)
    _require_estimable(estimate, check=check, wanted=wanted, freeze=freeze, html=html)
    prompts = read_prompts(prompt, column=column)
    require_page(html, prompts=len(prompts))
    texts = _references(method, reference)

    from streamlens.cli.each import answer, counted, load_model

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli import estimated, swept
    from streamlens.cli.books import legible_name
    from streamlens.experiments.ablate import sweep
    from streamlens.hooks.writes.clean import start_run

    reader = reader_of(model, wanted, against)
    says = "" if reader is None else legible_name(model, reader)
    asked = {"over": over, "method": method, "reference": list(texts), "freeze": list(freeze)}

    def work(number: int, given: Prompt) -> Any:
        clean = start_run(model, given.text, prepend_bos=choice.prepend_bos, keep_logits=estimate is not None)
        options: dict[str, Any] = {
            "over": over,
            "position": position_of(token),
            "method": method,
            "prompts": as_reference(texts),
            "readers": () if reader is None else reader,
            "read_at": position_of(read_at),
        }
        guess = sweep(model, clean, estimate="gradient", **options) if estimate else None
        made = None
        if guess is None or check:
            with counted("variants", quiet=out.quiet or len(prompts) > 1) as progress:
                made = sweep(model, clean, freeze=frozen(freeze), progress=progress, **options)
        if html is not None:
            from streamlens.cli.ablation_page import write_sweep

            write_sweep(html, made, says, asked, top=top)
        if guess is not None:
            return estimated.result(guess, made, number, says=says, asked=asked, top=top)
        return swept.result(made, number, says=says, asked=asked, top=top)

    return answer(prompts, work, out, html=html)


def _refuse(message: str) -> NoReturn:
    raise click.UsageError(message, click.get_current_context())


def _require_estimable(
    estimate: str | None, *, check: bool, wanted: str | None, freeze: Sequence[str], html: Path | None
) -> None:
    """What goes with `--estimate`, and what only goes with it."""
    if estimate is None:
        if check:
            _refuse("--check compares an estimate with the sweep; add --estimate gradient.")
        return
    if wanted is None:
        _refuse('An estimate is of a logit; name the token: --for " river".')
    if freeze:
        _refuse("An estimate holds nothing at its clean value; leave --freeze or --estimate out.")
    if html is not None and not check:
        _refuse("--html draws the exact sweep; add --check, or leave --estimate out.")


def _references(method: str, given: Sequence[str]) -> list[str]:
    """The texts of `--reference`, as many as the method takes.

    Raises:
        InputError: No such method, no reference for one that needs it, or one for a method that takes none.
    """
    if method not in ("zero", *REFERRING) and not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", method):
        raise InputError(
            f"--method is zero, a factor such as 0.5, mean or resample; got {method!r}.",
            hint="In Python a sweep takes any list of edits.",
        )
    texts = reference_texts(given)
    if method in REFERRING and not texts:
        raise InputError(f"--method {method} takes its values from other prompts.", hint="Give --reference TEXT|FILE.")
    if method not in REFERRING and texts:
        raise InputError(f"--reference is for the methods mean and resample; the method is {method}.")
    if method == "resample" and len(texts) > 1:
        raise InputError(f"--method resample takes one other prompt; got {len(texts)}.")
    return texts
