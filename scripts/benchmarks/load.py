"""What starting costs: whole commands as processes, and a model made ready inside one.

1. The yardstick is a script of six lines that loads the same folder with transformers and runs one forward. Beside it
   stand `streamlens decompose`, which also proves the wiring, takes the prompt apart and prints a table, and scripts of
   the same length with each peer that end in their attribution.
2. All take turns as whole processes, imports included; ratios are taken within the round.
3. Inside one process, without imports: transformers' `from_pretrained`, `streamlens.load`, which also finds and proves
   the wiring with three short forwards, and transformer-lens' boot. The weights are mapped, not read, so the first is
   next to nothing.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import streamlens
from benchmarks.peers import environment
from benchmarks.subject import SENTENCE, folder_of
from benchmarks.table import spread
from benchmarks.timing import Case, Spread, Timed, in_turns

SIX_LINES = f"""\
import sys, torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
ids = tokenizer({SENTENCE!r}, return_tensors="pt")
with torch.inference_mode():
    print(model(**ids).logits[0, -1].argmax())
"""
LENS = f"""\
import sys, torch
from transformer_lens.model_bridge import TransformerBridge
model = TransformerBridge.boot_transformers(sys.argv[1], dtype=torch.float32)
with torch.inference_mode():
    logits, cache = model.run_with_cache({SENTENCE!r})
    print(cache.logit_attrs(cache.decompose_resid(), tokens=1000, incorrect_tokens=2000)[:, 0, -1])
"""
NNSIGHT = f"""\
import sys, torch, transformers, nnsight
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
net = nnsight.NNsight(model)
with torch.inference_mode(), net.trace(**tokenizer({SENTENCE!r}, return_tensors="pt")):
    logits = net.output.logits[0, -1].save()
print(logits.argmax())
"""
INTERPKIT = f"""\
import sys, interpkit
model = interpkit.load(sys.argv[1])
model.decompose({SENTENCE!r})
model.dla({SENTENCE!r}, token=1000)
"""
YARDSTICK, OURS = "six lines of transformers, one forward", "streamlens decompose"
PLAIN, LOADED, BOOTED = (
    "transformers from_pretrained, with tokenizer",
    "streamlens.load",
    "transformer-lens boot_transformers",
)
COLUMNS = ("where", "what", "s", "x the yardstick", "target", "met")
TARGET = 1.3


@dataclass(frozen=True)
class Command:
    """A whole process, to be timed in turn with others."""

    name: str
    argv: Sequence[str]
    threads: int

    def once(self) -> None:
        self.timed()

    def timed(self) -> tuple[float, float]:
        """Wall and processor time, in seconds.

        Raises:
            RuntimeError: The command failed.
        """
        environ = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(self.argv, capture_output=True, text=True, env=environ)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{self.name} failed: {done.stderr[-500:]}")
        return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(handle: Any, rounds: int, peers: Sequence[str]) -> list[dict[str, Any]]:
    """One row per command, then one per way to load inside this process."""
    folder, threads = folder_of(handle), torch.get_num_threads()
    console = [str(Path(sys.executable).with_name("streamlens")), "decompose", SENTENCE, "--model", folder]
    wanted = ["--token", "bank", "--for", " river", "--against", " money"] if handle.tokenizer is not None else []
    commands = [
        Command(YARDSTICK, [sys.executable, "-c", SIX_LINES, folder], threads),
        Command(OURS, [*console, *wanted], threads),
        Command("streamlens --help", [console[0], "--help"], threads),
        Command("transformer-lens script", [sys.executable, "-c", LENS, folder], threads),
    ]
    for name, script in (("nnsight", NNSIGHT), ("interpkit", INTERPKIT)):
        if name in peers:
            commands.append(Command(f"{name} script", [str(environment()), "-c", script, folder], threads))
    rows = _rows("whole process", commands, YARDSTICK, rounds)
    return rows + _rows("in one process", _loads(folder, handle.dtype), PLAIN, rounds)


def measured(row: dict[str, Any]) -> str:
    """The figure that is held to the target."""
    return f"{spread(Spread(**row['ratio']), 2)} x the yardstick"


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    seconds, ratio = Spread(**row["seconds"]), Spread(**row["ratio"])
    goal = [f"{row['target']:.1f}", "yes" if row["met"] else "NO"] if "target" in row else ["", ""]
    return [row["where"], row["what"], spread(seconds, 2), spread(ratio, 2), *goal]


def _rows(where: str, cases: Sequence[Timed], yardstick: str, rounds: int) -> list[dict[str, Any]]:
    times = in_turns(cases, rounds=rounds, warmup=1)
    rows = []
    for case in cases:
        wall, _ = times[case.name].over(times[yardstick])
        row = {"where": where, "what": case.name, "rounds": rounds}
        row |= {"seconds": asdict(Spread.of(times[case.name].wall)), "ratio": asdict(wall)}
        if case.name == OURS:
            row |= {"target": TARGET, "met": wall.median <= TARGET}
        rows.append(row)
    return rows


def _loads(folder: str, dtype: torch.dtype) -> list[Timed]:
    from transformer_lens.model_bridge import TransformerBridge

    def plain() -> Any:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    return [
        Case(PLAIN, plain),
        Case(LOADED, lambda: streamlens.load(folder, dtype=dtype)),
        Case(BOOTED, lambda: TransformerBridge.boot_transformers(folder, dtype=dtype)),
    ]
