"""Decoders whose attention and dense MLP write to one stream, by how they write."""

from typing import Any

from .build import Entry

MULTIPLIERS = {
    "embedding_multiplier": 1.7,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.23,
    "logits_scaling": 1.6,
}
SLIDING_FULL = ["sliding_attention", "full_attention", "sliding_attention"]
SOFTCAPS = {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 4.0, "query_pre_attn_scalar": 10}
# Several positions per token (time, height, width) in text towers of vision models: text uses one for all.
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}


def _decoder(name: str, wiring: str, note: str = "", auto: str = "CausalLM", **config: Any) -> Entry:
    auto = "AutoModel" if auto == "base" else f"AutoModelFor{auto}" if auto == "CausalLM" else auto
    return Entry(name=name, kind="decoder", wiring=wiring, note=note, auto=auto, config=config)


PRE_NORM = [
    _decoder("gpt2", "pre-norm", scale_attn_by_inverse_layer_idx=True),
    _decoder("llama", "pre-norm"),
    _decoder("mistral", "pre-norm"),
    _decoder("ministral", "pre-norm", layer_types=SLIDING_FULL, head_dim=12),
    _decoder("ministral3", "pre-norm"),
    _decoder("qwen2", "pre-norm", use_sliding_window=True, max_window_layers=1),
    _decoder("qwen3", "pre-norm"),
    _decoder("gemma", "pre-norm", "embedding times sqrt(width) inside the module; gains are 1 + weight"),
    _decoder("vaultgemma", "pre-norm", "embedding as in gemma; no norm after the branches",
             layer_types=SLIDING_FULL, **SOFTCAPS),
    _decoder("phi3", "pre-norm"),
    _decoder("gpt_neo", "pre-norm", attention_types=[[["global", "local"], 2]], num_layers=4, window_size=4),
    _decoder("gpt_neox:sequential", "pre-norm", use_parallel_residual=False),
    _decoder("gpt_neox_japanese", "pre-norm",
             "the last block's attention bias is returned apart (element 2 of the output) and added in the "
             "block: no module outputs the whole write", intermediate_multiple_size=2),
    _decoder("gpt_bigcode", "pre-norm", multi_query=True),
    _decoder("ctrl", "pre-norm", "embedding times sqrt(width) in place, on the module's own output; "
             "positions are a plain buffer, without a module"),
    _decoder("olmo", "pre-norm", "norms have no parameters at all", clip_qkv=2.0),
    _decoder("glm", "pre-norm"),
    _decoder("starcoder2", "pre-norm"),
    _decoder("stablelm", "pre-norm", use_qkv_bias=True, qk_layernorm=True),
    _decoder("persimmon", "pre-norm"),
    _decoder("biogpt", "pre-norm", "fc1 and fc2 lie in the block, without an MLP module"),
    _decoder("xglm", "pre-norm", "fc1 and fc2 lie in the block; positions are a sinusoidal module"),
    _decoder("nemotron", "pre-norm", "gains are 1 + weight"),
    _decoder("smollm3", "pre-norm", no_rope_layers=[1, 1, 0]),
    _decoder("helium", "pre-norm", head_dim=8),
    _decoder("ernie4_5", "pre-norm"),
    _decoder("arcee", "pre-norm"),
    _decoder("apertus", "pre-norm"),
    _decoder("apertus1p5_text", "pre-norm"),
    _decoder("seed_oss", "pre-norm", attention_out_bias=True),
    _decoder("hunyuan_v1_dense", "pre-norm"),
    _decoder("bitnet", "pre-norm", "a norm inside attention and MLP, before their last projections"),
    _decoder("diffllama", "pre-norm", "a head's write is a difference of two attention maps; heads in pairs"),
    _decoder("cwm", "pre-norm"),
    _decoder("jais2", "pre-norm"),
    _decoder("youtu", "pre-norm", "latent attention"),
    _decoder("nanochat", "pre-norm", "norms have no parameters; the embedding is normed by the final "
             "norm's module, which is thus called twice",
             final_logit_softcapping=5.0),
    _decoder("modernbert-decoder", "pre-norm", "block 0 has no norm before attention; the head is nonlinear",
             layer_types=SLIDING_FULL, norm_bias=True),
    _decoder("cpmant", "residual-inside", "two nested sub-blocks add the stream; prompt positions come "
             "before the tokens, so the stream is longer than the input until after the final norm",
             dim_head=12, prompt_length=4, position_bias_num_buckets=16),
    _decoder("opt", "pre-norm", "fc1 and fc2 lie in the block, flattened to [batch x time, width]",
             word_embed_proj_dim=32),
    _decoder("qwen2_vl_text", "pre-norm", "no head", auto="base",
             rope_parameters=SECTIONS | {"mrope_section": [1, 1, 2]}),
    _decoder("qwen3_vl_text", "pre-norm", "no head", auto="base", rope_parameters=SECTIONS),
    _decoder("cosmos3_edge_text", "pre-norm", "no head", auto="base", rope_parameters=SECTIONS),
    _decoder("hunyuan_vl_text", "pre-norm", "no head", auto="base", head_dim=12,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "xdrope_section": [1, 1, 2, 2]}),
]  # fmt: skip

