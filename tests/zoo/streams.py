"""Decoders whose carry is not the identity, and those that have several streams and are to be refused."""

from typing import Any

from .build import EXPERT, VOCABULARY, Entry
from .decoders import SLIDING_FULL, SOFTCAPS


def _carry(name: str, wiring: str, note: str, auto: str = "AutoModelForCausalLM", **config: Any) -> Entry:
    return Entry(name=name, kind="decoder", wiring=wiring, note=note, auto=auto, config=config)


def _several(name: str, streams: int, note: str, auto: str = "AutoModelForCausalLM", **config: Any) -> Entry:
    wiring = "several-streams"
    return Entry(name=name, kind="decoder", wiring=wiring, streams=streams, note=note, auto=auto, config=config)


GEMMA4 = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 6,
    "per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}},
    "final_logit_softcapping": 5.0,
}

INKLING2 = {
    "unpadded_vocab_size": VOCABULARY,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 12,
    "sliding_window_size": 4,
    "d_rel": 6,
    "rel_extent": 16,
    "final_logit_softcapping": 5.0,
}

RESCALED = [
    _carry("gemma4_text", "sandwich, stream-scalar", "hidden_states *= layer_scalar, a saved buffer, in "
           "place at the block's end; a third write per token from per-layer embeddings, after a norm",
           **GEMMA4),
    _carry("gemma4_text:moe", "sandwich, moe, stream-scalar", "the MLP's and the experts' outputs are normed "
           "each, summed, and normed again: neither is a write alone",
           enable_moe_block=True, top_k_experts=2, **GEMMA4),
    _carry("gemma4_unified_text", "sandwich, stream-scalar", "as gemma4_text, without per-layer embeddings",
           layer_types=SLIDING_FULL, use_bidirectional_attention=None),
    _carry("beam", "sandwich, stream-scalar, moe", "the k-th addition is sqrt((k - 1) / k) x + sqrt(1 / k) "
           "write: the carry shrinks twice a block, and at the first addition the embedding is dropped",
           layer_types=SLIDING_FULL, final_logit_softcapping=5.0),
    _carry("zaya", "stream-scale, moe", "a module takes (write, stream) and returns (w + b) s + (x + c) r, "
           "all four per channel: biases enter the stream with both", num_experts_per_tok=1,
           router_hidden_size=10),
    _carry("muse_spark_text", "sandwich, stream-scale, moe", "a module gates carry and write per channel, "
           "alpha x + beta w; no head", auto="AutoModel", moe_hidden_size=24, layer_types=SLIDING_FULL),
    _carry("minimax", "post-norm, moe", "the block's first norm is in the carry: alpha norm(x) + beta write, "
           "twice a block", layer_types=["linear_attention", "full_attention", "linear_attention"],
           block_size=4, full_attn_alpha_factor=1.2, full_attn_beta_factor=0.8, linear_attn_alpha_factor=0.9,
           linear_attn_beta_factor=1.3, mlp_alpha_factor=1.1, mlp_beta_factor=0.7, intermediate_size=EXPERT),
]  # fmt: skip

SEVERAL = [
    _several("deepseek_v4", 4, "hyper-connections: [batch, time, 4, width], mixed by a matrix a block",
             hc_mult=4, hc_sinkhorn_iters=3, o_groups=2, o_lora_rank=6, index_topk=4, index_n_heads=2,
             index_head_dim=8, partial_rotary_factor=0.5, num_key_value_heads=1, head_dim=8),
    _several("hy_v4", 4, "hyper-connections: [batch, time, 4, width]", hc_mult=4, index_topk=4,
             index_n_heads=2, index_head_dim=8),
    _several("qwen4_exp_text", 4, "hyper-connections: the streams lie side by side, [batch, time, 4 x width]",
             hc_lowrank=8, ple_layer_ids=[1], ple_embed_dim=24, ngram_size=3, heads_per_ngram=2,
             ngram_vocab_size_base=50, indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=8,
             indexer_budget=4, indexer_compress_ratio=2, make_ngram_vocab_size_divisible_by=1,
             split_ngram_parts=1,
             layer_types=["linear_attention", "full_attention", "linear_attention"],
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    _several("gemma3n_text", 4, "AltUp: [4, batch, time, width], predicted and corrected a block",
             num_hidden_layers=4,
             altup_num_inputs=4, laurel_rank=5, hidden_size_per_layer_input=6, num_kv_shared_layers=0,
             vocab_size_per_layer_input=VOCABULARY, layer_types=[*SLIDING_FULL, "full_attention"],
             final_logit_softcapping=SOFTCAPS["final_logit_softcapping"]),
    _several("inkling2_text", 2, "attention over earlier blocks' streams feeds every branch",
             **INKLING2, num_hidden_layers=4, n_layers_per_attn_res_block=2,
             layer_types=["hybrid_sliding", "hybrid"] * 2),
    _several("inkling2_loop_text", 2, "as inkling2_text, with its middle looped", **INKLING2,
             num_hidden_layers=6, n_layers_per_attn_res_block=2, layer_types=["hybrid_sliding", "hybrid"] * 3,
             loop_layer_index_start=2, loop_layer_index_end=4, loop_num_passes=2, loop_gate_rank=5),
    _several("glm5_next_text", 4, "hyper-connections: [batch, time, 4, width]; no head", auto="AutoModel",
             hc_mult=4, hc_sinkhorn_iters=3, index_topk=4, index_n_heads=2, index_head_dim=8, index_kpool=2,
             linear_head_dim=6, linear_num_heads=4, qk_rope_head_dim=0, mlp_layer_types=["dense", "sparse",
             "sparse"],
             layer_types=["linear_attention", "full_attention", "linear_attention"]),
    _several("hrm_text", 2, "two states, each the input of the other; two stacks called in cycles",
             num_layers_per_stack=2, H_cycles=2, L_cycles=2, L_bp_cycles=[2], embedding_scale=1.7,
             use_cache=False),
    _several("dory", 2, "the middle of the stack is looped, and its input added again at every loop; in a "
             "block the carry is normed and interpolated per channel", n_input_layers=1, n_recurrent_layers=2,
             n_output_layers=1, num_hidden_layers=4, n_recurrent_loops=2, use_cache=False,
             layer_types=["sliding_attention", "full_attention"] * 2),
]  # fmt: skip

STREAMS = [*RESCALED, *SEVERAL]
