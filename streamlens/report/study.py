"""The page of a study: one token of one prompt, from what the model is to what every branch does.

1. `SECTIONS` names the sections in their order; each is a function from the study to blocks of the page, and gives none
   where the study lacks what it shows.
2. Every figure has a sentence that is computed from the frame behind it (`sentences.py`).
3. Every single ablation is in the page: its figures are drawn here, its buttons swap them.
"""

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from streamlens import plots
from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.plots.selection import signed
from streamlens.report import sentences
from streamlens.report.blocks import Block, Choice, Section, Strip, Switch, Tables, Words
from streamlens.report.document import page
from streamlens.report.told import Told, responses, saved
from streamlens.studies import Study

__all__ = ["SECTIONS", "study_page"]

_TOP = 12


def study_page(study: Study, *, sections: Sequence[str] = ()) -> str:
    """The page of a study: one self-contained HTML text, for `write_page`.

    Args:
        study: From `streamlens.study`, or loaded.
        sections: Which of `SECTIONS`; none for all.

    Raises:
        InputError: No such section.

    Cost: no model is run. Two figures for every ablation are drawn, about 25 milliseconds each.
    """
    if unknown := [name for name in sections if name not in SECTIONS]:
        raise InputError(f"A section is one of {', '.join(SECTIONS)}; got {unknown[0]!r}.")
    told = Told(study)
    blocks = [block for name in sections or SECTIONS for block in SECTIONS[name](told)]
    facts = study.facts
    made = {
        **study.provenance,
        "prompt": facts["prompt"],
        "token": told.place,
        "reads": told.says or "nothing",
        **facts["settings"],
        **{f"no {name}": reason for name, reason in facts["missing"].items()},
    }
    prompt = display_token(facts["prompt"], width=90)
    title = f"{told.says or 'The residual stream'} at {display_token(told.token, width=24)} in “{prompt}”"
    return page(blocks, title=title, provenance=made, closure=" ".join(told.verdict[:2]))


def _model(told: Told) -> Iterator[Block]:
    facts = told.facts["model"]
    heads = ""
    if facts["heads"]:
        shared = f" that share {facts['kv_heads']} sets of keys and values"
        heads = f", {facts['heads']} attention heads a layer{shared if facts['kv_heads'] != facts['heads'] else ''}"
    said = [
        f"{facts['name']}: {facts['layers']} layers, a stream {facts['d_model']} numbers wide{heads}; "
        f"{facts['parameters'] / 1e6:,.0f} million parameters. A token's vector is the sum of "
        f"{facts['writes']} writes.",
        "What each part adds to the stream was found by measuring it, not by its name:",
    ]
    said += [f"It has no linear head. {facts['no_head']}"] if facts["no_head"] else []
    table = pd.DataFrame(facts["wiring"], columns=["layers", "adds", "from module"])
    yield Words(heading="The model", lines=said, table=table)


def _tokens(told: Told) -> Iterator[Block]:
    facts = told.facts
    sinks = sum(facts["sinks"])
    said = [f"{len(facts['tokens'])} tokens. This page is about {told.place}."]
    if sinks:
        said.append(
            f"{'One is a sink' if sinks == 1 else f'{sinks} are sinks'} (dotted): a norm far above the median, "
            "which says little about the sentence and sets no colour scale."
        )
    strip = Strip(tokens=facts["tokens"], special=facts["special"], sinks=facts["sinks"], picked=told.position)
    yield Words(heading="The tokens", lines=said, strip=strip)


def _sum(told: Told) -> Iterator[Block]:
    checks = told.facts["checks"]
    table = pd.DataFrame(
        [
            {
                "what closes": check["name"],
                "error": check["value"],
                "allowed": check["limit"],
                "closes": "yes" if check["ok"] else f"no {check['note']}".strip(),
            }
            for check in checks
        ]
    )
    yield Words(heading="Does it add up?", lines=told.verdict, verdict=True, table=table if checks else None)


def _parts(told: Told) -> Iterator[Block]:
    if told.frame("readout") is not None:
        rows = told.here("readout")
        caption = sentences.contributors(rows, told.says, told.unit)
        figure = plots.contributions(rows, top=_TOP)
        yield Section(heading="What each part contributes", figure=figure, caption=caption)


