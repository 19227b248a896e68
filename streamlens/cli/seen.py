"""What readers see of the writes at one token: as data, as a frame, as a table and as a page.

1. `one` is one reader, `everything` every reader of the model.
2. The table has the largest by lift, beside the value of a random write; JSON has all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHARE = "A share says what a reader could see, not that it uses it."
#: rows of the table on the page of a map
_TABLE = 500
_MODES = {
    "frozen": "with the norm's scale held",
    "local": "with the norm's Jacobian at this point",
    "finite": "with the write really taken away",
}
_BARS = (
    "The part of every write that lies in the reader's row space, as a share of its squared norm, in stream order from "
    "the bottom up. The line is the share of a random write: rank / d_model. " + _SHARE
)
_GAINS = "How strongly the reader responds to every write, over its response to a random vector of the same length."
_MAP = (
    "Every write (down) against every reader of the model that comes after it (across), its norm's scale held. The "
    "middle of the colours is what a random write would give. A reader of full rank sees all of any write. " + _SHARE
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """What was found for one prompt: `found` is a `Visibility` or a `VisibilityMap` of one token."""

    prompt: str
    tokens: tuple[str, ...]
    position: int
    found: Any

    @property
    def is_map(self) -> bool:
        """Whether it is about every reader."""
        return hasattr(self.found, "readers")


def one(model: Any, prompt: str, reader: Any, *, token: Any, mode: str, energy: float | None, bos: bool) -> Entry:
    """One reader. Raises InputError where the token or the reader does not fit."""
    from streamlens.readouts.visible.visibility import visibility

    tokens, position, ledger = _run(model, prompt, token, bos)
    found = visibility(ledger, reader, mode, energy=energy)
    return Entry(prompt=prompt, tokens=tokens, position=position, found=found)


def everything(model: Any, prompt: str, *, token: Any, energy: float | None, bos: bool) -> Entry:
    """Every reader of the model. Raises InputError where the token does not fit."""
    from streamlens.readouts.visible.visibility_map import visibility_map

    tokens, position, ledger = _run(model, prompt, token, bos)
    return Entry(prompt=prompt, tokens=tokens, position=position, found=visibility_map(ledger, model, energy=energy))


def _run(model: Any, prompt: str, token: Any, bos: bool) -> tuple[tuple[str, ...], int, Any]:
    from streamlens.hooks.writes.capture import decompose
    from streamlens.models.tokens import encode, find_position

    tokens = model.token_texts(encode(model.tokenizer, prompt, prepend_bos=bos).ids[0].tolist())
    position = find_position(tokens, token)
    ledger = decompose(model, prompt, prepend_bos=bos, positions=[position], keep_logits=False)
    return tokens, position, ledger


def result(entry: Entry, number: int, *, top: int) -> Any:
    """The entry as a `Result`, as prompt `number`."""
    from streamlens.cli.output import Result

    data = _payload(entry)

    def frame() -> Any:
        made = entry.found.to_frame()
        return made.assign(prompt_id=made["prompt_id"] + number)

    return Result(payload=data, frame=frame, show=lambda console: _show(console, entry, data, top))


def _payload(entry: Entry) -> dict[str, Any]:
    found, ledger = entry.found, entry.found.ledger
    head = {
        "prompt": entry.prompt,
        "tokens": list(entry.tokens),
        "position": entry.position,
        "token": entry.tokens[entry.position],
        "token_id": int(ledger.token_ids[0, 0]),
        "model": dict(ledger.provenance),
    }
    closure = {"closure": {"in_order": ledger.in_order, "relative": float(ledger.closure.max())}}
    if entry.is_map:
        readers = [
            {"name": r.name, "part": r.part, "layer": r.layer, "after": r.after, "rank": r.rank, "exact": r.exact}
            | {"chance": chance}
            for r, chance in zip(found.readers, found.chance.tolist(), strict=True)
        ]
        values = {name: getattr(found, name).tolist() for name in ("share", "lift", "gain")}
        return head | {"writes": list(ledger.labels), "readers": readers, **values} | closure
    reader = found.reader
    columns = {
        "norm": found.norm,
        "visible_share": found.share,
        "chance": found.chance,
        "lift": found.lift,
        "gain": found.gain,
        "change": found.change,
        "direct": found.direct,
        "rescale": found.rescale,
    }
    parts = [
        {"component": site.label, "layer": site.layer, "kind": site.part or site.kind}
        | {name: float(column[row, 0, 0]) for name, column in columns.items()}
        for row, site in enumerate(ledger.sites)
    ]
    said = {"name": reader.name, "unit": reader.unit, "rows": len(reader.rows), "after": reader.after}
    how = {"mode": found.mode, "exact": found.exact, "energy": found.energy}
    return head | {"reader": said | {"norm": reader.norm}, **how, "parts": parts} | closure


def _show(console: Any, entry: Entry, data: Mapping[str, Any], top: int) -> None:
    from streamlens.cli import terminal
    from streamlens.display import display_token

    terminal.show_prompt(console, entry.prompt)
    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    (_show_map if entry.is_map else _show_one)(console, entry, data, where, top)
    terminal.show_lines(console, [_SHARE])
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(data["model"])], style="dim")


def _show_one(console: Any, entry: Entry, data: Mapping[str, Any], where: str, top: int) -> None:
    from streamlens.cli import terminal
    from streamlens.cli.readers import place

    reader = entry.found.reader
    terminal.show_lines(console, [f"What {reader.name} sees of the writes at {where}, {_MODES[data['mode']]}", ""])
    known = [part for part in data["parts"] if part["lift"] == part["lift"]]
    shown = sorted(known, key=lambda part: -part["lift"])[:top]
    headings = ("share", "lift", "gain", f"change, {reader.unit}")
    made = terminal.table("component", *((name, "right") for name in headings))
    for part in shown:
        numbers = (f"{part['visible_share']:.4f}", f"{part['lift']:.2f}", f"{part['gain']:.2f}")
        made.add_row(terminal.text(part["component"]), *numbers, terminal.signed(part["change"]))
    made.add_section()
    made.add_row("a random write", f"{known[0]['chance']:.4f}" if known else "", "1.00", "1.00", "")
    console.print(made, "")
    if len(known) > top:
        terminal.show_lines(console, [f"The {top} largest by lift of {len(known)}."])
    space = f"effective, {data['energy']:.1%} of the squared singular values" if not data["exact"] else "exact"
    terminal.show_lines(console, [f"{place(reader)} Row space: {space}."])


def _show_map(console: Any, entry: Entry, data: Mapping[str, Any], where: str, top: int) -> None:
    from streamlens.cli import terminal

    found = entry.found
    writes, readers = found.sees.shape
    said = f"Who sees which write at {where}: {writes} writes, {readers} readers, {int(found.sees.sum()):,} pairs"
    terminal.show_lines(console, [said, ""])
    made = terminal.table("write", "reader", ("share", "right"), ("lift", "right"), ("gain", "right"))
    order = found.lift.nan_to_num(nan=-1.0).flatten().argsort(descending=True)[:top].tolist()
    for row, column in (divmod(index, readers) for index in order):
        values = (getattr(found, name)[row, column] for name in ("share", "lift", "gain"))
        share, lift, gain = map(float, values)
        label, name = terminal.text(data["writes"][row]), terminal.text(data["readers"][column]["name"])
        made.add_row(label, name, f"{share:.4f}", f"{lift:.2f}", f"{gain:.2f}")
    console.print(made, "")
    terminal.show_lines(console, [f"The {len(order)} largest by lift; a random write has 1. --format json has all."])


def write_page(path: Path, entry: Entry) -> None:
    """Writes the page. Raises InputError where there is no such folder."""
    from streamlens.cli import page, terminal

    data = _payload(entry)
    frame = entry.found.to_frame()
    asked = {"prompt": entry.prompt, "token": f"position {entry.position}"}
    closure = [_SHARE, terminal.closing_line(data["closure"])]
    if entry.is_map:
        what, table = "Who sees which write", frame.nlargest(_TABLE, "lift")
        closure.insert(0, f"The table has the {len(table)} largest by lift; `--format csv` has all.")
        columns = ["component", "reader", "visible_share", "chance", "lift", "gain"]
    else:
        what, table = f"What {data['reader']['name']} sees", frame
        asked |= {"reads": data["reader"]["name"], "mode": data["mode"]}
        columns = list(frame.columns[frame.columns.get_loc("component") :].drop("order"))
    page.put(
        path,
        _sections(entry, frame),
        title=page.title_of(what, data["token"], entry.prompt),
        made=data["model"],
        asked=asked,
        table=table[columns],
        closure=closure,
    )


def _sections(entry: Entry, frame: Any) -> Iterator[Any]:
    from streamlens import plots
    from streamlens.report import Section

    if entry.is_map:
        yield Section(heading="Lift", figure=plots.visibility_map(frame), caption=_MAP)
        yield Section(heading="Gain", figure=plots.visibility_map(frame, value="gain"), caption=_GAINS)
        return
    yield Section(heading="Visible share of every write", figure=plots.visibility(frame), caption=_BARS)
    yield Section(heading="Gain", figure=plots.visibility(frame, value="gain"), caption=_GAINS)
