"""A transformer-lens bridge over a model's own weights.

Booting a bridge changes the module it is given for good, so it is given a copy of the module tree whose parameters are
the model's very tensors: no memory is spent and the model stays as it is.
"""

import copy
from typing import Any

from torch import nn

from streamlens.errors import ModelError, first_line
from streamlens.turns import in_turn


@in_turn  # so that the copy has no hooks of a call in another thread
def boot_bridge(model: nn.Module, name: str, tokenizer: Any) -> Any:
    """A `TransformerBridge` on a copy of the module tree that shares the tensors.

    Raises:
        ModelError: transformer-lens is missing or has no adapter for this architecture.
    """
    try:
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError as error:
        raise ModelError("transformer-lens is not installed.", hint="pip install transformer-lens") from error
    shared = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    twin: Any = copy.deepcopy(model, shared)
    try:
        if not getattr(twin.config, "architectures", None):  # models built from a config name none
            twin.config.architectures = [type(twin).__name__]
        return TransformerBridge.boot_transformers(name, hf_model=twin, tokenizer=tokenizer)
    except Exception as error:  # whatever transformer-lens raises for an architecture it does not know
        raise ModelError(f"transformer-lens cannot boot a bridge on {name}: {first_line(error)}") from error
