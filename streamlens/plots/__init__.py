"""Figures of ledgers, readouts and ablations: a tidy frame in, a plotly figure out. Runs no model, shows nothing.

1. Pick one prompt and one reader (`selection.pick`); refuse to guess between several.
2. Draw on integer axes with tick text, so that equal tokens stay apart and every part is labelled.
3. Say in the title what is shown and that it adds up. ``layout.meta`` carries a sentence for screen readers
   (``summary``) and what a page needs to restyle and lay out the figure (``scale``, ``min_width``).

Sign: positive adds to what the reader measures (blue), negative subtracts (red).
"""

from streamlens.plots.arrows import arrows
from streamlens.plots.backward import backward
from streamlens.plots.bars import contributions
from streamlens.plots.comparison import comparison
from streamlens.plots.corpus import corpus
from streamlens.plots.curves import curves, grouped_bars
from streamlens.plots.depth import amplification, perturbation, scaled_steps
from streamlens.plots.downstream import downstream
from streamlens.plots.effects import effects
from streamlens.plots.growth import norm_growth
from streamlens.plots.heat import heatmap
from streamlens.plots.lens import lens
from streamlens.plots.lesion import lesion
from streamlens.plots.paths import paths
from streamlens.plots.pictures import pictures
from streamlens.plots.probing import probe_depth
from streamlens.plots.responses import responses
from streamlens.plots.sources import sources
from streamlens.plots.spectrum import spectrum
from streamlens.plots.steps import before_after
from streamlens.plots.token_strip import token_strip
from streamlens.plots.trajectory import geometry, trajectory
from streamlens.plots.visibility import visibility
from streamlens.plots.visibility_map import visibility_map

__all__ = [
    "amplification",
    "arrows",
    "backward",
    "before_after",
    "comparison",
    "contributions",
    "corpus",
    "curves",
    "downstream",
    "effects",
    "geometry",
    "grouped_bars",
    "heatmap",
    "lens",
    "lesion",
    "norm_growth",
    "perturbation",
    "paths",
    "pictures",
    "probe_depth",
    "responses",
    "sources",
    "token_strip",
    "scaled_steps",
    "spectrum",
    "trajectory",
    "visibility",
    "visibility_map",
]
