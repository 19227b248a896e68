"""The lab: small residual networks, each solved on paper beside the code, as carry + write.

1. `EXAMPLES` lists them; an example's module is imported when it is run.
2. `run` computes one: its table, its figures, and its claims with the error of each.
3. Every module keeps what it computes apart from how it is shown, so that the same functions answer other questions
   (another start, another step size).
"""

import difflib
from importlib import import_module

from streamlens.arguments import typed
from streamlens.errors import InputError
from streamlens.lab.example import Check, Drawing, Example
from streamlens.subspaces import one_thread

#: name -> what it is about
EXAMPLES = {
    "two_branches": "two branches, and why subtracting a write is not rerunning without it",
    "zero_branch": "a branch that writes nothing, with and without a skip connection",
    "image_correction": "predicting a correction to an image against predicting the image",
    "attention_by_hand": "one attention head, from scores to the vector at “ bank”",
    "position_context": "the same position vector in two sentences, two different attention writes",
    "carries": "what can happen to the stream between writes: thirteen kinds of carry",
    "resnet": "a ResNet block, and the books of a ResNet-34",
    "gradient_factor": "what forty blocks do to a gradient",
    "tanh_network": "forty tanh layers: gradients with and without skip connections",
    "degradation": "deeper plain networks train worse, residual ones do not",
    "paths": "2^L paths through L blocks, and lesions",
    "variance": "how the variance of the stream grows",
    "euler": "a residual network as Euler steps, and when the steps are too long",
    "jacobian_products": "eigenvalues of blocks do not bound their product",
    "neural_ode": "from depth to continuous time",
}

__all__ = ["EXAMPLES", "Check", "Drawing", "Example", "run"]


@typed
def run(name: str) -> Example:
    """Computes one example.

    Args:
        name: One of `EXAMPLES`.

    Raises:
        InputError: No example of that name.

    Cost: milliseconds; the ones that train something (image_correction, degradation) take seconds.
    """
    if name not in EXAMPLES:
        near = difflib.get_close_matches(name, EXAMPLES, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(EXAMPLES)}."
        raise InputError(f"No example of the lab is called {name!r}.", hint=hint)
    module = import_module(f"streamlens.lab.{name}")
    with one_thread():  # the tensors are tiny: threads would spend their time waiting for each other
        return module.example()
