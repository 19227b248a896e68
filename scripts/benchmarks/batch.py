"""What a batch of many prompts costs: a run over bank sentences beside bare forwards of the very same batches.

1. The sentences come from `make_bank_sentences.py`. The run asks for all writes at " bank" and for two readers.
2. Shard by shard, three cases take turns: the run (tokens, forward, readouts, Parquet, the rename that stores it), a
   bare forward of the model without its head, and one with it. Our run needs no head, so the first is the stricter.
3. Throughput is the bare forward's time over the run's: of all shards together, of each, and in processor time, which
   other work on the machine moves less.
4. Peak memory is that of whole runs over more and more prompts, each in a process of its own, over what the loaded
   model takes: it is to stay flat. With the default budget few prompts do not fill a batch, so that a batch grows with
   their number until it is full (705 tokens at 200 prompts, 1,352 at 2,000); with `FILLED` it is full at 200 already.
"""

import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import streamlens
from benchmarks.memory import resident
from benchmarks.subject import setting
from benchmarks.table import mebibytes, spread
from benchmarks.timing import Spread
from streamlens import batch
from streamlens.batch.analyses import readers_of
from streamlens.batch.plan import make_plan
from streamlens.batch.shard import Runner
from streamlens.batch.store import Folder
from streamlens.prompts import Prompt

sys.path.insert(0, str(Path(__file__).parents[1]))
from make_bank_sentences import sentences

OURS, BASE, BARE = "streamlens run", "bare forward without the head", "bare forward"
COLUMNS = ("prompts", "what", "tokens/s", "throughput of bare", "in cpu time", "target", "met", "peak MiB")
TARGET = 0.8
#: MiB of `--memory` at which 200 prompts fill their batches as 2,000 do
FILLED = 24
READ = {"wanted": (" river", " water"), "against": (" money", " cash"), "token": (" bank",)}


def measure(handle: Any, prompts: int, memory: Sequence[int]) -> list[dict[str, Any]]:
    """One row per case, then one per number of prompts whose peak memory was taken."""
    settings = batch.Settings(**READ)
    readers = readers_of(handle, settings)
    plan = make_plan(handle, settings, readers, [Prompt(text, "") for text in _texts(prompts)])
    runner = Runner.of(handle, settings, readers, key=plan.key)
    times: dict[str, list[float]] = {OURS: [], BASE: [], BARE: []}
    cpu = dict.fromkeys(times, 0.0)
    with tempfile.TemporaryDirectory() as place:
        cases: dict[str, Callable[[Any], Any]] = {
            OURS: lambda shard: Folder(Path(place)).commit(runner.run(shard)),
            BASE: _bare(handle, runner, head=False),
            BARE: _bare(handle, runner, head=True),
        }
        for call in cases.values():
            call(plan.shards[0])
        for number, shard in enumerate(plan.shards):
            names = list(cases)
            for name in names[number % 3 :] + names[: number % 3]:
                gc.collect()
                start, spent = time.perf_counter(), time.process_time()
                cases[name](shard)
                times[name].append(time.perf_counter() - start)
                cpu[name] += time.process_time() - spent
    tokens = sum(item.tokens for shard in plan.shards for item in shard.items)
    rows: list[dict[str, Any]] = []
    for name, own in times.items():
        row = {"prompts": prompts, "what": name, "shards": len(own), "tokens_per_second": tokens / sum(own)}
        if name != OURS:
            ratio = Spread.of([bare / ours for bare, ours in zip(own, times[OURS], strict=True)])
            whole = sum(own) / sum(times[OURS])
            row |= {"throughput": asdict(ratio), "throughput_whole": whole, "throughput_cpu": cpu[name] / cpu[OURS]}
            row |= {"target": TARGET, "met": whole >= TARGET} if name == BASE else {}
        rows.append(row)
    return rows + [_peak(handle, count, budget) for budget in (FILLED, settings.memory) for count in memory]


def measured(row: dict[str, Any]) -> str:
    """The figure that is held to the target."""
    return f"{row['throughput_whole']:.3f} of its throughput"


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    rate = f"{row['tokens_per_second']:,.0f}" if "tokens_per_second" in row else ""
    ratio = (
        f"{row['throughput_whole']:.3f}, shards {spread(Spread(**row['throughput']))}" if "throughput" in row else ""
    )
    processor = f"{row['throughput_cpu']:.3f}" if "throughput_cpu" in row else ""
    goal = [f"{row['target']:.2f}", "yes" if row["met"] else "NO"] if "target" in row else ["", ""]
    return [str(row["prompts"]), row["what"], rate, ratio, processor, *goal, mebibytes(row.get("peak"))]


def _texts(count: int) -> list[str]:
    return [row["prompt"] for row in sentences(count, 0)]


def _bare(handle: Any, runner: Runner, *, head: bool) -> Callable[[Any], None]:
    """The model's own forward over a shard's batches, tokenised and padded beforehand, without a clock on that."""
    ready: dict[int, list[dict[str, Any]]] = {}
    model = handle.model if head else handle.model.base_model

    def run(shard: Any) -> None:
        with torch.inference_mode():
            for inputs in ready[shard.number]:
                model(**inputs, use_cache=False)

    def prepared(shard: Any) -> None:
        if shard.number not in ready:
            ready[shard.number] = [_inputs(handle, items) for items in runner.batches(shard.items)]
        run(shard)

    return prepared


def _inputs(handle: Any, items: Sequence[Any]) -> dict[str, Any]:
    rows = [handle.tokenizer(item.text)["input_ids"] for item in items]
    width = max(map(len, rows))
    inputs = {"input_ids": torch.tensor([row + [0] * (width - len(row)) for row in rows])}
    if any(len(row) < width for row in rows):
        inputs["attention_mask"] = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return inputs


def _peak(handle: Any, prompts: int, budget: int) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        dtype = setting(handle)["dtype"]
        peak = fresh.submit(_peak_here, handle.name, dtype, prompts, budget, torch.get_num_threads()).result()
    return {"prompts": prompts, "what": f"{OURS} --memory {budget}, whole", "peak": peak}


def _peak_here(model: str, dtype: str, prompts: int, budget: int, threads: int) -> int:
    """Bytes at the peak of a whole run over what was resident before it; the model is loaded, and has run once."""
    torch.set_num_threads(threads)
    handle = streamlens.load(model, dtype=dtype)
    streamlens.decompose(handle, _texts(1)[0])
    with tempfile.TemporaryDirectory() as place:
        batch.run(_texts(1), Path(place) / "first", model=handle, **READ)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        batch.run(_texts(prompts), Path(place) / "out", model=handle, memory=budget, **READ)
        return resident("VmHWM") - before
