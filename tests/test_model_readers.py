"""The readers that the default model carries, held against what its own modules compute."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor

import streamlens
import zoo
from closeness import relative
from model_state import state_of
from streamlens import Edit, Reader, replay
from streamlens.errors import InputError, ModelError
from streamlens.readouts.attribution import observe, read
from streamlens.readouts.readers import model_readers as model_readers_module
from streamlens.readouts.readers.model_readers import each_reader, model_readers
from streamlens.readouts.readers.protocols import BranchReads, LinearRead, ReadsStream

D_HEAD, GROUP = 64, 3


@pytest.fixture(scope="module")
def ledger(default_model, bank):
    return streamlens.decompose(default_model, bank)


def computed(model, prompt: str, module: str) -> Tensor:
    """What one module of the model makes of a prompt, [batch, pos, row]."""
    seen: list[Tensor] = []
    handle = model.model.get_submodule(module).register_forward_hook(lambda _m, _a, output: seen.append(output.clone()))
    with torch.no_grad():
        model.model(**model.tokenizer(prompt, return_tensors="pt"))
    handle.remove()
    return seen[0]


def seen_by(reader: Reader, ledger) -> Tensor:
    """The reader's values, written out: rows times the normed stream where it reads."""
    cut = reader.seen(ledger)
    norm = reader.norm_at(cut)
    stream = cut.stream.double() if norm is None else norm.linear(cut.stream)
    return stream @ reader.matrix.T + reader.bias


class TestHeads:
    @pytest.mark.parametrize("head", ["L0H0", "L0H8", "L10H8", "L17H4", "L29H3"])
    @pytest.mark.parametrize("part", ["q", "k", "v"])
    def test_rows_times_the_normed_stream_are_the_models_own(self, default_model, bank, ledger, head, part):
        layer, number = (int(n) for n in head[1:].split("H"))
        reader = Reader.head(default_model, head, part)
        own = number if part == "q" else number // GROUP
        made = computed(default_model, bank, f"model.layers.{layer}.self_attn.{part}_proj")
        wanted = made[..., own * D_HEAD : (own + 1) * D_HEAD]
        assert reader.matrix.shape == (D_HEAD, 576)
        assert reader.matrix.dtype == torch.float64
        assert relative(seen_by(reader, ledger), wanted) < 1e-5
        assert relative(observe(reader.seen(ledger), reader), wanted) < 1e-5
        assert relative(read(ledger, reader).total, wanted) < 1e-5

    def test_where_it_reads(self, default_model):
        reader = Reader.head(default_model, "L10H8", "q")
        assert (reader.name, reader.norm, reader.after, reader.unit) == ("L10H8.q", "input", "L9.mlp", "query")
        assert Reader.head(default_model, "L0H8", "v").after == "embed"
        assert len(set(reader.rows)) == D_HEAD

    def test_heads_that_share_a_key_head_share_the_reader_and_the_name_says_so(self, default_model):
        readers = [Reader.head(default_model, f"L10H{head}", "k") for head in range(9)]
        assert [reader.name for reader in readers] == [f"L10H{n}.k" for n in ["0-2"] * 3 + ["3-5"] * 3 + ["6-8"] * 3]
        assert torch.equal(readers[6].matrix, readers[8].matrix)
        assert not torch.equal(readers[5].matrix, readers[6].matrix)

    def test_a_head_hands_on_the_same_when_the_stream_moves_where_it_cannot_see(self, default_model, bank, ledger):
        parts = [Reader.head(default_model, "L10H8", part) for part in ("q", "k", "v")]
        change = moved_unseen(default_model, bank, ledger, parts, after="L9.mlp", position=-1)
        assert change[8] < 1e-4
        assert change[:8].min() > 1e-2

    def test_no_other_head_moves_with_what_only_one_groups_values_see(self, default_model, bank, ledger):
        """The first token attends to itself alone: its heads hand on their values, whatever queries and keys are."""
        parts = [Reader.head(default_model, head, "v") for head in ("L1H0", "L1H3")]
        change = moved_unseen(default_model, bank, ledger, parts, after="L0.mlp", position=0)
        assert change[:6].max() < 1e-4
        assert change[6:].min() > 1e-2


def moved_unseen(model, prompt: str, ledger, readers: list[Reader], *, after: str, position: int) -> Tensor:
    """How much each head of the next layer changes when the stream is mirrored within the readers' null space.

    A mirrored stream has the length it had, so that the norm's scale stays. Relative, one number per head.
    """
    stream = ledger.at(after).stream[0, position].double()
    rows = torch.cat([reader.matrix * reader.through.gain for reader in readers])
    basis = torch.linalg.svd(rows, full_matrices=True).Vh[len(rows) :]
    moved = -2 * basis.T @ (basis @ stream)
    assert float(moved.norm() / stream.norm()) > 0.1
    layer = int(after[1:].partition(".")[0]) + 1
    module = model.model.get_submodule(f"model.layers.{layer}.self_attn.o_proj")
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda _m, args, _o: seen.append(args[0][0, position].reshape(9, D_HEAD)))
    value = ledger.added[ledger.labels.index(after), 0, position] + moved.float()
    streamlens.decompose(model, prompt)
    replay(model, prompt, Edit(after, "replace", value=value, position=position))
    handle.remove()
    return (seen[1] - seen[0]).norm(dim=-1) / seen[0].norm(dim=-1)


