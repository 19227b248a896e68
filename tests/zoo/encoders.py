"""Encoders: most are post-norm, where every write passes all norms after it."""

from typing import Any

from .build import VOCABULARY, Entry
from .decoders import SLIDING_FULL


def _encoder(
    name: str,
    wiring: str = "post-norm",
    note: str = "",
    auto: str = "AutoModelForMaskedLM",
    streams: int = 1,
    **config: Any,
) -> Entry:
    return Entry(name=name, kind="encoder", wiring=wiring, streams=streams, note=note, auto=auto, config=config)


POST_NORM = [
    _encoder("bert"),
    _encoder("roberta", note="positions count from the padding index + 1"),
    _encoder("xlm-roberta"),
    _encoder("camembert"),
    _encoder("data2vec-text"),
    _encoder("ernie", note="a third learned embedding, of the task", use_task_id=True),
    _encoder("roc_bert", note="embeddings of shape and pronunciation, concatenated and projected",
             pronunciation_vocab_size=20, shape_vocab_size=20, pronunciation_embed_dim=10, shape_embed_dim=6),
    _encoder("albert", note="one layer, called three times: module calls must be told apart",
             embedding_size=24),
    _encoder("electra", note="embeddings of another width, projected in", embedding_size=24),
    _encoder("distilbert"),
    _encoder("distilbert:sinusoidal", note="positions are sinusoidal weights without gradient",
             sinusoidal_pos_embds=True),
    _encoder("mpnet", note="a relative bias computed once, by a module of the encoder"),
    _encoder("deberta", note="the embedding is multiplied by the mask after its norm",
             relative_attention=True,
             pos_att_type=["p2c", "c2p"], max_relative_positions=16),
    _encoder("deberta-v2", note="after block 0 a convolution of the embedding is added, and normed: a write "
             "outside every block", relative_attention=True, pos_att_type=["p2c", "c2p"],
             position_buckets=8, max_relative_positions=16, norm_rel_ebd="layer_norm", share_att_key=True,
             conv_kernel_size=3, conv_act="gelu", position_biased_input=False),
    _encoder("convbert", note="heads are half attention, half convolution", embedding_size=24,
             conv_kernel_size=3),
    _encoder("fnet", note="a Fourier transform in attention's place: no parameters, no bias, no heads"),
    _encoder("mobilebert", note="norms are elementwise affine, without statistics; each block reads the "
             "stream through a bottleneck half as wide and writes once", embedding_size=24,
             intra_bottleneck_size=16,
             num_feedforward_networks=2, trigram_input=True),
    _encoder("squeezebert", note="the stream inside the encoder is [batch, width, time]; blocks return a "
             "dict; linear layers are grouped convolutions", embedding_size=32, q_groups=2, k_groups=2,
             v_groups=2,
             intermediate_groups=2, output_groups=2),
    _encoder("nystromformer", note="a convolution of the values is added to the heads", conv_kernel_size=5),
    _encoder("yoso", note="attention by hashing, in expectation here"),
    _encoder("mra", note="without its kernel attention returns zeros: its write is the bias alone"),
    _encoder("big_bird", note="short inputs switch it from sparse to full attention, for good: avoided here",
             attention_type="original_full"),
    _encoder("longformer", note="the stream is padded to a multiple of the window and cut after the encoder",
             attention_window=4),
    _encoder("rembert", note="embeddings of another width in, and yet another out", input_embedding_size=24,
             output_embedding_size=28),
    _encoder("roformer"),
    _encoder("ibert", note="modules return (tensor, scaling factor), and the addition is itself a module"),
    _encoder("layoutlm", note="without boxes every token gets the same box embeddings",
             max_2d_position_embeddings=32),
    _encoder("luke", entity_vocab_size=20, entity_emb_size=10),
    _encoder("tapas", note="seven token type embeddings", type_vocab_sizes=[3, 16, 16, 2, 16, 16, 10]),
    _encoder("nomic_bert"),
    _encoder("gte"),
    _encoder("jina_embeddings_v3"),
    _encoder("flaubert", note="no block modules: the model holds lists of attentions, norms and MLPs; the "
             "stream is multiplied in place by the padding mask"),
    _encoder("xlm", note="no block modules, as in flaubert"),
    _encoder("xlnet", note="the stream is [time, batch, width]; attention is bidirectional, and its "
             "matrices are tensors in einsum: no module outputs the write alone", auto="XLNetLMHeadModel",
             d_head=8,
             mem_len=None),
    _encoder("splinter", auto="AutoModel"),
    _encoder("markuplm", note="xpath embeddings, of padding where none are given", auto="AutoModel",
             max_xpath_tag_unit_embeddings=20, max_xpath_subs_unit_embeddings=30, tag_pad_id=18,
             subs_pad_id=28,
             xpath_unit_hidden_size=6, max_depth=4),
    _encoder("xmod", "post-norm, residual-inside", "an adapter per language, itself with a residual, after "
             "the MLP", adapter_reduction_factor=4, ln_before_adapter=True, adapter_layer_norm=True,
             default_language="en_XX"),
]  # fmt: skip

