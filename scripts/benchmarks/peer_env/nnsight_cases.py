"""What nnsight is asked for. It has no decomposition of its own: a user saves the outputs of modules, and sums.

The modules are found by their names, as a user finds them: the embeddings, and in every block what is called attention
and what is called MLP.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ATTENTION = re.compile(r"attn|attention")
MLP = re.compile(r"mlp|feed_forward|ffn|moe|fc2")
POSITIONS = re.compile(r"wpe|embed_positions|position_embeddings|token_type_embeddings")


class Subject:
    """A model, and nnsight's handle on it."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        from nnsight import NNsight

        self.model, self.tokenizer = model, tokenizer
        names = {module: name for name, module in model.named_modules()}
        stack = max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)
        self.embeddings = [names[model.get_input_embeddings()]]
        self.embeddings += [n for m, n in names.items() if POSITIONS.fullmatch(n.rpartition(".")[2])]
        self.blocks = [
            [f"{names[block]}.{child}" for child in _called(block, ATTENTION) + _called(block, MLP)] for block in stack
        ]
        self.net = NNsight(model)

    def envoy(self, path: str) -> Any:
        """nnsight's stand-in for a module."""
        found = self.net
        for name in path.split("."):
            found = found[int(name)] if name.isdigit() else getattr(found, name)
        return found

    def tuples(self, paths: Sequence[str], ids: Tensor) -> set[str]:
        """Those modules whose output is a tuple."""
        seen: set[str] = set()
        hooks = [
            self.model.get_submodule(p).register_forward_hook(
                lambda _m, _i, out, p=p: seen.add(p) if isinstance(out, tuple) else None
            )
            for p in paths
        ]
        with torch.inference_mode():
            self.model(input_ids=ids)
        for hook in hooks:
            hook.remove()
        return seen


def _called(block: nn.Module, pattern: re.Pattern[str]) -> list[str]:
    """The first child whose name says so, if there is one."""
    fits = [
        n
        for n, m in block.named_children()
        if pattern.search(n) and "norm" not in n and next(m.parameters(), None) is not None
    ]
    return fits[:1]


def trace(subject: Subject, ids: list[list[int]], final: Sequence[str]) -> Callable[[], tuple[list[Tensor], Tensor]]:
    """Saves every output that is summed into the stream, and the stream at its end.

    Args:
        subject: The model.
        ids: Token ids.
        final: The module at whose "input" or "output" the stream ends, and which of the two.
    """
    import nnsight

    tokens = torch.tensor(ids)
    paths = [*subject.embeddings, *(path for block in subject.blocks for path in block)]
    module, side = final
    tuples = subject.tuples([*paths, module], tokens)
    envoys = [(subject.envoy(path), path in tuples) for path in paths]
    last, last_is_tuple = subject.envoy(module), module in tuples
    net = subject.net

    def run() -> tuple[list[Tensor], Tensor]:
        with torch.inference_mode(), net.trace(input_ids=tokens):
            out = nnsight.save([])
            for envoy, is_tuple in envoys:
                out.append(envoy.output[0] if is_tuple else envoy.output)
            end = nnsight.save(last.input if side == "input" else last.output[0] if last_is_tuple else last.output)
        return out, end

    return run


def attribution(
    subject: Subject, ids: list[list[int]], final: Sequence[str], norm: str, token: int, against: int
) -> Callable[[], Tensor]:
    """Direct logit attribution by hand for an RMS norm: the saved outputs, the norm's scale, two rows of the head."""
    saved = trace(subject, ids, final)
    rms = subject.model.get_submodule(norm)
    head = subject.model.get_output_embeddings().weight.detach()

    def run() -> Tensor:
        parts, end = saved()
        with torch.inference_mode():
            scale = (end.pow(2).mean(-1, keepdim=True) + rms.variance_epsilon).rsqrt()
            direction = (head[token] - head[against]) * rms.weight
            return torch.stack(parts) * scale @ direction

    return run


def closing(subject: Subject, ids: list[list[int]], final: Sequence[str]) -> Callable[[], dict[str, float]]:
    """How far the sum of what was saved is from the stream, relative to it; the worst token."""
    saved = trace(subject, ids, final)

    def run() -> dict[str, float]:
        parts, end = saved()
        end = end.double()
        total = sum(part.double().reshape(-1, *part.shape[-2:]) for part in parts)
        return {"sublayers": float(((total - end).norm(dim=-1) / end.norm(dim=-1)).max())}

    return run


def ablate(
    subject: Subject, ids: list[list[int]], sites: list[list[Any]], everywhere: bool, width: int
) -> Callable[[], list[Tensor]]:
    """A loop of interventions: [layer, "attn" or "mlp", head or None] set to zero, one run each.

    A head is its columns of the output projection's input, `width` each.
    """
    tokens = torch.tensor(ids)
    paths = [path for block in subject.blocks for path in block]
    tuples = subject.tuples(paths, tokens)
    net = subject.net
    where = slice(None) if everywhere else slice(-1, None)

    def whole(path: str) -> Tensor:
        envoy = subject.envoy(path)
        with torch.inference_mode(), net.trace(input_ids=tokens):
            value = envoy.output[0] if path in tuples else envoy.output
            value[:, where] = 0
            logits = net.output.logits[:, -1].save()
        return logits

    def head(path: str, number: int) -> Tensor:
        envoy = subject.envoy(f"{path}.o_proj")
        with torch.inference_mode(), net.trace(input_ids=tokens):
            envoy.input[:, where, number * width : (number + 1) * width] = 0
            logits = net.output.logits[:, -1].save()
        return logits

    def run() -> list[Tensor]:
        out = []
        for layer, kind, number in sites:
            path = subject.blocks[layer][0 if kind == "attn" else 1]
            out.append(whole(path) if number is None else head(path, number))
        return out

    return run


CASES = {"trace": trace, "attribution": attribution, "closing": closing, "ablate": ablate}
