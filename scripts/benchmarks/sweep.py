"""What switching every branch off costs: `streamlens.sweep` beside a loop of transformer-lens' run_with_hooks.

1. Ours includes everything it returns: the clean run, all edited runs, the frame of effects (direct, indirect, rescale,
   total, KL, top tokens) and the matrix of responses. Theirs is the loop of forwards alone, logits and nothing else.
2. In every round a bare forward, the sweep and the loop take turns; ratios are taken within the round.
3. One run of the loop costs the same whichever branch it switches off, so of a long loop an even share may be timed and
   multiplied. The column `timed` says how many of how many runs that was; `--share 1` times them all.
4. nnsight sets the same outputs to zero, one trace each; interpkit can only switch a whole module off everywhere, and
   runs the clean prompt again each time.
5. Peak memory is measured in a process of its own each, as in `memory.py`.
"""

import gc
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

import streamlens
from benchmarks.memory import resident
from benchmarks.peers import Peer, PeerCase
from benchmarks.subject import bridge_of, prompt_ids
from benchmarks.table import mebibytes, spread
from benchmarks.timing import Case, Spread, Timed, in_turns
from streamlens.models.wiring import Projection

BARE, OURS, THEIRS = (
    "bare forward",
    "streamlens.sweep with effects and responses",
    "transformer-lens run_with_hooks loop",
)
COLUMNS = (
    "sweep",
    "tokens",
    "what",
    "ms",
    "x bare",
    "ours times faster",
    "timed",
    "target",
    "met",
    "peak MiB",
)


