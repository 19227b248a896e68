"""The lab's figures draw what their frames hold, count what they cannot draw, and refuse what they are not for."""

import html
import re

import pandas as pd
import pytest

from streamlens import plots
from streamlens.errors import InputError

LINES = pd.DataFrame({"series": ["a", "a", "a", "b", "b"], "n": [0, 1, 2, 0, 1], "size": [1.0, 0.0, 4.0, -1.0, 2.0]})


def title_of(figure) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", figure.layout.title.text.replace("<br>", " ")))


class TestCurves:
    def test_a_line_a_series_in_the_frame_s_order(self) -> None:
        figure = plots.curves(LINES, x="n", y="size", series="series", heading="Sizes", dashed=["b"])
        assert [line.name for line in figure.data] == ["a", "b"]
        assert list(figure.data[0].y) == [1.0, 0.0, 4.0]
        assert [line.line.dash for line in figure.data] == ["solid", "dash"]
        assert figure.layout.meta["summary"] == "Sizes: a goes from 1 at 0 to 4 at 2; b goes from -1 at 0 to 2 at 1."

    def test_on_a_log_axis_what_has_no_place_is_counted(self) -> None:
        figure = plots.curves(LINES, x="n", y="size", series="series", heading="Sizes", log_y=True)
        assert list(figure.data[0].y) == [1.0, None, 4.0]
        assert list(figure.data[1].y) == [None, 2.0]
        assert "2 points that are zero, or not finite, have no place on this axis." in title_of(figure)
        assert "points" not in title_of(plots.curves(LINES, x="n", y="size", series="series", heading="Sizes"))

    def test_names_are_text(self) -> None:
        frame = LINES.assign(series="<b>%{y}")
        figure = plots.curves(frame, x="n", y="size", series="series", heading="<i>")
        assert "<b>" not in figure.data[0].name
        assert "<i>" not in figure.layout.title.text

    def test_a_frame_that_lacks_a_column(self) -> None:
        with pytest.raises(InputError, match="needs the columns n, weight, series; the frame lacks weight"):
            plots.curves(LINES, x="n", y="weight", series="series", heading="")


class TestGroupedBars:
    def test_short_labels_stand_long_ones_lie(self) -> None:
        standing = plots.grouped_bars(LINES, label="n", value="size", series="series", heading="")
        assert list(standing.data[0].x) == [0, 1, 2]
        assert list(standing.data[1].y) == [-1.0, 2.0]
        lying = plots.grouped_bars(
            LINES.assign(n=["first place", "second place", "third place", "first place", "second place"]),
            label="n", value="size", series="series", heading="",
        )  # fmt: skip
        assert list(lying.data[0].x) == [1.0, 0.0, 4.0]
        assert list(lying.data[1].y) == [0, 1]
        assert list(lying.layout.yaxis.ticktext) == ["first place", "second place", "third place"]


class TestArrows:
    WALK = pd.DataFrame(
        {
            "series": ["both", "both", "both", "one", "one", "one"],
            "step": ["start", "one", "two"] * 2,
            "x": [2.0, 2.0, -1.0, 2.0, 2.0, 2.0],
            "y": [1.0, 3.0, 3.0, 1.0, 3.0, 3.0],
        }
    )

    def test_every_write_is_an_arrow_and_nothing_is_none(self) -> None:
        both, one = plots.arrows(self.WALK, heading="Walk").data
        assert list(zip(both.x, both.y, strict=True)) == [(2.0, 1.0), (2.0, 3.0), (-1.0, 3.0)]
        assert list(zip(one.x, one.y, strict=True)) == [(2.0, 1.0), (2.0, 3.0)]  # the second branch wrote nothing
        assert list(both.marker.symbol) == ["circle", "arrow", "arrow"]

    def test_the_ends_are_said(self) -> None:
        figure = plots.arrows(self.WALK, heading="Walk")
        assert figure.layout.meta["summary"] == "Walk: both ends at (-1, 3); one ends at (2, 3)."
        assert {note.text for note in figure.layout.annotations} == {"(2, 1)", "(2, 3)", "(-1, 3)"}

    def test_a_frame_that_is_no_walk(self) -> None:
        with pytest.raises(InputError, match="A walk has the columns series, step, x, y; the frame lacks y"):
            plots.arrows(self.WALK.drop(columns="y"), heading="")


class TestPictures:
    PIXELS = pd.DataFrame(
        {
            "image": ["in"] * 4 + ["out"] * 4,
            "row": [0, 0, 1, 1] * 2,
            "column": [0, 1] * 4,
            "value": [*range(4), *[-0.5] * 4],
        }
    )

    def test_pixels_stand_where_they_are_on_one_scale(self) -> None:
        figure = plots.pictures(self.PIXELS, heading="Two")
        assert [list(map(list, image.z)) for image in figure.data] == [[[0, 1], [2, 3]], [[-0.5, -0.5], [-0.5, -0.5]]]
        assert {image.coloraxis for image in figure.data} == {"coloraxis"}
        assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-3, 3)
        assert figure.layout.meta["scale"] == "RdBu"

    def test_a_frame_that_is_no_picture(self) -> None:
        with pytest.raises(
            InputError, match="Pictures have the columns image, row, column, value; the frame lacks row"
        ):
            plots.pictures(self.PIXELS.drop(columns="row"), heading="")
