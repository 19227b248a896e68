"""Tiny random models of one architecture each, every parameter off its default.

1. A configuration is the architecture's own class, shrunk by every field of `TINY` it has, then by the entry.
2. The model is built under a seed that is a hash of the entry's name, so two builds are bit for bit equal.
3. `off_default` moves what starts at a constant (gains, biases, layer scales): ones and zeros hide errors.
"""

import copy
import dataclasses
import zlib
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

WIDTH, FEED, EXPERT, SHARED, VOCABULARY, LENGTH = 32, 44, 20, 28, 99, 64

# Widths differ from each other on purpose: a tensor taken for another cannot have its shape.
TINY: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"], WIDTH),
    **dict.fromkeys(["intermediate_size", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"], FEED),
    **dict.fromkeys(["d_ff", "dff", "d_inner", "ffn_hidden_size", "feed_forward_size", "dim_ff"], FEED),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers"], 3),
    **dict.fromkeys(["encoder_layers", "decoder_layers", "num_decoder_layers", "num_encoder_layers"], 2),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"], 4),
    **dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads"], 4),
    **dict.fromkeys(["num_encoder_attention_heads", "num_decoder_attention_heads"], 4),
    "num_key_value_heads": 2,
    **dict.fromkeys(["head_dim", "d_kv", "d_head"], 12),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "max_seq_len", "context_length"], LENGTH),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token"], 2),
    **dict.fromkeys(["n_shared_experts", "num_shared_experts"], 1),
    **dict.fromkeys(["n_group", "topk_group", "num_expert_group"], 1),
    **dict.fromkeys(["moe_intermediate_size", "expert_ffn_hidden_size"], EXPERT),
    **dict.fromkeys(["shared_expert_intermediate_size", "shared_intermediate_size"], SHARED),
    **dict.fromkeys(["routed_scaling_factor", "moe_routed_scaling_factor", "route_scale"], 1.3),
    **dict.fromkeys(["attention_bias", "mlp_bias", "use_bias", "conv_bias", "mamba_proj_bias"], True),
    **dict.fromkeys(["lm_head_bias", "add_bias_linear", "scale_embedding"], True),
    # Latent attention: query and key heads of 12 + 4 channels, value heads of 10.
    "q_lora_rank": 14,
    "kv_lora_rank": 18,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    # Gated delta rules and state spaces.
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "mamba_d_state": 6,
    "mamba_dt_rank": 5,
    "state_size": 6,
    "time_step_rank": 5,
    "chunk_size": 8,
    "mamba_chunk_size": 8,
    # The rest.
    "vocab_size": VOCABULARY,
    "type_vocab_size": 2,
    "sliding_window": 4,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "pretraining_tp": 1,
    "initializer_range": 0.2,
    "init_std": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """One architecture of the zoo: how it is built, and what its residual stream is like.

    Attributes:
        name: The model type, with `:variant` behind it where one type has several wirings.
        kind: "decoder", "encoder" or "encoder-decoder".
        wiring: How its branches write, in the words of the table of wirings, joined by ", ".
        config: What differs from `TINY`.
        auto: The Auto class, or the model's own class, that builds it.
        streams: Residual streams per token; more than one is to be refused.
        note: What is peculiar about its stream.
    """

    name: str
    kind: str
    wiring: str
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    auto: str = "AutoModelForCausalLM"
    streams: int = 1
    note: str = ""

    @property
    def model_type(self) -> str:
        return self.name.partition(":")[0]

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode()) % 2**31


