"""From a prompt to what every write gives a logit difference: the whole path, side by side.

1. Ours: `decompose` and `read`, which also proves both sums. Once as it is called by default, and once with
   `keep_logits=False`: the model's head then runs for no token, and the reader's two rows are all that is used of it.
2. transformer-lens: `run_with_cache`, `decompose_resid` and `logit_attrs`, in inference mode as ours runs, and again
   as it is called by default, with gradients on.
3. nnsight: the outputs of all sublayers saved in one trace, then scaled by the norm and projected by hand. interpkit:
   `decompose` and `dla` of the last position; it skips the final norm, so its numbers are others.
4. At head level: `decompose(level="head")` and `read` beside `stack_head_results` and `logit_attrs`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import streamlens
from benchmarks.peers import Peer, PeerCase
from benchmarks.subject import bridge_of, final_tap, prompt_ids
from benchmarks.table import spread
from benchmarks.timing import Case, Spread, Timed, in_turns

BARE = "bare forward"
OURS, LEAN, HEADS = (
    "streamlens decompose, read",
    "streamlens decompose(keep_logits=False), read",
    'streamlens decompose(level="head"), read',
)
LENS, LENS_GRAD, LENS_HEADS = (
    "transformer-lens cache, decompose_resid, logit_attrs",
    "the same with gradients on, its default",
    "transformer-lens cache, stack_head_results, logit_attrs",
)
COLUMNS = ("tokens", "what", "ms", "x bare", "ours times faster", "target", "met")
#: how many times faster than transformer-lens' three calls
TARGET = 1.8
TOKENS = (5, 17)
#: the longest prompt whose heads are taken apart
HEADS_UP_TO = 128


def measure(handle: Any, lengths: Sequence[int], rounds: int | None, peers: Mapping[str, Peer]) -> list[dict[str, Any]]:
    """One row per length and case."""
    bridge, _ = bridge_of(handle)
    rows = []
    for tokens in lengths:
        cases = _cases(handle, bridge, tokens, peers)
        times = in_turns(cases, rounds=rounds or max(5, min(30, 2500 // tokens)))
        for case in cases:
            own = times[case.name]
            ours = times[HEADS if case.name == LENS_HEADS else OURS]
            row: dict[str, Any] = {
                "tokens": tokens,
                "what": case.name,
                "milliseconds": asdict(Spread.of([1e3 * t for t in own.wall])),
                "ratio": asdict(own.over(times[BARE])[0]),
            }
            if case.name not in (BARE, OURS, LEAN, HEADS):
                row["faster"] = asdict(own.over(ours)[0])
            if case.name == LENS:
                row["faster_lean"] = asdict(own.over(times[LEAN])[0])
                row |= {"target": TARGET, "met": row["faster"]["median"] >= TARGET}
            rows.append(row)
    return rows


def measured(row: dict[str, Any]) -> str:
    """The figure that is held to the target."""
    return f"{cells(row)[COLUMNS.index('ours times faster')]} times faster"


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    milliseconds, ratio = (Spread(**row[name]) for name in ("milliseconds", "ratio"))
    faster = spread(Spread(**row["faster"]), 2) if "faster" in row else ""
    if "faster_lean" in row:
        faster += f"; without logits {spread(Spread(**row['faster_lean']), 2)}"
    goal = [f"{row['target']:.1f}", "yes" if row["met"] else "NO"] if "target" in row else ["", ""]
    return [str(row["tokens"]), row["what"], spread(milliseconds, 1), spread(ratio), faster, *goal]


def ours(handle: Any, ids: Tensor, **options: Any) -> streamlens.Readout:
    """Our whole path."""
    ledger = streamlens.decompose(handle, ids, **options)
    return streamlens.read(ledger, streamlens.Reader.logit_diff(handle, *TOKENS))


def lens(bridge: Any, ids: Tensor, stack: str = "decompose_resid") -> Tensor:
    """transformer-lens' whole path."""
    _, cache = bridge.run_with_cache(ids)
    return cache.logit_attrs(getattr(cache, stack)(), tokens=TOKENS[0], incorrect_tokens=TOKENS[1])


def nnsight_names(handle: Any) -> dict[str, Any]:
    """What its user reads off the printed model: where the stream ends, and the norm after it."""
    return {"final": final_tap(handle), "norm": handle.wiring.final_norm.tap.module}


def _cases(handle: Any, bridge: Any, tokens: int, peers: Mapping[str, Peer]) -> list[Timed]:
    ids = prompt_ids(handle, tokens)

    def bare() -> Any:
        with torch.inference_mode():
            return handle.model(input_ids=ids, use_cache=False)

    def without_gradients(stack: str = "decompose_resid") -> Tensor:
        with torch.inference_mode():
            return lens(bridge, ids, stack)

    cases: list[Timed] = [
        Case(BARE, bare),
        Case(OURS, lambda: ours(handle, ids)),
        Case(LEAN, lambda: ours(handle, ids, keep_logits=False)),
    ]
    heads = tokens <= HEADS_UP_TO
    if heads:
        cases.append(Case(HEADS, lambda: ours(handle, ids, level="head")))
    if bridge is not None:
        cases += [Case(LENS, without_gradients), Case(LENS_GRAD, lambda: lens(bridge, ids))]
        if heads:
            cases.append(Case(LENS_HEADS, lambda: without_gradients("stack_head_results")))
    rows = ids.tolist()
    if "nnsight" in peers:
        options = {"ids": rows, "token": TOKENS[0], "against": TOKENS[1], **nnsight_names(handle)}
        cases.append(PeerCase("nnsight trace, by hand", peers["nnsight"], "attribution", options))
    if "interpkit" in peers:
        options = {"ids": rows, "token": TOKENS[0]}
        cases.append(PeerCase("interpkit decompose, dla", peers["interpkit"], "attribution", options))
    return cases
