"""Why transformer-lens' number is not the model's, for every cell where it is not: found by looking, written by hand.

The page puts the figures behind each. A test holds that every such cell has a reason, and every reason such a cell.
"""

BRANCH_NORM = (
    "heads are taken before the norm on the branch's output: they are no parts of what is added, and their sum with "
    "`b_O` is not the write"
)
ALIBI = (
    "the bridge runs the eager attention, and that of transformers adds Falcon's position biases (ALiBi) twice, to the "
    "scores and in the mask; the model as it is loaded adds them once. Everything behind the first attention is off"
)
POST_NORM = (
    "`hook_attn_out` is the stream after the norm and not what attention adds, `hook_embed` the sum of all embeddings "
    "after theirs, and `hook_resid_mid` the stream before the second norm"
)
GAIN = (
    "`cache.logit_attrs` on a bridge as it is booted leaves out the final norm's gain; its documentation says to "
    "process the weights first, and nothing at run time does"
)
POSITIONS = "the sinusoidal positions are added to the stream and have no hook, so a part is missing"
#: all that comes of a run that is not the model's
RUN = (
    "writes",
    "sum",
    "stream",
    "heads",
    "heads sum",
    "attribution",
    "lens",
    "ablated",
    "ablated heads",
    "effects",
)

#: (architecture, quantities) -> the reason; "*" is every architecture
REASONS: dict[tuple[str, tuple[str, ...]], str] = {
    ("*", ("attribution, as booted",)): GAIN,
    ("gemma2", ("heads", "heads sum")): BRANCH_NORM,
    ("olmo2", ("heads", "heads sum")): BRANCH_NORM,
    ("olmo2", ("attribution",)): (
        "`enable_compatibility_mode()` fails on grouped value biases; without biases it does not fold the final norm, "
        "and `direct_logit_attribution` refuses"
    ),
    ("granite", ("heads sum",)): (
        "heads are multiplied by the residual multiplier and `b_O` is not, so `sum(heads) + b_O` is not the write "
        "(published Granite models have no such bias)"
    ),
    ("granite", ("attribution",)): "the division of the logits by `logits_scaling`, 1.6 here, is left out",
    ("falcon:alibi", RUN): ALIBI,
    ("xglm", ("writes", "attribution", "sum")): POSITIONS,
    ("bert", ("writes", "sum", "stream", "ablated")): POST_NORM + "; zeroing `hook_attn_out` empties the stream",
}
