"""Figures of ledgers, readouts and ablations: a tidy frame in, a plotly figure out. Runs no model, shows nothing.

1. Pick one prompt and one reader (`selection.pick`); refuse to guess between several.
2. Draw on integer axes with tick text, so that equal tokens stay apart and every part is labelled.
3. Say in the title what is shown and that it adds up. ``layout.meta`` carries a sentence for screen readers
   (``summary``) and what a page needs to restyle and lay out the figure (``scale``, ``min_width``).

Sign: positive adds to what the reader measures (blue), negative subtracts (red).
"""

from streamlens.plots.bars import contributions
from streamlens.plots.downstream import downstream
from streamlens.plots.effects import effects
from streamlens.plots.growth import norm_growth
from streamlens.plots.heat import heatmap
from streamlens.plots.responses import responses

__all__ = ["contributions", "downstream", "effects", "heatmap", "norm_growth", "responses"]
