"""`streamlens sweep`: switch one branch off after another, and see which ones matter and how.

1. The clean run is made once; every variant reruns only what its edit can change, many in one batch.
2. The table holds the largest effects by size: direct and indirect part, rescale, and what they sum to.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from streamlens.cli.ablate import frozen, reading_options, require_for
from streamlens.cli.options import ModelChoice, Output, model_options, output_options
from streamlens.cli.prompts import Prompt, prompt_options, read_prompts
from streamlens.errors import InputError

#: seconds between two lines of progress where there is no terminal for a bar
EVERY = 5.0


@click.command("sweep")
@prompt_options
@click.option(
    "--over", type=click.Choice(["sublayers", "heads"]), default="sublayers", show_default=True, help="One by one."
)
@click.option("--method", metavar="zero|FACTOR", default="zero", show_default=True, help="0.5 halves each write.")
@reading_options
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Variants shown.")
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
    top: int,
    choice: ModelChoice,
    out: Output,
) -> int:
    """Switch every sublayer or head off, one after another, and split what changes.

    PROMPT is a text, a .txt, .jsonl, .csv or .parquet file, or - for lines on standard input.

    \b
    streamlens sweep "After crossing the river, she rested on the bank" \\
        --token bank --for " river" --against " money"
    """
    require_for(wanted, against)
    if wanted is None:
        raise click.UsageError('A sweep reads a logit; name the token: --for " river".', click.get_current_context())
    _require_factor(method)
    prompts = read_prompts(prompt, column=column)

    from streamlens.cli.decompose import position_of, reader_of
    from streamlens.cli.each import each, load_model
    from streamlens.cli.output import Result, emit

    model = load_model(choice, quiet=out.quiet)
    from streamlens.cli.books import legible_name
    from streamlens.experiments.ablate import sweep

    reader = reader_of(model, wanted, against)
    says = legible_name(model, reader)

    def work(number: int, given: Prompt) -> Any:
        with counted("variants", quiet=out.quiet or len(prompts) > 1) as progress:
            found = sweep(
                model,
                given.text,
                over=over,
                position=position_of(token),
                method=method,
                readers=reader,
                read_at=position_of(read_at),
                freeze=frozen(freeze),
                progress=progress,
                prepend_bos=choice.prepend_bos,
            )
        data = _payload(found, given.text, over=over, method=method, freeze=freeze)
        return Result(
            payload=data,
            frame=lambda: _frame(found, number),
            show=lambda console: _show(console, data, says, top),
        )

    results, failed = each(prompts, work, quiet=out.quiet)
    if results or len(prompts) > 1:
        emit(results, out, many=len(prompts) > 1)
    return 1 if failed else 0


def _require_factor(method: str) -> None:
    """Only what needs no more than the command line has.

    Raises:
        InputError: Another method.
    """
    if method != "zero" and not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", method):
        raise InputError(
            f"--method is zero or a factor such as 0.5; got {method!r}.",
            hint="`streamlens ablate` takes mean and resample, one edit at a time.",
        )


@contextmanager
def counted(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Counts done of total: a bar with rate and time left on a terminal, else a line every few seconds."""
    from streamlens.cli.output import console, note

    if quiet:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        last = [time.monotonic()]

        def line(done: int, total: int) -> None:
            now = time.monotonic()
            if done == total or now - last[0] >= EVERY:
                last[0] = now
                note(f"{done} of {total} {what}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    rate = TextColumn("{task.fields[rate]}")
    with Progress(
        *columns, rate, TimeRemainingColumn(), console=console(sys.stderr, terminal=True), transient=True
    ) as bar:
        task = bar.add_task(what, total=None, rate="")

        def move(done: int, total: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, total=total, rate=f"{speed:.1f}/s" if speed else "")

        yield move


def _payload(found: Any, prompt: str, *, over: str, method: str, freeze: tuple[str, ...]) -> dict[str, Any]:
    """Every variant's effect in the order of the sweep, and the worst closing error."""
    from streamlens.cli.ablated import PARTS

    effects, clean = found.effects(), found.parts[0].clean
    first = effects.iloc[0]
    kept = [*PARTS, "total", "observed", "closure", "self_repair", "kl", "top_after"]
    rows = effects[["variant", *kept]].to_dict("records")
    return {
        "prompt": prompt,
        "position": int(first["position"]),
        "token": first["token"],
        "token_id": int(first["token_id"]),
        "over": over,
        "method": method,
        "freeze": list(freeze),
        "model": dict(clean.provenance),
        "reader": {"name": first["reader"], "unit": first["unit"]},
        "value": float(first["clean"]),
        "top_before": first["top_before"],
        "effects": rows,
        "closure": {
            "in_order": max(side.in_order for part in found.parts for side in (part.clean, part.ablated)),
            "relative": max(float(side.closure.max()) for part in found.parts for side in (part.clean, part.ablated)),
            "effect": float(effects["closure"].max()),
        },
    }


def _frame(found: Any, number: int) -> Any:
    rows = found.effects()
    return rows.assign(prompt_id=rows["prompt_id"] + number)


def _show(console: Any, data: Mapping[str, Any], says: str, top: int) -> None:
    """The largest effects by size, and how well the worst of all closes."""
    from streamlens.cli import terminal
    from streamlens.cli.ablated import ALWAYS, PARTS
    from streamlens.display import display_token

    unit = data["reader"]["unit"]
    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    held = f", with {', '.join(data['freeze'])} frozen" if data["freeze"] else ""
    value = terminal.signed(data["value"])
    terminal.show_prompt(console, data["prompt"])
    terminal.show_lines(
        console, [f"{says} at {where} is {value} {unit}; changes, ablated − clean, in {unit}{held}", ""]
    )
    rows = sorted(data["effects"], key=lambda row: -abs(row["total"]))
    parts = [name for name in PARTS if name in ALWAYS or any(row[name] for row in rows)]
    made = terminal.table("edited", *((name, "right") for name in (*parts, "total")), ("KL", "right"))
    for row in rows[:top]:
        sizes = [terminal.signed(row[name]) for name in (*parts, "total")]
        made.add_row(terminal.text(row["variant"]), *sizes, f"{row['kl']:.3f}")
    console.print(made, "")
    rest = len(rows) - top
    lines = [f"The {top} largest of {len(rows)} variants by size of the total."] if rest > 0 else []
    lines.append(f"The parts sum to the model's own change within {terminal.small(data['closure']['effect'])} {unit}.")
    terminal.show_lines(console, lines)
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")
