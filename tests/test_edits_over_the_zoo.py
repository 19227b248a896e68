"""Random edits of random models of the zoo, each held against the same edits made by hand.

Every architecture that docs/zoo.md says is explained takes part: decoders, encoders, both streams of pairs, mixtures of
experts, mixers. An example is a prompt of one to nine tokens and one to four edits of whole writes, heads, neurons or
attention edges, by every method, at positions of every form. What it is held against are plain hooks on a second build
of the model (`edits_by_hand.py`), one prompt at a time.

In continuous integration each test sees two random examples, the same on every run, of each kind of wiring.
`EDIT_EXAMPLES=6 python -m pytest tests/test_edits_over_the_zoo.py --hypothesis-seed=1` runs six on every architecture,
drawn by that seed: 6,552 on 234 streams of 214 models, in 2 minutes with two processes (`-k "replay or two_prompts"`,
`-k "parts or sweep"`) and without the checks of types that a test run switches on (`--noconftest`).
"""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import edit_cases
from closeness import assert_close, relative
from edit_bench import LINES, STREAMS, Spec, bench
from edit_cases import Case, cases
from edits_by_hand import Change, Seen
from model_state import state_of
from streamlens import Edit, Ledger, Reader, ablate, replay, sweep
from streamlens.errors import InputError
from streamlens.readouts.effects import Effects, effects

#: random examples of each test on each stream; with more than the few of continuous integration all streams take part
EXAMPLES = int(os.environ.get("EDIT_EXAMPLES", "2"))
#: what loading a model between two draws looks like
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
#: of a write, relative to its own size or a tenth of the stream's; and of effects, relative to the largest (at least 1)
CLOSES = 1e-5
#: the same for several rows in one batch, whose roundings are others than alone: xlstm makes 3.5e-5 of them in float32
#: and 3e-16 in float64. It is what the control row of a batch is allowed, too
IN_BATCH = 1e-4


def of_every_kind() -> list[str]:
    """One stream for each wording of a wiring on docs/zoo.md: pairs have two."""
    kinds = {(line[1], label.partition(", ")[2]): label for label, line in reversed(LINES.items())}
    return sorted(kinds.values(), key=STREAMS.index)


def over_the_zoo(test):
    """Runs a test on random cases of each stream, and looks for what it left on the model."""

    def run(stream, data):
        before = bench(stream).state
        test(data.draw(cases(bench(stream)), label="case"), data)
        assert state_of(bench(stream).handle.model) == before

    run.__name__ = test.__name__
    few = EXAMPLES <= 2
    # the first example is always the smallest one
    chosen = settings(max_examples=EXAMPLES + 1, derandomize=few, deadline=None, suppress_health_check=SLOW)
    streams = of_every_kind() if few else STREAMS
    return pytest.mark.parametrize("stream", streams)(chosen(given(data=st.data())(run)))


def edits_of(case: Case) -> list[Edit]:
    return [spec.edit(case.bench) for spec in case.specs]


def ids_of(*cases: Case) -> Tensor:
    return torch.tensor([case.ids for case in cases])


def agree(case: Case, ledger: Ledger, hand: Seen, *, prompt: int = 0, within: float = CLOSES) -> None:
    """The ledger's prompt is the run by hand: every write, the stream and the logits, at the kept tokens."""
    own = ledger.mask[prompt]
    kept = ledger.indices[prompt][own]
    stream = hand.stream[kept]
    assert float(ledger.closure[prompt].max()) <= 1e-5
    assert not case.bench.wiring.exact or ledger.in_order == 0.0
    for row, output in hand.outputs.items():
        wanted = output[kept].double() * case.bench.wiring.writes[row].scale
        distance = (ledger.added[row, prompt, own].double() - wanted).norm()
        size = max(wanted.norm(), stream.norm() / 10)
        assert distance <= within * size, f"{ledger.labels[row]} is off by {distance / size:.1e}"
    assert relative(ledger.stream[prompt, own], stream) <= within
    assert ledger.logits is None or relative(ledger.logits[prompt, own], hand.logits[kept]) <= within