class TestMlp:
    @pytest.mark.parametrize("layer", [0, 10, 29])
    @pytest.mark.parametrize("part", ["gate", "up"])
    def test_rows_times_the_normed_stream_are_the_models_own(self, default_model, bank, ledger, layer, part):
        reader = Reader.mlp(default_model, f"L{layer}.mlp", part)
        wanted = computed(default_model, bank, f"model.layers.{layer}.mlp.{part}_proj")
        assert relative(seen_by(reader, ledger), wanted) < 1e-5
        assert reader.after == f"L{layer}.attn"

    def test_in_is_gate_and_up(self, default_model):
        whole, gate, up = (Reader.mlp(default_model, "L3.mlp", part) for part in ("in", "gate", "up"))
        assert whole.name == "L3.mlp.in"
        assert torch.equal(whole.matrix, torch.cat([gate.matrix, up.matrix]))
        assert Reader.mlp(default_model, "L3.mlp").name == "L3.mlp.in"

    def test_some_neurons(self, default_model):
        whole, some = (Reader.mlp(default_model, "L3.mlp", neurons=n) for n in (None, [5, 1535]))
        assert torch.equal(some.matrix, whole.matrix[[5, 1535, 1536 + 5, 1536 + 1535]])
        up = Reader.mlp(default_model, "L3.mlp", "up", neurons=[5])
        assert torch.equal(up.matrix, whole.matrix[[1536 + 5]])
        assert up.rows == ("L3N5.up",)


class TestAll:
    def test_the_unembedding_gives_the_logits(self, default_model, ledger):
        reader = Reader.unembedding(default_model)
        assert reader.matrix.shape == (49152, 576)
        wanted = ledger.logits.double()
        norm = reader.norm_at(ledger)
        assert relative(norm.linear(ledger.stream) @ reader.matrix.T + reader.bias, wanted) < 1e-5
        assert reader.rows[default_model.token_id(" river")] == "logit(·river)"

    def test_every_reader_in_stream_order(self, default_model):
        names = [reader.name for reader in each_reader(default_model)]
        layer = [
            *(f"H{head}.q" for head in range(9)),
            *(f"H{heads}.{part}" for part in "kv" for heads in ("0-2", "3-5", "6-8")),
            ".mlp.in",
        ]
        assert names == [f"L{n}{name}" for n in range(30) for name in layer] + ["unembedding"]
        assert len(names) == 30 * (9 + 3 + 3 + 1) + 1

    def test_the_tuple_holds_the_same(self):
        model = streamlens.load(zoo.build("llama"))
        readers = model_readers(model)
        for one, other in zip(readers, each_reader(model), strict=True):
            assert one.name == other.name
            assert torch.equal(one.matrix, other.matrix)
            assert one.matrix.dtype == torch.float64

    def test_the_handle_is_what_the_protocols_ask_for(self, default_model):
        assert isinstance(default_model, ReadsStream)
        assert isinstance(default_model.reads()[0], BranchReads)
        assert isinstance(default_model.reads()[0].parts[0], LinearRead)

    def test_bfloat16_has_the_same_rows(self, default_model):
        """Sink tokens, a hundred times larger than others, leave few digits to tell two states of the stream apart."""
        half = streamlens.load(copy.deepcopy(default_model.model).to(torch.bfloat16))
        for found, wanted in zip(half.reads(), default_model.reads(), strict=True):
            assert found.missing == wanted.missing == ()
            for one, other in zip(found.parts, wanted.parts, strict=True):
                assert dataclasses.replace(one, norm=None) == dataclasses.replace(other, norm=None)

    def test_the_model_is_left_as_it_was(self):
        model = streamlens.load(zoo.build("gemma2"))
        before = state_of(model.model)
        model.reads()
        assert state_of(model.model) == before