PRE_NORM = [
    _encoder("megatron-bert", "residual-inside"),
    _encoder("roberta-prelayernorm", "residual-inside", "the head norms the final stream before it is "
             "nonlinear"),
    _encoder("xlm-roberta-xl", "residual-inside"),
    _encoder("esm", "residual-inside", "the embedding passes a norm", position_embedding_type="rotary",
             emb_layer_norm_before=True, token_dropout=False, mask_token_id=98),
    _encoder("esmc", "pre-norm, multiplier", "writes divided by sqrt(layers / 36)", num_key_value_heads=4,
             head_dim=8),
    _encoder("modernbert", "pre-norm", "block 0 has no norm before attention", layer_types=SLIDING_FULL,
             norm_bias=True),
    _encoder("eurobert", "pre-norm"),
    _encoder("ultrabert", "pre-norm", prediction_head_size=24),
    _encoder("xmod:pre-norm", "residual-inside", "as xmod", pre_norm=True, adapter_reduction_factor=4,
             ln_before_adapter=True, default_language="en_XX"),
    _encoder("neomme", "multiplier", "attention reads a mix of the stream and the embedding; token "
             "embeddings are added to values in some blocks", embedding_rank=10, head_dim=12,
             residual_multiplier=0.4,
             rope_parameters={kind: {"rope_type": "default", "rope_theta": 1e4,
             "partial_rotary_factor": 1 / 3}
                              for kind in ("full_attention", "sliding_attention")}),
    _encoder("clip_text_model", "pre-norm", "causal; no head", auto="AutoModel"),
    _encoder("tipsv2_text_model", "pre-norm", auto="AutoModel"),
    _encoder("embedding_gemma2_text", "sandwich, stream-scalar", "bidirectional; the third write lies in a "
             "module that adds the stream, and *= layer_scalar then changes that module's output in place",
             auto="AutoModel", hidden_size_per_layer_input=6,
             vocab_size_per_layer_input=VOCABULARY, embedding_dim=24, layer_types=SLIDING_FULL),
]  # fmt: skip

SEVERAL = [
    _encoder("reformer", "several-streams", "reversible: two streams, each the input of the other's branch",
             streams=2, axial_pos_embds=False, attn_layers=["local", "lsh", "local"], attention_head_size=12,
             local_attn_chunk_length=4, lsh_attn_chunk_length=4, num_buckets=4, hash_seed=0,
             is_decoder=False),
    _encoder("funnel", "several-streams", "the stream is pooled to half its length, and upsampled onto an "
             "earlier one", streams=2, block_sizes=[1, 1], num_decoder_layers=1),
    _encoder("canine", "several-streams", "characters, then every fourth one, then characters: three stacks",
             auto="AutoModel", streams=3, num_hash_buckets=30, local_transformer_stride=8),
]  # fmt: skip

ENCODERS = [*POST_NORM, *PRE_NORM, *SEVERAL]
