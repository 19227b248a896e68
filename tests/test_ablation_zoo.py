"""Edits on a tiny model of every architecture: the parts close, and fast runs equal one-at-a-time runs."""

from functools import cache

import pytest
import torch
from torch import Tensor

import streamlens
import zoo
from closeness import assert_close, relative
from streamlens import Edit, Reader, ablate, clean_run, replay
from streamlens.errors import StreamlensError
from streamlens.hooks.runs.variants import run_variants
from streamlens.readouts.effects import effects
from streamlens.sites import Site
from zoo_books import streams

#: of the effects, relative to the largest of them (at least 1); 4e-6 seen
CLOSES = 1e-5
#: one token in the middle of nine: earlier ones are not to move, later ones are
POSITION, LENGTH = 4, 9

STREAMS = [(entry.name, stream) for entry in zoo.ENTRIES for stream in streams(entry)]


@cache
def handle(name: str):
    return streamlens.load(zoo.build(name))


def prompt(name: str) -> dict[str, Tensor]:
    return zoo.inputs(zoo.BY_NAME[name], batch=1, length=LENGTH, seed=5)


def loaded(name: str, stream: str):
    """The handle, its wiring, and a clean run; skipped where the stream is not explained at all."""
    given = prompt(name)
    try:
        model = handle(name)
        wiring = model.wiring_of(stream)
    except StreamlensError as error:
        pytest.skip(error.message)
    return model, wiring, clean_run(model, given.pop("input_ids"), stream=stream, **given)


def reader_of(model, wiring) -> Reader:
    if wiring.head is not None:
        return Reader.logits(model, [5, 17])
    vector = torch.randn(wiring.d_model, generator=torch.Generator().manual_seed(0))
    return Reader.direction(vector, norm="final" if wiring.final_norm else "none")


@pytest.mark.parametrize(("name", "stream"), STREAMS)
def test_every_write_switched_off_at_one_token(name, stream):
    """The parts sum to the observed change at every position, earlier writes stay, and alone gives the same."""
    model, wiring, clean = loaded(name, stream)
    rows = [row for row, write in enumerate(wiring.writes) if write.tap is not None]
    edits = [Edit(wiring.sites[row], position=min(POSITION, len(clean.context[0]) - 1)) for row in rows]
    everywhere = None
    for positions in (None, -1):
        (run,) = run_variants(clean, [[edit] for edit in edits], positions=positions)
        effect = effects(run.clean, run.edited, run.changed, reader_of(model, wiring))
        scale = max(1.0, float(effect.observed.abs().max()))
        assert float(effect.closure.max()) < CLOSES * scale
        for number, row in enumerate(rows):
            assert_close(run.edited.added[:row, number], run.clean.added[:row, 0])
        everywhere = everywhere or run
    assert relative(everywhere.edited.stream, everywhere.clean.stream.expand_as(everywhere.edited.stream)) > 1e-4
    for number in range(0, len(rows), 3):
        alone = replay(model, clean, edits[number])
        assert_close(alone.ledger.stream[:, -1], run.edited.stream[number : number + 1, -1])


@pytest.mark.parametrize("name", ["opt:post-norm", "openai-gpt", "bert", "bart", "minimax"])
def test_where_the_stream_is_normed_the_carry_is_a_part(name):
    model, wiring, clean = loaded(name, "decoder" if name == "bart" else "only")
    (run,) = run_variants(clean, [[Edit(wiring.sites[0], position=-1)]])
    effect = effects(run.clean, run.edited, run.changed, reader_of(model, wiring))
    assert float(effect.carry[:, -1].abs().max()) > 1e-3
    assert float(effect.closure.max()) < CLOSES * max(1.0, float(effect.observed.abs().max()))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox", "granite"])
def test_without_norms_in_the_stream_there_is_no_carry(name):
    model, wiring, clean = loaded(name, "only")
    (run,) = run_variants(clean, [[Edit(wiring.sites[1])]])
    assert not effects(run.clean, run.edited, run.changed, reader_of(model, wiring)).carry.any()


