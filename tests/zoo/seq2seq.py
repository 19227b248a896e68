"""Encoder-decoders: two streams, and cross-attention as a third write between the decoder's other two."""

from typing import Any

from .build import VOCABULARY, Entry
from .decoders import SLIDING_FULL, SOFTCAPS


def _pair(name: str, wiring: str, note: str = "", **config: Any) -> Entry:
    wiring, auto = f"{wiring}, cross-attention", "AutoModelForSeq2SeqLM"
    return Entry(name=name, kind="encoder-decoder", wiring=wiring, note=note, auto=auto, config=config)


GEMMA = {"layer_types": SLIDING_FULL, "head_dim": 12, **SOFTCAPS}

BARTS = [
    _pair("bart", "post-norm", "fc1 and fc2 lie in the block; embeddings are normed; final_logits_bias"),
    _pair("blenderbot-small", "post-norm"),
    _pair("marian", "post-norm", "sinusoidal positions", decoder_vocab_size=VOCABULARY),
    _pair("plbart", "post-norm"),
    _pair("mvp", "post-norm"),
    _pair("led", "post-norm", "the encoder's stream is padded to a multiple of the window",
          attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    _pair("fsmt", "post-norm", "streams are [time, batch, width]; the head is called inside the "
          "decoder", src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY,
          langs=["en", "de"]),
    _pair("prophetnet", "post-norm", "the decoder's stream is main and predicting streams, one after "
          "another in time: 3 times the target; logits come from the first predicting one",
          ngram=2, num_buckets=8, relative_max_distance=16),
    _pair("mbart", "pre-norm"),
    _pair("blenderbot", "pre-norm"),
    _pair("pegasus", "pre-norm", "sinusoidal positions; embedding scaled"),
    _pair("pegasus_x", "pre-norm", "a second stream of global tokens in the encoder; every other encoder "
          "block pads and cuts inside, so no module outputs attention's write",
          num_global_tokens=3, block_size=4),
    _pair("bigbird_pegasus", "pre-norm", "short inputs switch it from sparse to full attention, for good",
          attention_type="original_full"),
    _pair("m2m_100", "pre-norm", "sinusoidal positions"),
    _pair("nllb-moe", "pre-norm, moe", encoder_sparse_step=2, decoder_sparse_step=2),
]  # fmt: skip

T5S = [
    _pair("t5", "residual-inside", "a block is a list of sub-layers that add the stream; logits times "
          "d_model^-0.5 where tied", feed_forward_proj="gated-gelu"),
    _pair("mt5", "residual-inside"),
    _pair("umt5", "residual-inside", "each block has its own relative bias"),
    _pair("longt5", "residual-inside", encoder_attention_type="transient-global", local_radius=3,
          global_block_size=4),
    _pair("switch_transformers", "residual-inside, moe", expert_capacity=32, num_sparse_encoder_layers=1,
          num_sparse_decoder_layers=1, num_layers=2),
    _pair("t5gemma", "sandwich", encoder=GEMMA, decoder=GEMMA, vocab_size=VOCABULARY),
]  # fmt: skip

PAIRS = [*BARTS, *T5S]
