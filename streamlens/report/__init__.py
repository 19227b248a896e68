"""Figures and tables as one HTML file that asks nothing of anyone.

1. Lay out the sections, the table and the provenance as plain HTML; every text is made legible and escaped.
2. Embed plotly.js once, the figures and downloads as JSON (with ``<`` escaped), the style and one short
   script.
3. Name both scripts by their hash in a content security policy that allows nothing else: no request can
   leave.
4. Write the file beside its place and move it there, so that a reader never finds half a page.
"""

from streamlens.report.document import Section, page
from streamlens.report.write import write_page

__all__ = ["Section", "page", "write_page"]