class TestReuse:
    @pytest.mark.parametrize(
        "name",
        [
            *("llama", "gpt2", "mixtral", "gpt_neox", "bloom"),
            # windows of 4 tokens, shorter than the prompt: what has left the window is kept, and stays masked
            *("gemma2", "mistral", "gpt_neo", "gpt_oss", "cohere2", "olmo3"),
        ],
    )
    def test_keys_and_values_are_reused(self, name):
        self.check(name, reused=True)

    @pytest.mark.parametrize(
        "name", ["mamba", "rwkv", "xlstm", "jamba", "zamba2", "lfm2", "qwen3_next", "bert", "fnet"]
    )
    def test_where_they_cannot_be_the_runs_are_full(self, name):
        self.check(name, reused=False)

    @staticmethod
    def check(name: str, *, reused: bool):
        model, wiring, clean = loaded(name, "only")
        labels = [write.site.label for write in wiring.writes if write.tap is not None]
        made = streamlens.sweep(model, clean, over=labels, position=POSITION, read_at=-1)
        assert {part.reused for part in made.parts} == {reused}
        swept = torch.cat([part.ablated.stream[:, -1] for part in made.parts])
        alone = torch.cat(
            [replay(model, clean, Edit(label, position=POSITION)).ledger.stream[:, -1] for label in labels]
        )
        assert_close(swept, alone)

    def test_variants_in_any_order_come_out_in_that_order(self):
        model, _, clean = loaded("llama", "only")
        labels = ["L2.mlp", "L0.attn", "L1.mlp", "embed", "L2.attn"]
        made = streamlens.sweep(model, clean, over=labels, position=-1)
        alone = torch.cat([replay(model, clean, Edit(label, position=-1)).ledger.stream[:, -1] for label in labels])
        assert_close(made.parts[0].ablated.stream[:, -1], alone)

    def test_small_batches_give_the_same(self, monkeypatch):
        model, _, clean = loaded("llama", "only")
        whole = streamlens.sweep(model, clean, readers=Reader.logits(model, [5]))
        monkeypatch.setattr("streamlens.hooks.runs.variants.CHUNK", 2 * LENGTH)
        done = []
        parts = streamlens.sweep(model, clean, readers=Reader.logits(model, [5]), progress=lambda *at: done.append(at))
        assert (len(whole.parts), len(parts.parts)) == (1, 3)
        assert done == [(2, 6), (4, 6), (6, 6)]
        one, other = whole.effects(), parts.effects()
        assert one["variant"].tolist() == other["variant"].tolist()
        assert (one["total"] - other["total"]).abs().max() < CLOSES


class TestHeads:
    """A head is switched off at its projection's input: what the projection adds by itself stays (traps 9 and 10)."""

    @pytest.mark.parametrize(
        ("name", "site", "module"),
        [
            ("gpt2", "L1H2", "transformer.h.1.attn.c_proj"),
            ("llama", "L1H2", "model.layers.1.self_attn.o_proj"),
            ("gpt_neox", "L1H2", "gpt_neox.layers.1.attention.dense"),
            ("gemma2", "L1H2", "model.layers.1.self_attn.o_proj"),
            ("bloom", "L1H2", "transformer.h.1.self_attention.dense"),
            ("granite", "L1H2", "model.layers.1.self_attn.o_proj"),
            ("bert", "L1H2", "bert.encoder.layer.1.attention.output.dense"),
            ("jamba", "L1H2", "model.layers.1.self_attn.o_proj"),
            ("bart", "L1.cross_attn.H2", "model.decoder.layers.1.encoder_attn.out_proj"),
        ],
    )
    def test_one_head_by_hand(self, name, site, module):
        model, given = handle(name), prompt(name)
        projection = model.model.get_submodule(module)
        width = model.projections(model.wiring.stream)[model.wiring.sites.index(Site.parse(site).sublayer)].width // 4

        def zero(_module, args):
            z = args[0].clone()
            z[..., 2, 2 * width : 3 * width] = 0.0
            return (z,)

        hook = projection.register_forward_pre_hook(zero)
        ids = given.pop("input_ids")
        by_hand = streamlens.decompose(model, ids, **given)
        hook.remove()
        untouched = streamlens.decompose(model, ids, **given)
        assert relative(by_hand.stream, untouched.stream) > 1e-4
        found = replay(model, ids, Edit(site, position=2), **given).ledger
        assert_close(found.added, by_hand.added)
        assert_close(found.stream, by_hand.stream)

    @pytest.mark.parametrize(
        ("name", "bias"),
        [
            ("gpt2", "transformer.h.1.attn.c_proj.bias"),
            ("gpt_neox", "gpt_neox.layers.1.attention.dense.bias"),
            ("opt", "model.decoder.layers.1.self_attn.out_proj.bias"),
            ("bert", "bert.encoder.layer.1.attention.output.dense.bias"),
        ],
    )
    def test_without_all_heads_the_bias_is_left_and_without_the_write_nothing(self, name, bias):
        model, given = handle(name), prompt(name)["input_ids"]
        row = model.wiring.sites.index(Site.parse("L1.attn"))
        heads = replay(model, given, [Edit(f"L1H{head}", position=2) for head in range(4)])
        left = dict(model.model.named_parameters())[bias].detach()
        assert left.abs().min() > 0
        assert_close(heads.ledger.added[row, 0, 2], left)
        whole = replay(model, given, Edit("L1.attn", position=2))
        assert not whole.ledger.added[row, 0, 2].any()

    def test_a_neuron_by_hand(self):
        model, given = handle("llama"), prompt("llama")
        made = model.model.model.layers[1].mlp.down_proj

        def zero(_module, args):
            z = args[0].clone()
            z[..., 7] = 0.0
            return (z,)

        hook = made.register_forward_pre_hook(zero)
        with torch.no_grad():
            by_hand = model.model(**given).logits
        hook.remove()
        assert_close(replay(model, given["input_ids"], "L1N7").logits, by_hand)


