"""A peer in its own environment and process: `python worker.py nnsight` or `python worker.py interpkit`.

1. Requests are JSON objects, one a line, on standard input; each gets one answer on what was standard output.
   Whatever the peer itself prints goes to standard error.
2. `load` makes the model from a folder with transformers and gives it to the peer. `time` runs a case once and answers
   with its seconds; `peak` with the bytes at its peak; `value` with what it found.
3. A case is a function of the peer's module here, named in its `CASES`. This file and its neighbours import nothing
   of streamlens.
"""

import gc
import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Worker:
    """The requests, by name."""

    def __init__(self, peer: str) -> None:
        import interpkit_cases
        import nnsight_cases

        self._cases = {"nnsight": nnsight_cases, "interpkit": interpkit_cases}[peer]
        self._peer = peer
        self._subject: Any = None
        self._ready: dict[str, Callable[[], Any]] = {}

    def load(self, folder: str, dtype: str, threads: int) -> dict[str, Any]:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        kind = self._model_class(folder)
        model = kind.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._ready = {}
        self._subject = self._cases.Subject(model, tokenizer)
        return {name: importlib.metadata.version(name) for name in (self._peer, "torch", "transformers")}

    def time(self, case: str, **options: Any) -> dict[str, float]:
        call = self._call(case, options)
        gc.collect()
        gc.disable()
        try:
            cpu, wall = time.process_time(), time.perf_counter()
            result = call()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            del result
        finally:
            gc.enable()
        return {"wall": wall, "cpu": cpu}

    def peak(self, case: str, warm: dict[str, Any], **options: Any) -> dict[str, int]:
        self._call(case, warm)()
        call = self._call(case, options)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        result = call()
        peak = _resident("VmHWM") - before
        del result
        return {"peak": peak}

    def value(self, case: str, **options: Any) -> dict[str, Any]:
        return self._call(case, options)()

    def _call(self, case: str, options: dict[str, Any]) -> Callable[[], Any]:
        key = json.dumps([case, options])
        if key not in self._ready:
            self._ready[key] = self._cases.CASES[case](self._subject, **options)
        return self._ready[key]

    @staticmethod
    def _model_class(folder: str) -> Any:
        import transformers

        named = json.loads((Path(folder) / "config.json").read_text()).get("architectures") or []
        return getattr(transformers, named[0]) if named else transformers.AutoModelForCausalLM


def _resident(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Answers until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # whatever a peer raises is its answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
