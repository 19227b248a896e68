"""The page of the lab: figures, tables and claims, and for some examples a column of settings to choose from.

A page on disk cannot run the lab, so every setting was computed when the page was made; the explorer computes any.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_CHOOSE = "Choose a setting; each was computed by the lab when this page was made."


def write(path: Path, found: Sequence[Any], claims: Any) -> None:
    """Writes the page of some examples; `claims` is the frame of all their claims."""
    import platform
    from importlib.metadata import version

    from streamlens.report import page, write_page

    tools = ("streamlens", "torch", "plotly", "numpy", "pandas", "scipy")
    made = {"versions": {"python": platform.python_version(), **{tool: version(tool) for tool in tools}}}
    said = f"{int(claims['holds'].sum())} of {len(claims)} claims hold."
    title = "The lab: residual networks solved by hand" if len(found) > 1 else found[0].title
    blocks = [block for example in found for block in _blocks(example)]
    write_page(path, page(blocks, title=title, provenance=made, table=claims, closure=said))


def _blocks(example: Any) -> Iterator[Any]:
    """An example's figures, its table under the last, and its settings."""
    from streamlens.report import Section

    for number, drawing in enumerate(example.drawings):
        first = number == 0
        yield Section(
            heading=example.title if first else f"{example.title}, {number + 1}",
            figure=drawing.draw(False),
            caption=f"{example.teaches} {drawing.caption}" if first else drawing.caption,
            table=example.table if number == len(example.drawings) - 1 else None,
        )
    if settings := _settings(example.name):
        yield _switch(example.title, settings)


def _switch(title: str, settings: Sequence[tuple[str, Any]]) -> Any:
    from streamlens.report import Choice, Switch

    choices = [
        Choice(label=label, size=0.0, shown="", says=" ".join(live.says), figures=live.figures)
        for label, live in ((label, make()) for label, make in settings)
    ]
    return Switch(
        heading=f"{title}, to play with", caption=_CHOOSE, choices=choices, start=0, rest=_CHOOSE, buttons="Settings"
    )


def _settings(name: str) -> list[tuple[str, Any]]:
    """The settings of an example: a label, and what computes it. None for an example that has none."""
    from streamlens.explorer import lab_live
    from streamlens.lab import attention_by_hand, euler

    if name == "two_branches":
        states = (
            ("both on", True, True),
            ("one off", False, True),
            ("two off", True, False),
            ("both off", False, False),
        )
        return [(label, partial(lab_live.branches, one, two)) for label, one, two in states]
    if name == "image_correction":
        return [(label, partial(lab_live.picture, label)) for label in lab_live.PICTURES]
    if name == "euler":
        return [(f"h = {h:g}", partial(lab_live.steps, h)) for h in sorted({*euler.SIZES, 0.1, 0.9, 1.1})]
    if name == "attention_by_hand":
        (_, (_, scored)), w_k, w_v = attention_by_hand.W_Q, attention_by_hand.W_K, attention_by_hand.W_V
        scores = (("as chosen", 1.0), ("scores doubled", 2.0), ("all scores 0", 0.0), ("scores reversed", -1.0))
        return [(label, partial(_attended, ((0.0, 0.0), (0.0, scored * by)), w_k, w_v)) for label, by in scores]
    if name == "jacobian_products":
        given = {"depth": 12, "diagonal": 0.5, "corner": 2.0}
        kinds = (("A in every block", False), ("A, its transpose, A, ...", True))
        return [(label, partial(lab_live.stack, alternating=turns, **given)) for label, turns in kinds]
    return []


def _attended(*weights: Any) -> Any:
    from streamlens.explorer import lab_live

    return lab_live.attention(*weights)[0]
