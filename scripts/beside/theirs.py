"""The same numbers from transformer-lens, as its documentation says to get them.

1. A `TransformerBridge` is booted on a copy of the weights, and run once with its cache: writes, streams, heads, lens.
2. Attribution twice: `cache.logit_attrs` on that bridge, and `direct_logit_attribution`, which asks for
   `enable_compatibility_mode()`: a second bridge, since that writes to the weights.
3. Ablations are a loop of `run_with_hooks` on the first.

Each quantity for itself: what one raises is its answer.
"""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from beside.subject import Subject


def boot(subject: Subject) -> Any:
    """A bridge on a copy: booting changes the module that it is given."""
    from transformer_lens.model_bridge import TransformerBridge

    model = copy.deepcopy(subject.model)
    model.config.architectures = [type(model).__name__]  # what the adapter is chosen by
    return TransformerBridge.boot_transformers("tiny", hf_model=model, tokenizer=subject.tokenizer)


def numbers(subject: Subject) -> dict[str, dict[str, Tensor] | str]:
    """Every quantity, by the label of its parts; or what it raises."""
    found: dict[str, Any] = {}

    def attempt(names: tuple[str, ...], get: Callable[[], Any]) -> None:
        try:
            answer = get()
            found.update(answer if len(names) > 1 else {names[0]: answer})
        except Exception as error:  # whatever it raises is the answer
            text = " ".join(str(error).split()) or "nothing more"
            found.update(dict.fromkeys(names, f"{type(error).__name__}: {text}"))

    seen = Seen(subject)
    attempt(("writes",), seen.writes)
    attempt(("sum",), seen.sum)
    attempt(("stream",), seen.streams)
    attempt(("heads", "heads sum"), seen.heads)
    attempt(("attribution, as booted",), seen.attribution)
    attempt(("lens",), seen.lens)
    attempt(("ablated", "ablated heads", "effects"), seen.ablations)
    del seen
    attempt(("attribution",), lambda: processed(subject))
    return found


class Seen:
    """A bridge that was run once with its cache."""

    def __init__(self, subject: Subject, bridge: Any = None) -> None:
        self.subject = subject
        self.bridge = bridge or boot(subject)
        with torch.no_grad():
            self.logits, self.cache = self.bridge.run_with_cache(subject.ids)

    def writes(self) -> dict[str, Tensor]:
        rows = {row: f"hook_{row}" for row in self.subject.names.embed}
        for layer in range(self.subject.layers):
            rows |= {f"L{layer}.{kind}": f"blocks.{layer}.hook_{kind}_out" for kind in ("attn", "mlp")}
        return {label: self.cache[key] for label, key in rows.items() if key in self.cache.keys()}  # noqa: SIM118

    def sum(self) -> dict[str, Tensor]:
        return {"final": self.cache.decompose_resid().sum(0, dtype=torch.float64)}

    def streams(self) -> dict[str, Tensor]:
        rows = {}
        for layer in range(self.subject.layers):
            rows |= {f"L{layer}.{k}": f"blocks.{layer}.hook_resid_{at}" for k, at in (("attn", "mid"), ("mlp", "post"))}
        return {label: self.cache[key] for label, key in rows.items() if key in self.cache.keys()}  # noqa: SIM118

    def heads(self) -> dict[str, dict[str, Tensor]]:
        stack, labels = self.cache.stack_head_results(return_labels=True)
        parts = dict(zip(labels, stack, strict=True))
        wholes = {}
        for layer in range(self.subject.layers):
            mine = [part for label, part in parts.items() if label.startswith(f"L{layer}H")]
            bias = getattr(self.bridge.blocks[layer].attn, "b_O", None)
            whole = torch.stack(mine).sum(0, dtype=torch.float64)
            wholes[f"L{layer}.attn"] = whole if bias is None else whole + bias.detach()
        return {"heads": parts, "heads sum": wholes}

    def attribution(self) -> dict[str, Tensor]:
        right, wrong = (torch.tensor(token) for token in self.subject.pair)
        stack, labels = self.cache.decompose_resid(return_labels=True)
        with torch.no_grad():
            rows = self.cache.logit_attrs(stack, right, wrong)
        return _by_label(labels, rows)

    def lens(self) -> dict[str, Tensor]:
        from transformer_lens.tools.analysis import logit_lens

        middle = self.subject.names.middle is not None
        found = logit_lens(self.bridge, self.subject.ids, incl_mid=middle, positions=None)
        rows = {}
        for label, row in zip(found.labels, found.values, strict=True):
            layer, _, at = label.partition("_")
            if at == "mid":
                rows[f"L{layer}.attn"] = row
            elif layer != "0":  # the stream before block n is that after block n - 1
                rows[f"L{self.subject.layers - 1 if layer == 'final' else int(layer) - 1}.mlp"] = row
        return rows

    def ablations(self) -> dict[str, dict[str, Tensor]]:
        sublayers, heads = {}, {}
        for layer, kind in self.subject.sublayers:
            sublayers[f"L{layer}.{kind}"] = self.change(f"blocks.{layer}.hook_{kind}_out", ...)
        for layer, head in self.subject.heads:
            where = (slice(None), slice(None), head)
            heads[f"L{layer}H{head}"] = self.change(f"blocks.{layer}.attn.hook_z", where)
        found = {"ablated": sublayers, "ablated heads": heads}
        if self.subject.names.head is None:
            return found
        right, wrong = self.subject.pair
        return found | {"effects": {label: row[right] - row[wrong] for label, row in (sublayers | heads).items()}}

    def change(self, name: str, where: Any) -> Tensor:
        kept: list[Tensor] = []

        def zero(value: Tensor, hook: Any) -> Tensor:
            value = value.clone()
            value[where] = 0
            return value

        def keep(value: Tensor, hook: Any) -> None:
            kept.append(value)

        hooks = [(name, zero), (self.end, keep)]
        with torch.no_grad():
            logits = self.bridge.run_with_hooks(self.subject.ids, fwd_hooks=hooks)
        if self.subject.names.head is None:
            return (kept[0] - self.cache[self.end])[0, -1]
        return (logits - self.logits)[0, -1]

    @property
    def end(self) -> str:
        return f"blocks.{self.subject.layers - 1}.hook_resid_post"


def logits(model: Any, ids: Tensor) -> Tensor:
    """Of a plain forward, of a bridge or of a model."""
    with torch.no_grad():
        output = model(ids)
    return getattr(output, "logits", output)


def processed(subject: Subject) -> dict[str, Tensor]:
    """Attribution by its own function, on a bridge whose weights were processed for it."""
    from transformer_lens.tools.analysis import direct_logit_attribution

    bridge = boot(subject)
    bridge.enable_compatibility_mode()
    right, wrong = (torch.tensor(token) for token in subject.pair)
    with torch.no_grad():
        found = direct_logit_attribution(bridge, subject.ids, right, wrong, unit="component", pos=None)
    return _by_label(found.labels, found.attribution)


def _by_label(labels: Sequence[str], rows: Tensor) -> dict[str, Tensor]:
    """`3_attn_out` is L3.attn; the terms of the embedding have our names."""
    named = (re.sub(r"(\d+)_(attn|mlp)_out", r"L\1.\2", label) for label in labels)
    return dict(zip(named, rows, strict=True))