def frozen_by_hand(case: Case, clean: Seen, freeze: Sequence[str]) -> list[Change]:
    """Every frozen write keeps its clean output where it is not edited."""
    changes, wiring = [], case.bench.wiring
    for row in clean.outputs:
        if "all" in freeze or wiring.sites[row].label in freeze:
            edited = {place for spec in case.specs if spec.row(case.bench) == row for place in spec.places(case.own)}
            kept = sorted(set(range(len(case.own))) - edited)
            clean_value = clean.outputs[row][kept]
            changes.append(Change(tap=wiring.writes[row].tap, positions=kept, make=lambda _, value=clean_value: value))
    return changes


@over_the_zoo
def test_a_replay_is_the_run_by_hand(case, data):
    """With the edits in any order, bit for bit; set to their own clean values writes move by roundings at most."""
    edited = case.edited()
    made = replay(case.bench.handle, ids_of(case), edits_of(case), **case.extra).ledger
    agree(case, made, edited)

    shuffled = data.draw(st.permutations(case.specs), label="order")
    other = replay(case.bench.handle, ids_of(case), [spec.edit(case.bench) for spec in shuffled], **case.extra).ledger
    assert_close(other.added, made.added)
    if all(spec.source is None for spec in case.specs):  # edges of one head are added up in their order
        assert torch.equal(other.added, made.added)
        assert torch.equal(other.stream, made.stream)

    clean = case.clean()
    specs = tuple(data.draw(edit_cases.itself(case, spec, clean)) for spec in case.specs)
    same = replay(case.bench.handle, ids_of(case), edits_of(replace(case, specs=specs)), **case.extra).ledger
    agree(case, same, clean)


@over_the_zoo
def test_two_prompts_are_each_as_alone(case, data):
    other = data.draw(edit_cases.beside(case), label="other prompt")
    case = replace(case, specs=other.specs)
    ids, mask = padded([case.ids, other.ids], data.draw(st.sampled_from(["left", "right"]), label="padding"))
    extra = case.extra
    if case.decoder:
        extra["decoder_input_ids"] = torch.tensor([case.decoder, other.decoder])
    try:
        made = replay(case.bench.handle, ids, edits_of(case), attention_mask=mask, **extra)
    except InputError as error:
        if mask.all() or "sees the padding of a batch" not in error.message:
            raise
        return
    for prompt, one in enumerate((case, other)):
        agree(one, made.ledger, one.edited(), prompt=prompt, within=IN_BATCH)


@over_the_zoo
def test_the_parts_of_an_ablation_sum_to_what_is_seen_by_hand(case, data):
    """At every later write and readout, whatever is frozen. Earlier tokens stay where no token sees a later one."""
    wiring = case.bench.wiring
    position = data.draw(edit_cases.positions(case.own), label="position")
    labels = [site.label for site in case.bench.sites[0]]
    freeze = data.draw(edit_cases.freezes(case, labels), label="freeze")
    vector = torch.randn(wiring.d_model, generator=torch.Generator().manual_seed(1))
    along = Reader.direction(vector, name="along")
    readers = [along] if wiring.head is None else [along, Reader.logits(case.bench.handle, [5, 17])]
    made = ablate(
        case.bench.handle,
        ids_of(case),
        edits_of(case),
        readers=readers,
        position=position,
        freeze=freeze,
        **case.extra,
    )
    clean = case.clean()
    edited = case.edited(frozen=frozen_by_hand(case, clean, freeze or ()))
    agree(case, made.clean, clean, within=IN_BATCH)
    agree(case, made.ablated, edited, within=IN_BATCH)

    kept = made.ablated.indices[0].tolist()
    by_hand = [(run.stream.double() @ along.matrix.T,) for run in (clean, edited)]
    if wiring.head is not None:
        by_hand = [
            (*values, run.logits[:, [5, 17]].double()) for values, run in zip(by_hand, (clean, edited), strict=True)
        ]
    for reader, before, after in zip(readers, *by_hand, strict=True):
        effect = made.effect_of(reader)
        limit = closes(effect)
        assert freeze != ["all"] or float(effect.indirect.abs().max()) <= limit
        size = 1 + float(torch.cat([before, after]).abs().max()) + float(reader.matrix.norm() * edited.stream.norm())
        assert float((effect.total[0] - (after - before)[kept]).abs().max()) <= IN_BATCH * size
    for label in labels:
        before, after = made.clean.at(label), made.ablated.at(label)
        closes(effects(before, after, made.changed[: len(before.sites)], along))
    for row in range(len(wiring.sites)):
        places = {p for spec in case.specs if spec.row(case.bench) == row for p in spec.places(case.own)}
        assert made.changed[row, 0].tolist() == [place in places for place in kept]
    if case.bench.causal:
        first = min(place for spec in case.specs for place in spec.places(case.own))
        early = [number for number, place in enumerate(kept) if place < first]
        assert_close(made.ablated.added[:, :, early], made.clean.added[:, :, early])