class TestOtherModels:
    def test_two_heads_that_are_apart_share_a_key(self):
        """The pairing is measured: query heads 0 and 1 share key head 0, and so are they named."""
        names = [reader.name for reader in model_readers(streamlens.load(zoo.build("llama")))]
        assert names[:8] == ["L0H0.q", "L0H1.q", "L0H2.q", "L0H3.q", "L0H0-1.k", "L0H2-3.k", "L0H0-1.v", "L0H2-3.v"]

    @pytest.mark.parametrize(
        ("name", "head", "starts"),
        [
            ("gpt2", 1, (8, 32 + 8, 64 + 8)),  # all queries, all keys, all values
            ("phi3", 3, (24, 32 + 8, 48 + 8)),  # the same, with two key heads for four query heads
            ("gpt_neox", 1, (24, 24 + 8, 24 + 16)),  # query, key and value head by head
            ("bloom", 1, (24, 24 + 8, 24 + 16)),
            ("falcon", 3, (24, 32, 40)),  # one key head for all
            ("falcon:two-norms", 2, (32, 32 + 16, 32 + 24)),  # group by group: two queries, a key, a value
        ],
    )
    def test_fused_layouts_by_hand(self, name, head, starts):
        parts = streamlens.load(zoo.build(name)).reads()[0].parts[:3]
        assert len({one.tap for one in parts}) == 1
        for one, part, start in zip(parts, "qkv", starts, strict=True):
            assert one.part == part
            assert one.rows[one.serves[head]] == tuple(range(start, start + 8))

    def test_a_cross_attention_reads_queries_only(self):
        model = streamlens.load(zoo.build("bart"))
        assert Reader.head(model, "L1.cross_attn.H2", "q").name == "L1.cross_attn.H2.q"
        with pytest.raises(InputError, match="The keys of L1\\.cross_attn are read off the encoder's stream"):
            Reader.head(model, "L1.cross_attn.H2", "k")

    def test_the_encoders_readers(self):
        model = streamlens.load(zoo.build("bart"))
        readers = model_readers(model, stream="encoder")
        assert readers[0].name == "L0H0.q"
        assert "unembedding" not in [reader.name for reader in readers]
        ledger = streamlens.decompose(model, torch.tensor([[5, 6, 7]]), stream="encoder")
        assert seen_by(readers[-1], ledger).shape == (1, 3, len(readers[-1].rows))

    def test_a_mixer_and_a_router(self):
        names = [reader.name for reader in model_readers(streamlens.load(zoo.build("jamba")))]
        assert "L0.mixer.in" in names
        assert "L1.mlp.router" in names

    def test_post_norm_reads_the_stream_itself(self):
        reader = Reader.head(streamlens.load(zoo.build("bert")), "L1H2", "q")
        assert (reader.norm, reader.through, reader.after) == ("none", None, "L0.mlp")


class TestErrors:
    @pytest.mark.parametrize(
        ("ask", "message"),
        [
            (lambda m: Reader.head(m, "L40H0", "q"), "No write is called 'L40.attn' here"),
            (lambda m: Reader.head(m, "L10H9", "q"), "L10.attn has the heads 0 to 8; got 9"),
            (lambda m: Reader.head(m, "L10.attn", "q"), "A head is written like L10H8; got 'L10.attn'"),
            (lambda m: Reader.head(m, "ninth", "q"), "A site is written like"),
            (lambda m: Reader.head(m, "L10H8<3", "q"), "A head is written like L10H8; got 'L10H8<3'"),
            (lambda m: Reader.mlp(m, "L10.attn"), "L10.attn reads the stream with the parts q, k, v; got 'in'"),
            (lambda m: Reader.mlp(m, "L10.attn", "q"), "The q of L10.attn is one head's"),
            (lambda m: Reader.mlp(m, "L10.mlp", "router"), "with the parts gate, up, in; got 'router'"),
            (lambda m: Reader.mlp(m, "embed"), "No write is called 'embed' here"),
            (lambda m: Reader.mlp(m, "L10.mlp", neurons=[1536]), "L10.mlp has the neurons 0 to 1535; got 1536"),
            (lambda m: Reader.mlp(m, "L10.mlp", neurons=[-1]), "L10.mlp has the neurons 0 to 1535; got -1"),
            (lambda m: Reader.mlp(m, "L10.mlp", neurons=[]), "Neurons come as a list of at least one"),
        ],
    )
    def test_one_sentence_each(self, default_model, ask, message):
        with pytest.raises(InputError, match=message):
            ask(default_model)

    def test_a_part_no_head_has(self, default_model):
        with pytest.raises(InputError, match="A head reads with its q, k or v; got 'o'"):
            model_readers_module.head_reader(default_model, "L10H8", "o")

    @pytest.mark.parametrize(
        ("name", "ask", "message"),
        [
            ("jamba", lambda m: Reader.head(m, "L0.mixer.H1", "q"), "L0.mixer reads the stream with the parts in; got"),
            ("jamba", lambda m: Reader.mlp(m, "L0.mixer", neurons=[3]), "are not known to be its neurons"),
            ("mixtral", lambda m: Reader.mlp(m, "L1.mlp"), "The experts of L1.mlp read only the tokens"),
            ("rwkv", lambda m: Reader.mlp(m, "L1.mixer"), "No linear map in front of L1.mixer reads the stream"),
            ("diffllama", lambda m: Reader.head(m, "L0H1", "v"), "L0.attn attends more than once, with different"),
        ],
    )
    def test_what_a_model_does_not_have(self, name, ask, message):
        with pytest.raises(InputError, match=message):
            ask(streamlens.load(zoo.build(name)))

    def test_no_linear_head(self):
        with pytest.raises(ModelError, match="has no linear head"):
            Reader.unembedding(streamlens.load(zoo.build("bert")))
