"""The page of one prompt: the three plots, the table behind them, closure, and what made it."""

import platform
from collections.abc import Iterator
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
    from streamlens.report import page, write_page

    closure = payload(found)["closure"]
    html = page(
        _sections(found, top),
        title=_title(found),
        provenance=_provenance(found),
        table=_table(found),
        closure=" ".join([*sum_lines(found, closure), closing_line(closure)]),
    )
    write_page(path, html)


def _title(found: Any) -> str:
    from streamlens.display import display_token

    place = "" if found.position is None else f" at {display_token(found.tokens[found.position], width=24)}"
    prompt = display_token(found.prompt, width=90)
    return f"{found.says or 'The residual stream'}{place} in “{prompt}”"


_ATTRIBUTION = (
    "Direct logit attribution: every write through the final norm, its scale frozen at this pass, onto the "
    "token's row of the unembedding. Each bar starts where the one above it ends."
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
        yield Section(heading=f"Contributions to {found.says}", figure=figure, caption=_ATTRIBUTION)
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


def _provenance(found: Any) -> dict[str, Any]:
    tools = ("streamlens", "torch", "transformers", "plotly", "numpy", "pandas")
    made = {key: value for key, value in found.ledger.provenance.items() if key not in tools}
    asked = {"token": "every token" if found.position is None else f"position {found.position}"}
    if found.readout is not None:
        asked |= {"reads": found.says}
    return {
        **made,
        "prompt": found.prompt,
        **asked,
        "versions": {"python": platform.python_version(), **{tool: version(tool) for tool in tools}},
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
