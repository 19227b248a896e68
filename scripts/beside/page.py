"""docs/parity.md: written from cells, and read back by the test that holds it.

1. A table of architectures and quantities; each cell a verdict with its figures.
2. Where transformer-lens is not right: one item for each reason, with the figures of its cells.
3. Where the two mean different things, and what only transformer-lens has.
"""

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from beside.cells import AGREES, COLUMNS, Cell
from beside.reasons import REASONS

NUMBER = re.compile(r"\d[\d.]*(?:e-?\d+)?")
BOOTED = "attribution, as booted"
PAGE = Path(__file__).parents[2] / "docs" / "parity.md"

TEXT = """\
# Beside transformer-lens

Written by `python scripts/parity.py --write`, with
{versions}.

The default model on the bank sentence and {tiny} tiny random architectures, with gains, biases and multipliers moved
off their defaults (`tests/zoo`), in float32.

* Of {all} comparisons the two agree in **{agree}**.
* In **{wrong}** the model says that transformer-lens is not right: {theirs} wrong, {raises} refused or raised,
  {incomplete} with a part missing. {booted} of them are attribution on weights as they are booted, and {alibi} follow
  from one run, Falcon's with ALiBi.
* streamlens is wrong in **{ours}**.
* {none} more have no number, since BERT's head is not linear: both packages refuse.

**Who is right is never settled between the two.** A third run is: the same weights in float64, as transformers runs
them, with hooks set by hand (`scripts/beside/by_hand.py`). It must add up itself: its addends to every stream,
its heads to their write, its lens of the last stream to the model's logits. A figure is the largest distance from it,
|found - own| / |own| at one token; for attribution and effects over all parts together. `agree 3e-07` is the larger of
the two; both are roundings. A bridge runs eager attention, streamlens whatever the model came with: they round
differently. Up to {limit:.0e} counts as rounding; the most that was seen is {most:.0e}.

{table}

`writes`: embedding, attention and MLP at every layer (`hook_embed`, `hook_attn_out`, `hook_mlp_out`). `sum of writes`:
`decompose_resid().sum(0)` and `ledger.writes.sum(0)` against the final stream. `stream`: between the two sublayers and
after each block. `heads`: `stack_head_results`; `sum of heads`: with `b_O`, against attention's write. `attribution`:
of a logit difference, by `direct_logit_attribution` after `enable_compatibility_mode()`; `as booted`: by
`cache.logit_attrs(cache.decompose_resid(), ...)` without it. `logit lens`: all logits after every sublayer. `sublayer
off`, `head off`: one at a time set to zero everywhere, by `sweep` and by a loop of `run_with_hooks`; the change of the
last token's logits (of its final stream in BERT). `effect`: the change of the logit difference, all of these edits
together.

`sum` for all the other architectures is in [the zoo](zoo.md).

## Where transformer-lens is not right

{wrongs}

## Where the two mean different things

{meanings}

## What transformer-lens has and streamlens has not

{lacking}
"""

NOT_RIGHT = ("theirs", "raises", "incomplete")

#: what only transformer-lens has, honestly
LACKING = [
    "A hook point at every step inside a branch (queries, keys, values, scores, patterns, gates), each to be read or "
    "replaced by any Python function. Here edits are data and act on writes, heads, neurons and attention edges; "
    "patterns are read at source level and can be frozen, not edited at will.",
    "Every hook's gradient in the cache (`incl_bwd=True`). `backward` has the gradients at the writes only.",
    "Generation with hooks in place, and sampling, streaming and loss helpers around it. Nothing here generates.",
    "Reading through a head that is not linear: a run with an edit gives BERT's logits. Here its final stream is read.",
    "Weights to look at as matrices (`W_Q`, `OV`, composition scores, `SVDInterpreter`), and weights processed for it.",
    "Models of pictures and sound, and recurrent mixers' effective attention (`compute_ssm_effective_attention`). One "
    "model over several devices and quantized weights are supported there; nothing here is tested on them.",
    "More ready-made analyses (interchange interventions, sparse probing, the Jacobian lens, head detectors), and the "
    "tutorials, sparse autoencoders and papers built on its names. `model.bridge()` hands a model over to all of that, "
    "on the same weights.",
]


def versions() -> str:
    """`streamlens 0.1.0, torch ..., transformers ... and transformer-lens ...`."""
    names = ("streamlens", "torch", "transformers", "transformer-lens")
    found = [f"{name} {version(name).partition('+')[0]}" for name in names]
    return f"{', '.join(found[:-1])} and {found[-1]}"


