"""Properties of edits: they compose, their order does not matter, their text reads back, and nothing stays behind."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamlens
import zoo
from closeness import assert_close
from model_state import state_of
from streamlens import Edit, Reader, ablate, replay, sweep
from streamlens.errors import ClosureError
from streamlens.hooks.edits.edit import attach_actions
from streamlens.hooks.edits.resolve import resolve
from streamlens.hooks.writes.clean import start_run
from streamlens.sites import Site

IDS = torch.tensor([[11, 12, 13, 14, 15, 16]])
NAMES = ["llama", "gpt2", "gemma2", "gpt_neox", "opt:post-norm", "mixtral"]


@cache
def handle(name: str):
    return streamlens.load(zoo.build(name))


#: sites of every kind, over the three layers and four heads that all of these models have
SITES = st.one_of(
    st.builds(lambda layer, kind: f"L{layer}.{kind}", st.integers(0, 2), st.sampled_from(["attn", "mlp"])),
    st.builds(lambda layer, head: f"L{layer}H{head}", st.integers(0, 2), st.integers(0, 3)),
)
PLACES = st.one_of(st.none(), st.integers(0, 5), st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True))


#: an edit's arguments; it is made in the test, since checking its types draws random numbers of its own
ARGUMENTS = st.one_of(
    st.fixed_dictionaries({"site": SITES, "position": PLACES}),
    st.fixed_dictionaries(
        {"site": SITES, "position": PLACES, "method": st.just("scale"), "value": st.floats(-2, 2)},
    ),
)


def made_of(chosen: list[dict]) -> list[Edit]:
    return [Edit(**arguments) for arguments in chosen]


def overlap(one: dict, other: dict) -> bool:
    """Whether the two speak of one write at one token, and not of different heads."""
    a, b = Site.parse(one["site"]), Site.parse(other["site"])
    return a.sublayer == b.sublayer and bool(places(one) & places(other)) and not (a.fine and b.fine and a != b)


def places(arguments: dict) -> set[int]:
    position = arguments["position"]
    return set(range(6)) if position is None else {position} if isinstance(position, int) else set(position)


@st.composite
def independent(draw, *, least: int = 2) -> list[dict]:
    """Edits no two of which speak of the same thing."""
    kept: list[dict] = []
    for arguments in draw(st.lists(ARGUMENTS, min_size=least, max_size=6)):
        if not any(overlap(arguments, other) for other in kept):
            kept.append(arguments)
    return kept


class TestTheyCompose:
    @settings(max_examples=40)
    @given(st.sampled_from(NAMES), independent(), st.integers(0, 6))
    def test_an_edited_run_edited_again_is_the_run_of_all_edits(self, name, chosen, cut):
        model, edits = handle(name), made_of(chosen)
        union = replay(model, IDS, edits)
        first, rest = edits[:cut], edits[cut:]
        if not first or not rest:
            return
        stepwise = replay(model, replay(model, IDS, first), rest)
        assert torch.equal(stepwise.ledger.added, union.ledger.added)
        assert torch.equal(stepwise.logits, union.logits)
        assert stepwise.edits == union.edits

    @settings(max_examples=40)
    @given(st.sampled_from(NAMES), independent(), st.randoms(use_true_random=False))
    def test_the_order_does_not_matter_to_the_last_bit(self, name, chosen, random):
        model, edits = handle(name), made_of(chosen)
        shuffled = random.sample(edits, len(edits))
        assert torch.equal(replay(model, IDS, shuffled).logits, replay(model, IDS, edits).logits)

    @settings(max_examples=25)
    @given(st.sampled_from(NAMES), st.lists(independent(least=1), min_size=1, max_size=5))
    def test_a_sweep_of_random_sets_is_each_set_alone(self, name, sets):
        model, sets = handle(name), [made_of(chosen) for chosen in sets]
        made = sweep(model, IDS, over=sets, read_at=-1, readers=Reader.logits(model, [5]))
        streams = torch.cat([part.ablated.stream[:, -1] for part in made.parts])
        assert_close(streams, torch.cat([replay(model, IDS, edits).ledger.stream[:, -1] for edits in sets]))
        frame = made.effects()
        assert frame["closure"].max() < 1e-5 * max(1.0, frame["observed"].abs().max())

    @settings(max_examples=25)
    @given(st.sampled_from(NAMES), independent(least=1))
    def test_edits_at_scale_one_change_nothing(self, name, chosen):
        model = handle(name)
        same = [Edit(edit["site"], "scale", position=edit["position"], value=1.0) for edit in chosen]
        assert torch.equal(replay(model, IDS, same).logits, streamlens.decompose(model, IDS).logits)


TOKENS = st.text(st.characters(codec="ascii", categories=["Ll", "Lu"]), min_size=1, max_size=8)


class TestText:
    @given(
        SITES,
        st.one_of(st.none(), st.integers(-9, 9), TOKENS),
        st.one_of(st.none(), st.floats(-1e6, 1e6)),
    )
    def test_a_label_reads_back(self, site, position, factor):
        edit = Edit(site, "zero" if factor is None else "scale", position=position, value=factor)
        again = Edit.parse(edit.label)
        assert (str(again.site), again.method, again.position, again.value) == (site, edit.method, position, factor)
        assert again.label == edit.label

    @given(st.integers(0, 40), st.integers(0, 40), st.one_of(st.integers(0, 9), TOKENS), st.integers(0, 9))
    def test_so_does_an_edges(self, layer, head, source, target):
        edit = Edit(f"L{layer}H{head}", position=target, source=source)
        again = Edit.parse(edit.label)
        assert (str(again.site), again.source, again.position) == (edit.site, source, target)

    @pytest.mark.parametrize(
        ("text", "site", "method", "position", "source", "value"),
        [
            ("L9.attn", "L9.attn", "zero", None, None, None),
            ("L9H2@bank", "L9H2", "zero", "bank", None, None),
            ("L9H2@ bank", "L9H2", "zero", " bank", None, None),
            ("L12.mlp=0.5", "L12.mlp", "scale", None, None, 0.5),
            ("L12.mlp@-1=-1e-2", "L12.mlp", "scale", -1, None, -0.01),
            ("L12N104", "L12N104", "zero", None, None, None),
            ("embed@3", "embed", "zero", 3, None, None),
            ("L9H2<river@bank", "L9H2", "zero", "bank", "river", None),
            ("L9H2<0@9=0.5", "L9H2", "scale", 9, 0, 0.5),
            ("9_attn_out", "L9.attn", "zero", None, None, None),
        ],
    )
    def test_what_people_type(self, text, site, method, position, source, value):
        edit = Edit.parse(text)
        found = (str(edit.site), edit.method, edit.position, edit.source, edit.value)
        assert found == (site, method, position, source, value)

    def test_methods_with_references(self):
        assert Edit.parse("L9H2=mean", prompts=["a"]).method == "mean"
        assert Edit.parse("L9.attn@3=resample", prompts="a").prompts == "a"
        assert Edit.parse("L9.attn", position=3).position == 3
        assert Edit.parse("L9.attn@4", position=3).position == 4


class Broken(RuntimeError):
    """What these tests raise."""


def breaks(*_args):
    raise Broken("midway")


class TestNothingIsLeftBehind:
    @pytest.fixture
    def model(self):
        model = zoo.build("llama").train()
        model.model.layers[1].eval()
        return model

    @pytest.mark.parametrize("freeze", [None, "all", "patterns", ["L2.mlp"]])
    def test_after_all_goes_well(self, model, freeze):
        before = state_of(model)
        made = streamlens.load(model)
        some = ["L0.attn", "L1H2", "L2N3", Edit("L1H1", position=-1, source=0)]
        ablate(made, IDS, some, freeze=freeze)
        sweep(made, IDS, over="heads", freeze=freeze)
        replay(made, IDS, some)
        assert state_of(model) == before

    @pytest.mark.parametrize("site", ["embed", "L0.attn", "L1H2", "L2.mlp", "L1N3", "L1H2<0"])
    def test_after_a_change_that_raises(self, model, site, monkeypatch):
        """In every place where an edit's own function is called; in every way a variant can be run."""
        made = streamlens.load(model)
        edit = Edit.parse(site, position=3)
        made.projections("only")  # measured by a forward of its own
        for raised in (Broken, KeyboardInterrupt):

            def change(here, raised=raised):
                raise raised("midway")

            monkeypatch.setattr("streamlens.hooks.edits.resolve._change", lambda *_, change=change: lambda: change)
            before = state_of(model)
            with pytest.raises(raised, match="midway"):
                replay(made, IDS, edit)
            with pytest.raises(raised, match="midway"):
                ablate(made, IDS, edit)
            with pytest.raises(raised, match="midway"):
                ablate(made, IDS, edit, freeze=["L2.attn"])
            assert state_of(model) == before

    @pytest.mark.parametrize("place", ["embed_tokens", "layers.0", "layers.1.mlp", "layers.2.self_attn.o_proj", "norm"])
    def test_after_a_users_hook_that_raises(self, model, place):
        made = streamlens.load(model)
        clean = streamlens.clean_run(made, IDS)
        hook = model.model.get_submodule(place).register_forward_hook(breaks)
        before = state_of(model)
        for call in (
            lambda: replay(made, IDS, "L1.attn"),
            lambda: ablate(made, clean, "L1.attn@-1"),
            lambda: sweep(made, clean, over="heads", position=-1),
            lambda: ablate(made, IDS, "L1.attn", freeze="patterns"),
            lambda: ablate(made, IDS, Edit("L1H2", source=0)),
        ):
            with pytest.raises(Broken):
                call()
            assert state_of(model) == before
        hook.remove()
        assert ablate(made, clean, "L1.attn@-1", position=-1).reused

    def test_after_a_stream_that_does_not_close(self, model):
        made = streamlens.load(model)
        hook = model.model.layers[1].register_forward_hook(lambda _m, _a, output: output + 0.01)
        before = state_of(model)
        with pytest.raises(ClosureError):
            sweep(made, IDS)
        assert state_of(model) == before
        hook.remove()

    def test_the_users_own_hooks_stay_and_are_called_in_their_order(self, model):
        calls = []
        mlp = model.model.layers[1].mlp
        mlp.register_forward_pre_hook(lambda *_: calls.append("before"))
        mlp.register_forward_hook(lambda *_: calls.append("after"))
        made = streamlens.load(model)
        made.projections("only")  # measured by a forward of its own
        before = state_of(model)
        calls.clear()
        replay(made, IDS, ["L1.mlp", "L1.attn"])
        assert calls == ["before", "after"]
        ablate(made, IDS, "L1N3", freeze="all")
        assert calls == ["before", "after"] * 3
        assert state_of(model) == before

    def test_a_users_steering_hook_acts_first_and_is_in_the_books(self, model):
        made = streamlens.load(model)
        hook = model.model.layers[1].mlp.register_forward_hook(lambda _m, _a, output: 2 * output)
        steered = streamlens.decompose(made, IDS)
        half = replay(made, IDS, "L1.mlp=0.5").ledger
        hook.remove()
        row = steered.labels.index("L1.mlp")
        assert torch.equal(half.added[row] * 2, steered.added[row])
        assert torch.equal(half.stream, streamlens.decompose(made, IDS).stream)

    def test_actions_are_off_again_when_the_block_raises(self, model):
        made = streamlens.load(model)
        run = start_run(made, IDS)
        actions = resolve(made, run.wiring, run.context, [Edit("L0.attn"), Edit("L1H2", position=0, source=0)])
        before = state_of(model)

        def inside():
            with attach_actions(made, run.wiring, run.batch, actions):
                assert state_of(model) != before
                raise Broken

        with pytest.raises(Broken):
            inside()
        assert state_of(model) == before
