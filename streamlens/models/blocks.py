"""Which module list is the stack of blocks: the one whose items are called with the stream.

1. A list qualifies if its items are called with a tensor [batch, pos, d_model] (or [pos, batch, d_model]) and
   hand on one of the same shape, and contain matrices.
2. Lists inside an item of another qualifying list are parts of a block, not blocks.
3. A list whose one item is called again and again (ALBERT) counts by its calls.
4. Encoder-decoders have two stacks; they come in the order in which they run.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from streamlens.hooks.record import Event, Recording
from streamlens.models.probe import BATCH


@dataclass(frozen=True, eq=False)
class Block:
    """One call of one block: the stream that went in, and what came out."""

    event: Event
    stream: Tensor
    output: Tensor


@dataclass(frozen=True, eq=False)
class Stack:
    """A list of blocks, in the order of their calls."""

    name: str
    blocks: tuple[Block, ...]

    @property
    def time_major(self) -> bool:
        """Whether the stream is [pos, batch, d_model]."""
        return self.blocks[0].output.shape[0] != BATCH


def find_stacks(model: nn.Module, recording: Recording) -> list[Stack]:
    """All stacks of blocks, in the order in which they run; empty if there is none."""
    modules = dict(model.named_modules())
    stacks = []
    for name, module in modules.items():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            items = {f"{name}.{key}" for key, _ in module.named_children()}
            calls = [e for e in recording.events if e.module in items]
            calls.sort(key=lambda e: e.start)
            blocks = [b for e in calls if _has_matrix(modules[e.module]) and (b := _as_block(e))]
            if blocks and len(blocks) == len(calls):
                stacks.append(Stack(name, tuple(blocks)))
    outer = [s for s in stacks if not any(_inside(s, other) for other in stacks)]
    width = max((s.blocks[0].output.shape[-1] * len(s.blocks) for s in outer), default=0)
    # a list with a single call beside a long one is a head or an adapter, not a stack
    outer = [s for s in outer if len(s.blocks) > 1 or s.blocks[0].output.shape[-1] == width]
    return sorted(outer, key=lambda s: s.blocks[0].event.start)


def parallel_streams(model: nn.Module, recording: Recording) -> str:
    """The shape of several streams handed from block to block (hyper-connections, AltUp); "" for one stream."""
    shapes = [
        tuple(e.output.shape)
        for e in recording.events
        if e.output is not None
        and e.output.dim() == 4
        and e.module.rsplit(".", 1)[-1].isdigit()
        and any(t.shape == e.output.shape for t in e.inputs[:1])
        and _has_matrix(model.get_submodule(e.module))
    ]
    return f"[{', '.join(map(str, shapes[0]))}]" if len(shapes) > 1 else ""


def _inside(stack: Stack, other: Stack) -> bool:
    return stack is not other and any(stack.blocks[0].event.within(b.event) for b in other.blocks)


def _has_matrix(module: nn.Module) -> bool:
    return any(p.dim() > 1 for p in module.parameters())


def _as_block(event: Event) -> Block | None:
    """The call as a block: its first input of the shape of its output is the stream."""
    output = event.output
    if output is None or output.dim() != 3 or BATCH not in output.shape[:2]:
        return None
    stream = next((t for t in event.inputs if t.shape == output.shape), None)
    return None if stream is None else Block(event, stream, output)
