"""Random prompts and edits for the models of the zoo.

1. A `Case` is a prompt of one to nine tokens with one to four edits, no two of which speak of one write at one token.
2. `cases` draws one for a bench. It is drawn after the bench is loaded: checking types draws random numbers of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from edit_bench import EDGES, LONGEST, Bench, Places, Spec, bench, by_hand, place_of
from edits_by_hand import Change, Seen
from zoo.build import VOCABULARY

METHODS = ("zero", "scale", "replace", "mean", "resample", "project_out", "project_onto")
IDS = st.integers(3, VOCABULARY - 1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A prompt and what is done to it.

    Attributes:
        stream: The bench's label.
        ids: The prompt.
        decoder: What the decoder of an encoder-decoder reads.
        specs: The edits.
    """

    stream: str
    ids: tuple[int, ...]
    decoder: tuple[int, ...] = ()
    specs: tuple[Spec, ...] = ()

    @property
    def bench(self) -> Bench:
        return bench(self.stream)

    @property
    def own(self) -> tuple[int, ...]:
        """The tokens of the edited stream."""
        return self.decoder if self.bench.stream == "decoder" else self.ids

    @property
    def extra(self) -> dict[str, Any]:
        """What streamlens is given beside the prompt."""
        given = {k: v for k, v in self.bench.given(self.ids, self.decoder).items() if k != "input_ids"}
        return {"stream": self.bench.stream, **given}

    def clean(self) -> Seen:
        return self.bench.run(self.bench.given(self.ids, self.decoder))

    def edited(self, specs: Sequence[Spec] | None = None, frozen: Sequence[Change] = ()) -> Seen:
        """The run by hand with the edits made."""
        changes = [by_hand(self.bench, spec, self.ids, self.own) for spec in (self.specs if specs is None else specs)]
        return self.bench.run(self.bench.given(self.ids, self.decoder), [*frozen, *changes])


@st.composite
def positions(draw, ids: Sequence[int]) -> Places:
    """None, one, several or a range; from either end, or as a word."""
    n = len(ids)
    one = st.integers(-n, n - 1)
    kind = draw(st.sampled_from(["all", "one", "several", "range", "word"]))
    if kind == "one":
        return draw(one)
    if kind == "several":
        return tuple(draw(st.lists(one, min_size=1, max_size=n, unique_by=lambda place: place % n)))
    if kind == "range":
        first = draw(st.integers(0, n - 1))
        return range(first, draw(st.integers(first + 1, n)))
    single = [i for i in ids if list(ids).count(i) == 1]
    return f"w{draw(st.sampled_from(single))}" if kind == "word" and single else None


@st.composite
def specs(draw, bench: Bench, ids: Sequence[int], own: Sequence[int]) -> Spec:
    """One edit of a prompt."""
    site = draw(st.sampled_from(draw(st.sampled_from(bench.sites))))
    place = draw(positions(own))
    factor = draw(st.sampled_from([0.5, -1.0, 2.0, 0.0, 1.0, 1e-3]))
    if site.head is not None and bench.label in EDGES and draw(st.booleans()):
        across = ids if site.kind == "cross_attn" else own
        source = draw(st.integers(-len(across), len(across) - 1))
        method = draw(st.sampled_from(["zero", "scale"]))
        return Spec(site=site.label, method=method, position=place, value=factor, source=source)
    method = draw(st.sampled_from(METHODS[:5] if site.fine else METHODS))
    value = factor if method == "scale" else draw(st.integers(0, 9))
    given: dict[str, Any] = {"site": site.label, "method": method, "position": place, "value": value}
    if method in ("mean", "resample"):
        # a decoder's reference is its start token behind the reference in the encoder
        length = len(own) if bench.stream != "decoder" else draw(st.integers(1, LONGEST))
        if method == "resample" and bench.stream == "decoder" and len(own) > 1:
            return Spec(site=site.label, method="zero", position=place)
        prompt = st.lists(IDS, min_size=length, max_size=length).map(tuple)
        many = draw(st.integers(1, 3)) if method == "mean" else 1
        given["prompts"] = tuple(draw(prompt) for _ in range(many))
        given["per_position"] = (
            method == "mean" and (bench.stream != "decoder" or len(own) == 1) and draw(st.booleans())
        )
        if isinstance(place, str) and method == "resample":
            given["position"] = place_of(own, place)  # as a word it would be looked for in the other prompt
    return Spec(**given)