def tiny(cls: type[PreTrainedConfig], overrides: dict[str, Any]) -> PreTrainedConfig:
    """A configuration of `cls` shrunk by `TINY`, then by `overrides`.

    A dict given for a sub-configuration is itself completed from `TINY`.
    """
    fields = {field.name: field.default for field in dataclasses.fields(cls)}
    values = {name: value for name, value in TINY.items() if name in fields}
    values |= {name: 0.0 for name, default in fields.items() if _is_dropout(name, default)}
    if "kv_lora_rank" in fields:
        values["num_key_value_heads"] = TINY["num_attention_heads"]  # latent attention has no groups
    values |= copy.deepcopy(overrides)  # some configurations write to the dicts they are given
    for name, sub in getattr(cls, "sub_configs", {}).items():
        if name in overrides and dataclasses.is_dataclass(sub):
            values[name] = tiny(sub, overrides[name])
    return cls(**values)


def build_entry(entry: Entry, dtype: torch.dtype) -> PreTrainedModel:
    """The entry's model in eval mode, cast after initialisation: every precision holds the same weights."""
    config = tiny(CONFIG_MAPPING[entry.model_type], entry.config)
    factory = getattr(transformers, entry.auto)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(entry.seed)
        model = factory.from_config(config) if entry.auto.startswith("Auto") else factory(config)
    off_default(model, seed=entry.seed)
    if dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model.to(dtype).eval()


def inputs(entry: Entry, *, batch: int = 2, length: int = 7, seed: int = 0) -> dict[str, Tensor]:
    """Random ordinary tokens [batch, length]; for an encoder-decoder also a target, two shorter."""
    draw = torch.Generator().manual_seed(seed)
    tokens = {"input_ids": torch.randint(3, VOCABULARY, (batch, length), generator=draw)}
    if entry.kind == "encoder-decoder":
        tokens["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, length - 2), generator=draw)
    return tokens


def off_default(model: nn.Module, *, seed: int) -> None:
    """Move what starts at a constant, and scale matrices so that writes are about as large as the stream.

    Gains become 0.5 to 1.5 times their default, zero-centred gains -0.5 to 0.5, biases normal with deviation
    0.1, single numbers 0.6 to 0.8 times their default. Saved buffers count as parameters here. Tied tensors
    are moved once and stay tied. In place.
    """
    draw = torch.Generator().manual_seed(seed)
    seen = set()
    with torch.no_grad():
        for module in model.modules():
            for name, tensor in _saved(module):
                if id(tensor) not in seen and tensor.is_floating_point() and tensor.numel():
                    seen.add(id(tensor))
                    _move(module, name, tensor, draw)


def _saved(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The module's own parameters and those of its buffers that a checkpoint holds."""
    buffers = dict(module.named_buffers(recurse=False))
    kept = {name: buffers[name] for name in buffers.keys() - module._non_persistent_buffers_set}
    return [*module.named_parameters(recurse=False), *sorted(kept.items())]


def _move(module: nn.Module, name: str, tensor: Tensor, draw: torch.Generator) -> None:
    start = tensor.flatten()[0].item()
    constant = bool((tensor == start).all())
    if tensor.numel() == 1:
        factor = torch.rand(1, generator=draw).item() * 0.2 + 0.6
        tensor.fill_(start * factor if start else factor - 1)
    elif constant and start == 0 and "norm" in type(module).__name__.lower() and name == "weight":
        tensor.uniform_(-0.5, 0.5, generator=draw)
    elif constant and start == 0:
        tensor.normal_(0, 0.1 if tensor.ndim == 1 else tensor.shape[-1] ** -0.5, generator=draw)
    elif constant:
        tensor.mul_(torch.empty_like(tensor).uniform_(0.5, 1.5, generator=draw))
    elif isinstance(module, nn.Linear | Conv1D) and name == "weight":
        inputs_per_output = tensor.shape[1] if isinstance(module, nn.Linear) else tensor.shape[0]
        tensor.mul_(inputs_per_output**-0.5 / tensor.std())
    elif isinstance(module, nn.Embedding) and name == "weight" and tensor.requires_grad:
        tensor.mul_(0.5 / tensor.std())


def _is_dropout(name: str, default: Any) -> bool:
    return type(default) in (int, float) and ("drop" in name or name.endswith("jitter_noise"))