def write(cells: Sequence[Cell], wirings: Mapping[str, str], meanings: Sequence[str]) -> str:
    """The page."""
    counts = {kind: sum(cell.verdict == kind for cell in cells) for kind in ("agree", *NOT_RIGHT, "ours", "none")}
    wrong = [cell for cell in cells if cell.verdict in NOT_RIGHT]
    rounded = [figure for c in cells if c.verdict == "agree" for figure in (c.ours, c.theirs)]
    return TEXT.format(
        versions=versions(),
        tiny=len(wirings) - 1,
        all=len(cells) - counts["none"],
        wrong=len(wrong),
        booted=sum(cell.quantity == BOOTED for cell in wrong),
        alibi=sum(cell.name == "falcon:alibi" and cell.quantity != BOOTED for cell in wrong),
        limit=AGREES,
        most=max(figure for figure in rounded if isinstance(figure, float)),
        table="\n".join(_table(cells, wirings)),
        wrongs="\n".join(_items(wrong)),
        meanings="\n".join(f"* {text}" for text in meanings),
        lacking="\n".join(f"* {text}" for text in LACKING),
        **counts,
    )


def _table(cells: Sequence[Cell], wirings: Mapping[str, str]) -> list[str]:
    lines = [f"| architecture | wiring | {' | '.join(COLUMNS.values())} |", f"|{' --- |' * (len(COLUMNS) + 2)}"]
    for name, wiring in wirings.items():
        mine = {cell.quantity: cell for cell in cells if cell.name == name}
        lines.append(f"| {name} | {wiring} | {' | '.join(shown(mine[quantity]) for quantity in COLUMNS)} |")
    return lines


def shown(cell: Cell) -> str:
    """One cell of the table."""
    match cell.verdict:
        case "none":
            return "neither"
        case "agree":
            return f"agree {max(cell.ours, cell.theirs):.0e}"
        case "incomplete":
            return f"**theirs without {', '.join(cell.missing)}**, else {max(cell.ours, cell.theirs):.0e}"
        case "raises":
            return f"**theirs raises**, ours {cell.ours:.0e}"
        case "ours":
            return f"**ours {cell.ours:.0e}**"
    return f"**theirs {_number(cell.theirs)}**, ours {cell.ours:.0e}"


def _number(figure: float) -> str:
    return f"{figure:.2g}" if figure >= 0.01 else f"{figure:.0e}"


def _items(wrong: Sequence[Cell]) -> list[str]:
    lines = []
    for (name, quantities), why in REASONS.items():
        cells = [c for c in wrong if c.quantity in quantities and name in ("*", c.name)]
        if cells:
            who = "everywhere" if name == "*" else name
            ours = max(cell.ours for cell in cells)
            lines.append(f"* **{who}**: {why}. {_figures(cells)}; ours at most {ours:.0e}.")
    return lines


def _figures(cells: Sequence[Cell]) -> str:
    """`Off by 0.57 (heads), 0.51 (sum of heads)`; a range where it is one quantity of many architectures."""
    off = [cell for cell in cells if cell.verdict == "theirs"]
    parts = []
    if len({cell.name for cell in off}) > 1:
        figures = [cell.theirs for cell in off]
        parts.append(f"Off by {_number(min(figures))} to {_number(max(figures))}")
    elif off:
        parts.append("Off by " + ", ".join(f"{_number(cell.theirs)} ({COLUMNS[cell.quantity]})" for cell in off))
    parts += [f"it says `{_first_words(str(cell.theirs))}`" for cell in cells if cell.verdict == "raises"]
    without = [cell for cell in cells if cell.verdict == "incomplete"]
    if without:
        where = ", ".join(COLUMNS[cell.quantity] for cell in without)
        parts.append(f"no {', '.join(without[0].missing)} in {where}")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def _first_words(text: str, most: int = 90) -> str:
    text = text.replace("|", "/").replace("`", "'")
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " ..."


def parse(text: str) -> dict[tuple[str, str], str]:
    """The table's cells, by architecture and quantity."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == len(COLUMNS) + 2 and cells[0] not in ("architecture", "---"):
            found |= {(cells[0], quantity): cell for quantity, cell in zip(COLUMNS, cells[2:], strict=True)}
    return found


def verdict(cell: str) -> str:
    """What a cell of the page says, without its figures."""
    return NUMBER.sub("#", cell)


def figures(cell: str) -> list[float]:
    """The figures of a cell of the page."""
    return [float(number) for number in NUMBER.findall(cell)]
