"""`streamlens check`: it passes a model that closes, fails one that does not, and says what it measured."""

import csv
import io
import json
from dataclasses import replace

import pytest
import torch

import streamlens
from streamlens.errors import WiringError
from streamlens.experiments.checks import examine
from streamlens.models.words import describe


@pytest.fixture
def tiny():
    """A handle of a tiny Llama with random weights and no tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    return streamlens.load(LlamaForCausalLM(config).eval())


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch):
    """`checking(handle)`: the command line loads that handle."""
    return lambda handle: monkeypatch.setattr("streamlens.models.load.load", lambda *_, **__: handle)


@pytest.mark.model
def test_the_default_model_closes(run, loaded) -> None:
    said = run("check", "--format", "table")
    assert said.exit_code == 0
    assert "smollm2-135m closes." in said.stdout
    assert "30 layers, d_model 576, blocks in model.layers" in said.stdout
    for row in ("embed model.embed_tokens", "L*.attn model.layers.*.self_attn", "L*.mlp model.layers.*.mlp"):
        assert f"+ {row}" in " ".join(said.stdout.split())
    assert "0 to 29" in said.stdout
    assert "lm_head" in said.stdout


def test_the_numbers_as_json(run, tiny, checking) -> None:
    checking(tiny)
    found = json.loads(run("check").stdout)
    assert found["closed"] is True
    assert [step["step"] for step in found["wiring"]["steps"]] == ["add"] * 5
    assert found["wiring"]["head"]["module"] == "lm_head"
    values = {check["name"]: check["value"] for check in found["checks"]}
    assert values["writes re-added in the model's order (absolute)"] == 0.0
    assert values["the stream after every block"] == 0.0
    assert values["modules with a hook or mode left behind"] == 0
    assert 0 < values["writes summed in float64"] < 1e-5
    assert 0 < values["20 logits from their parts"] < 1e-5
    rows = list(csv.DictReader(io.StringIO(run("check", "--format", "csv").stdout)))
    assert [row["name"] for row in rows] == list(values)


def test_a_folder_can_be_checked(run, tiny, tmp_path) -> None:
    tiny.model.save_pretrained(tmp_path)
    said = run("check", str(tmp_path), "--format", "table")
    assert said.exit_code == 0, said.stderr
    assert f"{tmp_path} closes." in said.stdout


def test_a_model_that_changed_since_it_was_understood_fails(run, tiny, checking) -> None:
    layer = tiny.model.model.layers[1]
    handle = layer.register_forward_hook(lambda _module, _args, output: output + 1)
    checking(tiny)
    said = run("check", "--format", "table")
    handle.remove()
    assert said.exit_code == 1
    assert "FAILS" in said.stdout
    assert "The writes do not sum to the residual stream" in said.stdout
    assert "does NOT close" in said.stdout


def test_a_middle_that_is_wrong_fails_though_the_end_is_right(tiny) -> None:
    """Two blocks whose errors cancel: only a look at the middle of the stream can tell."""
    middle = "the stream after every block"
    assert all(check.ok for check in examine(tiny))
    writes = list(tiny.wiring.writes)
    writes[2], writes[3] = writes[3], writes[2]  # the first block's mlp and the second's attention
    swapped = replace(tiny, wiring=replace(tiny.wiring, writes=tuple(writes), exact=False))
    checks = {check.name: check for check in examine(swapped)}
    assert checks["writes summed in float64"].ok
    assert not checks[middle].ok


def test_a_hook_left_behind_is_seen(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlens.hooks.writes import capture

    decompose = capture.decompose

    def careless(model, *args, **kwargs):
        model.model.lm_head.register_forward_hook(lambda *_: None)
        return decompose(model, *args, **kwargs)

    monkeypatch.setattr("streamlens.experiments.checks.decompose", careless)
    [left] = [check for check in examine(tiny) if "left behind" in check.name]
    assert (left.ok, left.value) == (False, 1.0)


def test_wrong_logits_fail(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    head = replace(tiny.wiring.head, scale=1.01)
    wrong = replace(tiny, wiring=replace(tiny.wiring, head=head))
    assert [check.name for check in examine(wrong) if not check.ok] == ["20 logits from their parts"]


def test_a_model_that_is_refused_fails_the_check(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_, **__):
        raise WiringError("The residual stream does not close at block 3.", hint="Look there.")

    monkeypatch.setattr("streamlens.models.load.load", load)
    table = run("check", "some/model", "--format", "table")
    assert table.exit_code == 1
    assert "does not close at block 3. Look there." in table.stdout
    assert json.loads(run("check", "some/model").stdout)["closed"] is False


def test_a_model_that_is_not_there_is_an_error(run) -> None:
    assert run("check", "./no/such/folder").exit_code == 2


def test_a_post_norm_model_is_described_step_by_step(run, checking) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
    torch.manual_seed(0)
    model = BertModel(config).eval()
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name:  # ones and zeros would hide a bias
            torch.nn.init.normal_(parameter.data, mean=0.5, std=0.2)
    handle = streamlens.load(model)
    checking(handle)
    said = run("check", "--format", "table")
    assert said.exit_code == 0, said.stdout
    assert "LayerNorm of the stream, bias as L*.attn.norm.bias" in said.stdout
    assert "No linear head" in said.stdout
    kinds = [step["step"] for step in describe(handle.wiring)["steps"]]
    assert kinds.count("norm") == 5
