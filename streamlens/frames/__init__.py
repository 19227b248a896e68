"""FRAMES: the border between computation and everything that shows or stores it.

Each function gives one tidy frame, one observation a row, with a schema that is part of the product: `SCHEMAS`.
"""

from streamlens.frames.ablation import ablation_frame, effects_frame, responses_frame
from streamlens.frames.comparison import comparison_effects_frame, comparison_frame
from streamlens.frames.depth import (
    jacobian_frame,
    perturbation_frame,
    scale_steps_frame,
    trajectory_frame,
    trajectory_summary,
)
from streamlens.frames.experiments import estimates_frame, lesion_frame, rank_correlation_frame
from streamlens.frames.gradients import backward_frame, paths_frame
from streamlens.frames.ledgers import lens_frame, readout_frame, writes_frame
from streamlens.frames.probes import probe_frame, probe_scores_frame, steps_frame
from streamlens.frames.schemas import CHANGES, DIFFERENCE, PARTS, SCHEMAS
from streamlens.frames.visibility import cause_frame, overlap_frame, visibility_frame, visibility_map_frame

__all__ = [
    "CHANGES",
    "DIFFERENCE",
    "PARTS",
    "SCHEMAS",
    "ablation_frame",
    "backward_frame",
    "cause_frame",
    "comparison_effects_frame",
    "comparison_frame",
    "effects_frame",
    "estimates_frame",
    "jacobian_frame",
    "lens_frame",
    "lesion_frame",
    "paths_frame",
    "perturbation_frame",
    "probe_frame",
    "probe_scores_frame",
    "overlap_frame",
    "rank_correlation_frame",
    "readout_frame",
    "responses_frame",
    "scale_steps_frame",
    "steps_frame",
    "trajectory_frame",
    "trajectory_summary",
    "visibility_frame",
    "visibility_map_frame",
    "writes_frame",
]
