"""What is measured: a model, prompts of a given length, and the setting that goes with every table."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

import streamlens
from streamlens.errors import StreamlensError
from streamlens.models.store import model_folder

SENTENCE = "After crossing the river, she rested on the bank"


def prompt_ids(handle: Any, tokens: int) -> Tensor:
    """Token ids [1, tokens]: the sentence over and over, or arbitrary ids for a model without a tokenizer."""
    if handle.tokenizer is None:
        vocabulary = handle.model.get_input_embeddings().num_embeddings
        return torch.randint(1, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(0))
    ids = handle.tokenizer(SENTENCE)["input_ids"]
    return torch.tensor([(ids * (tokens // len(ids) + 1))[:tokens]])


def bridge_of(handle: Any) -> tuple[Any, str]:
    """transformer-lens' bridge over the same weights; or None and why there is none."""
    try:
        return handle.bridge(), ""
    except StreamlensError as error:
        return None, str(error).splitlines()[0]


def folder_of(handle: Any) -> str:
    """Where the model's files are."""
    return handle.name if os.path.isdir(handle.name) else str(model_folder(handle.name))


def final_tap(handle: Any) -> list[str]:
    """The module at which the stream ends, and whether it is its "input" or its "output"."""
    tap = handle.wiring.final
    return [tap.module, tap.side]


def setting(handle: Any) -> dict[str, Any]:
    """What a figure depends on besides the code: versions, threads, processor."""
    return {
        "model": os.path.basename(handle.name.rstrip("/")),
        "dtype": str(handle.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "streamlens": streamlens.__version__,
        **{name: _version(name) for name in ("torch", "transformers", "transformer-lens")},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
