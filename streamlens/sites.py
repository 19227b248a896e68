"""Site: where a write comes from. It is key, label, sort order and row index at once.

1. A write has a kind (`embed`, `attn`, `mlp`, ...) and, inside a block, a layer.
2. A finer row names the head, the neuron, the source token or the bias it is.
3. The label is the short text people type; `parse` reads labels and transformer-lens spellings back.
4. The order of sites in a ledger is the order of the stream; it is the wiring's, never the alphabet's.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from streamlens.arguments import typed
from streamlens.errors import InputError

#: the kinds a wiring can name; `branch` is a write that no name or config explains
KINDS = (
    "embed",
    "pos_embed",
    "type_embed",
    "attn",
    "cross_attn",
    "mixer",
    "mlp",
    "per_layer_input",
    "adapter",
    "branch",
)
#: rows that are no module's write: what a ledger or a readout adds so that its sum is exact
ROWS = ("rounding", "final_norm.bias", "unembed.bias", "rescale", "softcap")

_LABEL = re.compile(
    r"(?:L(?P<layer>\d{1,9})\.)?(?P<kind>[a-z_]+?)(?:_(?P<index>[1-9]\d{0,8}))?(?P<part>\.norm\.bias|\.bias|\.other)?$"
)
_FINE = re.compile(
    r"L(?P<layer>\d{1,9})(?:\.(?P<kind>[a-z_]+?)(?:_(?P<index>[1-9]\d{0,8}))?\.)?"
    r"(?P<axis>[HNE])(?P<number>\d{1,9})(?:<(?P<source>\d{1,9}))?$"
)
_AXES = {"H": ("head", "attn"), "N": ("neuron", "mlp"), "E": ("expert", "mlp")}
_TRANSFORMER_LENS = (
    re.compile(r"(?:blocks\.)?(?P<layer>\d{1,9})(?:\.hook_|_)(?P<kind>attn|mlp)_out$"),
    re.compile(r"hook_(?P<kind>embed|pos_embed)$"),
)


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where one row of a ledger comes from.

    Attributes:
        kind: One of `KINDS`, or one of `ROWS` for the rows that close a sum.
        layer: The block, counted from 0; None for what enters before the first block.
        index: 0 for the first write of its kind in a block, 1 for the second, ...
        head: The query head, at head level.
        neuron: The hidden unit, at neuron level.
        expert: The expert, at neuron level of a mixture of experts.
        source: The source position, at source level.
        part: "" for a whole write, "bias" for the branch's output bias, "norm.bias" for the bias of the
            norm that follows it (post-norm models, and norms on a branch's output), "other" for what is left
            where only the largest parts were asked for.
    """

    kind: str
    layer: int | None = None
    index: int = 0
    head: int | None = None
    neuron: int | None = None
    expert: int | None = None
    source: int | None = None
    part: str = ""

    @property
    def label(self) -> str:
        """The short name: `embed`, `L9.attn`, `L9H2`, `L9N104`, `L9.attn.bias`."""
        if self.fine:
            axis, number = self._axis
            source = "" if self.source is None else f"<{self.source}"
            plain = self.index == 0 and self.kind == ("mlp" if axis in "NE" else "attn")
            stem = f"L{self.layer}" if plain else f"{self.sublayer.label}."
            return f"{stem}{axis}{number}{source}"
        name = self.kind if self.index == 0 else f"{self.kind}_{self.index + 1}"
        name = name if self.layer is None else f"L{self.layer}.{name}"
        return f"{name}.{self.part}" if self.part else name

    @property
    def fine(self) -> bool:
        """Whether this row is one head, neuron or expert of a write."""
        return self.head is not None or self.neuron is not None or self.expert is not None

    @property
    def _axis(self) -> tuple[str, int]:
        numbers = (("H", self.head), ("N", self.neuron), ("E", self.expert))
        return next((axis, number) for axis, number in numbers if number is not None)

    @property
    def sublayer(self) -> "Site":
        """The whole write that this row is a part of."""
        return replace(self, head=None, neuron=None, expert=None, source=None, part="")

    def part_of(self, axis: str, number: int) -> "Site":
        """One head, neuron or expert of this write."""
        return replace(self, **{axis: number})

    def __str__(self) -> str:
        return self.label

    @classmethod
    @typed
    def parse(cls, text: str) -> "Site":
        """Reads a label (`L9.attn`, `L9H2`) or a transformer-lens spelling (`9_attn_out`, `hook_embed`).

        Raises:
            InputError: The text is no label in either spelling.
        """
        text = text.strip()
        if text in ROWS:
            return cls(kind=text)
        for pattern in _TRANSFORMER_LENS:
            if found := pattern.match(text):
                layer = found.groupdict().get("layer")
                return cls(kind=found["kind"], layer=None if layer is None else int(layer))
        if (found := _FINE.match(text)) and (found["kind"] or "attn") in KINDS:
            axis, kind = _AXES[found["axis"]]
            return replace(
                cls(
                    kind=found["kind"] or kind,
                    layer=int(found["layer"]),
                    index=int(found["index"] or 1) - 1,
                    source=None if found["source"] is None else int(found["source"]),
                ),
                **{axis: int(found["number"])},
            )
        if (found := _LABEL.match(text)) and found["kind"] in KINDS:
            return cls(
                kind=found["kind"],
                layer=None if found["layer"] is None else int(found["layer"]),
                index=0 if found["index"] is None else int(found["index"]) - 1,
                part=(found["part"] or "").lstrip("."),
            )
        raise InputError(f"A site is written like embed, L9.attn, L9.mlp, L9H2 or L9.attn.bias; got {text!r}.")


def find(text: "str | Site", sites: Iterable[Site]) -> Site:
    """The one of `sites` that `text` names.

    Raises:
        InputError: No such site here; the nearest labels are given.
    """
    choices = {site.label: site for site in sites}
    try:
        label = text.label if isinstance(text, Site) else Site.parse(text).label
    except InputError:
        label = str(text)
        if label not in choices and not difflib.get_close_matches(label, choices, n=1):
            raise
    if label in choices:
        return choices[label]
    near = difflib.get_close_matches(label, choices, n=3, cutoff=0.4) or list(choices)[-3:]
    raise InputError(f"No write is called {label!r} here.", hint=f"Nearest: {', '.join(near)}.")
