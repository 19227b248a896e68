"""A sweep as data, as a frame and as a table."""

from collections.abc import Mapping
from typing import Any

from streamlens.cli import terminal
from streamlens.cli.ablated import ALWAYS, PARTS
from streamlens.cli.output import Result


def result(found: Any, number: int, *, says: str, asked: Mapping[str, Any], top: int) -> Result:
    """One prompt's answer.

    Args:
        found: The sweep.
        number: Of the prompt.
        says: The reader's name with its tokens made legible; "" without a reader.
        asked: What was swept over, by which method, and what was frozen.
        top: How many variants the table shows.
    """
    data = payload(found, asked)
    return Result(
        payload=data,
        frame=lambda: numbered(found.effects(), number),
        show=lambda console: show(console, data, says, top=top),
    )


def payload(found: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Every variant's effect in the order of the sweep, and the worst closing error; the parts only with a reader."""
    effects = found.effects()
    first = effects.iloc[0]
    reads: dict[str, Any] = {}
    kept = ["kl", "top_after"]
    if first["reader"]:
        reads = {"reader": {"name": first["reader"], "unit": first["unit"]}, "value": float(first["clean"])}
        kept = [*PARTS, "total", "observed", "closure", "self_repair", *kept]
    return {
        **head(found.parts[0].clean, first, asked),
        **reads,
        "top_before": first["top_before"],
        "effects": effects[["variant", *kept]].to_dict("records"),
        "closure": closure(found),
    }


def head(clean: Any, first: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep is of; `first` is a row of its frame."""
    return {
        "prompt": clean.prompts[0],
        **{name: first[name] for name in ("position", "token", "token_id")},
        **asked,
        "model": dict(clean.provenance),
    }


def closure(found: Any) -> dict[str, float]:
    """The worst of all runs' writes, and with a reader the worst of the effects."""
    runs = [side for part in found.parts for side in (part.clean, part.ablated)]
    worst = {"in_order": max(run.in_order for run in runs), "relative": max(float(run.closure.max()) for run in runs)}
    return worst | ({"effect": float(found.effects()["closure"].max())} if found.parts[0].readers else {})


def numbered(rows: Any, number: int) -> Any:
    """A frame, as that of prompt `number`."""
    return rows.assign(prompt_id=rows["prompt_id"] + number)


def where(data: Mapping[str, Any]) -> str:
    """`·bank (position 9)`."""
    from streamlens.display import display_token

    return f"{display_token(data['token'], width=24)} (position {data['position']})"


def held(data: Mapping[str, Any]) -> str:
    """What was frozen, as the end of a sentence."""
    return f", with {', '.join(data['freeze'])} frozen" if data["freeze"] else ""


def show(console: Any, data: Mapping[str, Any], says: str, *, top: int) -> None:
    """The largest effects by size, and how well the worst of all closes."""
    terminal.show_prompt(console, data["prompt"])
    (_show_effects if "reader" in data else _show_output)(console, data, says, top)
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def _show_effects(console: Any, data: Mapping[str, Any], says: str, top: int) -> None:
    unit = data["reader"]["unit"]
    value = terminal.signed(data["value"])
    heading = f"{says} at {where(data)} is {value} {unit}; changes, ablated − clean, in {unit}{held(data)}"
    terminal.show_lines(console, [heading, ""])
    show_effects(console, data["effects"], top=top)
    largest = terminal.small(data["closure"]["effect"])
    terminal.show_lines(console, [f"The parts sum to the model's own change within {largest} {unit}."])


def show_effects(console: Any, effects: list[dict[str, Any]], *, top: int, what: str = "variants") -> None:
    """The largest effects with their parts, and of how many they are."""
    rows = sorted(effects, key=lambda row: -abs(row["total"]))
    parts = [name for name in PARTS if name in ALWAYS or any(row[name] for row in rows)]
    made = terminal.table("edited", *((name, "right") for name in (*parts, "total")), ("KL", "right"))
    for row in rows[:top]:
        sizes = [terminal.signed(row[name]) for name in (*parts, "total")]
        made.add_row(terminal.text(row["variant"]), *sizes, f"{row['kl']:.3f}")
    console.print(made, "")
    if len(rows) > top:
        terminal.show_lines(console, [f"The {top} largest of {len(rows)} {what} by size of the total."])


def _show_output(console: Any, data: Mapping[str, Any], says: str, top: int) -> None:
    """Without a reader: the divergence of the output, and what becomes the likeliest token."""
    before = data["top_before"]
    terminal.show_lines(console, [f"What becomes of the output at {where(data)}{held(data)}", ""])
    rows = sorted(data["effects"], key=lambda row: -row["kl"] if row["kl"] == row["kl"] else 0)
    made = terminal.table("edited", ("KL", "right"), "likeliest next token")
    for row in rows[:top]:
        after = terminal.token(row["top_after"], width=24, style="dim" if row["top_after"] == before else "")
        made.add_row(terminal.text(row["variant"]), f"{row['kl']:.3f}", after)
    console.print(made, "")
    turned = sum(row["top_after"] != before for row in rows)
    rest = [f"The {top} largest of {len(rows)} variants by KL(clean, ablated), in nats."] if len(rows) > top else []
    terminal.show_lines(console, [*rest, f"{turned} of {len(rows)} change the likeliest token, {_shown(before)}."])


def _shown(token: str) -> str:
    from streamlens.display import display_token

    return f"“{display_token(token, width=24)}”"
