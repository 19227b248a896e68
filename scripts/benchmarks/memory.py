"""How much memory a capture, and the attribution of a logit difference after it, takes at its peak.

Every way has a process of its own.

1. The child loads the model, makes the call once on a few tokens, and resets the kernel's record of its peak.
2. The call runs once. `peak` is that record minus what was resident before; `kept` is what is resident afterwards,
   while the result is held.
3. Beside it stands what the tensors that were asked for take: the writes and the logits at the kept positions.
4. "with attribution" goes on to what every write gives a logit difference, as `dla.py` has it.
"""

import gc
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import streamlens
from benchmarks import dla
from benchmarks.peers import Peer, PeerError, environment
from benchmarks.subject import bridge_of, folder_of, prompt_ids
from benchmarks.table import mebibytes

BARE, THEIRS = "bare forward", "transformer-lens run_with_cache"
#: what `decompose` is told, by the name of its row
OPTIONS: dict[str, dict[str, Any]] = {
    "decompose": {},
    "decompose keep_logits=False": {"keep_logits": False},
    "decompose positions=[-1]": {"positions": [-1]},
}
OURS_DLA, THEIRS_DLA = "decompose, with attribution", "transformer-lens, with attribution"
#: peers in an environment of their own: the case of `peer_env`, by the name of its row
PEERS = {"nnsight trace, with attribution": "nnsight", "interpkit decompose, dla": "interpkit"}
WAYS = (BARE, *OPTIONS, OURS_DLA, THEIRS, THEIRS_DLA)
COLUMNS = ("tokens", "what", "peak MiB", "kept MiB", "writes MiB", "logits MiB", "times less, ours", "target", "met")
WARM_TOKENS = 4
#: so many times less than transformer-lens, with attribution, at the length for which that is promised
TARGET, TARGET_TOKENS = 10, 512


def measure(model: str, dtype: str, lengths: Sequence[int], peers: Sequence[str]) -> list[dict[str, Any]]:
    """One row per length and way; every row from a fresh process, one at a time."""
    rows = []
    for tokens in lengths:
        new = []
        for what in [*WAYS, *(what for what, peer in PEERS.items() if peer in peers)]:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
                row = fresh.submit(_one, what, model, dtype, tokens, torch.get_num_threads()).result()
            new.append(row)
        ours = next(row["peak"] for row in new if row["what"] == OURS_DLA)
        for row in new:
            if row["what"] in (THEIRS_DLA, *PEERS) and "peak" in row and ours:
                row["less"] = row["peak"] / ours
            if row["what"] == THEIRS_DLA and tokens == TARGET_TOKENS and "less" in row:
                row |= {"target": TARGET, "met": row["less"] >= TARGET}
        rows += new
    return rows


def measured(row: dict[str, Any]) -> str:
    """The figure that is held to the target."""
    return f"{row['less']:.1f} times less"


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    if "not_measured" in row:
        return [str(row["tokens"]), row["what"], "not measured", "", "", "", "", "", row["not_measured"]]
    sizes = [mebibytes(row.get(name)) for name in ("peak", "kept", "writes", "logits")]
    less = f"{row['less']:.1f}" if "less" in row else ""
    goal = [f"{row['target']:g}", "yes" if row["met"] else "NO"] if "target" in row else ["", ""]
    return [str(row["tokens"]), row["what"], *sizes, less, *goal]


def _one(what: str, model: str, dtype: str, tokens: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    handle = streamlens.load(model, dtype=dtype)
    row: dict[str, Any] = {"tokens": tokens, "what": what}
    if what in PEERS:
        return row | _peer(handle, PEERS[what], dtype, tokens)
    call, reason = _call(handle, what)
    if call is None:
        return row | {"not_measured": reason}
    call(WARM_TOKENS)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = resident("VmRSS")
    result = call(tokens)
    peak = resident("VmHWM") - before
    gc.collect()
    kept = resident("VmRSS") - before
    del result
    return row | {"peak": peak, "kept": kept, **_asked(handle, what, tokens)}


def _peer(handle: Any, name: str, dtype: str, tokens: int) -> dict[str, Any]:
    first, second = dla.TOKENS
    more = {**dla.nnsight_names(handle), "token": first, "against": second} if name == "nnsight" else {"token": first}
    warm, ids = ({"ids": prompt_ids(handle, count).tolist(), **more} for count in (WARM_TOKENS, tokens))
    with Peer(name, environment(), torch.get_num_threads()) as peer:
        try:
            peer.load(folder_of(handle), dtype)
            return peer.ask("peak", case="attribution", warm=warm, **ids)
        except PeerError as error:
            return {"not_measured": str(error)}


def _call(handle: Any, what: str) -> tuple[Callable[[int], Any] | None, str]:
    if what in OPTIONS:
        return lambda tokens: streamlens.decompose(handle, prompt_ids(handle, tokens), **OPTIONS[what]), ""
    if what == OURS_DLA:
        return lambda tokens: dla.ours(handle, prompt_ids(handle, tokens)), ""
    bridge, reason = (None, "") if what == BARE else bridge_of(handle)
    if what != BARE and bridge is None:
        return None, reason

    def run(tokens: int) -> Any:
        ids = prompt_ids(handle, tokens)
        with torch.inference_mode():
            if what == BARE:
                return handle.model(input_ids=ids, use_cache=False)
            return bridge.run_with_cache(ids) if what == THEIRS else dla.lens(bridge, ids)

    return run, ""


def _asked(handle: Any, what: str, tokens: int) -> dict[str, int]:
    """Bytes of the writes and of the logits that this way is asked for."""
    options = OPTIONS.get(what, {})
    number = handle.dtype.itemsize
    kept = len(options.get("positions", range(tokens)))
    writes = len(handle.wiring.writes) * kept * handle.wiring.d_model * number if what != BARE else 0
    logits = kept * handle.model.get_input_embeddings().num_embeddings * number
    return {"writes": writes, "logits": logits if options.get("keep_logits", True) and handle.wiring.head else 0}


def resident(name: str) -> int:
    """A line of the kernel's account of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}; memory is measured on Linux only.")
