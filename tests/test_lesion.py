"""Lesions on text, each against the same made by hand: a plain loss, a list of blocks really shortened or reordered."""

import copy
import math

import pytest
import torch
from scipy import stats
from torch import nn

import streamlens
import zoo
from model_state import state_of
from streamlens import replay
from streamlens.errors import InputError, ModelError, WiringError
from streamlens.experiments.lesion import kendall_tau, lesion
from streamlens.frames import SCHEMAS
from streamlens.hooks.runs.lesions import Lesion, corpus_of, losses, permuted

TEXTS = [
    "The old lighthouse keeper climbed the stairs every evening to light the lamp.",
    "Water boils at one hundred degrees.",
    "He looked around the room and saw nobody.",
]
#: one of each wiring: plain, parallel, post-norm, multipliers, norms on branches, mixers and experts, one write a block
TINY = ["llama", "gpt2", "gpt_neox", "opt:post-norm", "openai-gpt", "granite", "gemma2", "jamba", "mamba"]
IDS = [[7, 30, 12, 50, 44, 9], [21, 33, 60], [15, 44, 8, 70, 5]]


def tiny(name: str):
    return streamlens.load(zoo.build(name))


def plain_loss(model: nn.Module, rows: list[list[int]]) -> float:
    """Nats per token, one text at a time, from the model's plain forward."""
    total = 0.0
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].double()
        total -= float(logits.log_softmax(-1).gather(1, ids[0, 1:, None]).sum())
    return total / sum(len(row) - 1 for row in rows)


def padded(rows: list[list[int]], side: str = "right") -> dict[str, torch.Tensor]:
    width = max(map(len, rows))
    pads = [[0] * (width - len(row)) for row in rows]
    ids = [row + pad if side == "right" else pad + row for row, pad in zip(rows, pads, strict=True)]
    mask = [
        [1] * len(r) + [0] * len(p) if side == "right" else [0] * len(p) + [1] * len(r)
        for r, p in zip(rows, pads, strict=True)
    ]
    return {"texts": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_loss_is_the_models_own_and_padding_is_no_part_of_it(name: str, side: str) -> None:
    model = tiny(name)
    wanted = plain_loss(model.model, IDS)
    for batch_size in (1, 2, 8):
        frame = lesion(model, **padded(IDS, side), batch_size=batch_size, drop=[0]).to_frame()
        assert frame["loss"][0] == pytest.approx(wanted, abs=1e-5)
        assert frame["tokens"].tolist() == [11, 11]


@pytest.mark.parametrize("name", TINY)
def test_each_drop_is_a_zero_ablation_everywhere(name: str) -> None:
    """Against `replay`, text by text."""
    model = tiny(name)
    for over in ("layers", "sublayers"):
        frame = lesion(model, **padded(IDS), over=over).to_frame()
        assert list(frame.columns) == list(SCHEMAS["lesion"])
        assert {c: str(t) for c, t in frame.dtypes.items()} == {c: t for c, (t, _) in SCHEMAS["lesion"].items()}
        assert frame["lesion"].iloc[0] == "none"
        assert frame["n_dropped"].tolist() == [0, *[1] * (len(frame) - 1)]
        sites = [w.site for w in model.wiring.writes if w.tap is not None and w.site.layer is not None]
        for _, row in frame.iloc[1:].iterrows():
            labels = [s.label for s in sites if row["lesion"] in (s.label, f"L{s.layer}")]
            total = 0.0
            for text in IDS:
                logits = replay(model, torch.tensor([text]), labels).logits
                assert logits is not None
                chosen = logits[0, :-1].double().log_softmax(-1).gather(1, torch.tensor(text)[1:, None])
                total -= float(chosen.sum())
            assert row["loss"] == pytest.approx(total / 11, abs=1e-5), row["lesion"]
            assert row["delta"] == pytest.approx(row["loss"] - frame["loss"][0])
            assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))


