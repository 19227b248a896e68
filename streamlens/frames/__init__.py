"""FRAMES: the border between computation and everything that shows or stores it.

Each function gives one tidy frame, one observation a row, with a schema that is part of the product: `SCHEMAS`.
"""

from streamlens.frames.ablation import ablation_frame, effects_frame, responses_frame
from streamlens.frames.ledgers import lens_frame, readout_frame, writes_frame
from streamlens.frames.schemas import CHANGES, PARTS, SCHEMAS

__all__ = [
    "CHANGES",
    "PARTS",
    "SCHEMAS",
    "ablation_frame",
    "effects_frame",
    "lens_frame",
    "readout_frame",
    "responses_frame",
    "writes_frame",
]
