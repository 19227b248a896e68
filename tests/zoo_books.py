"""What the books of one zoo model show: the facts behind its line in docs/zoo.md.

1. `Books` loads an entry's model and takes one prompt apart at every level; `measure` writes the figures down, or
   the sentence with which streamlens refused.
2. `parse` reads the lines of docs/zoo.md back.
3. `verdicts` is what must be the same on every machine: names, counts, what closes, and the refusals.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import streamlens
import zoo
from closeness import relative
from model_state import state_of
from streamlens import Ledger, Reader, Readout, decompose, read
from streamlens.errors import StreamlensError

PAGE = Path(__file__).parents[1] / "docs" / "zoo.md"

#: the levels below whole writes, and the figure under which each closes
LEVELS = ("head", "source", "neuron")
CLOSES, REBUILDS = 1e-5, 1e-4
#: the tokens whose logits are rebuilt
TOKENS = [5, 17, 40, 71]


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


class Books:
    """One stream of one zoo model: its handle, its own logits, and its ledgers at every level.

    Raises:
        WiringError: The stream is refused.
    """

    def __init__(self, entry: zoo.Entry, stream: str) -> None:
        self.entry, self.stream = entry, stream
        self.model = zoo.build(entry)
        self.given: dict[str, Any] = zoo.inputs(entry, seed=5)
        with torch.no_grad():
            output = self.model(**self.given, **no_cache(entry))
        self.logits = getattr(output, "logits", None)
        self.before = state_of(self.model)  # after one forward: rwkv divides its own weights in its first
        self.ids = self.given.pop("input_ids")
        self.handle = streamlens.load(self.model)
        self.wiring = self.handle.wiring_of(stream)
        self._levels: dict[str, Ledger | StreamlensError] = {}

    @cached_property
    def ledger(self) -> Ledger:
        """The whole writes."""
        return self.decompose()

    def at_level(self, level: str) -> Ledger | StreamlensError:
        """The ledger with its writes split, or the refusal; each level is asked for once."""
        if level not in self._levels:
            try:
                self._levels[level] = self.decompose(level=level)
            except StreamlensError as error:
                self._levels[level] = error
        return self._levels[level]

    def decompose(self, ids: Tensor | None = None, **options: Any) -> Ledger:
        """A ledger of this stream: of the books' own tokens, if none are given."""
        given = {**self.given, "stream": self.stream, **options}
        return decompose(self.handle, self.ids if ids is None else ids, **given)

    @property
    def row(self) -> Row:
        """The line of docs/zoo.md."""
        ledger = self.ledger
        figures: dict[str, float | str] = {
            "sum": float(ledger.closure.max()),
            "middle": max(float(ledger.at(label).closure.max()) for label in ledger.labels),
            "logits": self.wiring.no_head,
        }
        if self.wiring.head is not None:
            figures["logits"] = relative(self.readout.total, self.logits[..., TOKENS])
        for level in LEVELS:
            split = self.at_level(level)
            figures[level] = split.message if isinstance(split, Exception) else max(split.split_error.values())
        return Row(
            name=self.entry.name,
            stream=self.stream,
            wiring=self.entry.wiring,
            writes=len(ledger.sites),
            exact=self.wiring.exact,
            figures=figures,
        )

    @cached_property
    def readout(self) -> Readout:
        """Four logits in parts."""
        return read(self.ledger, Reader.logits(self.handle, TOKENS))


def measure(entry: zoo.Entry, stream: str) -> Row:
    """The books of one entry, or its refusal."""
    try:
        return Books(entry, stream).row
    except StreamlensError as error:
        return Row(name=entry.name, stream=stream, wiring=entry.wiring, refused=error.message, figures={})


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


def is_one_sentence(text: str) -> bool:
    """A capital, a full stop, and no other full stop before a space and a capital."""
    return bool(re.fullmatch(r"(\S.*[^.])\.", text)) and not re.search(r"[.!?] [A-Z]", text)