@pytest.mark.parametrize("name", ["llama", "granite"])
def test_in_a_pre_norm_model_a_dropped_layer_is_as_good_as_gone(name: str) -> None:
    model = tiny(name)
    shorter = copy.deepcopy(model.model)
    del shorter.model.layers[1]
    shorter.config.num_hidden_layers -= 1
    shorter.config.use_cache = False  # the blocks keep their numbers
    found = lesion(model, **padded(IDS), drop=[1]).to_frame()
    assert found["lesion"].tolist() == ["none", "L1"]
    assert found["loss"][1] == pytest.approx(plain_loss(shorter, IDS), abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "openai-gpt", "opt:post-norm", "granite", "mamba"])
def test_shuffled_blocks_really_run_in_that_order(name: str) -> None:
    model = tiny(name)
    before = state_of(model.model)
    made = lesion(model, **padded(IDS), shuffle=2, repeats=3, seed=1)
    assert state_of(model.model) == before
    for shuffled, loss in list(zip(made.lesions, made.losses, strict=True))[1:]:
        other = copy.deepcopy(model.model)
        blocks = dict(other.named_modules())[model.wiring.blocks]
        own = list(blocks)
        for depth, number in enumerate(shuffled.order):
            blocks[depth] = own[number]
        assert loss == pytest.approx(plain_loss(other, IDS), abs=1e-5)
    assert len({x.order for x in made.lesions}) > 1
    frame = made.to_frame()
    assert frame["kendall_tau"].tolist() == [kendall_tau(x.order) for x in made.lesions]
    assert frame["n_dropped"].tolist() == [0] * 4


def test_no_swaps_change_nothing_and_a_seed_fixes_the_rest() -> None:
    model = tiny("llama")
    given = padded(IDS)
    nothing = lesion(model, **given, shuffle=0)
    assert nothing.losses[1] == nothing.losses[0]
    assert nothing.lesions[1].order == (0, 1, 2)
    for options in ({"drop": 2, "repeats": 4}, {"shuffle": 1, "repeats": 4}, {"drop": 3, "over": "sublayers"}):
        one, same = (lesion(model, **given, seed=3, **options) for _ in range(2))
        assert one.names == same.names
        assert one.losses == same.losses
    frame = lesion(model, **given, drop=2, repeats=5, seed=4).to_frame()
    assert frame["n_dropped"].tolist() == [0, 2, 2, 2, 2, 2]
    for name in frame["lesion"].astype(str)[1:]:
        members = name.partition(": ")[2].split(" + ")
        assert len(set(members)) == 2
    everything = lesion(model, **given, drop=3).to_frame()  # all three layers: the embedding alone
    assert everything["lesion"][1] == "1: L0 + L1 + L2"


def test_kendalls_distance() -> None:
    assert kendall_tau((0, 1, 2, 3)) == 0
    assert kendall_tau((3, 2, 1, 0)) == 1
    assert kendall_tau((1, 0, 2, 3)) == pytest.approx(1 / 6)
    assert kendall_tau(()) == kendall_tau((0,)) == 0
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist()
    assert kendall_tau(order) == pytest.approx((1 - stats.kendalltau(range(12), order).statistic) / 2)


def test_a_list_given_by_hand_mixes_layers_and_sublayers() -> None:
    model = tiny("llama")
    given = padded(IDS)
    frame = lesion(model, **given, drop=["L0", "L2.mlp"]).to_frame()
    same = lesion(model, **given, drop=["L0.attn", "L0.mlp", "L2.mlp"]).to_frame()
    assert frame["lesion"].tolist() == ["none", "L0 + L2.mlp"]
    assert frame["n_dropped"].tolist() == [0, 2]
    assert frame["loss"][1] == same["loss"][1]


def test_the_blocks_stand_as_before_whatever_happens() -> None:
    class Stop(Exception):
        pass

    model = tiny("llama")
    corpus = corpus_of(model, padded(IDS)["texts"], batch_size=8)
    blocks = list(model.model.model.layers)
    before = state_of(model.model)
    scope = permuted(model, model.wiring, [2, 0, 1])
    scope.__enter__()
    assert list(model.model.model.layers) == [blocks[2], blocks[0], blocks[1]]
    error = Stop()
    assert not scope.__exit__(Stop, error, None)
    assert list(model.model.model.layers) == blocks
    calls = []

    def stop(_done: int, _total: int) -> None:
        calls.append(list(model.model.model.layers))
        raise Stop

    with pytest.raises(Stop):
        losses(model, corpus, [Lesion(order=(1, 2, 0)), Lesion(dropped=frozenset([1]))], progress=stop)
    assert calls == [blocks]
    assert state_of(model.model) == before
    hook = model.model.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    hooked = state_of(model.model)
    for options in ({"order": (1, 2, 0)}, {"dropped": frozenset([1])}):
        with pytest.raises(ZeroDivisionError):
            losses(model, corpus, [Lesion(**options)])
        assert state_of(model.model) == hooked
    hook.remove()


