"""FRAMES: the border between computation and everything that shows or stores it.

Each function gives one tidy frame, one observation a row, with a schema that is part of the product: `SCHEMAS`.
"""

from streamlens.frames.ablation import ablation_frame, effects_frame, responses_frame
from streamlens.frames.comparison import comparison_effects_frame, comparison_frame
from streamlens.frames.experiments import estimates_frame, lesion_frame, rank_correlation_frame
from streamlens.frames.ledgers import lens_frame, readout_frame, writes_frame
from streamlens.frames.schemas import CHANGES, DIFFERENCE, PARTS, SCHEMAS

__all__ = [
    "CHANGES",
    "DIFFERENCE",
    "PARTS",
    "SCHEMAS",
    "ablation_frame",
    "comparison_effects_frame",
    "comparison_frame",
    "effects_frame",
    "estimates_frame",
    "lens_frame",
    "lesion_frame",
    "rank_correlation_frame",
    "readout_frame",
    "responses_frame",
    "writes_frame",
]
