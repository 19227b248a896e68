"""The page of a comparison: what separates the contexts, what swapping does, the table behind it, what made it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamlens.cli import compared, page, terminal

_PARTS = (
    "What each write gives in context A less what it gives in context B. Each bar starts where the one above it ends; "
    "rescale is the two contexts' final norms having different scales."
)
_SHARES = "Each write's share of the difference of the two streams; the shares sum to 1."
_SWAPS = (
    "Each write of B put into A's place, and the rest of the model run again: direct is what the difference of the "
    "write predicts, indirect is how the later writes responded."
)


def write_comparison(path: Path, found: Any, *, top: int) -> None:
    """Writes the page of a `compared.Entry`.

    Raises:
        InputError: There is no such folder.
    """
    from streamlens.display import display_token

    data = compared.payload(found)
    a, b = data["a"], data["b"]
    asked = {"context A": a["prompt"], "context B": b["prompt"], "token": compared.place_of(data)}
    asked |= {"level": found.level, "scale": data["scale"], **({"reads": found.says} if found.says else {})}
    table = found.comparison.to_frame()
    prompts = " and ".join(f"“{display_token(side['prompt'], width=60)}”" for side in (a, b))
    page.put(
        path,
        _sections(found, top),
        title=f"{found.says or 'The residual stream'}, A − B, at {display_token(a['token'], width=24)} in {prompts}",
        made=data["model"],
        asked=asked,
        table=table[list(table.columns[table.columns.get_loc("component") :])].drop(columns="order"),
        closure=[*compared.sum_lines(data), terminal.closing_line(data["closure"])],
    )


def _sections(found: Any, top: int) -> Iterator[Any]:
    from streamlens import plots
    from streamlens.report import Section

    figure = plots.comparison(found.comparison.to_frame(), top=top)
    yield Section(heading="What separates A from B", figure=figure, caption=_PARTS if found.says else _SHARES)
    if found.swaps is not None:
        figure = plots.effects(found.swaps.effects(), top=top)
        yield Section(heading="What swapping each write does to A", figure=figure, caption=_SWAPS)
