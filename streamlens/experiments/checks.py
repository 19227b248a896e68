"""What `streamlens check` measures, each as one number beside its limit.

1. On a few prompts the writes are re-added in the model's order, and summed in float64.
2. So too where the stream is cut off after each block; and what was re-added up to there must be what the
   block really handed on.
3. The contributions to some logits, the likeliest and random ones, must sum to the model's own.
4. Afterwards the model has the hooks and modes it had before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch

from streamlens.carries import Add, walk
from streamlens.errors import StreamlensError
from streamlens.hooks.record import record
from streamlens.hooks.writes.capture import decompose
from streamlens.models.handle import ModelHandle
from streamlens.models.probe import probe_inputs
from streamlens.models.tokens import encode
from streamlens.readouts.attribution import read
from streamlens.readouts.readers.reader import Reader

TEXTS = (
    "After crossing the river, she rested on the bank",
    "def area(width, height):\n    return width * height",
    "Der Zug nach Köln fährt um 7:45 Uhr ab.",
)
#: relative limits by dtype: of the sum (in half precision only its size is known), and of the logits
SUM = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}
LOGITS = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}
_LIKELY, _RANDOM = 10, 10


@dataclass(frozen=True, kw_only=True)
class Check:
    """One number and what it may be at most; `note` says what went wrong, or why there is no number."""

    name: str
    value: float | None
    limit: float | None
    ok: bool
    note: str = ""


def examine(model: ModelHandle) -> list[Check]:
    """All checks on a handle. Cost: two forwards for each of a few short prompts."""
    before = _state(model.model)
    inputs = list(_inputs(model))
    try:
        checks = _books(model, inputs)
    except StreamlensError as error:
        checks = [Check(name="the writes sum to the stream", value=None, limit=None, ok=False, note=str(error))]
    changed = sum(before.get(name) != state for name, state in _state(model.model).items())
    return [*checks, _check("modules with a hook or mode left behind", float(changed), 0.0)]


def _check(name: str, value: float, limit: float | None) -> Check:
    ok = limit is None or value <= limit
    return Check(name=name, value=float(value), limit=limit, ok=bool(ok))


def _books(model: Any, inputs: list[dict[str, Any]]) -> list[Check]:
    dtype, exact = model.provenance["dtype"], model.wiring.exact
    in_order = relative = depths = middle = logits = 0.0
    for given in inputs:
        rest = {name: value for name, value in given.items() if name != "input_ids"}
        ledger = decompose(model, given["input_ids"], **rest)
        in_order = max(in_order, ledger.in_order)
        relative = max(relative, float(ledger.closure.max()))
        depths = max(depths, _depths(ledger))
        middle = max(middle, _middle(model, ledger, given))
        logits = max(logits, _logits(model, ledger) if model.wiring.head is not None else 0.0)
    checks = [
        _check("writes re-added in the model's order (absolute)", in_order, 0.0 if exact else None),
        _check("writes summed in float64", relative, SUM[dtype]),
        _check("writes summed at every depth", depths, SUM[dtype]),
        _check("the stream after every block", middle, 0.0 if exact else SUM[dtype]),
    ]
    if model.wiring.head is not None:
        checks.append(_check(f"{_LIKELY + _RANDOM} logits from their parts", logits, LOGITS[dtype]))
    return checks


def _inputs(model: Any) -> Iterator[dict[str, Any]]:
    """A few sentences as ids; random ids for a model without a tokenizer or with two streams."""
    random = probe_inputs(model.model, seed=1)
    if model.tokenizer is None or len(random) > 1:
        for seed in (1, 2, 3):
            yield {name: ids[:1] for name, ids in probe_inputs(model.model, seed=seed).items()}
        return
    for text in TEXTS:
        yield {"input_ids": encode(model.tokenizer, text).ids.to(model.device)}


def _depths(ledger: Any) -> float:
    """The relative closing error of the ledger cut off after each layer, the worst of all."""
    last = {site.layer: site for site in ledger.sites if not site.part}
    return max(float(ledger.at(site).closure.max()) for site in last.values())


def _middle(model: Any, ledger: Any, given: Mapping[str, Any]) -> float:
    """The largest relative difference between the re-added stream and what a block handed on."""
    # as `decompose` runs it; FSMT masks otherwise when it keeps a cache
    cache = {"use_cache": False} if "use_cache" in signature(model.model.forward).parameters else {}
    events = record(model.model, {**cache, **given}).events
    calls = [event for event in events if event.module.rpartition(".")[0] == model.wiring.blocks]
    states = _states(ledger)
    worst, reached = 0.0, states[-1]
    for number, call in enumerate(sorted(calls, key=lambda call: call.start)):
        reached = states.get(number, reached)
        worst = max(worst, min(_apart(call.output, state) for state in reached))
    return worst


def _states(ledger: Any) -> dict[int, list[Any]]:
    """By layer (-1 before the first): the stream after its last addition, and after each carry that follows.

    A block may end before a carry or after it, so that what it hands on is one of them.
    """
    states: dict[int, list[Any]] = {}
    layer = -1
    for _, step, _, after in walk(ledger.program, ledger.added, ledger.states):
        if isinstance(step, Add):
            found = ledger.sites[step.writes[-1]].layer
            layer = layer if found is None else found
            states[layer] = []
        states.setdefault(layer, []).append(after)
    return states


def _apart(handed_on: Any, state: Any) -> float:
    """The relative difference; a model may carry further positions before or after the prompt's own."""
    if handed_on is None:
        return float("inf")
    own, state = handed_on.double(), state.double()
    if own.numel() == state.numel():
        places = [own.reshape(state.shape)]  # [pos, batch, d_model] too, as there is one prompt
    else:
        count = state.shape[1]
        places = [own[:, :count], own[:, -count:]]
    return min(float((place - state).norm() / state.norm().clamp_min(1e-300)) for place in places)


def _logits(model: Any, ledger: Any) -> float:
    """The largest difference between logits rebuilt from their parts and the model's own, over their size."""
    own = ledger.logits[0, -1]
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(own.shape[-1], (_RANDOM,), generator=generator).tolist()
    likely = own.topk(min(_LIKELY, own.shape[-1])).indices.tolist()
    readout = read(ledger, Reader.logits(model, list(dict.fromkeys([*likely, *random]))))
    return float(readout.closure.max() / own.double().abs().max())


def _state(module: Any) -> dict[str, tuple[Any, ...]]:
    """What must be the same afterwards: each module's hooks and its mode."""
    return {
        name: (inner.training, tuple(inner._forward_hooks), tuple(inner._forward_pre_hooks))
        for name, inner in module.named_modules()
    }
