"""Every architecture of the zoo whose books close has a backward ledger that closes, in float32 and in float64."""

import pytest
import torch

import streamlens
import zoo
from streamlens import BackwardLedger, Reader, backward
from streamlens.errors import StreamlensError
from streamlens.hooks.gradients.wide import wide
from streamlens.models.handle import ModelHandle
from zoo_books import streams

pytestmark = pytest.mark.usefixtures("quiet_transformers")

#: the norm in front of several branches computes in float32 whatever the model does. Backwards autograd sums what comes
#: through the branches and rounds once, one branch after another rounds each: the two differ by a rounding
ROUNDED = {
    *("cohere", "cohere2", "cohere_compass_text", "cohere2_moe"),
    *("granitemoeshared", "granitemoe_swa", "granitemoehybrid", "falcon_h1", "longcat_flash"),
}
#: what cannot be run in float64, and what is said
NO_FLOAT64 = {
    # the model's own code
    "xglm": "without overflow",
    "fsmt": "without overflow",
    "mra": "same dtype",
    # it computes part of its writes in float32, so that its books are refused in float64
    **dict.fromkeys(["mamba", "falcon_mamba", "mamba2"], "does not close at block 1"),
    **dict.fromkeys(["minimax", "deberta"], "do not sum to the residual stream"),
    # its router keeps a tensor from one forward to the next
    **dict.fromkeys(["nllb-moe", "switch_transformers"], "cannot be differentiated: Inference tensors"),
}
#: relative, of the gradient at the worst depth and position; 5e-6 and 1e-15 seen, 5e-7 where rounded
CLOSES = {torch.float32: 1e-5, torch.float64: 1e-12}
CLOSES_ROUNDED = 1e-6

STREAMS = [(entry.name, stream) for entry in zoo.ENTRIES for stream in streams(entry)]


def loaded(name: str, dtype: torch.dtype) -> ModelHandle:
    return streamlens.load(zoo.build(name, dtype))


def ledger_of(model: ModelHandle, name: str, stream: str) -> BackwardLedger:
    entry = zoo.BY_NAME[name]
    wiring = model.wiring_of(stream)
    if wiring.head is not None:
        reader = Reader.logit_diff(model, 5, 7)
    else:
        vector = torch.randn(wiring.d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        reader = Reader.direction(vector, norm="final" if wiring.final_norm else "none")
    given = zoo.inputs(entry, batch=2, length=7, seed=5)
    return backward(model, given.pop("input_ids"), reader, stream=stream, **given)


@pytest.mark.parametrize(("name", "stream"), STREAMS)
def test_direct_route_and_branches_sum_to_autograds_gradient(name: str, stream: str) -> None:
    try:
        model = loaded(name, torch.float32)
        model.wiring_of(stream)
    except StreamlensError as error:
        pytest.skip(error.message)
    single = ledger_of(model, name, stream)
    assert float(single.closure.max()) < CLOSES[torch.float32]
    # every layer has branches; every write has a gradient; every branch hands something back
    layers = {site.layer for site in single.sites} - {None}
    assert {single.sites[row].layer for row in single.reads} == layers
    assert single.gradient.flatten(1).any(-1).all()
    assert single.contributions[single.branches].flatten(1).any(-1).all()
    assert not single.contributions[~single.branches].any()
    if name in NO_FLOAT64:
        with pytest.raises((StreamlensError, RuntimeError), match=NO_FLOAT64[name]):
            ledger_of(loaded(name, torch.float64), name, stream)
        return
    model = loaded(name, torch.float64)
    double = ledger_of(model, name, stream)
    error = float(double.closure.max())
    assert error < (CLOSES_ROUNDED if name in ROUNDED else CLOSES[torch.float64])
    assert (error > CLOSES[torch.float64]) == (name in ROUNDED)  # a name that leaves the table is one that closes
    assert double.reads == single.reads
    if name in ROUNDED:  # with the model's casts to float32 lifted, the same sum closes
        with wide():
            assert float(ledger_of(model, name, stream).closure.max()) < CLOSES[torch.float64]
