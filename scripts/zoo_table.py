"""Writes docs/zoo.md: every architecture of the zoo, how its books close, and transformer-lens' sum beside ours.

    python scripts/zoo_table.py

1. Ours: `tests/zoo_books.py` measures each tiny model at every level.
2. transformer-lens: a second process boots a TransformerBridge on a fresh copy of each model, runs it with its cache
   and compares the sum of `decompose_resid` with the final stream. It is started anew where it dies or hangs.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# No model and no tokenizer is on a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
import transformers  # noqa: E402

import zoo  # noqa: E402
import zoo_books  # noqa: E402
import zoo_bridge  # noqa: E402
from closeness import relative  # noqa: E402

#: seconds for one model in transformer-lens, the first with its import
PATIENCE = 90
CLOSES = zoo_books.REBUILDS  # ten times what ours is held to

PAGE = """\
# The zoo: what closes, and what is refused

Written by `python scripts/zoo_table.py`, with streamlens {streamlens}, torch {torch}, transformers {transformers} and
transformer-lens {lens}. Every model is tiny and random, with gains, biases and multipliers moved off their defaults
(`tests/zoo`); figures are relative errors in float32. `tests/test_zoo_closure.py` and `test_zoo_refused.py` hold
every line.

* streamlens closes on **{closes} of {single}** architectures with one residual stream ({types} model types), at head
  level on {head}, at source level on {source}, at neuron level on {neuron}. It refuses the other {refused}, the encoder
  of {encoders} more, and all {several} with several streams.
* Logits are rebuilt from the parts on {logits}; where they are not, the reason is under the table.
* transformer-lens closes on {lens_closes} of all {all}, gives a wrong sum on {lens_wrong}, sums a run that is not the
  model's on {lens_off}, and cannot be used on {lens_not}.

`sum`: the writes, summed in float64, against the final stream. `in order`: whether the same writes, added in the
model's order and precision, give the stream to the last bit. `mid-stream`: the same sum after every single write; the
worst is shown. `logits`: four logits from their parts, against a plain forward. `heads`, `sources`, `neurons`: the
parts of a write against the write. An encoder-decoder has two lines, one for each of its streams.

`transformer-lens`: the sum of `cache.decompose_resid()` against the final stream of the model, for the bridge that
`TransformerBridge.boot_transformers` makes of the same weights with eager attention. "no adapter": it knows no such
architecture, or none without a head; "raises": the words of its error.

{table}

## Refused

A sum that cannot be shown to close is never returned.

{refusals}
"""


def main() -> None:
    """Measures, and writes the page."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if sys.argv[1:] == ["--transformer-lens"]:
        _answer()
        return
    lens = dict(_ask([entry.name for entry in zoo.ENTRIES]))
    rows = [zoo_books.measure(entry, stream) for entry in zoo.ENTRIES for stream in zoo_books.streams(entry)]
    text = _page(rows, lens)
    zoo_books.PAGE.parent.mkdir(exist_ok=True)
    zoo_books.PAGE.write_text(text)
    print(text[text.index("* ") : text.index("`sum`")].strip())
    print(f"wrote {zoo_books.PAGE.relative_to(ROOT)}")


def _page(rows: list[zoo_books.Row], lens: dict[str, str]) -> str:
    closing = [row for row in rows if not row.refused]
    refused = [row for row in rows if row.refused]
    ours = [row for row in closing if row.stream != "encoder"]
    single = [entry for entry in zoo.ENTRIES if entry.streams == 1]
    beside = {row.label: "" if row.stream == "encoder" else lens[row.name] for row in rows}

    def count(what: str) -> int:
        return sum(not isinstance(row.figures[what], str) for row in ours)

    kinds = [_kind(answer) for answer in lens.values()]
    return PAGE.format(
        streamlens=version("streamlens"),
        torch=version("torch").partition("+")[0],
        transformers=version("transformers"),
        lens=version("transformer-lens"),
        closes=len(ours),
        single=len(single),
        types=len({zoo.BY_NAME[row.name].model_type for row in ours}),
        several=len(zoo.ENTRIES) - len(single),
        refused=len(single) - len(ours),
        **{what: count(what) for what in ("head", "source", "neuron", "logits")},
        encoders=sum(row.stream == "encoder" for row in refused),
        all=len(zoo.ENTRIES),
        lens_closes=kinds.count("closes"),
        lens_wrong=kinds.count("wrong"),
        lens_off=kinds.count("off"),
        lens_not=kinds.count("cannot"),
        table="\n".join(zoo_books.table(closing, beside)),
        refusals="\n".join(zoo_books.refusals(refused, beside)),
    )


