"""`streamlens plot`: one figure of a saved frame, as a page or a picture.

1. The frame is what a command wrote with `-o FILE.parquet` (or .csv, or rows of JSON), or one of a saved study's.
2. KIND is a figure of `streamlens.plots`; only options that it takes may be given.
3. A picture needs a browser, a page does not.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamlens.cli.options import debug_option, require_place
from streamlens.errors import InputError

#: figures that are told what to draw, by the lab
TOLD = ("arrows", "curves", "grouped_bars", "pictures")
#: figure -> the frames of a study that it draws, the first that is there
OF_A_STUDY = {
    "contributions": ("readout",),
    "heatmap": ("readout", "writes"),
    "norm_growth": ("writes",),
    "token_strip": ("readout", "writes"),
    "before_after": ("steps",),
    "effects": ("effects",),
    "downstream": ("changes",),
    "responses": ("changes",),
    "lens": ("lens",),
    "sources": ("sources",),
    "visibility": ("visibility",),
}
#: figures of one token: of a study, the token that it is about
_ONE_TOKEN = ("contributions", "token_strip")


@click.command("plot")
@click.argument("kind")
@click.argument("result", type=click.Path(path_type=Path))
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), required=True, metavar="FILE.html|png|svg|pdf")
@click.option("--reader", metavar="NAME", help="Which reader, where the frame holds several.")
@click.option("--variant", metavar="EDIT", help="Which edit, where the frame holds several.")
@click.option("--position", type=int, help="Which token; negative from the end.")
@click.option("--prompt", "prompt_id", type=int, help="Which prompt, by number.")
@click.option("--value", metavar="COLUMN", help="What is drawn, where there is a choice.")
@click.option("--top", type=click.IntRange(min=1), help="How many rows.")
@click.option("--palette", type=click.Choice(["RdBu", "PuOr"]), help="Colours of signed values.")
@click.option("--dark", is_flag=True, help="A picture on a dark ground; pages follow their reader.")
@debug_option
def command(kind: str, result: Path, path: Path, **options: Any) -> int:
    """Draw one figure of a frame that was saved.

    KIND is a figure of streamlens.plots: contributions, heatmap, norm_growth, token_strip, lens, sources, effects,
    downstream, responses, comparison, visibility, visibility_map, before_after, probe_depth, backward, paths, spectrum,
    lesion and more. RESULT is a .parquet, .csv or .jsonl file of rows that a command wrote, or a study of
    `report --save`.

    \b
    streamlens decompose "The boat reached the bank" --for " river" -o parts.parquet
    streamlens plot contributions parts.parquet -o parts.png
    """
    from streamlens import plots

    require_place(path, "-o")
    kinds = [name for name in plots.__all__ if name not in TOLD]
    if kind not in kinds:
        raise InputError(f"A figure is one of {', '.join(kinds)}; got {kind!r}.")
    form = path.suffix.lower().removeprefix(".")
    if form not in ("html", "png", "svg", "pdf"):
        raise InputError(f"A figure is written to .html, .png, .svg or .pdf; got {path.name!r}.")
    draw = getattr(plots, kind)
    frame, defaults = _frame(kind, result)
    given = {name: value for name, value in options.items() if value not in (None, False)}
    figure = draw(frame, **_accepted(draw, kind, given, defaults))

    from streamlens.cli.output import note, write_whole

    if form == "html":
        _write_page(path, kind, figure, frame)
    else:
        from streamlens.report import image

        write_whole(path, image(figure, form))
    note(f"wrote {path}")
    return 0


def _frame(kind: str, result: Path) -> tuple[Any, dict[str, Any]]:
    """The frame, and options that a study gives by itself."""
    from streamlens.studies import Study, is_study

    if not (result.is_file() and is_study(result)):
        from streamlens.frames.files import read_frame

        return read_frame(result), {}
    study = Study.load(result)
    name = next((name for name in OF_A_STUDY.get(kind, ()) if name in study.frames), None)
    if name is None:
        held = ", ".join(kind for kind, names in OF_A_STUDY.items() if any(n in study.frames for n in names))
        raise InputError(f"This study holds no frame that {kind} draws; it holds those of {held}.")
    frame = study.frames[name]
    if kind == "responses":
        from streamlens.report import responses_of

        return responses_of(study), {}
    return frame, {"position": study.facts["position"]} if kind in _ONE_TOKEN else {}


def _accepted(draw: Any, kind: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if the figure takes them."""
    takes = list(inspect.signature(draw).parameters)[1:]
    if wrong := [name for name in given if name not in takes]:
        raise InputError(f"{kind} takes {', '.join(takes)}; it has no {wrong[0]}.")
    return {**defaults, **given}


def _write_page(path: Path, kind: str, figure: Any, frame: Any) -> None:
    from streamlens.display import visible
    from streamlens.report import Section, Tables, page, write_page

    words = kind.replace("_", " ").capitalize()
    summary = visible(str((figure.layout.meta or {}).get("summary", "")))
    made = {name: value for name, value in frame.attrs.items() if isinstance(value, str | int | float | bool)}
    made |= {"prompt": " | ".join(frame.attrs["prompts"])} if frame.attrs.get("prompts") else {}
    blocks = [
        Section(heading=words, figure=figure, caption=summary),
        Tables(heading="The frame behind it", frames=[(kind, frame)], shown=0),
    ]
    write_page(path, page(blocks, title=f"{words} of {path.stem}", provenance=made))
