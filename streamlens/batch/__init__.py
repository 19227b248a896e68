"""BATCH: many prompts, stored as they are done, continued where they stopped.

    from streamlens import batch

    results = batch.run("prompts.jsonl", "results", wanted=" river", against=" money", token="bank")
    results.frame("readout")
    batch.open("results")  # later, or while it runs

Names are imported when first used, so that the command line's help imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamlens.batch.questions import corpus, write_report
    from streamlens.batch.results import Results
    from streamlens.batch.results import open_results as open
    from streamlens.batch.running import run
    from streamlens.batch.settings import Settings

__all__ = ["Results", "Settings", "corpus", "open", "run", "write_report"]

_HOME = {
    "Results": ("streamlens.batch.results", "Results"),
    "Settings": ("streamlens.batch.settings", "Settings"),
    "corpus": ("streamlens.batch.questions", "corpus"),
    "open": ("streamlens.batch.results", "open_results"),
    "run": ("streamlens.batch.running", "run"),
    "write_report": ("streamlens.batch.questions", "write_report"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'streamlens.batch' has no attribute {name!r}")
    module, own = _HOME[name]
    value = getattr(import_module(module), own)
    globals()[name] = value
    return value