#: layer, "attn" or "mlp", and the head if it is one
Branch: TypeAlias = tuple[int, str, int | None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sweep to be timed.

    Attributes:
        name: For the table.
        over: What `streamlens.sweep` runs over.
        tokens: Length of the prompt.
        everywhere: Edited at every position at once instead of at the last.
        faster: How many times faster than the loop it is to be.
        bare: How many bare forwards it may cost; None for no such target.
    """

    name: str
    over: str
    tokens: int
    everywhere: bool = False
    faster: float
    bare: float | None = None


PARTS = (
    Part(name="sublayers, last token", over="sublayers", tokens=10, faster=25, bare=4),
    Part(name="sublayers, last token", over="sublayers", tokens=128, faster=25, bare=4),
    Part(name="heads, last token", over="heads", tokens=10, faster=45),
    Part(name="sublayers, every position", over="sublayers", tokens=10, everywhere=True, faster=4),
    Part(name="sublayers, every position", over="sublayers", tokens=128, everywhere=True, faster=2),
)


def measure(
    handle: Any, parts: Sequence[Part], rounds: int, share: int, dtype: str, peers: Mapping[str, Peer]
) -> list[dict[str, Any]]:
    """One row per part and case."""
    bridge, reason = bridge_of(handle)
    rows = []
    for part in parts:
        branches = _branches(handle, part)
        timed = branches[::share]
        cases: list[Timed] = [Case(BARE, _bare(handle, part)), Case(OURS, _ours(handle, part))]
        if bridge is not None:
            cases.append(Case(THEIRS, _theirs(handle, bridge, part, timed)))
        others = _peers(handle, part, timed, peers)
        loops = {THEIRS, *(case.name for case in others)}
        cases += others
        times = in_turns(cases, rounds=rounds, warmup=1)
        for case in cases:
            loop = case.name in loops
            wall = [len(branches) / len(timed) * t if loop else t for t in times[case.name].wall]
            row: dict[str, Any] = {
                "sweep": f"{len(branches)} {part.name}",
                "tokens": part.tokens,
                "what": case.name,
                "rounds": rounds,
                "timed": f"{len(timed)} of {len(branches)}" if loop else "all",
                "milliseconds": asdict(Spread.of([1e3 * t for t in wall])),
                "ratio": asdict(Spread.of([a / b for a, b in zip(wall, times[BARE].wall, strict=True)])),
            }
            if isinstance(case, Case):
                row["peak"] = _peak(handle.name, dtype, part, case.name)
            if loop:
                faster = Spread.of([a / b for a, b in zip(wall, times[OURS].wall, strict=True)])
                row["faster"] = asdict(faster)
            if case.name == THEIRS:
                row |= {"target": f"{part.faster:g} times", "met": row["faster"]["median"] >= part.faster}
            if case.name == OURS and part.bare is not None:
                row |= {"target": f"{part.bare:g} bare", "met": row["ratio"]["median"] <= part.bare}
            rows.append(row)
        if bridge is None:
            rows.append({"sweep": part.name, "tokens": part.tokens, "what": THEIRS, "not_measured": reason})
    return rows


def measured(row: dict[str, Any]) -> str:
    """The figure that is held to the target."""
    if row["what"] == OURS:
        return f"{spread(Spread(**row['ratio']), 2)} x bare"
    return f"{spread(Spread(**row['faster']), 1)} times faster"


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    head = [row["sweep"], str(row["tokens"]), row["what"]]
    if "not_measured" in row:
        return [*head, "not measured", "", "", "", "", row["not_measured"], ""]
    times = [spread(Spread(**row["milliseconds"]), 0), spread(Spread(**row["ratio"]), 2)]
    faster = spread(Spread(**row["faster"]), 1) if "faster" in row else ""
    goal = [row["target"], "yes" if row["met"] else "NO"] if "target" in row else ["", ""]
    return [*head, *times, faster, row["timed"], *goal, mebibytes(row.get("peak"))]


def _bare(handle: Any, part: Part) -> Callable[[], Any]:
    ids = prompt_ids(handle, part.tokens)

    def run() -> Any:
        with torch.inference_mode():
            return handle.model(input_ids=ids, use_cache=False)

    return run


def _ours(handle: Any, part: Part) -> Callable[[], Any]:
    ids = prompt_ids(handle, part.tokens)
    reader = streamlens.Reader.logit_diff(handle, 5, 17)

    def run() -> Any:
        made = streamlens.sweep(handle, ids, over=part.over, position=None if part.everywhere else -1, readers=reader)
        return made, made.effects(), made.responses()

    return run


def _theirs(handle: Any, bridge: Any, part: Part, branches: Sequence[Branch]) -> Callable[[], Any]:
    ids = prompt_ids(handle, part.tokens)
    where = slice(None) if part.everywhere else slice(-1, None)

    def zero(value: Tensor, hook: Any, head: int | None) -> Tensor:
        value[(slice(None), where) if head is None else (slice(None), where, head)] = 0.0
        return value

    def name(layer: int, kind: str, head: int | None) -> str:
        return f"blocks.{layer}.hook_{kind}_out" if head is None else f"blocks.{layer}.attn.hook_z"

    def run() -> Any:
        with torch.inference_mode():
            return [
                bridge.run_with_hooks(ids, fwd_hooks=[(name(*branch), partial(zero, head=branch[2]))])[:, -1].clone()
                for branch in branches
            ]

    return run


def _peers(handle: Any, part: Part, branches: Sequence[Branch], peers: Mapping[str, Peer]) -> list[Timed]:
    options = {
        "ids": prompt_ids(handle, part.tokens).tolist(),
        "sites": branches,
        "everywhere": part.everywhere,
        "width": _head_width(handle) if part.over == "heads" else 0,
    }
    cases: list[Timed] = []
    if "nnsight" in peers:
        cases.append(PeerCase("nnsight loop of traces", peers["nnsight"], "ablate", options))
    if "interpkit" in peers and part.everywhere:
        cases.append(PeerCase("interpkit ablate loop", peers["interpkit"], "ablate", options))
    return cases


def _head_width(handle: Any) -> int:
    """Columns of attention's output projection that one head hands it; the same in every layer."""
    makers = handle.projections(handle.wiring.stream).values()
    (width,) = {maker.width // maker.heads for maker in makers if isinstance(maker, Projection) and maker.heads}
    return width


def _branches(handle: Any, part: Part) -> list[Branch]:
    """What is switched off, in the sweep's order."""
    branches: list[Branch] = []
    makers = handle.projections(handle.wiring.stream)
    for row, write in enumerate(handle.wiring.writes):
        site = write.site
        if part.over == "sublayers" and site.kind in ("attn", "mlp"):
            branches.append((site.layer, site.kind, None))
        if part.over == "heads" and site.kind == "attn":
            branches += [(site.layer, site.kind, head) for head in range(makers[row].heads)]
    return branches


def _peak(model: str, dtype: str, part: Part, what: str) -> int:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_peak_here, model, dtype, part, what, torch.get_num_threads()).result()


def _peak_here(model: str, dtype: str, part: Part, what: str, threads: int) -> int:
    """Bytes at the peak of one call over what was resident before; a loop's peak is that of two of its runs."""
    torch.set_num_threads(threads)
    handle = streamlens.load(model, dtype=dtype)
    if what == THEIRS:
        bridge, _ = bridge_of(handle)
        call = _theirs(handle, bridge, part, _branches(handle, part)[:2])
    else:
        call = {BARE: _bare, OURS: _ours}[what](handle, part)
    _bare(handle, Part(name="", over="", tokens=4, faster=0))()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    result = call()
    peak = resident("VmHWM") - before
    del result
    return peak