def _steps(told: Told) -> Iterator[Block]:
    if (steps := told.frame("steps")) is not None:
        caption = sentences.favours(steps, told.facts["reader"]["tokens"], told.says)
        yield Section(heading="Write by write", figure=plots.before_after(steps), caption=caption)


def _map(told: Told) -> Iterator[Block]:
    if (readout := told.frame("readout")) is not None:
        caption = "The same contributions at every token of the prompt, in stream order from the bottom up."
        yield Section(heading="Every part at every token", figure=plots.heatmap(readout), caption=caption)
    else:
        caption = "How much of the final stream each write makes up; a column sums to 1."
        figure = plots.heatmap(told.study.frames["writes"], value="share")
        yield Section(heading="Every part at every token", figure=figure, caption=caption)


def _lens(told: Told) -> Iterator[Block]:
    if (lens := told.frame("lens")) is not None:
        caption = sentences.lens_settles(told.here("lens"))
        yield Section(heading="What it would say if it stopped", figure=plots.lens(lens), caption=caption)


def _sources(told: Told) -> Iterator[Block]:
    if (sources := told.frame("sources")) is not None:
        caption = sentences.read_where(sources, told.unit)
        yield Section(heading="Where attention read", figure=plots.sources(sources), caption=caption)


def _growth(told: Told) -> Iterator[Block]:
    caption = sentences.growth(told.here("writes"), told.place)
    yield Section(
        heading="Growth of the stream", figure=plots.norm_growth(told.study.frames["writes"]), caption=caption
    )


def _ablations(told: Told) -> Iterator[Block]:
    if told.frame("effects") is None:
        return
    effects, changes = told.here("effects"), told.here("changes")
    size = "total" if told.reader else "kl"
    caption = sentences.strongest(effects, changes, told.unit)
    choices = []
    for number in range(len(effects) - 1, -1, -1):  # the top of the column is the end of the stream
        row = effects.iloc[[number]]
        variant = str(row["variant"].iloc[0])
        mine = changes.loc[changes["variant"] == variant]
        figures = [plots.effects(row), plots.downstream(mine, variant=variant)]
        says = sentences.switched(row.iloc[0], told.unit)
        value = float(row[size].iloc[0])
        shown = signed(value) if told.reader else f"{value:.3f}"
        label = variant.partition("@")[0]
        choices.append(Choice(label=label, size=value, shown=shown, says=says, figures=figures))
    start = max(range(len(choices)), key=lambda n: abs(choices[n].size))
    yield Switch(
        heading="Switch a branch off",
        caption=f"{caption} Choose a branch: its write at {told.place} is set to zero and the rest of the model runs "
        "again. All changes are ablated − clean.",
        choices=choices,
        start=start,
        rest=f"{sentences.headline(effects, told.says, told.unit)} Choose a branch to switch it off.",
        buttons="Switch off",
    )


def _responses(told: Told) -> Iterator[Block]:
    if told.reader and told.frame("changes") is not None:
        figure = plots.responses(responses(told.here("changes"), told.reader, told.unit))
        caption = (
            "Every row is one branch switched off: what each later write did in answer to it. A write that comes "
            "before cannot move, so the matrix is upper triangular."
        )
        yield Section(heading="Who answers whom", figure=figure, caption=caption)


def _visibility(told: Told) -> Iterator[Block]:
    if (seen := told.frame("visibility")) is not None:
        caption = sentences.visible_writes(seen)
        yield Section(heading="What the reader can see", figure=plots.visibility(seen), caption=caption)


def _tables(told: Told) -> Iterator[Block]:
    yield Tables(
        heading="Tables",
        frames=saved(told),
        shown=1 + (told.frame("effects") is not None),
        footer=" ".join(told.verdict[1:]),
    )


SECTIONS: dict[str, Callable[[Told], Iterator[Block]]] = {
    "model": _model,
    "tokens": _tokens,
    "sum": _sum,
    "parts": _parts,
    "steps": _steps,
    "map": _map,
    "ablations": _ablations,
    "responses": _responses,
    "lens": _lens,
    "sources": _sources,
    "visibility": _visibility,
    "growth": _growth,
    "tables": _tables,
}
