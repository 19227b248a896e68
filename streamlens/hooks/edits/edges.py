"""Attention edges: what one head takes from one source token, changed inside attention itself.

1. Which module is a head's attention is seen once per model, on a few tokens: the nearest one around its projection
   that goes through transformers' attention interface.
2. In a run, pattern times value at the source is what the head takes from there; the change is made to that part of
   attention's output, before any gate or projection.
"""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from streamlens.errors import WiringError
from streamlens.hooks.edits.action import Action
from streamlens.hooks.scope import quiet_eval
from streamlens.hooks.writes.patterns import Attended, OnAttention, behind, recorded_attention
from streamlens.models.handle import ModelHandle
from streamlens.models.probe import probe_inputs
from streamlens.models.wiring import Projection
from streamlens.sites import Site

#: attention module -> its number of heads, 0 if its output is not pattern times values
_seen: WeakKeyDictionary[nn.Module, Mapping[str, int]] = WeakKeyDictionary()


def attention_of(model: ModelHandle, site: Site, maker: Projection) -> str:
    """The dotted name of the module that attends for a head.

    Raises:
        WiringError: Its attention cannot be read, or is not pattern times values.

    Cost: one forward of a few tokens, once per model.
    """
    if model.model not in _seen:
        with recorded_attention(model.model) as calls, quiet_eval(model.model):
            model.model(**probe_inputs(model.model))
        _seen[model.model] = {
            name: attended[0].pattern.shape[1] if all(call.linear for call in attended) else 0
            for name, attended in calls.items()
        }
    names = behind(maker.tap.module, _seen[model.model])
    if not names:
        raise WiringError(
            f"The attention of {site.sublayer} does not go through transformers' attention interface, so it has no "
            "edges.",
            hint="Edit the whole head.",
        )
    if _seen[model.model][names[0]] != maker.heads:
        raise WiringError(
            f"{site.sublayer} is not attention pattern times values, so it has no edges.", hint="Edit the whole head."
        )
    return names[0]


def change_edges(edges: Sequence[Action]) -> OnAttention:
    """What makes the actions on edges while the model attends."""

    def on_attention(name: str, call: int, attended: Attended, output: Tensor) -> Tensor:
        mine = [edge for edge in edges if edge.attention == name and edge.tap.call == call]
        if not mine:
            return output
        new = output.clone()
        view = new.view(*new.shape[:2], attended.pattern.shape[1], -1) if new.dim() == 3 else new
        for edge in mine:
            weight = attended.pattern[edge.rows, edge.head, edge.positions, edge.source]
            taken = weight[:, None] * attended.values[edge.rows, edge.head, edge.source]
            view[edge.rows, edge.positions, edge.head] += (edge.change(taken) - taken).to(view.dtype)
        return new

    return on_attention
