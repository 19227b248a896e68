"""The calls that a user makes on a model, by name, and everything that one gives as plain numbers.

1. A `Subject` is a model and what it is asked about; `tiny` makes one of a model of the zoo.
2. `CALLS` asks it. Each call is cheap on a tiny model, and none needs anything but its subject.
3. `numbers_of` walks any result and gives the bits of every tensor, array, frame and number in it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

import streamlens as sl
import zoo
from streamlens.models.handle import ModelHandle
from tiny_tokenizers import wordpiece

PROMPT, OTHER = "after crossing the river bank", "the river the river bank"


@dataclass(frozen=True)
class Subject:
    """A model, two prompts that end in one token, and a reader of it."""

    model: Any
    reader: Any
    prompt: str = PROMPT
    other: str = OTHER
    token: str = "bank"


def tiny(module: Any = "llama", *, prompt: str = PROMPT, other: str = OTHER) -> Subject:
    """A subject over a model of the zoo, by name, or over another handle on a given module."""
    model = sl.load(zoo.build(module) if isinstance(module, str) else module, tokenizer=wordpiece())
    return Subject(model=model, reader=sl.Reader.logit_diff(model, "river", "bank"), prompt=prompt, other=other)


def _ledger(s: Subject, **options: Any) -> Any:
    return sl.decompose(s.model, s.prompt, **options)


def _head(s: Subject) -> Any:
    return sl.Reader.head(s.model, "L2H1", "q")


CALLS: Mapping[str, Callable[[Subject], Any]] = {
    "decompose": _ledger,
    "decompose, heads": lambda s: _ledger(s, level="head", positions=s.token),
    "decompose, sources": lambda s: _ledger(s, level="source", sites=["L1.attn"], positions=s.token),
    "decompose, neurons": lambda s: _ledger(s, level="neuron", top=3, along=s.reader, positions=s.token),
    "read": lambda s: sl.read(_ledger(s), s.reader),
    "logit_lens": lambda s: sl.logit_lens(_ledger(s), s.model),
    "ablate": lambda s: sl.ablate(s.model, s.prompt, "L1.attn", readers=s.reader, position=s.token),
    "ablate, an edge": lambda s: sl.ablate(s.model, s.prompt, f"L1H1<0@{s.token}", readers=s.reader),
    "ablate, patterns frozen": lambda s: sl.ablate(s.model, s.prompt, "L0.mlp", freeze="patterns"),
    "replay": lambda s: sl.replay(s.model, s.prompt, f"L1H1@{s.token}"),
    "sweep": lambda s: sl.sweep(s.model, s.prompt, readers=s.reader),
    "sweep, heads": lambda s: sl.sweep(s.model, s.prompt, over="heads", position=s.token, readers=s.reader),
    "sweep, estimated": lambda s: sl.sweep(s.model, s.prompt, readers=s.reader, estimate="gradient"),
    "compare": lambda s: sl.compare(s.model, s.prompt, s.other, token=s.token, readers=s.reader),
    "swap": lambda s: sl.swap(s.model, s.prompt, s.other, token=s.token, readers=s.reader),
    "cause": lambda s: sl.cause(s.model, s.prompt, "L1.mlp", _head(s), position=s.token),
    "lesion": lambda s: sl.lesion(s.model, [s.prompt, s.other], shuffle=2, repeats=2),
    "backward": lambda s: sl.backward(s.model, s.prompt, s.reader),
    "paths": lambda s: sl.paths(s.model, s.prompt, s.reader),
    "jacobian": lambda s: sl.jacobian(s.model, s.prompt),
    "perturb": lambda s: sl.perturb(s.model, s.prompt, sizes=[0.1, 1.0]),
    "scale_steps": lambda s: sl.scale_steps(s.model, s.prompt),
    "visibility": lambda s: sl.visibility(_ledger(s), _head(s)),
    "visibility_map": lambda s: sl.visibility_map(_ledger(s), s.model, position=s.token),
    "before_after": lambda s: sl.before_after(_ledger(s, positions=s.token), s.reader),
    "trajectory": lambda s: sl.trajectory(_ledger(s), s.model),
    "nullspace": lambda s: sl.nullspace(_head(s)),
    "overlap": lambda s: sl.overlap(_head(s), sl.Reader.head(s.model, "L2H2", "k")),
    "model_readers": lambda s: [reader.rank for reader in sl.model_readers(s.model)[:9]],
}


def numbers_of(result: Any) -> list[bytes]:
    """The bits of every number in a result, in one order; a model in it counts for nothing."""
    return list(_bits(result))


def _bits(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, pd.DataFrame):
        yield value.to_csv(float_format="%.17g").encode()
    elif isinstance(value, float | int | str):
        yield repr(value).encode()
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from _bits(value[key])
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _bits(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, ModelHandle):
        for field in dataclasses.fields(value):
            yield from _bits(getattr(value, field.name))
