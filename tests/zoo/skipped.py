"""Text architectures that the zoo leaves out, each with the reason."""

_ALIAS = "the classes of another architecture of the zoo"
_PAGES = "reads words with their boxes on a page"
_AUDIO = "its tokens are audio"
_TOWERS = "its text part cannot be built without towers for images or sound"

SKIPPED = {
    "exaone": f"{_ALIAS}, llama",
    "internlm3": f"{_ALIAS}, llama",
    "iquestcoder": f"{_ALIAS}, llama",
    "gpt-sw3": f"{_ALIAS}, gpt2",
    "sarvam_mla": f"{_ALIAS}, deepseek_v3",
    "sarvam_moe": f"{_ALIAS}, glm4_moe",
    "flaubert:pre-norm": "pre_norm=True raises a TypeError in transformers 5.24: it indexes a cache",
    "blt": "several models nested over patches of bytes: no stream runs over the tokens",
    "dpr": "returns a pooled vector, not a stream",
    "perceiver": "latents of another length than the text",
    "encoder-decoder": "a pair of any two other architectures",
    "rag": "a pair of other architectures and an index",
    "gemma4_assistant": "reads another model's cache",
    "gemma4_unified_assistant": "reads another model's cache",
    "diffusion_gemma": "denoises a canvas of tokens in rounds",
    "bros": _PAGES,
    "lilt": _PAGES,
    "layoutlmv2": f"{_PAGES}, with a package of compiled code",
    "layoutlmv3": f"{_PAGES}, with an image",
    "udop": f"{_PAGES}, with an image",
    "musicgen": _AUDIO,
    "moshi": _AUDIO,
    "csm": _AUDIO,
    "higgs_audio_v2": _AUDIO,
    "gradium_phonon_tts": _AUDIO,
    "phi4_multimodal": f"{_TOWERS}; nine seconds to build",
    "emu3": _TOWERS,
    "fuyu": _TOWERS,
    "mllama": _TOWERS,
    "step3p7": _TOWERS,
    "kosmos-2": _TOWERS,
    "git": _TOWERS,
    "t5gemma2": _TOWERS,
    "jev": "a head of decisions on another architecture of the zoo",
    "imagegpt": "its tokens are pixels",
    "decision_transformer": "its tokens are states and actions",
    "hy_v4_vl_text": "hy_v4 with positions in three axes",
    "voxtral_realtime_text": "named in the registry, but its class cannot be imported",
}
