"""A GGUF file becomes a plain folder with the same numbers and the same tokens."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import logging

from streamlens.errors import ModelError
from streamlens.models import convert
from streamlens.models.quiet import quiet

WIDTH, HEADS, KV_HEADS, INNER, VOCAB = 32, 4, 2, 64, 264
MERGES = ("t h", "th e", "Ġ c", "Ġc a", "Ġca t")
Q4_1 = gguf.GGMLQuantizationType.Q4_1
SHAPES = {
    "token_embd": (VOCAB, WIDTH),
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (WIDTH // HEADS * KV_HEADS, WIDTH),
    "blk.0.attn_v": (WIDTH // HEADS * KV_HEADS, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.ffn_gate": (INNER, WIDTH),
    "blk.0.ffn_up": (INNER, WIDTH),
    "blk.0.ffn_down": (WIDTH, INNER),
}
NORMS = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")


def write_gguf(path: Path, *, tied: bool) -> dict[str, np.ndarray]:
    """One Llama block in Q4_1 with a byte-level tokenizer; returns the dequantised weights."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("a name that is no path")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCAB)

    tokens = ["<|end|>", *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]
    unused = [f"<|{i}|>" for i in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*tokens, *unused])
    writer.add_token_types([3] + [1] * (len(tokens) - 1) + [3] * len(unused))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)

    values = {}
    for name, shape in (SHAPES if tied else {**SHAPES, "output": (VOCAB, WIDTH)}).items():
        packed = gguf.quants.quantize(random.standard_normal(shape).astype(np.float32), Q4_1)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=Q4_1)
        values[name] = gguf.quants.dequantize(packed, Q4_1)
    for name in NORMS:
        values[name] = random.standard_normal(WIDTH).astype(np.float32)
        writer.add_tensor(f"{name}.weight", values[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def converted(request, tmp_path):
    values = write_gguf(tmp_path / "tiny.gguf", tied=request.param)
    convert.gguf_to_folder(tmp_path / "tiny.gguf", tmp_path / "out", sample=("the cat", (258, 261)))
    return request.param, tmp_path / "out", values


def test_the_folder_holds_the_dequantised_numbers(converted):
    tied, folder, values = converted
    stored = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert ("lm_head.weight" in stored) == (not tied)
    np.testing.assert_array_equal(stored["model.embed_tokens.weight"], values["token_embd"])
    np.testing.assert_array_equal(stored["model.layers.0.mlp.down_proj.weight"], values["blk.0.ffn_down"])
    np.testing.assert_array_equal(stored["model.norm.weight"], values["output_norm"])


def test_the_folder_is_plain(converted):
    tied, folder, _ = converted
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied
    assert config["dtype"] == "float32"
    assert not {"quantization_config", "_name_or_path", "_model_name_or_path"} & config.keys()
    assert "local_files_only" not in json.loads((folder / "tokenizer_config.json").read_text())
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert AutoTokenizer.from_pretrained(folder)("the cat")["input_ids"] == [258, 261]


def test_converting_says_nothing_and_leaves_transformers_as_it_was(tmp_path, capfd):
    write_gguf(tmp_path / "tiny.gguf", tied=True)
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    said = []
    convert.gguf_to_folder(tmp_path / "tiny.gguf", tmp_path / "out", log=said.append)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")
    assert [line.split()[0] for line in said] == ["dequantising", "comparing"]


def test_quiet_gives_back_the_users_settings_after_an_error():
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    inside = []

    def fail():
        inside.extend([logging.get_verbosity(), logging.is_progress_bar_enabled()])
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), quiet():
        fail()
    assert inside == [logging.ERROR, False]
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_tokenizer_that_drifts_is_refused(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", tied=True)
    with pytest.raises(ModelError, match=r"must give \[1, 2\] for 'the cat'; converted it gives \[258, 261\]"):
        convert.gguf_to_folder(tmp_path / "tiny.gguf", tmp_path / "out", sample=("the cat", (1, 2)))


@pytest.mark.parametrize("what", ["weights", "logits"])
def test_a_model_that_drifts_is_refused(tmp_path, monkeypatch, what):
    write_gguf(tmp_path / "tiny.gguf", tied=True)
    clean = convert._clean

    def drifting(loaded):
        made = clean(loaded)
        if what == "weights":
            made.model.norm.weight = torch.nn.Parameter(made.model.norm.weight + 1e-3)
        else:
            made.config.rms_norm_eps = 1e-3
        return made

    monkeypatch.setattr(convert, "_clean", drifting)
    with pytest.raises(ModelError, match=f"its {what} do not"):
        convert.gguf_to_folder(tmp_path / "tiny.gguf", tmp_path / "out")


def test_a_lost_tie_is_refused(tmp_path, monkeypatch):
    write_gguf(tmp_path / "tiny.gguf", tied=True)
    clean = convert._clean

    def untied(loaded):
        made = clean(loaded)
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.clone())
        made.config.tie_word_embeddings = False
        return made

    monkeypatch.setattr(convert, "_clean", untied)
    with pytest.raises(ModelError, match="its weights do not"):
        convert.gguf_to_folder(tmp_path / "tiny.gguf", tmp_path / "out")


def test_what_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"not a model\n" * 99)
    with pytest.raises(ModelError, match=r"transformers cannot read tiny\.gguf: .*\. Install the releases"):
        convert.gguf_to_folder(tmp_path / "tiny.gguf", tmp_path / "out")
