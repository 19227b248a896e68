"""Decoders in which recurrence, convolution or linear attention stands beside or in place of attention."""

from typing import Any

from .build import EXPERT, Entry
from .decoders import MULTIPLIERS

LINEAR_FULL = ["linear_attention", "full_attention", "linear_attention"]
CONV_FULL = ["conv", "full_attention", "conv"]
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1}
HALF_ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


def _mixer(name: str, wiring: str, note: str = "", **config: Any) -> Entry:
    return Entry(name=name, kind="decoder", wiring=wiring, note=note, config=config)


RECURRENT = [
    _mixer("mamba", "mixer", "one write a block"),
    _mixer("falcon_mamba", "mixer", "one write a block"),
    _mixer("mamba2", "mixer", "one write a block", num_heads=4, head_dim=16, n_groups=1),
    _mixer("rwkv", "mixer", "a norm before the first branch of block 0 only", attention_hidden_size=32,
           num_hidden_layers=3),
    _mixer("rwkv:rescaled", "mixer, stream-scalar", "the stream is halved between blocks, outside any "
           "module; the first call in eval mode divides later blocks' weights in place: state_dict() "
           "changes by itself",
           attention_hidden_size=32, rescale_every=2, num_hidden_layers=4),
    _mixer("xlstm", "mixer", "logits pass a tanh softcap", embedding_dim=32, num_blocks=3, num_heads=4,
           head_dim=8, ffn_proj_factor=1.4, ffn_round_up_to_multiple_of=4, chunk_size=8,
           output_logit_soft_cap=5.0, use_cache=False),
]  # fmt: skip

HYBRID = [
    _mixer("recurrent_gemma", "hybrid", "embedding times sqrt(width) as bfloat16: 5.65625, not 5.65685; "
           "logits pass a tanh softcap", lru_width=32, attention_window_size=4, logits_soft_cap=5.0,
           head_dim=8,
           num_hidden_layers=3),
    _mixer("lfm2", "hybrid", layer_types=CONV_FULL, full_attn_idxs=None, block_multiple_of=4),
    _mixer("lfm2_moe", "hybrid, moe", layer_types=CONV_FULL, num_dense_layers=1),
    _mixer("lfm3", "hybrid, sandwich", layer_types=CONV_FULL),
    _mixer("jamba", "hybrid, moe", attn_layer_period=3, attn_layer_offset=1, use_mamba_kernels=False,
           intermediate_size=EXPERT),
    _mixer("bamba", "hybrid", attn_layer_indices=[1], rope_parameters=HALF_ROTARY, **MAMBA2),
    _mixer("granitemoehybrid", "hybrid, multiplier, moe", "experts and a shared MLP, summed in the block",
           layer_types=LINEAR_FULL, intermediate_size=EXPERT, **MAMBA2, **MULTIPLIERS),
    _mixer("falcon_h1", "hybrid, multiplier", "mixer and attention in parallel, each with its own "
           "multiplier; the MLP's are inside its module; the head has one too",
           mamba_d_ssm=64, **MAMBA2, projectors_bias=True, mamba_rms_norm=True, lm_head_multiplier=0.7,
           embedding_multiplier=1.7, mlp_multipliers=[0.9, 0.6], key_multiplier=0.8,
           attention_out_multiplier=0.7,
           attention_in_multiplier=0.9, ssm_multipliers=[0.9, 0.8, 1.1, 0.7, 1.2], ssm_in_multiplier=0.85,
           ssm_out_multiplier=0.5),
    _mixer("zamba", "hybrid", "a shared transformer reads [stream, embedding] and enters only the mixer's "
           "input: it writes nothing; the one write is the mixer's", num_hidden_layers=5,
           num_key_value_heads=4,
           attention_head_dim=16, layers_block_type=["linear_attention", "hybrid"] * 2 + ["hybrid"],
           mamba_dt_rank=5, use_mamba_kernels=False),
    _mixer("zamba2", "hybrid", "as zamba; the shared blocks are called from several layers",
           num_hidden_layers=5,
           num_key_value_heads=4, n_mamba_heads=4, num_mem_blocks=1, adapter_rank=5, use_mamba_kernels=False,
           layers_block_type=["linear_attention", "hybrid"] * 2 + ["hybrid"], mamba_d_state=6,
           use_shared_attention_adapter=True),
    _mixer("nemotron_h", "hybrid, moe", "one write a block: mixer, experts, attention or MLP",
           layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], mamba_num_heads=4,
           mamba_head_dim=16, n_groups=1, ssm_state_size=6, moe_shared_expert_intermediate_size=28),
    _mixer("qwen3_next", "hybrid, moe", layer_types=LINEAR_FULL, rope_parameters=HALF_ROTARY),
    _mixer("qwen3_5_text", "hybrid", layer_types=LINEAR_FULL, rope_parameters=HALF_ROTARY),
    _mixer("qwen3_5_moe_text", "hybrid, moe", layer_types=LINEAR_FULL, rope_parameters=HALF_ROTARY),
    _mixer("olmo_hybrid", "hybrid, branch-norm", "attention blocks norm the branches' outputs, linear ones "
           "their inputs, and post_attention_layernorm names both", layer_types=LINEAR_FULL),
    _mixer("kimi_linear", "hybrid, moe", layer_types=LINEAR_FULL, linear_head_dim=6, linear_num_heads=4,
           mlp_layer_types=["dense", "sparse", "sparse"]),
    _mixer("bailing_hybrid", "hybrid, moe", layer_types=LINEAR_FULL, head_dim=12),
    _mixer("lara_mini", "hybrid, moe"),
    _mixer("inkling_text", "hybrid, moe", "each branch's output passes a short convolution module before "
           "it is added; logits of the padded vocabulary are cut off", unpadded_vocab_size=90,
           swa_num_attention_heads=4,
           swa_num_key_value_heads=2, swa_head_dim=12, sliding_window_size=4, d_rel=6, rel_extent=16,
           logits_mup_width_multiplier=1.6),
]  # fmt: skip

MIXERS = [*RECURRENT, *HYBRID]