@over_the_zoo
def test_the_variants_of_a_sweep_are_each_as_alone(case, data):
    at = data.draw(edit_cases.positions(case.own), label="read at")
    sets = [[spec] for spec in case.specs] + [list(case.specs)]
    over = [[spec.edit(case.bench) for spec in specs] for specs in sets]
    (part,) = sweep(case.bench.handle, ids_of(case), over=over, read_at=at, **case.extra).parts
    for number, specs in enumerate(sets):
        agree(case, part.ablated, case.edited(specs), prompt=number, within=IN_BATCH)


class TestAWrongRunIsSeen:
    """The same check, given a run in which something has gone wrong, finds it within a few examples."""

    @staticmethod
    def seen(wrong) -> None:
        @settings(
            max_examples=60,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=SLOW,
        )
        @given(st.sampled_from(of_every_kind()[:5]), st.data())
        def check(stream, data):
            bench(stream).state  # noqa: B018  (loaded before anything is drawn)
            case = data.draw(cases(bench(stream)))
            made = replay(case.bench.handle, ids_of(case), edits_of(wrong(case)), **case.extra)
            agree(case, made.ledger, case.edited())

        with pytest.raises(AssertionError, match="is off by"):
            check()

    def test_an_edit_is_dropped(self):
        self.seen(lambda case: replace(case, specs=case.specs[1:] or (NOTHING,)))

    def test_a_position_is_off_by_one(self):
        self.seen(lambda case: replace(case, specs=tuple(shifted(case, spec) for spec in case.specs)))

    def test_another_head_or_neuron_is_edited(self):
        self.seen(lambda case: replace(case, specs=tuple(map(first_instead, case.specs))))

    def test_a_factor_is_a_thousandth_off(self):
        self.seen(
            lambda case: replace(
                case, specs=tuple(replace(s, value=1.001 * s.value) if s.method == "scale" else s for s in case.specs)
            )
        )


#: an edit that changes nothing
NOTHING = Spec(site="L0.attn", method="scale", value=1.0)


def shifted(case: Case, spec: Spec) -> Spec:
    """The edit one token further on."""
    return replace(spec, position=tuple((place + 1) % len(case.own) for place in spec.places(case.own)))


def first_instead(spec: Spec) -> Spec:
    """The edit of head 0 or neuron 0 in place of a later one."""
    site = spec.parsed
    later = (site.head or site.neuron or 0) > 0
    axis = "head" if site.head is not None else "neuron"
    return replace(spec, site=site.sublayer.part_of(axis, 0).label) if later else spec


def closes(effect: Effects) -> float:
    """Holds if the parts sum to what is seen; returns the largest difference allowed."""
    limit = CLOSES * max(1.0, float(effect.observed.abs().max()))
    assert float(effect.closure.max()) <= limit
    return limit


def padded(prompts: Sequence[Sequence[int]], side: str) -> tuple[Tensor, Tensor]:
    """Ids and mask of prompts of several lengths."""
    width = max(map(len, prompts))
    ids, mask = torch.zeros(len(prompts), width, dtype=torch.long), torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        here = slice(0, len(prompt)) if side == "right" else slice(width - len(prompt), width)
        ids[row, here], mask[row, here] = torch.tensor(prompt), 1
    return ids, mask
