"""Everything about a model that a call of ours may not change, as plain data that `==` compares."""

from typing import Any

import torch
from torch import nn

_HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks") or "_hooks_" in name]


def state_of(model: nn.Module) -> dict[str, Any]:
    """Hooks in their order, modes, grad flags, attention implementations, and every tensor's bits and place."""
    modules = dict(model.named_modules())
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "modules": {name: id(module) for name, module in modules.items()},
        "forwards": {name: vars(module).get("forward") for name, module in modules.items()},
        "hooks": {name: hooks_of(module) for name, module in modules.items()},
        "global hooks": [list(hooks) for hooks in _global_hooks()],
        "training": {name: module.training for name, module in modules.items()},
        "requires_grad": {name: tensor.requires_grad for name, tensor in tensors.items()},
        "grad": {name: tensor.grad is None for name, tensor in tensors.items()},
        "place": {name: (id(tensor), tensor.data_ptr(), tensor.dtype) for name, tensor in tensors.items()},
        "bits": {name: _bits(tensor) for name, tensor in tensors.items()},
        "state dict": list(model.state_dict()),
        "attention": {
            name: getattr(getattr(module, "config", None), "_attn_implementation", None)
            for name, module in modules.items()
        },
        "autograd": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def hooks_of(module: nn.Module) -> dict[str, list]:
    """Every kind of hook on one module: their ids and callables, in the order in which they are called."""
    return {
        name: list(hooks.items()) if isinstance(hooks, dict) else hooks
        for name, hooks in vars(module).items()
        if name in _HOOKS
    }


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _global_hooks() -> list[Any]:
    module = torch.nn.modules.module
    return [hooks for name, hooks in vars(module).items() if name.startswith("_global_") and name.endswith("hooks")]