PARALLEL = [
    _decoder("gptj", "parallel", rotary_dim=4),
    _decoder("codegen", "parallel", rotary_dim=4),
    _decoder("gpt_neox", "parallel"),
    _decoder("phi", "parallel", qk_layernorm=True),
    _decoder("stablelm:parallel", "parallel", use_parallel_residual=True, use_qkv_bias=True),
    _decoder("cohere", "parallel", logit_scale=0.6, use_qk_norm=True),
    _decoder("cohere2", "parallel", logit_scale=0.6, layer_types=SLIDING_FULL),
    _decoder("cohere_compass_text", "parallel", logit_scale=0.6, layer_types=SLIDING_FULL,
             rope_parameters={"sliding_attention": SECTIONS | {"mrope_section": [1, 1, 2]},
             "full_attention": None}),
    _decoder("falcon", "parallel", "mlp_output += attention_output: in place, on the MLP module's own output",
             bias=True),
    _decoder("falcon:two-norms", "parallel", "in place, as in falcon", new_decoder_architecture=True,
             num_kv_heads=2, bias=True),
    _decoder("falcon:alibi", "pre-norm", parallel_attn=False, alibi=True, bias=True, multi_query=False),
]  # fmt: skip

BRANCH_NORM = [
    _decoder("gemma2", "sandwich", layer_types=SLIDING_FULL, **SOFTCAPS),
    _decoder("gemma3_text", "sandwich", layer_types=SLIDING_FULL, **SOFTCAPS),
    _decoder("glm4", "sandwich",
             "post_attention_layernorm comes before the MLP, post_self_attn_layernorm after attention"),
    _decoder("glm4v_text", "sandwich", "names as in glm4; no head", auto="base",
             rope_parameters=SECTIONS | {"mrope_section": [1, 1, 2]}),
    _decoder("muse_glimmer_text", "sandwich", "a norm without parameters after the embedding; no head",
             auto="base", layer_types=SLIDING_FULL),
    _decoder("olmo2", "branch-norm"),
    _decoder("olmo3", "branch-norm", layer_types=SLIDING_FULL),
    _decoder("exaone4", "branch-norm", layer_types=SLIDING_FULL),
    _decoder("molmo2_text", "branch-norm", "input_layernorm is applied to attention's output; no head",
             auto="base", norm_after=True, additional_vocab_size=5),
]  # fmt: skip

SCALED = [
    _decoder("granite", "multiplier", "embedding scaled outside the module", **MULTIPLIERS),
    _decoder("granite_swa", "multiplier", layer_types=SLIDING_FULL, **MULTIPLIERS),
    _decoder("granite_docling_text", "multiplier", "as granite; no head", auto="base", **MULTIPLIERS),
    _decoder("hyperclovax", "sandwich, multiplier", "logits times logits_scaling, where granite divides",
             use_post_norm=True, **MULTIPLIERS),
    _decoder("minicpm3", "multiplier", "the write times scale_depth / sqrt(layers); the final stream divided "
             "by width / dim_model_base before the head; latent attention",
             scale_emb=1.7, scale_depth=0.9, dim_model_base=20),
    _decoder("doge", "stream-scale", "the carry is multiplied by a parameter per channel, twice a block"),
]  # fmt: skip

INSIDE = [
    _decoder("bloom", "residual-inside", "the embedding is normed before block 0"),
    _decoder("bloom:post-norm-residual", "residual-inside, post-norm", "the carry is the normed stream",
             apply_residual_connection_post_layernorm=True),
    _decoder("mpt", "residual-inside"),
]  # fmt: skip

POST_NORM = [
    _decoder("openai-gpt", "post-norm"),
    _decoder("opt:post-norm", "post-norm", "opt-350m: embeddings of another width, projected in and out",
             do_layer_norm_before=False, word_embed_proj_dim=24),
    _decoder("bert-generation", "post-norm", "bert with a linear head", is_decoder=True),
    _decoder("trocr", "post-norm", "fc1 and fc2 lie in the block; a norm after the embedding",
             auto="TrOCRForCausalLM"),
]  # fmt: skip

DECODERS = [*PRE_NORM, *PARALLEL, *BRANCH_NORM, *SCALED, *INSIDE, *POST_NORM]
