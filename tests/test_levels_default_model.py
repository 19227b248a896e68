"""Heads, source tokens and neurons of the default model, against its own numbers; memory; experts; grouped queries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

import streamlens
import zoo
from closeness import assert_close, relative
from model_state import state_of
from streamlens import Ledger, Reader, decompose, read
from streamlens.errors import InputError
from streamlens.models.pull import pull
from streamlens.models.quiet import quiet

LAYERS, HEADS = 30, 9


@pytest.fixture(scope="module")
def whole(default_model, bank) -> Ledger:
    return decompose(default_model, bank)


@pytest.fixture(scope="module")
def heads(default_model, bank) -> Ledger:
    return decompose(default_model, bank, level="head")


@pytest.fixture(scope="module")
def sources(default_model, bank) -> Ledger:
    return decompose(default_model, bank, level="source", sites=["L9.attn"])


@pytest.fixture(scope="module")
def reader(default_model) -> Reader:
    return Reader.logit_diff(default_model, " river", " money")


def rows_of(ledger: Ledger, label: str) -> list[int]:
    return [row for row, site in enumerate(ledger.sites) if site.sublayer.label == label]


def implementations(model: nn.Module) -> set[str]:
    return {m.config._attn_implementation for m in model.modules() if getattr(m, "config", None) is not None}


@pytest.mark.model
class TestHeads:
    def test_the_270_heads_close_on_their_sublayers(self, default_model, bank, heads, whole):
        """Against what each attention module hands on, taken by the test's own hooks."""
        seen: dict[int, Tensor] = {}
        blocks = default_model.model.model.layers
        own = [
            block.self_attn.register_forward_hook(lambda _m, _a, out, n=n: seen.update({n: out[0].clone()}))
            for n, block in enumerate(blocks)
        ]
        with torch.no_grad():
            default_model.model(**default_model.tokenizer(bank, return_tensors="pt"))
        for handle in own:
            handle.remove()
        assert sum(site.head is not None for site in heads.sites) == LAYERS * HEADS == 270
        for layer in range(LAYERS):
            rows = rows_of(heads, f"L{layer}.attn")
            assert [heads.sites[row].head for row in rows] == list(range(HEADS))
            assert blocks[layer].self_attn.o_proj.bias is None  # so there is no bias row
            parts = heads.writes[rows].sum(0, dtype=torch.float64)
            assert float(((parts - seen[layer]).norm(dim=-1) / seen[layer].norm(dim=-1)).max()) < 1e-5
        assert len(heads.split_error) == LAYERS
        assert max(heads.split_error.values()) < 1e-5
        assert float(heads.closure.max()) < 1e-5

    @pytest.mark.parametrize("name", ["gpt2", "opt", "starcoder2", "bert"])
    def test_the_output_bias_is_a_row_of_its_own(self, name):
        handle = streamlens.load(zoo.build(name))
        ids = zoo.inputs(zoo.BY_NAME[name])["input_ids"]
        ledger = decompose(handle, ids, level="head")
        assert max(ledger.split_error.values()) < 1e-5
        biases = [row for row, s in enumerate(ledger.sites) if s.kind == "attn" and s.part == "bias"]
        assert len(biases) == handle.wiring.n_layers
        for row in biases:
            assert (ledger.added[row] == ledger.added[row, 0, 0]).all()  # the same at every token
            assert ledger.added[row].any()


