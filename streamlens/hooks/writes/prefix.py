"""Keys and values of a clean run, reused for the positions before an edit.

1. The clean run is made with the model's own cache switched on.
2. If every layer of that cache is a plain one that holds all positions, its first p keys and values serve any number
   of variants: they are expanded, not copied, and a variant's own are only joined to them while its layer runs.
3. A layer with a sliding window gets a plain one too: it keeps what has left the window, which the mask still hides.
4. Any other cache (recurrent states, layers that share) is left alone.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from streamlens.hooks.forward import Batch, forward_names
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Wiring


@dataclass(frozen=True, eq=False)
class Prefix:
    """The keys and values of all positions of one prompt, by layer, and what the forward calls its cache."""

    name: str
    layers: tuple[tuple[Tensor, Tensor], ...]

    def inputs(self, length: int) -> dict[str, Any]:
        """Arguments that let any number of variants go on after the first `length` positions."""
        from transformers.cache_utils import Cache

        layers = [_shared_layer(k[..., :length, :], v[..., :length, :]) for k, v in self.layers]
        return {self.name: Cache(layers=layers), "use_cache": True}


@dataclass(frozen=True, eq=False)
class Keeper:
    """A batch that leaves its keys and values in a cache."""

    batch: Batch
    name: str

    def prefix(self) -> Prefix | None:
        """What the run left; None if it is no plain cache of all positions."""
        from transformers.cache_utils import DynamicLayer

        length = self.batch.run_mask.shape[1]
        cache = self.batch.inputs[self.name]
        layers = []
        for layer in cache.layers:
            plain = type(layer) is DynamicLayer and layer.is_initialized
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            if not plain or keys is None or values is None or keys.shape[-2] != length or len(keys) != 1:
                return None
            layers.append((keys, values))
        return Prefix(self.name, tuple(layers)) if layers else None


def prefix_of(model: ModelHandle, wiring: Wiring, batch: Batch) -> Keeper | None:
    """The batch with a cache to fill; None for several prompts, for two streams, for models that take no cache."""
    takes = forward_names(model.model)
    name = next((n for n in ("cache", "past_key_values") if n in takes), None)
    if name is None or wiring.stream != "only" or len(batch.ids) != 1:
        return None
    from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    config: Any = model.model.config
    made = DynamicCache(config=config)
    plain = [DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer for layer in made.layers]
    cache = Cache(layers=plain) if plain else made
    return Keeper(replace(batch, inputs={**batch.inputs, name: cache, "use_cache": True}), name)


def _shared_layer(keys: Tensor, values: Tensor) -> Any:
    """A cache layer that joins new keys and values to the shared ones without keeping them."""
    from transformers.cache_utils import DynamicLayer

    class SharedLayer(DynamicLayer):
        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            rows = len(key_states)
            joined_keys = torch.cat([keys.expand(rows, -1, -1, -1), key_states], dim=-2)
            return joined_keys, torch.cat([values.expand(rows, -1, -1, -1), value_states], dim=-2)

    layer = SharedLayer()
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    return layer
