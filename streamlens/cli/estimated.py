"""First-order estimates of a sweep, as data, as a frame and as a table; beside the exact sweep if that ran too.

1. An estimate is gradient times change, from one backward pass: attribution patching.
2. Where the sweep ran, each row has its exact total, and the rank correlation says how far to trust the estimates.
"""

from collections.abc import Mapping
from typing import Any

from streamlens.cli import swept, terminal
from streamlens.cli.output import Result


def result(guess: Any, exact: Any, number: int, *, says: str, asked: Mapping[str, Any], top: int) -> Result:
    """One prompt's answer.

    Args:
        guess: The estimates.
        exact: The sweep of the same variants; None if it did not run.
        number: Of the prompt.
        says: The reader's name with its tokens made legible.
        asked: What was swept over, and by which method.
        top: How many variants the table shows.
    """
    rows = _rows(guess, exact)
    data = payload(guess, exact, rows, asked)
    return Result(
        payload=data,
        frame=lambda: swept.numbered(rows, number),
        show=lambda console: show(console, data, says, top=top),
    )


def _rows(guess: Any, exact: Any) -> Any:
    """The frame of the estimates, with the exact `total` beside them where it is known."""
    rows = guess.effects()
    if exact is None:
        return rows
    from streamlens.frames.schemas import CHECKED

    totals = exact.effects()  # of the same variants in the same order
    made = rows.assign(**{name: totals[name].to_numpy() for name in CHECKED})
    made.attrs = rows.attrs
    return made


def payload(guess: Any, exact: Any, rows: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Every variant's estimate in the order of the sweep, and how well they rank the exact effects."""
    from streamlens.experiments.estimates import rank_correlation

    first = rows.iloc[0]
    kept = ["variant", "estimate", *(["total"] if exact is not None else [])]
    clean = guess.clean
    closure = {"in_order": clean.in_order, "relative": float(clean.closure.max())}
    compared: dict[str, Any] = {}
    if exact is not None:
        (agreement,) = rank_correlation(guess, exact).to_dict("records")
        compared = {"agreement": {name: agreement[name] for name in ("variants", "spearman", "pearson", "slope")}}
        closure = swept.closure(exact)
    return {
        **swept.head(clean, first, asked),
        "reader": {"name": first["reader"], "unit": first["unit"]},
        "value": float(first["clean"]),
        "estimate": "gradient",
        **compared,
        "effects": rows[kept].to_dict("records"),
        "closure": closure,
    }


def show(console: Any, data: Mapping[str, Any], says: str, *, top: int) -> None:
    """The largest estimates by size, the exact totals beside them if they are known, and how far they agree."""
    unit, value = data["reader"]["unit"], terminal.signed(data["value"])
    terminal.show_prompt(console, data["prompt"])
    terminal.show_lines(
        console,
        [
            f"{says} at {swept.where(data)} is {value} {unit}",
            f"First-order estimates (gradient times change) of the changes, ablated − clean, in {unit}",
            "",
        ],
    )
    checked = "agreement" in data
    rows = sorted(data["effects"], key=lambda row: -abs(row["estimate"]))
    made = terminal.table("edited", ("estimate", "right"), *([("exact total", "right")] if checked else []))
    for row in rows[:top]:
        exact = [terminal.signed(row["total"])] if checked else []
        made.add_row(terminal.text(row["variant"]), terminal.signed(row["estimate"]), *exact)
    console.print(made, "")
    if len(rows) > top:
        terminal.show_lines(console, [f"The {top} largest of {len(rows)} variants by size of the estimate."])
    terminal.show_lines(console, [_agreement(data)])
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def _agreement(data: Mapping[str, Any]) -> str:
    if "agreement" not in data:
        return "No variant was run; --check runs them and says how well the estimates rank them."
    found = data["agreement"]
    return (
        f"Against the exact sweep of {found['variants']} variants: rank correlation {found['spearman']:.2f} "
        f"(Spearman), {found['pearson']:.2f} (Pearson), slope {found['slope']:.2f}."
    )