def clash(one: Spec, other: Spec, own: Sequence[int], across: Sequence[int]) -> bool:
    """Whether two edits speak of the same numbers at one token, so that streamlens refuses them."""
    a, b = one.parsed, other.parsed
    if a.sublayer != b.sublayer or not set(one.places(own)) & set(other.places(own)):
        return False
    if a.fine and b.fine and a != b:
        return False
    texts = across if a.kind == "cross_attn" else own
    sources = [None if spec.source is None else place_of(texts, spec.source) for spec in (one, other)]
    return a != b or None in sources or sources[0] == sources[1]


@st.composite
def cases(draw, bench: Bench) -> Case:
    """A prompt of one to nine tokens, and one to four edits that do not clash."""
    ids = tuple(draw(st.lists(IDS, min_size=1, max_size=LONGEST)))
    pair = bench.entry.kind == "encoder-decoder"
    decoder = tuple(draw(st.lists(IDS, min_size=1, max_size=LONGEST - 3))) if pair else ()
    own = decoder if bench.stream == "decoder" else ids
    kept: list[Spec] = []
    for spec in draw(st.lists(specs(bench, ids, own), min_size=1, max_size=4)):
        if not any(clash(spec, other, own, ids) for other in kept):
            kept.append(spec)
    return Case(stream=bench.label, ids=ids, decoder=decoder, specs=tuple(kept))


@st.composite
def beside(draw, case: Case) -> Case:
    """Another prompt, at least as long, with those of the edits that fit both."""
    ids = tuple(draw(st.lists(IDS, min_size=len(case.ids), max_size=LONGEST)))
    decoder = tuple(draw(IDS) for _ in case.decoder)
    other = Case(stream=case.stream, ids=ids, decoder=decoder)
    kept: list[Spec] = []
    for spec in case.specs:
        aligned = len(other.own) == len(case.own) or not (spec.method == "resample" or spec.per_position)
        if isinstance(spec.position, str) or not aligned:
            continue
        places = spec.places(other.own)
        if len(set(places)) == len(places) and not any(clash(spec, before, other.own, other.ids) for before in kept):
            kept.append(spec)
    first = Spec(site=case.bench.sites[0][0].label, method="zero")
    return Case(stream=case.stream, ids=ids, decoder=decoder, specs=tuple(kept) or (first,))


@st.composite
def itself(draw, case: Case, spec: Spec, clean: Seen) -> Spec:
    """Another edit of the same numbers, which sets them to their clean value."""
    places = spec.places(case.own)
    methods = ["scale"]
    if spec.source is None:
        methods += ["replace"] if len(places) == 1 else []
        methods += ["resample"] if case.bench.stream != "decoder" else []
    method = draw(st.sampled_from(methods))
    return Spec(
        site=spec.site,
        method=method,
        position=spec.position,
        value=1.0,
        values=tuple(spec.value_in(case.bench, clean, places[0]).tolist()) if method == "replace" else (),
        prompts=(case.ids,) if method == "resample" else (),
        source=spec.source,
    )


def freezes(case: Case, labels: Sequence[str]) -> st.SearchStrategy[list[str] | None]:
    """What keeps its clean value. Not beside an edge: by hand the frozen values come from another attention."""
    if any(spec.source is not None for spec in case.specs):
        return st.none()
    return st.one_of(st.none(), st.just(["all"]), st.lists(st.sampled_from(labels), min_size=1, max_size=2))
