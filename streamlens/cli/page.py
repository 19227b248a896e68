"""Pages: plots, the table behind them, how they close, and what made them.

`write` makes the page of a decomposition; `put` finishes any page, and says what every page has to say.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def write(path: Path, found: Any, *, top: int) -> None:
    """Writes the page of an `Entry` that kept all positions.

    Raises:
        InputError: There is no such folder.
    """
    from streamlens.cli.books import payload
    from streamlens.cli.tables import sum_lines
    from streamlens.cli.terminal import closing_line

    closure = payload(found)["closure"]
    token = None if found.position is None else found.tokens[found.position]
    asked = {"prompt": found.prompt, "token": "every token" if token is None else f"position {found.position}"}
    put(
        path,
        _sections(found, top),
        title=title_of(found.says or "The residual stream", token, found.prompt),
        made=found.ledger.provenance,
        asked=asked if found.readout is None else {**asked, "reads": found.says},
        table=_table(found),
        closure=[*sum_lines(found, closure), closing_line(closure)],
    )


def put(
    path: Path,
    sections: Iterable[Any],
    *,
    title: str,
    made: Mapping[str, Any],
    asked: Mapping[str, Any],
    table: Any,
    closure: Iterable[str],
) -> None:
    """Writes a page.

    Args:
        path: Where.
        sections: The plots with their headings and captions.
        title: The page's heading.
        made: The provenance of the run.
        asked: What was asked of it.
        table: The frame behind the plots.
        closure: Sentences that say how well things add up.

    Raises:
        InputError: There is no such folder.
    """
    from streamlens.report import page, write_page

    html = page(sections, title=title, provenance=_provenance(made, asked), table=table, closure=" ".join(closure))
    write_page(path, html)


def title_of(what: str, token: str | None, prompt: str) -> str:
    """`logit(·river) at ·bank in “After crossing …”`."""
    from streamlens.display import display_token

    place = "" if token is None else f" at {display_token(token, width=24)}"
    return f"{what}{place} in “{display_token(prompt, width=90)}”"


_ATTRIBUTION = (
    "Direct logit attribution: every write through the final norm, its scale frozen at this pass, onto the "
    "token's row of the unembedding. Each bar starts where the one above it ends."
)
_READING = (
    "What every write gives the reader, through the norm it reads through with its scale frozen at this pass. Each bar "
    "starts where the one above it ends."
)
_HEATMAP = "The same contributions at every token of the prompt, in stream order from the bottom up."
_SHARES = (
    "How much of the final stream each write makes up: its component along the stream over the stream's "
    "norm. A column sums to 1."
)
_GROWTH = "The norm of the residual stream after every sublayer."


def _sections(found: Any, top: int) -> Iterator[Any]:
    from streamlens import plots
    from streamlens.report import Section

    writes = found.ledger.to_frame()
    if found.readout is None:
        figure = plots.heatmap(writes, value="share")
        yield Section(heading="Share of every part in the stream", figure=figure, caption=_SHARES)
    else:
        parts = found.readout.to_frame()
        figure = plots.contributions(parts, position=found.position, top=top)
        caption = _READING if found.readout.reader.vocabulary is None else _ATTRIBUTION
        yield Section(heading=f"Contributions to {found.says}", figure=figure, caption=caption)
        yield Section(heading="Every part at every token", figure=plots.heatmap(parts), caption=_HEATMAP)
    yield Section(heading="Growth of the stream", figure=plots.norm_growth(writes), caption=_GROWTH)


def _table(found: Any) -> Any:
    """The parts at the token (or at every token): size, share, and contribution where there is a reader."""
    position = found.position
    writes = found.ledger.to_frame()
    columns = ["position", "token", "component", "norm", "share", "cosine"]
    if found.readout is None:
        table = writes[columns]
    else:
        parts = found.readout.to_frame()[["position", "token", "component", "contribution"]]
        table = parts.assign(component=parts["component"].astype(str)).merge(
            writes.assign(component=writes["component"].astype(str))[["position", *columns[2:]]],
            on=["position", "component"],
            how="left",
        )
    return (table if position is None else table[table["position"] == position]).reset_index(drop=True)


def _provenance(made: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    tools = ("streamlens", "torch", "transformers", "plotly", "numpy", "pandas")
    return {
        **{key: value for key, value in made.items() if key not in tools},
        **asked,
        "versions": {"python": platform.python_version(), **{tool: version(tool) for tool in tools}},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
