"""One edit of a zoo model said twice: to streamlens, and by hand.

1. A `Bench` is one stream of one model, loaded once, with what of it can be edited; a second build of the same weights
   stands beside it for the runs by hand.
2. A `Spec` is one edit as plain data. `Spec.edit` says it to streamlens; `by_hand` works out what it does to which
   module's numbers, from runs of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import edits_by_hand
import streamlens
import zoo
import zoo_books
from edits_by_hand import Change, EdgeChange, Seen
from model_state import state_of
from streamlens import Edit, Reader
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Projection, Tap
from streamlens.sites import Site
from zoo.build import VOCABULARY

#: every stream that docs/zoo.md says is explained, and those whose heads have source tokens to be cut from
LINES = {label: line for label, line in zoo_books.parse(zoo_books.PAGE.read_text()).items() if not line[2]}
STREAMS = tuple(LINES)
EDGES = frozenset(label for label, line in LINES.items() if dict(line[5]).get("source") is True)
#: tokens of a prompt; sliding windows and chunks of the zoo are 4 and 8 wide
LONGEST = 9
#: a token this many times as long as its prompt's median is a sink, and no part of a mean
SINK = 4.0
Places = None | int | str | tuple[int, ...] | range


def words() -> PreTrainedTokenizerFast:
    """Token 17 is the word `w17`."""
    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="w0", pad_token="w0")


@dataclass(frozen=True, eq=False)
class Bench:
    """One stream of one model.

    Attributes:
        label: `llama`, or `t5, decoder`.
    """

    label: str

    @cached_property
    def state(self) -> dict[str, Any]:
        """Everything of the model that no call may change, as it was when it had been loaded and measured."""
        assert self.sites
        assert self.rows
        return state_of(self.handle.model)

    @property
    def stream(self) -> str:
        return self.label.partition(", ")[2] or "only"

    @cached_property
    def entry(self) -> zoo.Entry:
        return zoo.BY_NAME[self.label.partition(", ")[0]]

    @cached_property
    def handle(self) -> ModelHandle:
        return streamlens.load(zoo.build(self.entry), tokenizer=words())

    @cached_property
    def beside(self) -> dict[bool, torch.nn.Module]:
        """The same weights in a model that we have never seen, by whether it attends eagerly."""
        made = {False: zoo.build(self.entry)}
        if self.label in EDGES:
            made[True] = zoo.build(self.entry)
            made[True].set_attn_implementation("eager")
        return made

    @cached_property
    def wiring(self):
        return self.handle.wiring_of(self.stream)

    @cached_property
    def projections(self) -> dict[int, Projection]:
        made = self.handle.projections(self.stream)
        return {row: maker for row, maker in made.items() if isinstance(maker, Projection)}

    @cached_property
    def sites(self) -> tuple[tuple[Site, ...], ...]:
        """What can be edited, by level: whole writes, heads, neurons."""
        wholes = tuple(write.site for write in self.wiring.writes if write.tap is not None)
        heads, neurons = [], []
        for row, maker in self.projections.items():
            site = self.wiring.sites[row]
            heads += [site.part_of("head", head) for head in range(maker.heads)]
            neurons += [] if maker.heads else [site.part_of("neuron", n) for n in range(0, maker.width, 5)]
        return tuple(level for level in (wholes, tuple(heads), tuple(neurons)) if level)

    @cached_property
    def rows(self) -> dict[Site, int]:
        """The row of each write."""
        return {site: row for row, site in enumerate(self.wiring.sites)}

    @cached_property
    def start(self) -> int | None:
        """What a decoder behind an encoder starts with; None for other models."""
        config = self.handle.model.config
        names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
        found = [token for name in names if (token := getattr(config, name, None)) is not None]
        return found[0] if self.entry.kind == "encoder-decoder" else None

    def given(self, ids: Sequence[int], decoder: Sequence[int] = ()) -> dict[str, Tensor]:
        """What the model's forward takes of one prompt; a decoder gets its start token by default."""
        given = {"input_ids": torch.tensor([ids])}
        return given if self.start is None else given | {"decoder_input_ids": torch.tensor([decoder or (self.start,)])}

    def unit(self, row: int) -> float:
        """What a module's output is multiplied by on its way into the stream."""
        return self.wiring.writes[row].scale * self.wiring.factor_of(row)

    def run(self, given: dict[str, Tensor], changes: Sequence = ()) -> Seen:
        """One prompt by hand."""
        edges = [change for change in changes if isinstance(change, EdgeChange)]
        others = [change for change in changes if isinstance(change, Change)]
        return edits_by_hand.run(self.beside[bool(edges)], self.wiring, self.projections, given, others, edges)

    @cached_property
    def causal(self) -> bool:
        """Whether no token sees a later one: measured by exchanging the last."""
        ids = list(range(10, 10 + LONGEST))
        one, other = (
            self.run(self.given([*ids[:-1], last], [*ids[:-1], last]) if self.stream == "decoder" else self.given(some))
            for last, some in ((30, [*ids[:-1], 30]), (40, [*ids[:-1], 40]))
        )
        return bool((one.stream[:-1] - other.stream[:-1]).norm() < 1e-6 * one.stream[:-1].norm())


bench = cache(Bench)