@pytest.mark.model
class TestSources:
    def test_L9H2_reads_bank_from_river(self, default_model, bank, sources):
        """The probability is the one that the model itself gives, from a copy with eager attention."""
        with quiet():
            eager = transformers.AutoModelForCausalLM.from_pretrained(
                pull("smollm2-135m"), attn_implementation="eager", local_files_only=True
            )
        tokens = default_model.tokenizer(bank, return_tensors="pt")
        with torch.no_grad():
            pattern = eager(**tokens, output_attentions=True).attentions[9][0, 2, -1]
        rows = [row for row, s in enumerate(sources.sites) if s.head == 2]
        assert [sources.sites[row].source for row in rows] == list(range(10))
        found = sources.attention[rows, 0, -1]
        assert torch.allclose(found, pattern, atol=1e-6)
        assert sources.context[0][3] == " river"
        assert sources.labels[rows[3]] == "L9H2<3"
        assert float(found[3]) == pytest.approx(0.8277, abs=5e-4)
        assert round(float(found[3]), 2) == 0.83

    def test_its_source_rows_sum_to_its_write(self, sources, heads):
        for head in range(HEADS):
            rows = [row for row, s in enumerate(sources.sites) if s.head == head]
            write = heads.writes[heads.labels.index(f"L9H{head}")]
            assert_close(sources.writes[rows].sum(0, dtype=torch.float64), write)
        rows = [row for row, s in enumerate(sources.sites) if s.head == 2]
        at_bank = heads.writes[heads.labels.index("L9H2"), 0, -1]
        assert relative(sources.writes[rows, 0, -1].sum(0, dtype=torch.float64), at_bank) < 1e-5
        assert sources.split_error["L9.attn"] < 1e-5

    def test_no_token_reads_a_later_one(self, sources):
        for row, site in enumerate(sources.sites):
            if site.source is not None:
                assert not sources.attention[row, 0, : site.source].any()
                assert not sources.added[row, 0, : site.source].any()

    def test_only_the_asked_positions(self, default_model, bank, sources):
        one = decompose(default_model, bank, level="source", sites=["L9.attn"], positions=" bank")
        assert one.labels == sources.labels
        assert_close(one.writes[:, :, 0], sources.writes[:, :, -1])
        assert torch.allclose(one.attention[:, :, 0], sources.attention[:, :, -1], atol=1e-6, equal_nan=True)

    def test_the_attention_implementation_is_restored(self, default_model, bank):
        before = implementations(default_model.model)
        decompose(default_model, bank, level="source", sites=["L9.attn"], positions=" bank")
        assert implementations(default_model.model) == before == {"sdpa"}


def test_the_attention_implementation_is_restored_after_an_error_inside():
    from transformers.modeling_utils import AttentionInterface

    model = zoo.build("llama")
    handle = streamlens.load(model)
    ids = [[11, 12, 13, 14]]
    whole = decompose(handle, ids, level="source")
    before, interface = state_of(model), AttentionInterface.get_interface
    inside = []

    def raises(*_args, **_kwargs):
        inside.append((implementations(model), AttentionInterface.get_interface is interface))
        raise KeyError("midway")

    broken = model.model.layers[2].mlp.register_forward_hook(raises)
    with pytest.raises(KeyError, match="midway"):
        decompose(handle, ids, level="source")
    broken.remove()
    assert inside == [({"eager"}, False)]  # it had been switched
    assert AttentionInterface.get_interface is interface
    assert state_of(model) == before
    assert torch.equal(decompose(handle, ids, level="source").added, whole.added)


@pytest.mark.model
class TestReadout:
    @pytest.mark.parametrize("level", ["head", "source", "neuron"])
    def test_the_parts_read_as_their_write_does(self, default_model, bank, whole, reader, level):
        label = "L9.mlp" if level == "neuron" else "L9.attn"
        parts = decompose(default_model, bank, level=level, sites=[label])
        fine, coarse = read(parts, reader), read(whole, reader)
        rows = [row for row, site in enumerate(fine.sites) if site.sublayer.label == label]
        wanted = coarse.contributions[coarse.labels.index(label)]
        assert len(rows) > 8
        assert torch.allclose(fine.contributions[rows].sum(0), wanted, atol=1e-4)
        others = [row for row, site in enumerate(fine.sites) if site.sublayer.label != label]
        same = [row for row, site in enumerate(coarse.sites) if site.label != label]
        assert torch.allclose(fine.contributions[others], coarse.contributions[same], atol=1e-4)
        assert torch.allclose(fine.total, coarse.total, atol=1e-4)
        assert float(fine.closure.max()) < 1e-3

    def test_all_heads_at_once(self, heads, whole, reader):
        fine, coarse = read(heads, reader), read(whole, reader)
        assert float((fine.total - coarse.total).abs().max()) < 1e-4
        assert float(fine.closure.max()) < 1e-3


@pytest.fixture(scope="module")
def hidden(default_model, bank) -> Tensor:
    """What the tenth block's down projection reads, [pos, neuron]."""
    seen = []
    projection = default_model.model.model.layers[9].mlp.down_proj
    own = projection.register_forward_pre_hook(lambda _m, args: seen.append(args[0].clone()))
    with torch.no_grad():
        default_model.model(**default_model.tokenizer(bank, return_tensors="pt"))
    own.remove()
    return seen[0][0].double()


