"""How much memory a capture takes at its peak, each way in a process of its own.

1. The child loads the model, makes the call once on a few tokens, and resets the kernel's record of its peak.
2. The call runs once. `peak` is that record minus what was resident before; `kept` is what is resident afterwards,
   while the result is held.
3. Beside it stands what the tensors that were asked for take: the writes and the logits at the kept positions.
"""

import gc
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import streamlens
from benchmarks.subject import bridge_of, prompt_ids, setting
from benchmarks.table import mebibytes

BARE, THEIRS = "bare forward", "transformer-lens run_with_cache"
#: what `decompose` is told, by the name of its row
OPTIONS: dict[str, dict[str, Any]] = {
    "decompose": {},
    "decompose keep_logits=False": {"keep_logits": False},
    "decompose positions=[-1]": {"positions": [-1]},
}
WAYS = (BARE, *OPTIONS, THEIRS)
COLUMNS = ("tokens", "what", "peak MiB", "kept MiB", "writes MiB", "logits MiB")
WARM_TOKENS = 4


def measure(model: str, dtype: str, tokens: int, threads: int | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The setting, and one row per way; every row from a fresh process, one at a time."""
    noted: dict[str, Any] = {}
    rows = []
    for what in WAYS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            noted, row = fresh.submit(_one, what, model, dtype, tokens, threads).result()
        rows.append(row)
    return noted, rows


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    if "not_measured" in row:
        return [str(row["tokens"]), row["what"], "not measured", "", "", row["not_measured"]]
    return [str(row["tokens"]), row["what"], *(mebibytes(row[name]) for name in ("peak", "kept", "writes", "logits"))]


def _one(what: str, model: str, dtype: str, tokens: int, threads: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if threads:
        torch.set_num_threads(threads)
    handle = streamlens.load(model, dtype=dtype)
    row: dict[str, Any] = {"tokens": tokens, "what": what}
    call, reason = _call(handle, what)
    if call is None:
        return setting(handle), row | {"not_measured": reason}
    call(WARM_TOKENS)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = resident("VmRSS")
    result = call(tokens)
    peak = resident("VmHWM") - before
    gc.collect()
    kept = resident("VmRSS") - before
    del result
    return setting(handle), row | {"peak": peak, "kept": kept, **_asked(handle, what, tokens)}


def _call(handle: Any, what: str) -> tuple[Callable[[int], Any] | None, str]:
    if what in OPTIONS:
        return lambda tokens: streamlens.decompose(handle, prompt_ids(handle, tokens), **OPTIONS[what]), ""
    bridge, reason = bridge_of(handle) if what == THEIRS else (None, "")
    if what == THEIRS and bridge is None:
        return None, reason

    def run(tokens: int) -> Any:
        ids = prompt_ids(handle, tokens)
        with torch.inference_mode():
            return handle.model(input_ids=ids, use_cache=False) if what == BARE else bridge.run_with_cache(ids)

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
