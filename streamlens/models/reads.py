"""What every branch reads off the stream, and with which rows of which module. Found by measurement.

1. One probe of a few prompts is recorded, and beside it what each attention multiplied.
2. `linears.py` finds the linear maps that read the stream, and which branch each serves.
3. `heads.py` finds the rows that are a head's query, key or value; `units.py` what the other rows are.
4. What one would expect and was not found gets one sentence why.

No architecture is known by name here. Cost: one forward of 42 tokens, and small linear algebra.
"""

from collections.abc import Mapping

from torch import nn

from streamlens.hooks.products import watched_products
from streamlens.hooks.record import record
from streamlens.models.heads import EVERY, FIRST, attention_reads
from streamlens.models.linears import find_layers
from streamlens.models.probe import probe_inputs, standing_still
from streamlens.models.units import unit_reads
from streamlens.models.wiring import Experts, Projection, Reads, Wiring

#: prompts in the probe: a head's coordinates are told apart by their values at its tokens
PROMPTS = 6
ATTENTION = ("attn", "cross_attn")
ORDER = ("q", "k", "v", "router", "gate", "up", "in", "read")


def find_reads(
    model: nn.Module, wiring: Wiring, projections: Mapping[int, Projection | Experts | str]
) -> tuple[Reads, ...]:
    """What every branch of a stream reads off it, in stream order.

    Args:
        model: The model; it is run once and not changed.
        wiring: The stream.
        projections: What makes each write, by row; see `streamlens.models.parts`.
    """
    given = standing_still(model, probe_inputs(model, batch=PROMPTS))
    still = ("decoder_position_ids" if wiring.stream == "decoder" else "position_ids") in given
    with watched_products() as attentions:
        recording = record(model, given)
    modules = dict(model.named_modules())
    found = []
    for layer in find_layers(model, wiring, recording, projections):
        for row in layer.rows:
            site, maker = wiring.writes[row].site, projections.get(row)
            mine = [linear for linear in layer.linears if linear.site == site]
            if not mine:
                why = f"No linear map in front of {site} reads the stream or a norm of it."
                expected = ("q", "k", "v") if site.kind in ATTENTION else ("in",)
                found.append(Reads(site=site, parts=(), missing=tuple((part, why) for part in expected)))
                continue
            # at first tokens too where positions may have turned the others; a name only saves the search
            picks = (EVERY, FIRST) if site.kind in ATTENTION or not still else (EVERY,)
            heads, missing = attention_reads(site, mine, layer.inside, attentions, picks)
            rest = tuple(unit_reads(site, mine, heads, layer.inside, maker, modules))
            if isinstance(maker, Experts):
                why = f"The experts of {site} read only the tokens that are sent to them; they are left out."
                missing = (*missing, ("in", why))
            elif isinstance(maker, str) and site.kind == "mlp":
                why = f"{site} is made by more than one linear map; what was found may not be all that it reads."
                missing = (*missing, ("in", why))
            parts = tuple(sorted((*heads, *rest), key=lambda read: ORDER.index(read.part)))
            found.append(Reads(site=site, parts=parts, missing=missing))
    return tuple(found)