@pytest.mark.model
class TestNeurons:
    def test_the_top_along_a_reader_is_that_of_all_neurons(self, default_model, bank, whole, reader, hidden):
        matrix = default_model.model.model.layers[9].mlp.down_proj.weight.detach().double()
        vector = reader.at(whole)[0, -1]
        each = hidden[-1] * (vector @ matrix)
        wanted = each.abs().topk(12).indices.sort().values.tolist()
        found = decompose(
            default_model, bank, level="neuron", sites=["L9.mlp"], positions=" bank", top=12, along=reader
        )
        assert [s.neuron for s in found.sites if s.neuron is not None] == wanted
        readout = read(found, reader)
        rows = [row for row, s in enumerate(found.sites) if s.neuron is not None]
        assert torch.allclose(readout.contributions[rows, 0, 0, 0], each[wanted], atol=1e-5)
        assert found.labels[rows[-1] + 1] == "L9.mlp.other"
        assert float(readout.contributions[rows[-1] + 1, 0, 0, 0]) == pytest.approx(
            float(each.sum() - each[wanted].sum()), abs=1e-4
        )

    def test_without_a_reader_it_is_the_longest(self, default_model, bank, hidden):
        matrix = default_model.model.model.layers[9].mlp.down_proj.weight.detach().double()
        wanted = (hidden[-1].abs() * matrix.norm(dim=0)).topk(5).indices.sort().values.tolist()
        found = decompose(default_model, bank, level="neuron", sites=["L9.mlp"], positions=" bank", top=5)
        assert [s.neuron for s in found.sites if s.neuron is not None] == wanted

    def test_all_of_them_close(self, default_model, bank):
        found = decompose(default_model, bank, level="neuron", sites=["L9.mlp"])
        assert sum(s.neuron is not None for s in found.sites) == 1536
        assert found.split_error["L9.mlp"] < 1e-5

    def test_all_of_them_at_512_tokens_are_refused_before_the_memory_is_gone(self, default_model):
        ids = torch.arange(1000, 1512)[None]
        with pytest.raises(InputError) as refused:
            decompose(default_model, ids, level="neuron", sites=["L9.mlp"])
        assert refused.value.message == (
            "L9.mlp has 1536 neurons; at 512 positions their rows would take more than 512 MiB."
        )
        assert refused.value.hint == "Give top=50, or fewer positions=."

    @pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the high-water mark of Linux")
    def test_one_layer_at_512_tokens_takes_less_than_a_gibibyte(self):
        """In a process of its own: the peak of resident memory during the call, above what there was before."""
        script = """
import json, pathlib
import torch, streamlens
from streamlens import Reader, decompose, read

def kib(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

model = streamlens.load("smollm2-135m")
reader = Reader.logit_diff(model, " river", " money")
decompose(model, torch.arange(1000, 1008)[None], level="neuron", sites=["L9.mlp"], top=2)
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = kib("VmRSS")
ledger = decompose(model, torch.arange(1000, 1512)[None], level="neuron", sites=["L9.mlp"], top=50, along=reader)
readout = read(ledger, reader)
print(json.dumps([(kib("VmHWM") - before) / 2**20, len(ledger.sites), ledger.split_error["L9.mlp"]]))
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(Path(streamlens.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        )
        gibibytes, rows, error = json.loads(done.stdout)
        assert rows == 1 + 2 * LAYERS - 1 + 51
        assert error < 1e-5
        assert 0.01 < gibibytes < 1.0


#: mixture -> (block, what stands between the experts' sum and the write, whether a shared MLP is added)
MIXTURES = {"mixtral": (0, 1.0, False), "granitemoe": (1, 0.4, False), "qwen2_moe": (1, 1.0, True)}


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_what_each_expert_computes(name):
    """Every expert by hand: down(silu(gate x) * up x), times its weight where the router chose it."""
    layer, scale, shared = MIXTURES[name]
    model = zoo.build(name)
    handle = streamlens.load(model)
    ids = zoo.inputs(zoo.BY_NAME[name])["input_ids"]
    experts = next(m for n, m in model.named_modules() if n.endswith("experts") and f"layers.{layer}." in n)
    calls = []
    own = experts.register_forward_pre_hook(lambda _m, args: calls.append([t.clone() for t in args]))
    with torch.no_grad():
        model(ids)
    own.remove()
    hidden, index, weights = calls[0]
    ledger = decompose(handle, ids, level="neuron", sites=[f"L{layer}.mlp"])
    used = sorted(index.unique().tolist())
    assert [s.expert for s in ledger.sites if s.expert is not None] == used
    total = torch.zeros(ids.numel(), hidden.shape[-1], dtype=torch.float64)
    for expert in used:
        gate, up = (hidden @ experts.gate_up_proj[expert].detach().T).chunk(2, dim=-1)
        made = (torch.nn.functional.silu(gate) * up) @ experts.down_proj[expert].detach().T
        given = (weights * (index == expert)).sum(-1, keepdim=True)
        wanted = (made * given * scale).double()
        row = ledger.labels.index(f"L{layer}E{expert}")
        assert_close(ledger.added[row].flatten(0, 1), wanted, like=torch.float32)
        total += wanted
    whole = decompose(handle, ids)
    rest = whole.added[whole.labels.index(f"L{layer}.mlp")].flatten(0, 1) - total
    if shared:
        row = ledger.labels.index(f"L{layer}.mlp.other")
        assert_close(ledger.added[row].flatten(0, 1), rest, like=torch.float32)
        assert float(rest.norm()) > 0.1 * float(total.norm())
    else:
        assert float(rest.norm()) < 1e-5 * float(total.norm())
        assert f"L{layer}.mlp.other" not in ledger.labels


@pytest.fixture(scope="module")
def by_hand() -> tuple[Ledger, Tensor, Tensor, Tensor]:
    """The ledger; the pattern [b h t s], the values [b kv s d] and W_O [d_model h d] from the projections."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = zoo.build("llama")
    ids = zoo.inputs(zoo.BY_NAME["llama"])["input_ids"]
    attention = model.model.layers[1].self_attn
    seen = {}
    own = [
        getattr(attention, name).register_forward_hook(lambda _m, _a, out, name=name: seen.update({name: out}))
        for name in ("q_proj", "k_proj", "v_proj")
    ]
    with torch.no_grad():
        model(ids)
    for handle in own:
        handle.remove()
    q, k, v = (seen[n].unflatten(-1, (-1, 12)).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
    assert (q.shape[1], k.shape[1], v.shape[1]) == (4, 2, 2)
    with torch.no_grad():
        cos, sin = model.model.rotary_emb(v, torch.arange(7)[None])
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
    scores = torch.stack([q[:, h] @ k[:, h // 2].transpose(-1, -2) for h in range(4)], 1) / 12**0.5
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    pattern = scores.masked_fill(~causal, float("-inf")).softmax(-1)
    matrix = attention.o_proj.weight.detach().unflatten(-1, (4, 12))
    ledger = decompose(streamlens.load(model), ids, level="source", sites=["L1.attn"])
    return ledger, pattern, v, matrix


class TestGroupedQueries:
    """Four query heads, two key and value heads: query head h reads h // 2 (transformer-lens issue 1553)."""

    @staticmethod
    def row(ledger: Ledger, head: int, source: int) -> int:
        return ledger.labels.index(f"L1H{head}<{source}")

    def test_the_wiring_says_so(self):
        handle = streamlens.load(zoo.build("llama"))
        projection = handle.projections("only")[handle.wiring.sites.index(streamlens.Site(kind="attn", layer=1))]
        assert (projection.heads, projection.kv_heads) == (4, 2)

    @pytest.mark.parametrize("head", range(4))
    def test_each_source_row_is_pattern_times_value_times_w_o(self, by_hand, head):
        ledger, pattern, values, matrix = by_hand
        for source in range(7):
            row = self.row(ledger, head, source)
            wanted = pattern[:, head, :, source, None] * (values[:, head // 2, source] @ matrix[:, head].T)[:, None]
            assert_close(ledger.added[row], wanted)
            assert torch.allclose(ledger.attention[row], pattern[:, head, :, source], atol=1e-6)

    def test_another_pairing_is_far_off(self, by_hand):
        """A positive control: heads paired as h % 2 give other rows."""
        ledger, pattern, values, matrix = by_hand
        wrong = pattern[:, 1, :, 0, None] * (values[:, 1 % 2, 0] @ matrix[:, 1].T)[:, None]
        assert relative(wrong, ledger.added[self.row(ledger, 1, 0)]) > 0.5
