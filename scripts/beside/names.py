"""Where twelve architectures keep what they add to their stream: written down by hand from their modeling files.

It owes nothing to streamlens' measured wirings and nothing to transformer-lens' adapters, so that it can judge both;
and `by_hand.py` checks it on every run: what it names must sum to the model's own stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Names:
    """Module names; those of a block are relative to it.

    Attributes:
        blocks: The list of blocks.
        attn: Whose output the attention adds, times the multiplier.
        mlp: Whose output the MLP adds.
        out: The attention's output projection: its input holds the heads side by side.
        middle: Whose input is the stream between the two; None if both read the same stream.
        embed: The terms of the embedding, by the name of their row.
        norm: The final norm; None if there is none.
        head: The unembedding; None where more than it stands between stream and logits.
        after: In a post-norm model the norm of the whole stream after the embedding, attention, the MLP.
    """

    blocks: str
    attn: str
    mlp: str
    out: str
    middle: str | None
    embed: Mapping[str, str] = field(default_factory=lambda: {"embed": "model.embed_tokens"})
    norm: str | None = "model.norm"
    head: str | None = "lm_head"
    after: tuple[str, str, str] | None = None


LLAMA = Names(
    blocks="model.layers",
    attn="self_attn",
    mlp="mlp",
    out="self_attn.o_proj",
    middle="post_attention_layernorm",
)
#: zoo entry -> its names; the multipliers are in its config
BY_ENTRY = {
    "gpt2": Names(
        blocks="transformer.h",
        attn="attn",
        mlp="mlp",
        out="attn.c_proj",
        middle="ln_2",
        embed={"embed": "transformer.wte", "pos_embed": "transformer.wpe"},
        norm="transformer.ln_f",
    ),
    "qwen3": LLAMA,
    "mixtral": LLAMA,
    "granite": LLAMA,
    "gemma2": Names(
        blocks="model.layers",
        attn="post_attention_layernorm",
        mlp="post_feedforward_layernorm",
        out="self_attn.o_proj",
        middle="pre_feedforward_layernorm",
    ),
    "olmo2": Names(
        blocks="model.layers",
        attn="post_attention_layernorm",
        mlp="post_feedforward_layernorm",
        out="self_attn.o_proj",
        middle="mlp",
    ),
    "gpt_neox": Names(
        blocks="gpt_neox.layers",
        attn="attention",
        mlp="mlp",
        out="attention.dense",
        middle=None,
        embed={"embed": "gpt_neox.embed_in"},
        norm="gpt_neox.final_layer_norm",
    ),
    "bloom": Names(
        blocks="transformer.h",
        attn="self_attention.dense",
        mlp="mlp.dense_4h_to_h",
        out="self_attention.dense",
        middle="post_attention_layernorm",
        embed={"embed": "transformer.word_embeddings_layernorm"},
        norm="transformer.ln_f",
    ),
    "falcon:alibi": Names(
        blocks="transformer.h",
        attn="self_attention.dense",
        mlp="mlp.dense_4h_to_h",
        out="self_attention.dense",
        middle="post_attention_layernorm",
        embed={"embed": "transformer.word_embeddings"},
        norm="transformer.ln_f",
    ),
    "opt": Names(
        blocks="model.decoder.layers",
        attn="self_attn.out_proj",
        mlp="fc2",
        out="self_attn.out_proj",
        middle="final_layer_norm",
        embed={"embed": "model.decoder.embed_tokens", "pos_embed": "model.decoder.embed_positions"},
        norm="model.decoder.final_layer_norm",
    ),
    "xglm": Names(
        blocks="model.layers",
        attn="self_attn.out_proj",
        mlp="fc2",
        out="self_attn.out_proj",
        middle="final_layer_norm",
        embed={"embed": "model.embed_tokens", "pos_embed": "model.embed_positions"},
        norm="model.layer_norm",
    ),
    "bert": Names(
        blocks="bert.encoder.layer",
        attn="attention.output.dense",
        mlp="output.dense",
        out="attention.output.dense",
        middle="intermediate",
        embed={
            "embed": "bert.embeddings.word_embeddings",
            "type_embed": "bert.embeddings.token_type_embeddings",
            "pos_embed": "bert.embeddings.position_embeddings",
        },
        norm=None,
        head=None,
        after=("bert.embeddings.LayerNorm", "attention.output.LayerNorm", "output.LayerNorm"),
    ),
}
