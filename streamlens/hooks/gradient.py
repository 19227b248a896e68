"""Gradients of what a reader sees, at every write: one forward with a graph, one backward per number.

1. The run is made again with autograd on. At each tap the tensor is kept and a copy goes on into the model, so that a
   model that adds in place does not change what was kept. Where no graph has begun yet (frozen parameters: at the
   embedding), the kept tensor becomes its beginning.
2. The metric is the reader on the model's own output at a position: its logits, its normed stream, or its stream.
3. `torch.autograd.grad` is asked for the kept tensors alone. No `.grad` is written and no flag is changed.
4. A write is `scale` times what its tap gives, so its gradient is the tap's divided by `scale`.

The gradient at a write is dm/du through everything after it: the direct route and all later branches. In a pre-norm
model it is the gradient of the stream right after the write, dm/dx[s + 1].
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from streamlens.errors import InputError, WiringError
from streamlens.hooks.forward import Batch
from streamlens.hooks.prompts import kept_positions
from streamlens.hooks.replay import Clean
from streamlens.hooks.scope import HookScope, quiet_eval, stream_output, with_stream_output
from streamlens.hooks.taps import Listener, as_stream, attach, first_floating
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Projection, Tap, Wiring
