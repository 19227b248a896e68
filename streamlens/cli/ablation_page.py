"""Pages of an ablation and of a sweep: what changed, what responded, the table behind it, and what made it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamlens.cli import page, swept, terminal

_EFFECTS = (
    "The change of the value that is read, ablated − clean, in parts that sum: direct is what subtracting the edited "
    "write predicts, indirect is how every other write responded, rescale is the final norm's scale moving."
)
_OUTPUT = "How far the prediction of the next token moved: the divergence from the clean run's, in nats."
_DOWNSTREAM = (
    "What the change of every write gives the value that is read, in stream order from the bottom up. The edited write "
    "is hatched: it was set, it did not respond."
)
_NORMS = "How far every write moved, in stream order from the bottom up. The edited write is hatched."
_EVERYWHERE = "The same at every token of the prompt."
_RESPONSES = (
    "Every row is one edit: what each later write did in answer to it. A write that comes before the edited one cannot "
    "move, so the matrix is upper triangular."
)


def write_ablation(path: Path, found: Any, *, reference: Sequence[str] = ()) -> None:
    """Writes the page of an `ablated.Entry` that kept all positions; `reference`: the prompts of mean or resample.

    Raises:
        InputError: There is no such folder.
    """
    from streamlens.cli.ablated import payload

    data = payload(found)
    table = found.ledger.to_frame()
    asked = {"prompt": found.prompt, "edits": data["edits"], "read at": f"position {data['position']}"}
    asked |= {"reads": found.says} if found.says else {}
    asked |= {"frozen": ", ".join(data["freeze"])} if data["freeze"] else {}
    asked |= {"reference": " | ".join(reference)} if reference else {}
    headline = [data["headline"]] if "headline" in data else []
    page.put(
        path,
        _ablation_sections(found),
        title=page.title_of(f"{data['edits']} edited: {found.says or 'the writes'}", data["token"], found.prompt),
        made=found.ledger.clean.provenance,
        asked=asked,
        table=table[list(table.columns[table.columns.get_loc("component") :])].drop(columns="order"),
        closure=[*headline, *sum_line(data), terminal.closing_line(data["closure"])],
    )


def _ablation_sections(found: Any) -> Iterator[Any]:
    from streamlens import plots
    from streamlens.report import Section

    if found.says:
        figure = plots.effects(found.ledger.effects())
        yield Section(heading=f"Change of {found.says}, in parts", figure=figure, caption=_EFFECTS)
    figure = plots.downstream(found.ledger.to_frame())
    caption = _DOWNSTREAM if found.says else _NORMS
    yield Section(heading="Every write at the token that is read", figure=figure, caption=caption)
    whole = found.whole.to_frame()
    if whole.loc[whole["status"] != "unchanged", "position"].nunique() > 1:
        figure = plots.downstream(whole)
        yield Section(heading="Every write at every token", figure=figure, caption=_EVERYWHERE)


def write_sweep(path: Path, found: Any, says: str, asked: Mapping[str, Any], *, top: int) -> None:
    """Writes the page of a sweep.

    Raises:
        InputError: There is no such folder.
    """
    data = swept.payload(found, asked)
    effects = found.effects()
    kept = [name for name in data["effects"][0] if name in effects]
    said = {
        "prompt": data["prompt"],
        "swept over": asked["over"],
        "method": asked["method"],
        "read at": f"position {data['position']}",
    }
    said |= {"reads": says} if says else {}
    said |= {"reference": " | ".join(asked["reference"])} if asked["reference"] else {}
    said |= {"frozen": ", ".join(asked["freeze"])} if asked["freeze"] else {}
    page.put(
        path,
        _sweep_sections(found, effects, says, top),
        title=page.title_of(
            f"{says or 'The output'} without each of the {asked['over']}", data["token"], data["prompt"]
        ),
        made=data["model"],
        asked=said,
        table=effects[kept],
        closure=[*sum_line(data), terminal.closing_line(data["closure"])],
    )


def _sweep_sections(found: Any, effects: Any, says: str, top: int) -> Iterator[Any]:
    from streamlens import plots
    from streamlens.report import Section

    figure = plots.effects(effects, top=top)
    yield Section(heading="The largest effects", figure=figure, caption=_EFFECTS if says else _OUTPUT)
    if says:
        figure = plots.responses(found.responses())
        yield Section(heading="Which write responded to which edit", figure=figure, caption=_RESPONSES)


def sum_line(data: Mapping[str, Any]) -> list[str]:
    """How well the parts of the change add up; nothing where no value is known."""
    error = data["closure"].get("effect")
    if error is None or error != error:
        return []
    return [f"The parts sum to the model's own change within {terminal.small(error)} {data['reader']['unit']}."]
