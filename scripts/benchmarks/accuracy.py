"""How exact each tool's own sums are: the largest closing error per level, in float32.

1. Ours, on the default model, MiniLM and every architecture of the test zoo: the writes against the stream, a write's
   heads, source tokens and neurons against the write, logits from their parts against the model's.
2. The peers on the default model and `TINY`, ten tiny random architectures with one wiring each.
   transformer-lens, as it is booted: `decompose_resid` against its final stream, `stack_head_results` with the output
   bias against `attn_out`, the sum of `logit_attrs` against the logit (`parity.py` has it processed, too). interpkit:
   `decompose` against its own residual, the heads of `dla` against attention, its parts against the model's logit.
   nnsight has no decomposition: the sum of what the modules called embedding, attention and MLP put out.
3. Every figure is the norm of the difference over the norm of what should come out; of tokens, layers and branches the
   worst.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import streamlens
from benchmarks.peers import NAMES, Peer, PeerError
from benchmarks.subject import SENTENCE, final_tap, folder_of
from streamlens.errors import StreamlensError

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import zoo
import zoo_books
import zoo_bridge
from closeness import relative

#: one wiring each
TINY = ("gpt2", "gpt_neox", "llama", "gemma2", "olmo2", "granite", "bloom", "phi", "opt", "mixtral")
LEVELS = ("sublayers", "heads", "sources", "neurons", "logits")
COLUMNS = ("architecture", "tool", *LEVELS, "target", "met")
OURS, LENS = "streamlens", "transformer-lens"
TARGETS = {"sublayers": 1e-6, "heads": 1e-5}
#: the token whose logit is rebuilt
TOKEN = 5
MINILM = "minilm-l6"


def measure(handle: Any, peers: Mapping[str, Peer], *, whole_zoo: bool) -> list[dict[str, Any]]:
    """One row per architecture and tool; the zoo is one row."""
    rows = [_row("the default model", OURS, _default(handle)), *_lens("the default model", handle)]
    ids = handle.tokenizer(SENTENCE)["input_ids"]
    rows += _asked("the default model", peers, folder_of(handle), final_tap(handle), ids)
    rows.append(_row("MiniLM-L6 (post-norm)", OURS, _default(streamlens.load(MINILM))))
    for name in TINY:
        rows += _tiny(name, peers)
    if whole_zoo:
        rows.append(_zoo())
    return rows


def measured(row: dict[str, Any]) -> str:
    """The figures that are held to the target."""
    return ", ".join(f"{what} {_text(row['figures'][what])}" for what in TARGETS)


def cells(row: dict[str, Any]) -> list[str]:
    """One row of the printed table."""
    figures = [_text(row["figures"].get(level)) for level in LEVELS]
    goal = ["", ""]
    if row["tool"] == OURS:
        goal = [", ".join(f"{what} {limit:.0e}" for what, limit in TARGETS.items()), "yes" if row["met"] else "NO"]
    return [row["architecture"], row["tool"], *figures, *goal]


def _text(figure: float | str | None) -> str:
    if figure is None:
        return "has none"
    return figure if isinstance(figure, str) else f"{figure:.0e}" if figure else "0"


def _row(architecture: str, tool: str, figures: dict[str, float | str]) -> dict[str, Any]:
    row: dict[str, Any] = {"architecture": architecture, "tool": tool, "figures": figures}
    if tool == OURS:
        met = (isinstance(figures[what], str) or figures[what] <= limit for what, limit in TARGETS.items())
        row["met"] = all(met)
    return row


def _default(handle: Any) -> dict[str, float | str]:
    """A pretrained model, one level after the other."""
    ledger = streamlens.decompose(handle, SENTENCE)
    figures: dict[str, float | str] = {"sublayers": float(ledger.closure.max())}
    for what in ("head", "source", "neuron"):
        layer = handle.wiring.n_layers // 2
        sites = [f"L{layer}.mlp" if what == "neuron" else f"L{layer}.attn"] if what != "head" else None
        split = streamlens.decompose(handle, SENTENCE, level=what, sites=sites)
        figures[f"{what}s"] = max(split.split_error.values())
    if ledger.logits is not None:
        total = streamlens.read(ledger, streamlens.Reader.logits(handle, [TOKEN])).total
        figures["logits"] = relative(total, ledger.logits[..., [TOKEN]])
    else:
        figures["logits"] = "has no head"
    return figures


def _tiny(name: str, peers: Mapping[str, Peer]) -> Iterator[dict[str, Any]]:
    entry = zoo.BY_NAME[name]
    yield _row(name, OURS, _of_books(zoo_books.measure(entry, "only")))
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = zoo_bridge.tokenizer(folder)
        try:
            bridge = zoo_bridge.boot(entry, tokenizer)
        except Exception as error:  # whatever it raises is the answer
            yield _row(name, LENS, dict.fromkeys(("sublayers", "heads", "logits"), f"raises {type(error).__name__}"))
        else:
            yield _row(name, LENS, _of_bridge(bridge, zoo.inputs(entry)["input_ids"]))
        model = zoo.build(entry)
        final = final_tap(streamlens.load(model))
        model.save_pretrained(folder)
        yield from _asked(name, peers, folder, final, zoo.inputs(entry)["input_ids"][0].tolist())


def _of_books(row: zoo_books.Row) -> dict[str, float | str]:
    if row.refused:
        return dict.fromkeys(LEVELS, "refused")
    names = {"sublayers": "sum", "heads": "head", "sources": "source", "neurons": "neuron", "logits": "logits"}
    return {what: "refused" if isinstance(row.figures[own], str) else row.figures[own] for what, own in names.items()}


def _zoo() -> dict[str, Any]:
    """Every stream of the zoo that is not refused: the worst of each level, with its name."""
    worst: dict[str, tuple[float, str]] = {}
    closing = 0
    for entry in zoo.ENTRIES:
        for stream in zoo_books.streams(entry):
            row = zoo_books.measure(entry, stream)
            closing += not row.refused
            for what, figure in _of_books(row).items():
                if isinstance(figure, float):
                    worst[what] = max(worst.get(what, (0.0, "")), (figure, row.label))
    made = _row(f"worst of all {closing} streams of the zoo", OURS, {what: found[0] for what, found in worst.items()})
    return made | {"worst": {what: found[1] for what, found in worst.items()}}


def _lens(name: str, handle: Any) -> Iterator[dict[str, Any]]:
    try:
        bridge = handle.bridge()
    except StreamlensError as error:
        yield _row(name, LENS, dict.fromkeys(("sublayers", "heads", "logits"), str(error).splitlines()[0]))
        return
    yield _row(name, LENS, _of_bridge(bridge, torch.tensor([handle.tokenizer(SENTENCE)["input_ids"]])))


def _of_bridge(bridge: Any, ids: torch.Tensor) -> dict[str, float | str]:
    """transformer-lens' own sums against its own tensors."""
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(ids)

        def stream() -> float:
            return relative(cache.decompose_resid().sum(0), cache["resid_post", -1])

        def heads() -> float:
            parts = cache.stack_head_results()
            count = bridge.cfg.n_heads
            worst = 0.0
            for layer in range(bridge.cfg.n_layers):
                total = parts[layer * count : (layer + 1) * count].sum(0)
                bias = getattr(bridge.blocks[layer].attn, "b_O", None)
                worst = max(worst, relative(total if bias is None else total + bias, cache["attn_out", layer]))
            return worst

        def rebuilt() -> float:
            given = cache.logit_attrs(cache.decompose_resid(), tokens=TOKEN).sum(0)
            bias = getattr(bridge, "b_U", None)
            return relative(given if bias is None else given + bias[TOKEN], logits[..., TOKEN])

        figures: dict[str, float | str] = {}
        for what, figure in (("sublayers", stream), ("heads", heads), ("logits", rebuilt)):
            try:
                figures[what] = figure()
            except Exception as error:  # whatever it raises is the answer
                figures[what] = f"raises {type(error).__name__}"
    return figures


def _asked(
    name: str, peers: Mapping[str, Peer], folder: str, final: list[str], ids: list[int]
) -> Iterator[dict[str, Any]]:
    """The peers of the other environment."""
    for peer in NAMES:
        if peer not in peers:
            continue
        more = {"final": final} if peer == "nnsight" else {"token": TOKEN}
        try:
            peers[peer].load(folder)
            figures = peers[peer].ask("value", case="closing", ids=[ids], **more)
        except PeerError as error:
            figures = {"sublayers": f"raises {str(error).partition(':')[0]}"}
        yield _row(name, peer, figures)
