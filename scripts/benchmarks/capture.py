"""What taking the stream apart costs: a bare forward, `decompose`, and the peers' ways to the same tensors.

nnsight saves references to the outputs of all sublayers; interpkit's `decompose` keeps one position. Neither proves
that its parts are the stream, as ours does within its figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

import streamlens
from benchmarks.peers import Peer, PeerCase
from benchmarks.subject import SENTENCE, bridge_of, final_tap, prompt_ids
from benchmarks.table import spread
from benchmarks.timing import Case, Spread, Timed, in_turns

BARE, OURS, TEXT, THEIRS = (
    "bare forward",
    "streamlens.decompose(ids)",
    "streamlens.decompose(text)",
    "transformer-lens run_with_cache",
)
COLUMNS = ("tokens", "what", "ms", "x bare", "x bare, cpu", "x bare, fastest", "target", "met")


def target(tokens: int) -> float:
    """How many bare forwards a capture may cost."""
    return 1.05 if tokens <= 128 else 1.10


def default_rounds(tokens: int) -> int:
    """Enough that the median moves by less than what is to be seen: more where one round is short."""
    return min(60, max(12, 4000 // tokens))


def measure(handle: Any, lengths: Sequence[int], rounds: int | None, peers: Mapping[str, Peer]) -> list[dict[str, Any]]:
    """One row per length and case."""
    bridge, reason = bridge_of(handle)
    rows = []
    for tokens in lengths:
        count = rounds or default_rounds(tokens)
        cases = _cases(handle, bridge, tokens, peers)
        times = in_turns(cases, rounds=count)
        for case in cases:
            wall, cpu = times[case.name].over(times[BARE])
            ours = case.name == OURS
            rows.append(
                {
                    "tokens": tokens,
                    "what": case.name,
                    "rounds": count,
                    "milliseconds": asdict(Spread.of([1e3 * t for t in times[case.name].wall])),
                    "ratio": asdict(wall),
                    "ratio_cpu": asdict(cpu),
                    "ratio_fastest": times[case.name].best_over(times[BARE]),
                    "target": target(tokens) if ours else None,
                    "met": wall.median <= target(tokens) if ours else None,
                }
            )
        if bridge is None:
            rows.append({"tokens": tokens, "what": THEIRS, "rounds": 0, "not_measured": reason})
    return rows


def measured(row: dict[str, Any]) -> str:
    """The figure that is held to the target."""
    return f"{spread(Spread(**row['ratio']))} x bare"


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    if "not_measured" in row:
        return [str(row["tokens"]), row["what"], "not measured", "", "", "", "", row["not_measured"]]
    milliseconds, ratio, cpu = (Spread(**row[name]) for name in ("milliseconds", "ratio", "ratio_cpu"))
    goal = [f"{row['target']:.2f}", "yes" if row["met"] else "NO"] if row["target"] else ["", ""]
    fastest = f"{row['ratio_fastest']:.3f}"
    return [str(row["tokens"]), row["what"], spread(milliseconds, 1), spread(ratio), spread(cpu), fastest, *goal]


def _cases(handle: Any, bridge: Any, tokens: int, peers: Mapping[str, Peer]) -> list[Timed]:
    ids = prompt_ids(handle, tokens)

    def bare() -> Any:
        with torch.inference_mode():
            return handle.model(input_ids=ids, use_cache=False)

    def cached() -> Any:
        with torch.inference_mode():
            return bridge.run_with_cache(ids)

    cases: list[Timed] = [Case(BARE, bare), Case(OURS, lambda: streamlens.decompose(handle, ids))]
    if handle.tokenizer is not None and len(handle.tokenizer(SENTENCE)["input_ids"]) == tokens:
        cases.append(Case(TEXT, lambda: streamlens.decompose(handle, SENTENCE)))
    if bridge is not None:
        cases.append(Case(THEIRS, cached))
    if "nnsight" in peers:
        options = {"ids": ids.tolist(), "final": final_tap(handle)}
        cases.append(PeerCase("nnsight trace of all sublayers", peers["nnsight"], "trace", options))
    if "interpkit" in peers:
        cases.append(PeerCase("interpkit decompose", peers["interpkit"], "decompose", {"ids": ids.tolist()}))
    return cases
