"""The arbiter: the model's own numbers, from plain forwards of the same weights in float64 with hooks set by hand.

1. One forward with hooks on the modules of `names.py` gives every addend, the stream at every block, and the heads as
   the parts of the input of attention's output projection.
2. Attribution is the final norm with its statistics held, times two rows of the unembedding; the lens is the model's
   own norm and unembedding called on every stream.
3. Ablations are forwards in which one hook returns zeros; the change of the last token's logits is kept, or of its
   final stream where the head is not linear.
4. Nothing is believed: the addends must sum to every stream and the heads to their write, what norms do to heads must
   be gains times a size per token, the lens of the last stream must be the model's logits. `AssertionError` otherwise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from beside.subject import Subject

#: how far float64 sums may be from the model's own, relative to it; norms that cast to float32 allow no less
EXACT = 1e-6


def numbers(subject: Subject) -> dict[str, dict[str, Tensor]]:
    """Every quantity of `subject`, by the label of its parts."""
    return _ByHand(subject).numbers()


class _ByHand:
    def __init__(self, subject: Subject) -> None:
        self.subject, self.names, self.model = subject, subject.names, subject.exact
        self.modules = dict(self.model.named_modules())
        config = self.model.config
        self.factor = getattr(config, "residual_multiplier", 1.0)
        self.embed_factor = getattr(config, "embedding_multiplier", 1.0)
        self.logit_factor = 1 / getattr(config, "logits_scaling", 1.0)
        self.softcap = getattr(config, "final_logit_softcapping", None)

    def numbers(self) -> dict[str, dict[str, Tensor]]:
        self.record()
        writes, streams = self.writes(), self.streams()
        end = streams[f"L{self.subject.layers - 1}.mlp"]
        found = {"writes": writes, "sum": {"final": end}, "stream": streams, **self.heads()}
        self.hold_sums(writes, streams)
        if self.names.head is not None:
            lens = {label: self.logits_of(stream) for label, stream in streams.items()}
            last = lens[f"L{self.subject.layers - 1}.mlp"]
            self.hold(last, self.logits, "the lens of the last stream and the logits")
            found |= {"attribution": self.attribution(writes, end), "lens": lens}
        return found | self.ablations()

    def hold(self, found: Tensor, wanted: Tensor, what: str) -> None:
        distance = float((found - wanted).norm() / wanted.norm())
        assert distance < EXACT, f"{self.subject.name}: {what} differ by {distance:.1e}"

    def hold_sums(self, writes: dict[str, Tensor], streams: dict[str, Tensor]) -> None:
        """Addend after addend, each sum is the stream there; in a post-norm model what the norm behind it is given."""

        def behind(x: Tensor, norm: str, label: str) -> Tensor:
            self.hold(x, self.inputs[norm], f"the addends up to {label} and the input of {norm}")
            return self.outputs[norm]

        after = self.names.after
        x = torch.stack([writes[row] for row in self.names.embed]).sum(0)
        if after is not None:
            x = behind(x, after[0], "the embedding")
        for layer in range(self.subject.layers):
            for n, label in enumerate((f"L{layer}.attn", f"L{layer}.mlp"), start=1):
                x = x + writes[label]
                if after is not None:
                    x = behind(x, self.block(layer, after[n]), label)
                if label in streams:
                    self.hold(x, streams[label], f"the addends up to {label} and the stream")

    # 1. One forward, written down.

    def block(self, layer: int, name: str = "") -> str:
        return f"{self.names.blocks}.{layer}" + (f".{name}" if name else "")

    def record(self) -> None:
        names = self.names
        first, *norms = names.after or ("",)
        inside = {"", names.attn, names.mlp, names.out, names.middle or "", *norms}
        taken = [*names.embed.values(), *([first] if first else [])]
        taken += [self.block(layer, name) for layer in range(self.subject.layers) for name in inside]
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}

        def note(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, arguments: tuple, named: dict[str, Any], output: Any) -> None:
                given = arguments[0] if arguments else named.get("hidden_states")
                self.inputs[name], self.outputs[name] = self.shaped(given), self.shaped(_first(output))

            return hook

        handles = [self.modules[name].register_forward_hook(note(name), with_kwargs=True) for name in taken]
        try:
            self.logits = self.forward()
        finally:
            for handle in handles:
                handle.remove()

    def forward(self) -> Tensor:
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # xglm makes a constant in the default type, out of reach of float32
        try:
            with torch.no_grad():
                return self.model(self.subject.ids).logits
        finally:
            torch.set_default_dtype(usual)

    def shaped(self, x: Tensor) -> Tensor:
        """Some modules see all tokens in a row, and a table of positions knows no prompts."""
        return x.reshape(*self.subject.ids.shape, -1) if x.is_floating_point() else x

    def writes(self) -> dict[str, Tensor]:
        found = {row: self.outputs[name] * self.embed_factor for row, name in self.names.embed.items()}
        for layer in range(self.subject.layers):
            found[f"L{layer}.attn"] = self.outputs[self.block(layer, self.names.attn)] * self.factor
            found[f"L{layer}.mlp"] = self.outputs[self.block(layer, self.names.mlp)] * self.factor
        return found

    def streams(self) -> dict[str, Tensor]:
        found = {}
        for layer in range(self.subject.layers):
            if self.names.middle is not None:
                found[f"L{layer}.attn"] = self.inputs[self.block(layer, self.names.middle)]
            found[f"L{layer}.mlp"] = self.outputs[self.block(layer)]
        return found

    def heads(self) -> dict[str, dict[str, Tensor]]:
        count, parts, wholes = self.model.config.num_attention_heads, {}, {}
        for layer in range(self.subject.layers):
            name = self.block(layer, self.names.out)
            out = self.modules[name]
            weight = out.weight if isinstance(out, nn.Linear) else out.weight.T  # gpt2 keeps it the other way round
            z = self.inputs[name].unflatten(-1, (count, -1))
            write = self.outputs[self.block(layer, self.names.attn)] * self.factor
            # a norm on the branch with its statistics held, and the multiplier: one pattern of gains, another size
            # at each token
            scale = write / self.outputs[name]
            pattern = scale / scale.norm(dim=-1, keepdim=True)
            self.hold(pattern, pattern[:, :1].expand_as(pattern), f"gains on the heads of block {layer}")
            for head, columns in enumerate(weight.unflatten(1, (count, -1)).unbind(1)):
                parts[f"L{layer}H{head}"] = (z[..., head, :] @ columns.T * scale).detach()
            bias = 0.0 if out.bias is None else out.bias.detach() * scale
            wholes[f"L{layer}.attn"] = write
            whole = torch.stack([parts[f"L{layer}H{head}"] for head in range(count)]).sum(0) + bias
            self.hold(whole, write, f"the heads of block {layer} and their write")
        return {"heads": parts, "heads sum": wholes}

    # 2. Read.

    def attribution(self, writes: dict[str, Tensor], end: Tensor) -> dict[str, Tensor]:
        norm, unembedding = self.modules[self.names.norm], self.modules[self.names.head].weight
        right, wrong = self.subject.pair
        row = (unembedding[right] - unembedding[wrong]).detach() * self.logit_factor
        centred = isinstance(norm, nn.LayerNorm)

        def arrives(u: Tensor) -> Tensor:
            return u - u.mean(-1, keepdim=True) if centred else u

        with torch.no_grad():
            scale = (norm(end) - (norm.bias if centred else 0.0)) / arrives(end)
        return {label: (arrives(write) * scale) @ row for label, write in writes.items()}

    def logits_of(self, stream: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.modules[self.names.head](self.modules[self.names.norm](stream)) * self.logit_factor
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    # 3. Switch off.

    def ablations(self) -> dict[str, dict[str, Tensor]]:
        sublayers, heads = {}, {}
        clean = self.last()
        for layer, kind in self.subject.sublayers:
            with self.silent(self.block(layer, getattr(self.names, kind))):
                sublayers[f"L{layer}.{kind}"] = self.last() - clean
        for layer, head in self.subject.heads:
            with self.silent(self.block(layer, self.names.out), head):
                heads[f"L{layer}H{head}"] = self.last() - clean
        found = {"ablated": sublayers, "ablated heads": heads}
        if self.names.head is None:
            return found
        right, wrong = self.subject.pair
        return found | {"effects": {label: row[right] - row[wrong] for label, row in (sublayers | heads).items()}}

    def last(self) -> Tensor:
        """The logits of the last token, or its final stream where the head is not linear."""
        if self.names.head is not None:
            return self.forward()[0, -1]
        kept: list[Tensor] = []
        end = self.modules[self.block(self.subject.layers - 1)]
        handle = end.register_forward_hook(lambda module, arguments, output: kept.append(_first(output)))
        try:
            self.forward()
        finally:
            handle.remove()
        return kept[0][0, -1]

    @contextmanager
    def silent(self, name: str, head: int | None = None) -> Iterator[None]:
        """While it lasts the module gives zeros, or is given none of one head."""
        count = self.model.config.num_attention_heads

        def zero(module: nn.Module, arguments: tuple, output: Any) -> Any:
            first = torch.zeros_like(_first(output))
            return (first, *output[1:]) if isinstance(output, tuple) else first

        def withhold(module: nn.Module, arguments: tuple) -> tuple:
            z = arguments[0].unflatten(-1, (count, -1)).clone()
            z[..., head, :] = 0
            return (z.flatten(-2), *arguments[1:])

        module = self.modules[name]
        handle = module.register_forward_hook(zero) if head is None else module.register_forward_pre_hook(withhold)
        try:
            yield
        finally:
            handle.remove()


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