def test_a_model_that_ignores_its_lists_order_is_found_out() -> None:
    model = tiny("llama")
    layers = model.model.model.layers
    own = list(layers)
    corpus = corpus_of(model, padded(IDS)["texts"], batch_size=8)

    class Fixed(type(layers)):
        def __getitem__(self, _wanted):
            return own

    layers.__class__ = Fixed
    with pytest.raises(WiringError, match="does not run its blocks in the order of its list"):
        losses(model, corpus, [Lesion(order=(1, 0, 2))])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemma2", "have several kinds of attention"),
        ("jamba", "have several kinds of attention"),
        ("deepseek_v3", "differ, so one cannot stand in another's place"),  # the first block has no experts
    ],
)
def test_blocks_that_cannot_stand_in_each_others_place(name: str, why: str) -> None:
    model = tiny(name)
    with pytest.raises(WiringError, match=why):
        lesion(model, **padded(IDS), shuffle=1)
    assert len(lesion(model, **padded(IDS)).names) == 1 + model.wiring.n_layers  # dropping is no problem


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bert", "next-token loss; bert has no such head"),
        ("t5", "of a decoder alone; t5 has two streams"),
        ("qwen2_vl_text", "next-token loss; qwen2_vl_text has no such head"),
        ("xlnet", "xlnet sees later tokens"),
    ],
)
def test_models_without_a_next_token_loss(name: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        lesion(tiny(name), torch.tensor([IDS[0]]))


def test_refusals() -> None:
    model = tiny("llama")
    given = padded(IDS)
    for options, why in [
        ({"over": "heads"}, 'A lesion runs over "layers" or "sublayers"; got \'heads\''),
        ({"drop": [0], "shuffle": 1}, "A lesion drops or shuffles; got both"),
        ({"drop": ["L7"]}, "The layers are L0, L1, L2; got L7"),
        ({"drop": ["L1.atn"]}, "L1.attn"),
        ({"drop": [1, "L1"]}, "names each member once; got L1, L1"),
        ({"drop": []}, "A set to drop is a list of layers or sublayers"),
        ({"drop": "L1"}, "A set to drop is a list of layers or sublayers; got 'L1'"),
        ({"drop": 4}, "There are 3 to drop; a random set has between 1 and that many, got 4"),
        ({"drop": 0}, "between 1 and that many, got 0"),
        ({"shuffle": -1}, "got -1 among 3"),
        ({"shuffle": 1, "repeats": 0}, "repeats is at least 1; got 0"),
        ({"batch_size": 0}, "A batch holds at least one text"),
    ]:
        with pytest.raises(InputError, match=why):
            lesion(model, **given, **options)
    with pytest.raises(InputError, match="A loss needs a text of at least two tokens"):
        lesion(model, torch.tensor([[5], [7]]))


@pytest.mark.model
def test_on_the_default_model(default_model) -> None:
    """The first layers and the last cannot be spared; the middle can. Losses against plain forwards."""
    rows = [default_model.tokenizer(text)["input_ids"] for text in TEXTS]
    seen = []
    made = lesion(default_model, TEXTS, drop=["L0"], progress=lambda *step: seen.append(step))
    assert seen == [(1, 2), (2, 2)]
    frame = made.to_frame()
    assert frame["loss"][0] == pytest.approx(plain_loss(default_model.model, rows), abs=1e-4)
    assert frame["tokens"][0] == sum(len(row) - 1 for row in rows)
    assert frame["delta"][1] > 5
    assert frame.attrs["over"] == "layers"
    middle = lesion(default_model, TEXTS, drop=["L14"]).to_frame()
    assert abs(middle["delta"][1]) < 0.5
