"""What the books of one zoo model show: the facts behind its line in docs/zoo.md.

1. `measure` loads an entry's model, takes one prompt apart at every level, and writes down the figures, or the
   sentence with which streamlens refused.
2. `parse` reads the lines of docs/zoo.md back.
3. `verdicts` is what must be the same on every machine: names, counts, what closes, and the refusals.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import streamlens
import zoo
from closeness import relative
from streamlens import Reader, decompose, read
from streamlens.errors import StreamlensError

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"

#: the levels below whole writes, and the figure under which each closes
LEVELS = ("head", "source", "neuron")
CLOSES, REBUILDS = 1e-5, 1e-4


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stream of one zoo model.

    Attributes:
        name: The entry's name.
        stream: "only", "decoder" or "encoder".
        wiring: The entry's own words for how its branches write.
        refused: Why the stream was not explained, in one sentence; "" if it was.
        writes: How many rows the ledger has.
        exact: Whether re-adding them in the model's order gives the stream bit for bit.
        figures: "sum", "middle", "logits" and the levels: a relative error, or one sentence why there is none.
    """

    name: str
    stream: str
    wiring: str
    refused: str = ""
    writes: int = 0
    exact: bool = False
    figures: dict[str, float | str]

    @property
    def label(self) -> str:
        """`llama`, or `t5, decoder` where there are two streams."""
        return self.name if self.stream == "only" else f"{self.name}, {self.stream}"

    @property
    def verdicts(self) -> tuple:
        """All that does not depend on the machine's roundings."""
        figures = {
            what: figure if isinstance(figure, str) else figure < (REBUILDS if what == "logits" else CLOSES)
            for what, figure in self.figures.items()
        }
        return self.label, self.wiring, self.refused, self.writes, self.exact, tuple(figures.items())


def streams(entry: zoo.Entry) -> tuple[str, ...]:
    """The streams to be explained."""
    return ("decoder", "encoder") if entry.kind == "encoder-decoder" else ("only",)


def measure(entry: zoo.Entry, stream: str) -> Row:
    """The books of one entry, on one batch of random tokens."""
    common = {"name": entry.name, "stream": stream, "wiring": entry.wiring}
    model = zoo.build(entry)
    given = zoo.inputs(entry, seed=5)
    with torch.no_grad():
        output = model(**given, **no_cache(entry))
    ids = given.pop("input_ids")
    try:
        handle = streamlens.load(model)
        wiring = handle.wiring_of(stream)
    except StreamlensError as error:
        return Row(**common, refused=error.message, figures={})
    ledger = decompose(handle, ids, stream=stream, **given)
    figures: dict[str, float | str] = {
        "sum": float(ledger.closure.max()),
        "middle": max(float(ledger.at(label).closure.max()) for label in ledger.labels),
    }
    if wiring.head is not None:
        tokens = [5, 17, 40, 71]
        readout = read(ledger, Reader.logits(handle, tokens))
        figures["logits"] = relative(readout.total, output.logits[..., tokens])
    else:
        figures["logits"] = wiring.no_head
    for level in LEVELS:
        try:
            parts = decompose(handle, ids, stream=stream, level=level, **given)
            figures[level] = max(parts.split_error.values())
        except StreamlensError as error:
            figures[level] = error.message
    return Row(**common, writes=len(ledger.sites), exact=wiring.exact, figures=figures)


def no_cache(entry: zoo.Entry) -> dict[str, bool]:
    """FSMT leaves out its causal mask where it may keep a cache; streamlens never keeps one."""
    return {"use_cache": False} if entry.kind == "encoder-decoder" else {}


def table(rows: Sequence[Row], beside: dict[str, str]) -> list[str]:
    """The lines of the table of what closes; sentences become numbered notes under it."""
    notes: dict[str, int] = {}

    def cell(figure: float | str) -> str:
        return f"note {notes.setdefault(figure, len(notes) + 1)}" if isinstance(figure, str) else f"{figure:.0e}"

    head = ["architecture", "wiring", "writes", "sum", "in order", "mid-stream", "logits", "heads", "sources"]
    lines = [f"| {' | '.join([*head, 'neurons', 'transformer-lens'])} |", f"|{' --- |' * (len(head) + 2)}"]
    for row in rows:
        cells = [row.label, row.wiring, str(row.writes), cell(row.figures["sum"])]
        cells += ["bit for bit" if row.exact else "rounded"]
        cells += [cell(row.figures[what]) for what in ("middle", "logits", *LEVELS)]
        lines.append(f"| {' | '.join([*cells, beside.get(row.label, '')])} |")
    return [*lines, "", *(f"{number}. {text}" for text, number in notes.items())]


def refusals(rows: Sequence[Row], beside: dict[str, str]) -> list[str]:
    """The lines of the table of what is refused."""
    lines = ["| architecture | wiring | why | transformer-lens |", "| --- | --- | --- | --- |"]
    return lines + [f"| {r.label} | {r.wiring} | {r.refused} | {beside.get(r.label, '')} |" for r in rows]


def parse(text: str) -> dict[str, tuple]:
    """The verdicts on a page made of these tables, by label."""
    notes = dict(re.findall(r"^(\d+)\. (.*)$", text, flags=re.M))

    def value(cell: str) -> float | str:
        return notes[cell.removeprefix("note ")] if cell.startswith("note ") else float(cell)

    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        label, _, stream = cells[0].removeprefix("| ").partition(", ")
        common = {"name": label, "stream": stream or "only"}
        if len(cells) == 11 and cells[2].isdigit():
            names = ("sum", "middle", "logits", *LEVELS)
            figures = dict(zip(names, map(value, [cells[3], *cells[5:10]]), strict=True))
            row = Row(**common, wiring=cells[1], writes=int(cells[2]), exact=cells[4] == "bit for bit", figures=figures)
            rows[row.label] = row.verdicts
        elif len(cells) == 4 and label not in ("architecture", "---"):
            row = Row(**common, wiring=cells[1], refused=cells[2], figures={})
            rows[row.label] = row.verdicts
    return rows