def _kind(answer: str) -> str:
    if answer.startswith("**"):
        return "off" if "final stream" in answer else "wrong"
    return "closes" if answer[0].isdigit() else "cannot"


def _ask(names: list[str]) -> Iterator[tuple[str, str]]:
    """What transformer-lens makes of each entry, from processes of its own."""
    left = list(names)
    while left:
        with tempfile.TemporaryFile("w+") as talk:
            command = [sys.executable, __file__, "--transformer-lens"]
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=talk, text=True, cwd=ROOT
            )
            assert worker.stdin is not None
            worker.stdin.write("\n".join(left))
            worker.stdin.close()
            for name, answer in _answers(worker):
                yield name, answer
                left.remove(name)
            if left:
                yield left.pop(0), f"raises: no answer within {PATIENCE} s, or the process ended"
            worker.kill()
            worker.wait()


def _answers(worker: subprocess.Popen[str]) -> Iterator[tuple[str, str]]:
    """The worker's answers, until it ends or takes too long over one."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=PATIENCE)
        except queue.Empty:
            return
        if line is None:
            return
        if line.startswith("answer "):
            name, answer = json.loads(line.removeprefix("answer "))
            yield name, answer


def _answer() -> None:
    """The worker: reads names from standard input, and writes one answer a line."""
    names = sys.stdin.read().split()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = zoo_bridge.tokenizer(folder)
        for name in names:
            started = time.monotonic()
            answer = _lens(zoo.BY_NAME[name], tokenizer)
            print(f"{name} {time.monotonic() - started:.1f} s", file=sys.stderr)
            print("answer " + json.dumps([name, answer]), flush=True)


def _lens(entry: zoo.Entry, tokenizer: transformers.PreTrainedTokenizerBase) -> str:
    """The relative error of transformer-lens' sum; "no adapter", or "raises" and what it raised."""
    given = zoo.inputs(entry)
    ids = given.pop("input_ids")
    if "decoder_input_ids" in given:
        given = {"decoder_input": given["decoder_input_ids"]}
    try:
        bridge = zoo_bridge.boot(entry, tokenizer)
        with torch.no_grad():
            _, cache = bridge.run_with_cache(ids, **given)
        total = cache.decompose_resid().sum(0)
        end = cache["resid_post", -1]
    except Exception as error:  # whatever it raises is the answer
        text = str(error).strip().splitlines()[0] if str(error).strip() else ""
        if "Could not determine supported architecture" in text:
            return "no adapter"
        return f"raises: {type(error).__name__}, {text[:80]}".replace("|", "/")
    wrong, run = relative(total, end), _distance(entry, end)
    figure = f"{wrong:.0e}" if wrong else "0"
    if run >= CLOSES:
        return f"**{figure}, but its final stream is {run:.0e} off the model's**"
    return figure if wrong < CLOSES else f"**{figure}**"


def _distance(entry: zoo.Entry, end: torch.Tensor) -> float:
    """How far a final stream is from that of the model itself with eager attention; 0 where ours is refused."""
    import streamlens
    from streamlens.errors import StreamlensError

    model = zoo.build(entry)
    given = zoo.inputs(entry)
    with torch.no_grad():
        model(**given)
    model.set_attn_implementation("eager")
    try:
        handle = streamlens.load(model)
        real = streamlens.decompose(handle, given.pop("input_ids"), **given).stream
    except StreamlensError:
        return 0.0
    return relative(end, real)


if __name__ == "__main__":
    main()
