"""Decoders with experts in place of the MLP, and those with latent or indexed attention around them."""

from typing import Any

from .build import EXPERT, Entry
from .decoders import MULTIPLIERS, SLIDING_FULL

DENSE_SPARSE = ["dense", "sparse", "sparse"]
FULL_SLIDING = ["full_attention", "sliding_attention", "full_attention"]
# Indexed attention: a scorer picks the earlier tokens a query may read; 4 of 7 here, so that it bites.
INDEXED = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 8}


def _moe(name: str, wiring: str = "pre-norm, moe", note: str = "", auto: str = "", **config: Any) -> Entry:
    auto = auto or "AutoModelForCausalLM"
    return Entry(name=name, kind="decoder", wiring=wiring, note=note, auto=auto, config=config)


SPARSE = [
    _moe("mixtral"),
    _moe("phimoe"),
    _moe("olmoe", clip_qkv=2.0, intermediate_size=EXPERT),
    _moe("qwen2_moe", note="a shared expert, gated inline", decoder_sparse_step=1, mlp_only_layers=[0]),
    _moe("qwen3_moe", mlp_only_layers=[0]),
    _moe("gpt_oss", note="the MLP returns a tuple; sinks in the softmax: a head's weights sum to less than 1",
         intermediate_size=EXPERT, layer_types=SLIDING_FULL),
    _moe("jetmoe", note="attention too is a mixture of experts: heads belong to experts", kv_channels=12,
         num_key_value_heads=4),
    _moe("dbrx", note="attention, both norms and the first addition lie in one module, norm_attn_norm, whose "
         "output 0 is the stream after attention", attn_config={"kv_n_heads": 2, "clip_qkv": 2.0,
         "rope_theta": 10000.0},
         ffn_config={"ffn_hidden_size": EXPERT, "moe_num_experts": 4, "moe_top_k": 2}),
    _moe("ernie4_5_moe", moe_num_shared_experts=1),
    _moe("hunyuan_v1_moe", note="a shared MLP inside the experts' module"),
    _moe("dots1", max_window_layers=1),
    _moe("glm4_moe", use_qk_norm=True),
    _moe("llama4_text", note="the MoE module returns a flattened tensor and router logits, the dense MLP a "
         "tensor: by layer", intermediate_size_mlp=40, interleave_moe_layer_step=2, no_rope_layers=[1, 1, 0],
         attention_chunk_size=4),
    _moe("aria_text"),
    _moe("exaone_moe", layer_types=SLIDING_FULL),
    _moe("flint", mlp_only_layers=[0]),
    _moe("hy_v3", router_scaling_factor=1.3),
    _moe("laguna", note="attention heads are gated inside the module", mlp_layer_types=DENSE_SPARSE,
         layer_types=SLIDING_FULL, gating=True, moe_router_logit_softcapping=2.0),
    _moe("mellum", layer_types=SLIDING_FULL),
    _moe("mimo_v2_flash", note="values times attention_value_scale inside attention", v_head_dim=10),
    _moe("minimax_m2"),
    _moe("minimax_m3_vl_text", dense_intermediate_size=40, rotary_dim=4, index_n_heads=2, index_head_dim=8,
         index_block_size=2, index_topk_blocks=2),
    _moe("solar_open"),
    _moe("openai_privacy_filter", note="gpt_oss made bidirectional; no head", auto="AutoModel",
         intermediate_size=EXPERT),
    _moe("cohere2_moe", "parallel, moe", logit_scale=0.6, layer_types=SLIDING_FULL,
         prefix_dense_intermediate_size=40),
    _moe("kolibri1", "sandwich, moe", "names as in glm4: post_attention_layernorm comes before the MLP",
         layer_types=SLIDING_FULL),
    _moe("afmoe", "sandwich, moe", "embedding times sqrt(width) outside the module", mup_enabled=True,
         layer_types=SLIDING_FULL),
    _moe("flex_olmo", "branch-norm, moe", intermediate_size=EXPERT),
    _moe("granitemoe", "multiplier, moe", intermediate_size=EXPERT, **MULTIPLIERS),
    _moe("granitemoeshared", "multiplier, moe", "experts and a shared MLP are two modules, summed in the "
         "block",
         intermediate_size=EXPERT, shared_intermediate_size=28, **MULTIPLIERS),
    _moe("granitemoe_swa", "multiplier, moe", "two modules, as in granitemoeshared",
         intermediate_size=EXPERT, shared_intermediate_size=28, layer_types=SLIDING_FULL, **MULTIPLIERS),
    _moe("doge:moe", "stream-scale, moe", "the carry is multiplied by a parameter per channel, twice a block",
         is_moe=True),
]  # fmt: skip

LATENT = [
    _moe("deepseek_v2"),
    _moe("deepseek_v3"),
    _moe("deepseek_v32", **INDEXED),
    _moe("axk1"),
    _moe("axk2", note="norms carry a low-rank gate", gated_norm_rank=5, **INDEXED),
    _moe("glm4_moe_lite"),
    _moe("glm_moe_dsa", note="layers hand on which tokens were picked, not the stream", **INDEXED),
    _moe("dots3_note_text", shared_experts_intermediate_size=28, **INDEXED),
    _moe("mistral4", auto="Mistral4ForCausalLM"),
    _moe("mistral_large4_text", note="no head", auto="AutoModel",
         rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **INDEXED),
    _moe("longcat_flash", "pre-norm, moe", "two attentions and two MLPs a block; the experts read the "
         "middle of the block, and their write is added at its end", ffn_hidden_size=44, num_layers=2,
         zero_expert_num=2,
         moe_topk=2, head_dim=4),
]  # fmt: skip

MOE = [*SPARSE, *LATENT]
