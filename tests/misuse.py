"""Every public function and class asked wrongly, as a user without beartype would: a program of its own.

    python tests/misuse.py

1. `right` has a call of every public function; each argument in turn is then replaced by each of `WRONG`. What is no
   mistake there (None for an optional argument) gives an answer, everything else a StreamlensError.
2. `CALLS` (`public_calls.py`) is asked about empty prompts, one token, readers of another width, and broken weights.
3. Figures get frames without rows and without columns; batches files that are none.
4. The complaints go to standard output as JSON: what raised something else, said nothing, or answered where only a
   refusal is right.
"""

import inspect
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import streamlens as sl
import zoo
from public_calls import CALLS, OTHER, PROMPT, Subject, tiny
from streamlens.errors import StreamlensError
from tiny_tokenizers import wordpiece

WRONG: dict[str, Any] = {
    "None": None,
    "7": 7,
    "-5": -5,
    "1.5": 1.5,
    "nan": float("nan"),
    "True": True,
    "''": "",
    "'nonsense'": "nonsense",
    "[]": [],
    "[None]": [None],
    "[object]": [object()],
    "[99]": [99],
    "['L99.attn']": ["L99.attn"],
    "{}": {},
    "object": object(),
    "no numbers": torch.zeros(0),
    "a matrix": torch.zeros(2, 3),
    "ids": torch.zeros(3, dtype=torch.long),
}
#: asked of no argument: what only reports, and what may go to the network
NOT_ASKED = {("load", "source"), ("load", "revision"), ("load", "trust_remote_code")}
#: says what a result is made of; plain data classes, made by the functions above, with Python's own TypeError
CLASSES = {"Ledger", "Readout", "AblationLedger", "BackwardLedger", "StreamlensError", "__version__"}


def right(folder: Path) -> dict[str, tuple[Callable, dict[str, Any]]]:
    """For each public name (or `name.method`) a call that works."""
    s = tiny()
    model, ledger, head = s.model, sl.decompose(s.model, PROMPT, positions="bank"), sl.Reader.head(s.model, "L2H1", "q")
    run = {"model": model, "prompt": PROMPT}
    estimates, exact = (CALLS[name](s) for name in ("sweep, estimated", "sweep"))
    direction = {"vector": torch.ones(32)}
    return {
        "load": (sl.load, {"source": model.model}),
        "decompose": (sl.decompose, run),
        "read": (sl.read, {"ledger": ledger, "reader": s.reader}),
        "logit_lens": (sl.logit_lens, {"ledger": ledger, "model": model}),
        "Reader.logits": (sl.Reader.logits, {"model": model, "tokens": ["bank"]}),
        "Reader.logit_diff": (sl.Reader.logit_diff, {"model": model, "token": "bank", "against": "river"}),
        "Reader.head": (sl.Reader.head, {"model": model, "head": "L1H1", "part": "q"}),
        "Reader.mlp": (sl.Reader.mlp, {"model": model, "site": "L1.mlp"}),
        "Reader.unembedding": (sl.Reader.unembedding, {"model": model}),
        "Reader.direction": (sl.Reader.direction, direction),
        "Reader.load": (sl.Reader.load, {"path": folder / "none.npz"}),
        "Reader.save": (sl.Reader.direction(**direction).save, {"path": folder / "one.npz"}),
        "Reader.of_linear": (sl.Reader.of_linear, {"module": torch.nn.Linear(4, 2)}),
        "model_readers": (sl.model_readers, {"model": model}),
        "Site.parse": (sl.Site.parse, {"text": "L1.attn"}),
        "Edit": (sl.Edit, {"site": "L1.attn"}),
        "Edit.parse": (sl.Edit.parse, {"text": "L1.attn"}),
        "ablate": (sl.ablate, run | {"edits": "L1.attn"}),
        "sweep": (sl.sweep, run),
        "rank_correlation": (sl.rank_correlation, {"estimates": estimates, "exact": exact}),
        "compare": (sl.compare, {"model": model, "prompt_a": PROMPT, "prompt_b": OTHER, "token": "bank"}),
        "swap": (sl.swap, {"model": model, "prompt_a": PROMPT, "prompt_b": OTHER, "token": "bank"}),
        "lesion": (sl.lesion, {"model": model, "texts": [PROMPT]}),
        "replay": (sl.replay, run | {"edits": "L1.attn"}),
        "clean_run": (sl.clean_run, run),
        "visibility": (sl.visibility, {"ledger": ledger, "reader": head}),
        "visibility_map": (sl.visibility_map, {"ledger": ledger, "model": model}),
        "nullspace": (sl.nullspace, {"reader": head}),
        "overlap": (sl.overlap, {"reader_a": head, "reader_b": head}),
        "cause": (sl.cause, run | {"site": "L1.mlp", "reader": head, "position": "bank"}),
        "jacobian": (sl.jacobian, run),
        "perturb": (sl.perturb, run | {"sizes": [0.1]}),
        "trajectory": (sl.trajectory, {"ledger": ledger, "model": model}),
        "scale_steps": (sl.scale_steps, run),
        "ProbeFitter": (sl.ProbeFitter, {}),
        "ProbeFitter.update": (sl.ProbeFitter().update, {"vectors": torch.ones(2, 3), "labels": ["a", "b"]}),
        "probe": (sl.probe, {"model": model, "sentences": folder / "none.jsonl"}),
        "before_after": (sl.before_after, {"ledger": ledger, "reader": s.reader}),
        "study": (sl.study, run),
        "Study.load": (sl.Study.load, {"path": folder / "none"}),
        "backward": (sl.backward, run | {"reader": s.reader}),
        "paths": (sl.paths, run | {"reader": s.reader}),
        "lab.run": (sl.lab.run, {"name": "two_branches"}),
        "batch.run": (sl.batch.run, {"prompts": folder / "none.jsonl", "folder": folder / "results"}),
        "batch.open": (sl.batch.open, {"folder": folder / "none"}),
        "batch.corpus": (sl.batch.corpus, {"results": None}),
        "batch.write_report": (sl.batch.write_report, {"results": None}),
        **{f"plots.{name}": (getattr(sl.plots, name), {"frame": None}) for name in sl.plots.__all__},
    }


