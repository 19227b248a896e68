"""How the cost grows: with tokens, layers, prompts in a batch, and branches that are swept over.

1. A series varies one number and keeps the others. All its cases take turns; a row is one case at one number.
2. The exponent of a case is the slope of log(time) on log(number), by least squares, over the upper half of its
   numbers: below, the constant part is all there is to see. 1 is linear.
3. Fewer layers are the first layers of the same model.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import transformers

import streamlens
from benchmarks.subject import folder_of, prompt_ids
from benchmarks.table import spread
from benchmarks.timing import Case, Spread, Times, in_turns

BARE, CAPTURE, SWEEP = "bare forward", "streamlens.decompose", "streamlens.sweep"
COLUMNS = ("of", "number", "what", "ms", "x bare", "exponent")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One number that varies, and what is timed at each."""

    of: str
    numbers: Sequence[int]
    cases: Callable[[Any, int], list[Case]]
    rounds: int


def measure(handle: Any, *, longest: int, rounds: int | None) -> list[dict[str, Any]]:
    """One row per series, number and case; the last of each case has the exponent."""
    rows = []
    for series in _series(handle, longest):
        numbers, found = list(series.numbers), dict[str, list[Times]]()
        for number in numbers:
            for name, times in in_turns(series.cases(handle, number), rounds=rounds or series.rounds, warmup=1).items():
                found.setdefault(name, []).append(times)
        for name, times in found.items():
            for number, own, bare in zip(numbers, times, found[BARE], strict=True):
                milliseconds = Spread.of([1e3 * t for t in own.wall])
                row = {"of": series.of, "number": number, "what": name, "milliseconds": asdict(milliseconds)}
                rows.append(row | {"ratio": asdict(own.over(bare)[0])})
            if series.cases is not _swept or name != BARE:  # one bare forward, however many branches
                rows[-1]["exponent"] = exponent(numbers, times)
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    milliseconds, ratio = Spread(**row["milliseconds"]), Spread(**row["ratio"])
    exponent = f"{row['exponent']:.2f}" if "exponent" in row else ""
    return [row["of"], f"{row['number']:,}", row["what"], spread(milliseconds, 1), spread(ratio), exponent]


def exponent(numbers: Sequence[int], times: Sequence[Times]) -> float:
    """The slope of log(median time) on log(number) over the upper half."""
    upper = slice(len(numbers) // 2 if len(numbers) > 3 else 0, None)
    medians = [Spread.of(own.wall).median for own in times]
    return float(np.polyfit(np.log(numbers[upper]), np.log(medians[upper]), 1)[0])


def _series(handle: Any, longest: int) -> list[Series]:
    depth = handle.wiring.n_layers
    layers = sorted({max(1, depth * part // 6) for part in range(1, 7)})
    sublayers = len(_labels(handle))
    tokens = [number for number in (10, 32, 128, 512, 1024, 2048) if number <= longest]
    return [
        Series(of="tokens", numbers=tokens, cases=lambda h, n: _both(h, prompt_ids(h, n)), rounds=5),
        Series(of="layers, 32 tokens", numbers=layers, cases=_shallow, rounds=9),
        Series(of="prompts of 10 tokens", numbers=[1, 2, 4, 8, 16, 32], cases=_batch, rounds=9),
        Series(
            of="branches swept over, last of 10 tokens",
            numbers=sorted({max(1, sublayers * part // 32) for part in (1, 2, 4, 8, 16, 32)}),
            cases=_swept,
            rounds=9,
        ),
    ]


def _both(handle: Any, ids: torch.Tensor) -> list[Case]:
    def bare() -> Any:
        with torch.inference_mode():
            return handle.model(input_ids=ids, use_cache=False)

    return [Case(BARE, bare), Case(CAPTURE, lambda: streamlens.decompose(handle, ids))]


def _shallow(handle: Any, layers: int) -> list[Case]:
    kind, dtype = transformers.AutoModelForCausalLM, handle.dtype
    model = kind.from_pretrained(folder_of(handle), num_hidden_layers=layers, dtype=dtype).eval()
    return _both(streamlens.load(model), prompt_ids(handle, 32))


def _batch(handle: Any, prompts: int) -> list[Case]:
    return _both(handle, prompt_ids(handle, 10).repeat(prompts, 1))


def _swept(handle: Any, branches: int) -> list[Case]:
    ids, labels = prompt_ids(handle, 10), _labels(handle)
    chosen = labels[:: len(labels) // branches][:branches]
    bare, _ = _both(handle, ids)
    return [bare, Case(SWEEP, lambda: streamlens.sweep(handle, ids, over=chosen, position=-1))]


def _labels(handle: Any) -> list[str]:
    return [write.site.label for write in handle.wiring.writes if write.site.kind in ("attn", "mlp")]
