"""Figures, tables and sentences as one HTML file that asks nothing of anyone.

1. Lay out the sections, the tables and the provenance as plain HTML; every text is made legible and escaped.
2. Embed plotly.js once, the figures and tables as JSON (with ``<`` escaped), the style and one short script.
3. Name both scripts by their hash in a content security policy that allows nothing else: no request can
   leave.
4. Write the file beside its place and move it there, so that a reader never finds half a page.

`study_page` is the page of a `Study`: everything about one token of one prompt.
"""

from streamlens.report.blocks import Choice, Section, Strip, Switch, Tables, Words
from streamlens.report.document import page
from streamlens.report.image import image
from streamlens.report.study import SECTIONS, study_page
from streamlens.report.told import adds_up, responses_of
from streamlens.report.write import write_page

__all__ = [
    "SECTIONS",
    "Choice",
    "Section",
    "Strip",
    "Switch",
    "Tables",
    "Words",
    "adds_up",
    "image",
    "page",
    "responses_of",
    "study_page",
    "write_page",
]
