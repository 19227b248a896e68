"""Naming what measurement found. Names only help to label: nothing here decides what is a write.

1. A term is named after the modules on its path: `attn`, `cross_attn`, `mixer`, `mlp`; before block 0
   `embed`, `pos_embed`, `type_embed`.
2. A norm on a branch's output (Gemma 2, OLMo 2) is named after the branch whose output it reads, since the
   names of such norms mean different things in different families.
3. The second write of one kind in one block gets a number: `L3.mlp_2`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from streamlens.hooks.record import Event
from streamlens.sites import Site

_RECURRENT = r"mamba|_ssm|mixer|recurrent|linear_att|delta|time_mix|_m?lstm|fourier|_fnet"
# first match wins; searched in names written as _snake_case_words_
_KINDS = (
    ("cross_attn", r"cross_att|encdec_att|enc_dec_att|encoder_att|crossatt"),
    ("mixer", _RECURRENT),
    ("per_layer_input", r"per_layer|_ple_"),
    ("adapter", r"adapter"),
    (
        "mlp",
        r"mlp|ffn|feed_?forward|_moe_|expert|_fc\d?_|dense_4h|channel_mix|_ff_|_ffw|intermediate|_lin2_"
        r"|dense_relu_dense|dense_gated|dense_act",
    ),
    ("attn", r"attn|atten|_att_|_mla_"),
    ("mixer", r"conv"),
)
_EMBEDDINGS = (
    ("pos_embed", r"_pos|_wpe_"),
    ("type_embed", r"type|segment"),
    ("embed", r""),
)


class Labels:
    """Hands out sites, each once."""

    def __init__(self, modules: Mapping[str, nn.Module], events: Sequence[Event], block: str) -> None:
        self._modules = modules
        self._events = events
        # Qwen2MoeAttention is no mixture of experts: the family's name says nothing about a part
        self._family = _shared_start(type(modules[""]).__name__, type(modules[block]).__name__)
        self._block_depth = block.count(".") + 1
        self._used: set[Site] = set()

    def site(self, event: Event | None, *, layer: int | None) -> Site:
        """The site of the write that this call gives; `layer` None for an embedding term."""
        if event is None:
            kind = "embed"
        elif layer is None:
            kind = _kind(_EMBEDDINGS, _own_name(event.module)) or "embed"
        else:
            kind = self._branch_kind(event) or "branch"
        return self._fresh(Site(kind=kind, layer=layer))

    def is_token_embedding(self, event: Event) -> bool:
        """Whether a call before block 0 looks like the token embedding (so that its row comes first)."""
        return _kind(_EMBEDDINGS, _own_name(event.module)) == "embed"

    def bias(self, site: Site, part: str) -> Site:
        """A constant row after the write at `site`: "bias", or "norm.bias" of the norm that follows it."""
        return self._fresh(replace(site, part=part))

    def release(self, site: Site) -> None:
        """Takes a site back that was handed out for an explanation that came to nothing."""
        self._used.discard(site)

    def _fresh(self, site: Site) -> Site:
        while site in self._used:
            site = replace(site, index=site.index + 1)
        self._used.add(site)
        return site

    def _branch_kind(self, event: Event) -> str | None:
        module = self._modules[event.module]
        own = self._named(event)
        if any(module.children()) or not event.inputs or (own and any(p.dim() > 1 for p in module.parameters())):
            return own
        # a norm or dropout on the branch's output, or its last matrix: named by the call whose output it reads
        sources = [
            e
            for e in self._events
            if e.end <= event.start
            and e.output is not None
            and e.output.numel() == event.inputs[0].numel()
            and torch.equal(e.output.flatten(), event.inputs[0].flatten())
        ]
        for source in sorted(sources, key=lambda e: e.depth):
            if kind := self._named(source):
                return kind
        return own

    def _decays(self, path: Sequence[str]) -> bool:
        """Whether a module forgets by parameters of its own, as recurrences do and attention does not."""
        return any("decay" in name for name, _ in self._modules[".".join(path)].named_parameters(recurse=False))

    def _named(self, event: Event) -> str | None:
        parts = event.module.split(".")
        for cut in range(len(parts), self._block_depth, -1):
            if parts[cut - 1].isdigit():
                continue
            whole = type(self._modules[".".join(parts[:cut])]).__name__
            whole = whole.removeprefix(self._family)
            by_class = _kind(_KINDS, whole)
            kind = _kind(_KINDS, parts[cut - 1]) or by_class
            # recurrent and linear mixers are often called self_attn, and in hybrids everything is a mixer
            if kind == "attn" and (_kind((("mixer", _RECURRENT),), whole) or self._decays(parts[:cut])):
                return "mixer"
            if kind == "mixer" and by_class in ("attn", "mlp"):
                return by_class
            if kind:
                return kind
        return None


def _own_name(module: str) -> str:
    """The last name on a path that says something: wrappers keep what they wrap under a private one."""
    return next((part for part in reversed(module.split(".")) if not part.startswith("_")), module)


def _shared_start(a: str, b: str) -> str:
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    return a[:shared]


def _kind(table: Sequence[tuple[str, str]], word: str) -> str | None:
    snake = re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", word).lower()
    return next((kind for kind, pattern in table if re.search(pattern, f"_{snake}_")), None)
