"""Two contexts compared, as data, as a frame and as a table. Signs: A - B; of swaps, A with B's write minus A."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamlens.cli import swept, tables, terminal

#: rows that no write stands for
CLOSING = ("rounding", "rescale", "softcap")


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """What a comparison found.

    Attributes:
        comparison: The ledger of the difference.
        swaps: The sweep of the swaps; None if they were not asked for.
        level: How fine.
        says: The reader's name with its tokens made legible; "" without a reader.
    """

    comparison: Any
    swaps: Any
    level: str
    says: str


def entry(
    model: Any,
    prompt_a: str,
    prompt_b: str,
    *,
    token: Any,
    reader: Any,
    level: str,
    scale: str,
    swapped: bool,
    bos: bool,
    progress: Callable[[int, int], None],
) -> Entry:
    """Runs both prompts, and the swaps where they are asked for.

    Raises:
        InputError: No aligned token; both token lists are given.
    """
    from streamlens.cli.books import legible_name
    from streamlens.experiments.compare import compare, swap

    given: dict[str, Any] = {"token": token, "readers": () if reader is None else reader, "prepend_bos": bos}
    comparison = compare(model, prompt_a, prompt_b, level=level, scale=scale, **given)
    swaps = swap(model, prompt_a, prompt_b, over=f"{level}s", progress=progress, **given) if swapped else None
    says = "" if reader is None else legible_name(model, reader)
    return Entry(comparison=comparison, swaps=swaps, level=level, says=says)


def payload(found: Entry) -> dict[str, Any]:
    """Both contexts, every part of their difference in stream order, and how well the parts sum to it."""
    comparison = found.comparison
    sides = {"a": comparison.a, "b": comparison.b}
    reads: dict[str, Any] = {}
    closing = {
        "in_order": max(ledger.in_order for ledger in sides.values()),
        "relative": max(float(ledger.closure.max()) for ledger in sides.values()),
    }
    if comparison.readers:
        (row, *_) = comparison.effects().to_dict("records")
        reads = {
            "reader": {"name": row["reader"], "unit": row["unit"]},
            "difference": {name: row[name] for name in ("a", "b", "observed", "rescale", "softcap", "total")},
        }
        closing["difference"] = row["closure"]
    swaps: dict[str, Any] = {}
    if found.swaps is not None:
        data = swept.payload(found.swaps, {})
        swaps = {"swaps": data["effects"]}
        closing = {name: max(closing.get(name, error), error) for name, error in (closing | data["closure"]).items()}
    return {
        **{side: _context(ledger) for side, ledger in sides.items()},
        "level": found.level,
        "scale": comparison.scale,
        "model": dict(comparison.a.provenance),
        **reads,
        "parts": _parts(comparison),
        **swaps,
        "closure": closing,
    }


def _context(ledger: Any) -> dict[str, Any]:
    return {
        "prompt": ledger.prompts[0],
        "position": int(ledger.indices[0, 0]),
        "token": ledger.tokens[0][0],
        "token_id": int(ledger.token_ids[0, 0]),
    }


def _parts(comparison: Any) -> list[dict[str, Any]]:
    """A row a write, then what closes the sum; norms and cosines are missing where no write stands behind a row."""
    rows = comparison.to_frame()
    names = ["component", "layer", "kind", "norm_a", "norm_b", "norm", "share", "cosine", "cosine_ab"]
    for reader in comparison.readers:
        rows = rows.rename(columns={f"difference: {reader.rows[0]}": "difference"})
        names.append("difference")
    layers = rows["layer"].astype(object).where(rows["layer"].notna(), None)
    found = rows[names].assign(layer=layers).to_dict("records")
    key = "difference" if comparison.readers else "share"
    return [row for row in found if row["component"] not in CLOSING[1:] or abs(row[key]) > 0]  # neither 0 nor missing


def frame(found: Entry) -> Any:
    """The frame of the comparison, or of the swaps where they were asked for."""
    return found.comparison.to_frame() if found.swaps is None else found.swaps.effects()


def show(console: Any, found: Entry, *, top: int) -> None:
    """Both contexts, what separates them or what the swaps do, and how it adds up."""
    data = payload(found)
    for side in ("a", "b"):
        terminal.show_prompt(console, f"{side.upper()}: {data[side]['prompt']}")
    terminal.show_lines(console, [*_heading(found, data), ""])
    if found.swaps is not None:
        swept.show_effects(console, data["swaps"], top=top, what="swaps")
    elif found.says:
        _show_parts(console, data, "difference", data["reader"]["unit"], top)
    else:
        _show_parts(console, data, "share", "share", top)
    terminal.show_lines(console, sum_lines(data))
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def place_of(data: Mapping[str, Any]) -> str:
    """`·bank (position 9 in A, 8 in B)`."""
    from streamlens.display import display_token

    a, b = (display_token(data[side]["token"], width=24) for side in ("a", "b"))
    if a == b:
        return f"{a} (position {data['a']['position']} in A, {data['b']['position']} in B)"
    return f"{a} (position {data['a']['position']} in A) and {b} (position {data['b']['position']} in B)"


def _heading(found: Entry, data: Mapping[str, Any]) -> list[str]:
    if not found.says:
        return [f"The stream at {place_of(data)}: share of the difference A − B"]
    own, unit = data["difference"], data["reader"]["unit"]
    a, b, difference = (terminal.signed(own[name]) for name in ("a", "b", "observed"))
    lines = [f"{found.says} at {place_of(data)}: {a} in A, {b} in B, A − B {difference} {unit}"]
    if found.swaps is not None:
        lines.append(f"Each write of B in A's place: changes of A, with B's write − as it is, in {unit}")
    return lines


def _show_parts(console: Any, data: Mapping[str, Any], key: str, unit: str, top: int) -> None:
    """The largest parts by size, the others in one row, what closes the sum, and the sum."""
    writes = [row for row in data["parts"] if row["component"] not in CLOSING]
    writes.sort(key=lambda row: -abs(row[key]))
    rows = [(row["component"], row[key], _norms(row)) for row in writes[:top]]
    if rest := writes[top:]:
        rows.append((f"other ({len(rest)})", sum(row[key] for row in rest), ("", "", "")))
    rows += [(row["component"], row[key], ("", "", "")) for row in data["parts"] if row["component"] in CLOSING]
    largest = max(abs(size) for _, size, _ in rows)
    made = terminal.table(
        "component",
        (unit, "right"),
        ("norm in A", "right"),
        ("in B", "right"),
        ("cosine", "right"),
        *tables.bar_column(console),
    )
    for label, size, norms in rows:
        drawn = tables.bars(console, size, largest)
        made.add_row(terminal.text(label), terminal.signed(size), *norms, *drawn)
    made.add_section()
    made.add_row("sum", terminal.text(terminal.signed(sum(size for _, size, _ in rows)), "bold"))
    if key == "difference":
        made.add_row("the model's own", terminal.text(terminal.signed(data["difference"]["observed"]), "bold"))
    console.print(made, "")


def _norms(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """A write's size in A, in B, and their cosine."""
    return f"{row['norm_a']:,.1f}", f"{row['norm_b']:,.1f}", f"{row['cosine_ab']:+.2f}".replace("-", "−")


def sum_lines(data: Mapping[str, Any]) -> list[str]:
    """How well the parts add up; nothing where no value is known."""
    said = {"difference": "The parts sum to the model's own difference", "effect": "A swap's parts sum to its change"}
    known = {name: data["closure"].get(name) for name in said}
    return [
        f"{said[name]} within {terminal.small(error)} {data['reader']['unit']}."
        for name, error in known.items()
        if error is not None and error == error
    ]
