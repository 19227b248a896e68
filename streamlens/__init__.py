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
    from streamlens import batch, lab, plots
    from streamlens.edits import Edit
    from streamlens.errors import StreamlensError
    from streamlens.experiments.ablate import ablate, sweep
    from streamlens.experiments.backward import backward
    from streamlens.experiments.cause import cause
    from streamlens.experiments.compare import compare, swap
    from streamlens.experiments.estimates import rank_correlation
    from streamlens.experiments.jacobian import jacobian, perturb
    from streamlens.experiments.lesion import lesion
    from streamlens.experiments.paths import paths
    from streamlens.experiments.probe import probe
    from streamlens.experiments.scale_steps import scale_steps
    from streamlens.experiments.study import study
    from streamlens.hooks.runs.replay import replay
    from streamlens.hooks.writes.capture import decompose
    from streamlens.hooks.writes.clean import clean_run
    from streamlens.ledger import Ledger
    from streamlens.models.load import load
    from streamlens.readouts.ablation import AblationLedger
    from streamlens.readouts.attribution import Readout, read
    from streamlens.readouts.depth.backward import BackwardLedger
    from streamlens.readouts.depth.trajectory import trajectory
    from streamlens.readouts.lens import logit_lens
    from streamlens.readouts.readers.model_readers import model_readers
    from streamlens.readouts.readers.probes import ProbeFitter
    from streamlens.readouts.readers.reader import Reader
    from streamlens.readouts.steps import before_after
    from streamlens.readouts.visible.nullspace import nullspace
    from streamlens.readouts.visible.overlap import overlap
    from streamlens.readouts.visible.visibility import visibility
    from streamlens.readouts.visible.visibility_map import visibility_map
    from streamlens.sites import Site
    from streamlens.studies import Study

__version__ = "0.1.0"

__all__ = [
    "load",
    "decompose",
    "read",
    "logit_lens",
    "Reader",
    "model_readers",
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
    "visibility",
    "visibility_map",
    "nullspace",
    "overlap",
    "cause",
    "jacobian",
    "perturb",
    "trajectory",
    "scale_steps",
    "AblationLedger",
    "ProbeFitter",
    "probe",
    "before_after",
    "study",
    "Study",
    "backward",
    "paths",
    "BackwardLedger",
    "lab",
    "batch",
    "plots",
    "__version__",
]

_HOME = {
    "load": "streamlens.models.load",
    "decompose": "streamlens.hooks.writes.capture",
    "read": "streamlens.readouts.attribution",
    "logit_lens": "streamlens.readouts.lens",
    "Reader": "streamlens.readouts.readers.reader",
    "model_readers": "streamlens.readouts.readers.model_readers",
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
    "replay": "streamlens.hooks.runs.replay",
    "clean_run": "streamlens.hooks.writes.clean",
    "visibility": "streamlens.readouts.visible.visibility",
    "visibility_map": "streamlens.readouts.visible.visibility_map",
    "nullspace": "streamlens.readouts.visible.nullspace",
    "overlap": "streamlens.readouts.visible.overlap",
    "cause": "streamlens.experiments.cause",
    "jacobian": "streamlens.experiments.jacobian",
    "perturb": "streamlens.experiments.jacobian",
    "trajectory": "streamlens.readouts.depth.trajectory",
    "scale_steps": "streamlens.experiments.scale_steps",
    "AblationLedger": "streamlens.readouts.ablation",
    "ProbeFitter": "streamlens.readouts.readers.probes",
    "probe": "streamlens.experiments.probe",
    "before_after": "streamlens.readouts.steps",
    "backward": "streamlens.experiments.backward",
    "paths": "streamlens.experiments.paths",
    "BackwardLedger": "streamlens.readouts.depth.backward",
    "study": "streamlens.experiments.study",
    "Study": "streamlens.studies",
    "lab": "streamlens.lab",
    "batch": "streamlens.batch",
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