def complaint(call: Callable[[], Any], *, must_refuse: bool = False) -> str | None:
    """What is wrong with how a call ended; None if it was answered, or refused in a sentence."""
    try:
        made = call()
    except StreamlensError as error:
        return None if len(str(error).split()) > 3 and "\n" not in error.message else f"says only {str(error)!r}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
    return f"answered with a {type(made).__name__}" if must_refuse else None


def of_arguments(folder: Path) -> Iterator[tuple[str, str | None]]:
    for name, (function, given) in right(folder).items():
        for argument, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD or (name, argument) in NOT_ASKED:
                continue
            for words, value in WRONG.items():
                call = given | {argument: value}
                if name == "probe" and words == "None" and argument == "sentences":
                    continue  # the bundled sentences: an answer, and a slow one
                yield f"{name}({argument}={words})", complaint(lambda f=function, k=call: f(**k))


def of_questions() -> Iterator[tuple[str, str | None]]:
    s = tiny()
    no_ids = torch.zeros(1, 0, dtype=torch.long)
    runs_nothing = {"nullspace", "overlap", "model_readers"}
    for name, call in CALLS.items():
        for words, prompt in (("no prompt", []), ("no ids", no_ids)):
            asked = Subject(model=s.model, reader=s.reader, prompt=prompt)  # type: ignore[arg-type]
            yield (
                f"{name}, {words}",
                complaint(lambda c=call, a=asked: c(a), must_refuse=name not in runs_nothing and words == "no ids"),
            )
        one = Subject(model=s.model, reader=s.reader, prompt=[[5]], other=[[6]], token=0)  # type: ignore[arg-type]
        yield f"{name}, one token", complaint(lambda c=call, a=one: c(a))
        wide = Subject(model=s.model, reader=sl.Reader.direction(torch.ones(7)))
        yield f"{name}, a reader of width 7", complaint(lambda c=call, a=wide: c(a))
    for number in (float("nan"), float("inf")):
        made = complaint(lambda n=number: sl.Reader.direction(torch.full((32,), n)), must_refuse=True)
        yield f"a reader of {number}", made
    broken = zoo.build("llama")
    handle = sl.load(broken, tokenizer=wordpiece())
    reader = sl.Reader.logit_diff(handle, "river", "bank")
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    yield "load of NaN weights", complaint(lambda: sl.load(broken), must_refuse=True)
    for name in CALLS.keys() - {"model_readers", "nullspace", "overlap"}:
        subject = Subject(model=handle, reader=reader)
        yield f"{name}, NaN weights", complaint(lambda n=name, a=subject: CALLS[n](a), must_refuse=True)


def of_figures() -> Iterator[tuple[str, str | None]]:
    for name in sl.plots.__all__:
        figure = getattr(sl.plots, name)
        needed = [p for p in inspect.signature(figure).parameters.values() if p.default is p.empty][1:]
        given = {p.name: "writes" for p in needed if p.kind is not p.VAR_KEYWORD}
        for words, frame in (("without columns", pd.DataFrame()), ("of others", pd.DataFrame({"a": [1]}))):
            matrix = name == "responses" and len(frame) > 0  # any frame of numbers is one of its matrices
            made = complaint(lambda f=figure, x=frame, k=given: f(x, **k), must_refuse=not matrix)
            yield f"plots.{name} of a frame {words}", made


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp())
    (folder / "empty.jsonl").touch()
    found = [*of_arguments(folder), *of_questions(), *of_figures()]
    empty = complaint(lambda: sl.batch.run(folder / "empty.jsonl", folder / "out"), must_refuse=True)
    found.append(("batch.run of an empty file", empty))
    json.dump({"asked": len(found), "complaints": {name: text for name, text in found if text}}, sys.stdout)


if __name__ == "__main__":
    main()
