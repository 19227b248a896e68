"""streamlens keeps books on a transformer's residual stream.

    import streamlens

    model = streamlens.load("smollm2-135m")
    ledger = streamlens.decompose(model, "After crossing the river, she rested on the bank")
    reader = streamlens.Reader.logit_diff(model, " river", " money")
    streamlens.read(ledger, reader).to_frame()

Names are imported when first used (PEP 562): `import streamlens` costs milliseconds and loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; `_HOME` is what runs. A test holds the two together.
    from streamlens import plots
    from streamlens.edits import Edit
    from streamlens.errors import StreamlensError
    from streamlens.experiments.ablate import ablate, sweep
    from streamlens.experiments.compare import compare, swap
    from streamlens.experiments.estimates import rank_correlation
    from streamlens.experiments.lesion import lesion
    from streamlens.hooks.capture import decompose
    from streamlens.hooks.clean import clean_run
    from streamlens.hooks.replay import replay
    from streamlens.ledger import Ledger
    from streamlens.models.load import load
    from streamlens.readouts.ablation import AblationLedger
    from streamlens.readouts.attribution import Readout, read
    from streamlens.readouts.lens import logit_lens
    from streamlens.readouts.reader import Reader
    from streamlens.sites import Site

__version__ = "0.1.0"

__all__ = [
    "load",
    "decompose",
    "read",
    "logit_lens",
    "Reader",
    "Ledger",
    "Readout",
    "Site",
    "StreamlensError",
    "Edit",
    "ablate",
    "sweep",
    "rank_correlation",
    "compare",
    "swap",
    "lesion",
    "replay",
    "clean_run",
    "AblationLedger",
    "plots",
    "__version__",
]

_HOME = {
    "load": "streamlens.models.load",
    "decompose": "streamlens.hooks.capture",
    "read": "streamlens.readouts.attribution",
    "logit_lens": "streamlens.readouts.lens",
    "Reader": "streamlens.readouts.reader",
    "Ledger": "streamlens.ledger",
    "Readout": "streamlens.readouts.attribution",
    "Site": "streamlens.sites",
    "StreamlensError": "streamlens.errors",
    "Edit": "streamlens.edits",
    "ablate": "streamlens.experiments.ablate",
    "sweep": "streamlens.experiments.ablate",
    "rank_correlation": "streamlens.experiments.estimates",
    "compare": "streamlens.experiments.compare",
    "swap": "streamlens.experiments.compare",
    "lesion": "streamlens.experiments.lesion",
    "replay": "streamlens.hooks.replay",
    "clean_run": "streamlens.hooks.clean",
    "AblationLedger": "streamlens.readouts.ablation",
    "plots": "streamlens.plots",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'streamlens' has no attribute {name!r}")
    module = import_module(_HOME[name])
    value = module if module.__name__ == f"streamlens.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
