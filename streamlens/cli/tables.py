"""One prompt's books as a table.

1. With a token and a reader: the largest contributions, the rest as `other (n)`, the rows that close the sum,
   the sum, and the model's own value.
2. With a token and no reader: the largest writes by their share of the stream.
3. Without a token: one row a token, with its largest parts.
Each is followed by how well it adds up, and by what made it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streamlens.cli import terminal
from streamlens.cli.books import payload


def show(console: Any, found: Any, *, top: int) -> None:
    """The entry as a table with its closing lines."""
    data = payload(found)
    terminal.show_prompt(console, found.prompt)
    if found.position is None:
        _show_all(console, found, data["positions"], top)
    elif found.readout is None:
        _show_writes(console, found, data, top)
    else:
        _show_contributions(console, found, data, top)
    terminal.show_lines(console, sum_lines(found, data["closure"]))
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(found.ledger.provenance)], style="dim")


def sum_lines(found: Any, closure: Mapping[str, Any]) -> list[str]:
    """How close the contributions' sum comes to the model's own value; nothing where that is not known."""
    error = closure.get("readout")
    if error is None or error != error:
        return []
    return [f"Sums to the model's own value within {terminal.small(error)} {found.readout.reader.unit}."]


def _heading(console: Any, found: Any, place: Mapping[str, Any], says: str) -> None:
    from streamlens.display import display_token

    special = bool(found.ledger.special[0, found.kept[0][0]])
    sink = ", a sink" if place["sink"] else ""
    name = display_token(place["token"], special=special, width=24)
    terminal.show_lines(console, [f"{says} at {name} (position {place['position']}{sink})", ""])


def _show_contributions(console: Any, found: Any, place: Mapping[str, Any], top: int) -> None:
    from streamlens.sites import ROWS

    _heading(console, found, place, found.says)
    writes = [part for part in place["parts"] if part["component"] not in ROWS]
    closing = [part for part in place["parts"] if part["component"] in ROWS]
    writes.sort(key=lambda part: -abs(part["contribution"]))
    rows = [(part["component"], part["contribution"]) for part in writes[:top]]
    if rest := writes[top:]:
        rows.append((f"other ({len(rest)})", sum(part["contribution"] for part in rest)))
    rows += [(part["component"], part["contribution"]) for part in closing]
    largest = max(abs(size) for _, size in rows)
    made = terminal.table("component", (found.readout.reader.unit, "right"), *bar_column(console))
    for label, size in rows:
        made.add_row(terminal.text(label), terminal.signed(size), *bars(console, size, largest))
    made.add_section()
    made.add_row("sum", terminal.text(terminal.signed(place["sum"]), "bold"))
    made.add_row("the model's own value", terminal.text(terminal.signed(place["value"]), "bold"))
    console.print(made, "")


def _show_writes(console: Any, found: Any, place: Mapping[str, Any], top: int) -> None:
    _heading(console, found, place, f"Writes to a stream of norm {place['norm']:,.4g}")
    *writes, rounding = place["parts"]
    writes.sort(key=lambda part: -abs(part["share"]))
    made = terminal.table("component", ("norm", "right"), ("share", "right"), ("cosine", "right"), *bar_column(console))
    largest = max(abs(part["share"]) for part in writes)

    def add(label: str, share: float, norm: str, cosine: str) -> None:
        drawn = bars(console, share, largest)
        made.add_row(terminal.text(label), norm, terminal.signed(share), cosine, *drawn)

    for part in writes[:top]:
        add(
            part["component"],
            part["share"],
            f"{part['norm']:,.1f}",
            f"{part['cosine']:+.2f}".replace("-", "−"),
        )
    if rest := writes[top:]:
        add(f"other ({len(rest)})", sum(part["share"] for part in rest), "", "")
    add("rounding", rounding["share"], terminal.small(rounding["norm"]), "")
    made.add_section()
    made.add_row("the stream", f"{place['norm']:,.1f}", terminal.signed(sum(p["share"] for p in place["parts"])))
    console.print(made, "")


def _show_all(console: Any, found: Any, places: Sequence[Mapping[str, Any]], top: int) -> None:
    """A row a token, with its largest parts."""
    key = "share" if found.readout is None else "contribution"
    heading = "norm" if found.readout is None else found.readout.reader.unit
    terminal.show_lines(console, [f"{found.says or 'Writes'} at every token", ""])
    made = terminal.table(("", "right"), "token", (heading, "right"), f"largest {key}s")
    named = 3
    for (row, position), place in zip(found.kept, places, strict=True):
        parts = [part for part in place["parts"] if part["component"] != "rounding"]
        parts.sort(key=lambda part: -abs(part[key]))
        size = f"{place['norm']:,.1f}" if found.readout is None else terminal.signed(place["value"])
        name = terminal.token(place["token"], special=bool(found.ledger.special[0, row]), width=18)
        if place["sink"]:
            name.append(" (sink)", style="dim")
        said = "  ".join(f"{part['component']} {terminal.signed(part[key])}" for part in parts[:named])
        made.add_row(str(position), name, size, terminal.text(said))
    console.print(made, "")


def bar_column(console: Any) -> list[str]:
    """A column for bars, where a terminal can show them."""
    return [""] if console.is_terminal else []


def bars(console: Any, size: float, largest: float) -> list[Any]:
    """A row's bar, where a terminal can show it."""
    return [terminal.bar(size, largest)] if console.is_terminal else []