@dataclass(frozen=True, kw_only=True, repr=False)
class Spec:
    """One edit. `value` is the factor of "scale", else the seed of what "replace" (without `values`) and the
    projections are given."""

    site: str
    method: str
    position: Places = None
    value: float = 0.0
    values: tuple[float, ...] = ()
    prompts: tuple[tuple[int, ...], ...] = ()
    per_position: bool = False
    source: int | str | None = None

    def __repr__(self) -> str:
        said = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return f"Spec({', '.join(f'{name}={value!r}' for name, value in said.items())})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def parsed(self) -> Site:
        return Site.parse(self.site)

    def vector(self, width: int) -> Tensor:
        if self.values:
            return torch.tensor(self.values)
        return torch.randn(width, generator=torch.Generator().manual_seed(int(self.value)))

    def edit(self, bench: Bench) -> Edit:
        """For streamlens."""
        texts = tuple(" ".join(f"w{i}" for i in ids) for ids in self.prompts)
        return Edit(
            self.site,
            self.method,
            position=self.position,
            value=self.value if self.method == "scale" else self._replacement(bench),
            prompts={"mean": texts, "resample": texts[0] if texts else None}.get(self.method),
            per_position=self.per_position,
            reader=Reader.direction(self.vector(bench.wiring.d_model)) if "project" in self.method else None,
            source=self.source,
        )

    def _replacement(self, bench: Bench) -> Tensor | None:
        return self.vector(self.width(bench)) if self.method == "replace" else None

    def columns(self, bench: Bench) -> slice:
        """A head's or neuron's columns of its projection's input."""
        site, width = self.parsed, self.width(bench)
        first = (site.head if site.head is not None else site.neuron or 0) * width
        return slice(first, first + width)

    def value_in(self, bench: Bench, seen: Seen, place: int) -> Tensor:
        """What "replace" would have to be given to put a run's own value there."""
        row = self.row(bench)
        if self.parsed.fine:
            return seen.inputs[row][place, self.columns(bench)]
        return seen.outputs[row][place] * bench.unit(row)

    def width(self, bench: Bench) -> int:
        site = self.parsed
        if site.head is not None:
            maker = bench.projections[self.row(bench)]
            return maker.width // maker.heads
        return 1 if site.neuron is not None else bench.wiring.d_model

    def row(self, bench: Bench) -> int:
        return bench.rows[self.parsed.sublayer]

    def places(self, ids: Sequence[int]) -> list[int]:
        """The positions within one prompt of the edited stream."""
        if self.position is None:
            return list(range(len(ids)))
        wanted = [self.position] if isinstance(self.position, int | str) else list(self.position)
        return [place_of(ids, position) for position in wanted]


def place_of(ids: Sequence[int], position: int | str) -> int:
    """The token that an index (negative from the end) or a word names."""
    if isinstance(position, str):
        return list(ids).index(int(position.removeprefix("w")))
    return position + len(ids) if position < 0 else position


def by_hand(bench: Bench, spec: Spec, ids: Sequence[int], own: Sequence[int]) -> Change | EdgeChange:
    """What an edit does to which numbers, in a run of these tokens; `own` are those of the edited stream."""
    site, row, places = spec.parsed, spec.row(bench), spec.places(own)
    if spec.source is not None:
        across = ids if site.kind == "cross_attn" else own
        return EdgeChange(
            projection=bench.projections[row].tap,
            head=site.head,
            positions=places,
            source=place_of(across, spec.source),
            factor=spec.value if spec.method == "scale" else 0.0,
        )
    write = bench.wiring.writes[row]
    if site.fine:
        tap = Tap(module=bench.projections[row].tap.module, call=bench.projections[row].tap.call, side="input")
        columns, unit = spec.columns(bench), 1.0
    else:
        tap, columns, unit = write.tap, slice(None), bench.unit(row)
    return Change(tap=tap, positions=places, columns=columns, make=_made(bench, spec, row, columns, places, unit))


def _made(
    bench: Bench, spec: Spec, row: int, columns: slice, places: list[int], unit: float
) -> Callable[[Tensor], Tensor]:
    if spec.method in ("zero", "scale"):
        return lambda here: here * (spec.value if spec.method == "scale" else 0.0)
    if spec.method == "replace":
        return lambda here: (spec.vector(here.shape[-1]) / unit).expand_as(here)
    if "project" in spec.method:
        along = spec.vector(bench.wiring.d_model).double()
        along = along / along.norm()
        part = lambda here: (here.double() @ along)[:, None] * along  # noqa: E731
        return part if spec.method == "project_onto" else lambda here: here.double() - part(here)
    runs = [bench.run(bench.given(ids)) for ids in spec.prompts]
    values = [(run.inputs if spec.parsed.fine else run.outputs)[row][:, columns].double() for run in runs]
    if spec.method == "resample":
        return lambda here: values[0][places]
    if spec.per_position:
        return lambda here: torch.stack([torch.stack([v[p] for v in values if p < len(v)]).mean(0) for p in places])
    norms = [run.stream.norm(dim=-1) for run in runs]
    kept = torch.cat([v[norm <= SINK * norm.median()] for v, norm in zip(values, norms, strict=True)])
    return lambda here: kept.mean(0).expand_as(here)