class TestEdges:
    """What a head takes from one token is its source row; without the edge the write lacks exactly that."""

    @pytest.mark.parametrize(
        ("name", "site"),
        [("gpt2", "L1H2"), ("llama", "L1H2"), ("mistral", "L1H3"), ("bart", "L1.cross_attn.H2"), ("bart", "L1H2")],
    )
    def test_an_edge_is_its_source_row(self, name, site):
        model, given = handle(name), prompt(name)
        ids = given.pop("input_ids")
        sources = streamlens.decompose(model, ids, level="source", **given)
        ledger = streamlens.decompose(model, ids, **given)
        row = ledger.sites.index(Site.parse(site).sublayer)
        edge = sources.sites.index(Site.parse(f"{site}<1"))
        cut = replay(model, ids, Edit(site, position=3, source=1), **given)
        change = cut.ledger.added[row, 0, 3] - ledger.added[row, 0, 3]
        assert_close(change, -sources.added[edge, 0, 3], like=torch.float32)
        assert_close(cut.ledger.added[:row], ledger.added[:row])
        assert_close(cut.ledger.added[row, 0, :3], ledger.added[row, 0, :3])

    def test_all_edges_of_a_head_are_the_head(self):
        model, ids = handle("llama"), prompt("llama")["input_ids"]
        edges = replay(model, ids, [Edit("L1H2", position=3, source=source) for source in range(4)])
        assert_close(edges.logits, replay(model, ids, Edit("L1H2", position=3)).logits)

    def test_in_a_sweep_on_shared_keys_and_values(self):
        model, ids = handle("llama"), prompt("llama")["input_ids"]
        edits = [Edit("L1H2", position=-1, source=source) for source in range(3)]
        made = streamlens.sweep(model, ids, over=edits)
        assert made.parts[0].reused
        alone = torch.cat([replay(model, ids, edit).logits[:, -1] for edit in edits])
        assert_close(made.parts[0].ablated.logits[:, -1], alone)

    def test_frozen_patterns_attend_as_before_to_values_that_move(self):
        """Cut off from token 2, whose value alone has moved, token 8 gets what it got from the other tokens before."""
        model, ids = handle("llama"), prompt("llama")["input_ids"]
        moved = Edit("L0.mlp", position=2)
        frozen, free = (ablate(model, ids, moved, freeze=freeze) for freeze in ("patterns", None))
        row = frozen.clean.labels.index("L1.attn")
        sources = streamlens.decompose(model, ids, level="source")
        from_two = sum(sources.added[sources.sites.index(Site.parse(f"L1H{head}<2"))] for head in range(4))
        edges = [Edit(f"L1H{head}", position=8, source=2) for head in range(4)]
        cut = ablate(model, ids, [moved, *edges], freeze="patterns")
        assert_close(cut.ablated.added[row, 0, 8], cut.clean.added[row, 0, 8] - from_two[0, 8], like=torch.float32)
        assert relative(frozen.ablated.added[row], free.ablated.added[row]) > 1e-3

    def test_frozen_patterns_without_a_change_are_the_clean_run(self):
        model, ids = handle("llama"), prompt("llama")["input_ids"]
        made = ablate(model, ids, "L0.mlp=1", freeze="patterns")
        assert_close(made.ablated.stream, streamlens.decompose(model, ids).stream)


class TestPaddedPrompts:
    IDS = torch.tensor([[11, 12, 13, 14, 15, 16], [21, 22, 23, 24, 0, 0]])
    MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])

    @pytest.mark.parametrize("side", ["right", "left"])
    @pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "opt:post-norm", "bert", "mixtral"])
    @pytest.mark.parametrize("edit", [Edit("L1.mlp", position=-1), Edit("L1H2", position=[0, -2]), Edit("L0.attn")])
    def test_each_prompt_is_as_alone(self, name, side, edit):
        model = handle(name)
        ids, mask = (self.IDS, self.MASK) if side == "right" else (self.IDS.roll(2, 1), self.MASK.roll(2, 1))
        if side == "left":
            ids, mask = ids.clone(), mask.clone()
            ids[0], mask[0] = self.IDS[0], self.MASK[0]
        both = replay(model, ids, edit, attention_mask=mask)
        for row in range(2):
            real = mask[row].bool()
            alone = replay(model, ids[row : row + 1, real], edit)
            assert_close(both.ledger.stream[row : row + 1, real], alone.ledger.stream)

    def test_one_padded_prompt_is_ablated_as_without_padding(self):
        model = handle("llama")
        ids, mask = self.IDS[1:].roll(2, 1), self.MASK[1:].roll(2, 1)
        padded = ablate(model, ids, "L1.attn", attention_mask=mask, readers=Reader.logits(model, [5]))
        alone = ablate(model, self.IDS[1:, :4], "L1.attn", readers=Reader.logits(model, [5]))
        assert padded.effects()["total"].tolist() == pytest.approx(alone.effects()["total"].tolist(), abs=1e-5)

    def test_an_edge_names_each_prompts_own_token(self):
        model = handle("llama")
        edit = Edit("L1H2", position=-1, source=-2)
        both = replay(model, self.IDS, edit, attention_mask=self.MASK)
        alone = replay(model, self.IDS[1:, :4], edit)
        assert_close(both.ledger.stream[1:, :4], alone.ledger.stream)
