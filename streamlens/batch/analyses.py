"""The analyses of a batch, as a registry: a name, the tables it fills, and the function that fills them.

1. `check` refuses, once and before anything runs, what can not work for any prompt.
2. `run` takes a `Work` and gives (table, Arrow table) pairs whose columns are those of `schemas.py`.
3. Analyses of a ledger share the one forward of their batch. `ablations` and `backward` run every prompt by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from streamlens.batch.columns import coded, constant, flat, made, row_columns, token_columns
from streamlens.batch.settings import Settings
from streamlens.batch.work import Work, ids_of
from streamlens.errors import InputError, ModelError
from streamlens.experiments.ablate import sweep
from streamlens.experiments.backward import backward
from streamlens.frames.ledgers import measures
from streamlens.frames.visibility import seen_by
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.readouts.readers.reader import Reader
from streamlens.readouts.visible.visibility import visibility
from streamlens.sites import Site

Made = Iterator[tuple[str, pa.Table]]
Check = Callable[[ModelHandle, Settings, Sequence[Reader]], None]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """One thing that can be computed for every prompt.

    Attributes:
        run: Fills the tables for a batch of prompts.
        tables: Their names.
        check: Refuses what can not work for any prompt.
        logits: Whether it reads the ledger's logits.
        single: Whether it runs every prompt by itself, so that a shard takes long.
    """

    run: Callable[[Work], Made]
    tables: tuple[str, ...]
    check: Check = lambda model, settings, readers: None
    logits: bool = False
    single: bool = False


def _writes(work: Work) -> Made:
    """Norm, share and cosine of every write; with readers what each write gives them."""
    ledger = work.ledger
    sites = [*ledger.sites, Site(kind="rounding")]
    tokens = len(work.roles)
    numbers = {name: flat(value, ledger) for name, value in measures(ledger).items()}
    named = token_columns(ledger, work.numbers, work.roles, len(sites))
    yield "writes", made("writes", named | row_columns(sites, tokens) | numbers)
    for readout in work.readouts:
        rows, reader = len(readout.sites), readout.reader
        k = len(reader.rows)
        named = token_columns(readout.ledger, work.numbers, work.roles, k * rows)
        columns = {
            "reader": coded(np.tile(np.repeat(np.arange(k), rows), tokens), reader.rows),
            "unit": constant(reader.unit, tokens * k * rows),
            "contribution": flat(readout.contributions, ledger),
        }
        yield "readout", made("readout", named | row_columns(readout.sites, tokens * k) | columns)


def _logits(work: Work) -> Made:
    """The model's own most likely next tokens."""
    ledger, top = work.ledger, work.settings.top
    assert ledger.logits is not None
    logits = ledger.logits[ledger.mask].float()  # [token, vocab]
    best = logits.topk(min(top, logits.shape[-1]))
    probability = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
    ids = best.indices.cpu().numpy().reshape(-1)
    different, codes = np.unique(ids, return_inverse=True)
    texts = pa.array(work.model.token_texts(different.tolist()), pa.string())
    columns = {
        "rank": np.tile(np.arange(best.indices.shape[1]), len(logits)),
        "top_token_id": ids,
        "top_token": texts.take(pa.array(codes)),
        "logit": best.values.cpu().numpy().reshape(-1),
        "probability": probability.cpu().numpy().reshape(-1),
    }
    named = token_columns(ledger, work.numbers, work.roles, best.indices.shape[1])
    yield "logits", made("logits", named | columns)


def _visibility(work: Work) -> Made:
    """What every reader sees of every write."""
    for reader in work.readers:
        seen = visibility(work.ledger, reader, work.settings.mode)
        columns = {name: flat(value, seen.ledger) for name, value in seen_by(seen).items()}
        rows, tokens = len(seen.ledger.sites), len(work.roles)
        constants = {"reader": reader.name, "unit": reader.unit, "mode": seen.mode}
        columns |= {name: constant(value, tokens * rows) for name, value in constants.items()}
        named = token_columns(seen.ledger, work.numbers, work.roles, rows)
        yield "visibility", made("visibility", named | row_columns(seen.ledger.sites, tokens) | columns)


def _ablations(work: Work) -> Made:
    """Every sublayer zeroed at a selected token, one after another, and read there."""
    for row, place, role in _each_token(work):
        options: dict[str, Any] = {"readers": work.readers, "stream": work.settings.stream}
        found = sweep(work.model, ids_of(work, row), position=[place], **options)
        frame = found.effects()
        ledgers = [side for part in found.parts for side in (part.clean, part.ablated)]
        _note(work, row, ledgers, float(frame["closure"].max()))
        components = [str(variant).partition("@")[0] for variant in frame["variant"]]
        yield (
            "effects",
            _of_frame("effects", work, row, role, frame, component=components, order=frame["variant"].cat.codes),
        )


def _backward(work: Work) -> Made:
    """What every branch hands back of each reader's gradient, read at a selected token, at every position."""
    for row, place, role in _each_token(work):
        for reader in work.readers:
            for number, name in enumerate(reader.rows):
                ids, stream = ids_of(work, row), work.settings.stream
                found = backward(work.model, ids, reader, place, row=number, stream=stream)
                frame = found.to_frame()
                _note(work, row, [found.ledger], None)
                own = {"reader": name, "unit": reader.unit, "read_at": place, "closure": float(found.closure.max())}
                yield "backward", _of_frame("backward", work, row, role, frame, **own)


def _each_token(work: Work) -> Iterator[tuple[int, int, str]]:
    """The row, position and role of every selected token."""
    assert work.places is not None
    for row, places in enumerate(work.places.places):
        for place, role in zip(places, work.roles_of(row), strict=True):
            yield row, place, role


def _of_frame(table: str, work: Work, row: int, role: str, frame: Any, **further: Any) -> pa.Table:
    """The frame of one prompt as rows of a table."""
    columns: dict[str, Any] = {name: frame[name].astype(object).to_numpy() for name in frame}
    columns |= {"prompt_id": np.full(len(frame), work.items[row].number), "role": constant(role, len(frame))}
    for name, value in further.items():
        columns[name] = [value] * len(frame) if isinstance(value, str | int | float) else value
    return made(table, columns)


def _note(work: Work, row: int, ledgers: Sequence[Ledger], readout: float | None) -> None:
    """Closing errors of further runs of a prompt, and of what was read off them."""
    closes = work.closes[row]
    closes.closure = max([closes.closure or 0.0, *(float(ledger.closure.max()) for ledger in ledgers)])
    closes.in_order = max([closes.in_order or 0.0, *(ledger.in_order for ledger in ledgers)])
    if readout is not None:
        closes.readout_closure = max(closes.readout_closure or 0.0, readout)


def _require_head(model: ModelHandle, settings: Settings, readers: Sequence[Reader]) -> None:
    if model.wiring_of(settings.stream).head is None:
        raise ModelError(f"The analysis logits reads logits; {model.name} has none. {model.wiring.no_head}")


def _require_readers(name: str, *, token: bool = False) -> Check:
    def check(model: ModelHandle, settings: Settings, readers: Sequence[Reader]) -> None:
        if not readers:
            raise InputError(f"The analysis {name} asks a reader; name a token to be read: --for.")
        if token and not settings.token and settings.token_column is None:
            raise InputError(f"The analysis {name} runs every named token by itself; name them: --token.")

    return check


ANALYSES: dict[str, Analysis] = {
    "writes": Analysis(run=_writes, tables=("writes", "readout")),
    "logits": Analysis(run=_logits, tables=("logits",), check=_require_head, logits=True),
    "visibility": Analysis(run=_visibility, tables=("visibility",), check=_require_readers("visibility")),
    "ablations": Analysis(
        run=_ablations, tables=("effects",), check=_require_readers("ablations", token=True), single=True
    ),
    "backward": Analysis(
        run=_backward, tables=("backward",), check=_require_readers("backward", token=True), single=True
    ),
}


def chosen(settings: Settings) -> list[Analysis]:
    """The analyses that are asked for.

    Raises:
        InputError: One of no such name.
    """
    for name in settings.analysis:
        if name not in ANALYSES:
            raise InputError(f"An analysis is one of {', '.join(ANALYSES)}; got {name!r}.")
    return [ANALYSES[name] for name in dict.fromkeys(settings.analysis)]


def tables_of(settings: Settings, readers: Sequence[Reader]) -> list[str]:
    """The names of the tables that a batch fills, `prompts` last."""
    named = [table for analysis in chosen(settings) for table in analysis.tables]
    if not readers:
        named = [table for table in named if table != "readout"]
    return [*(["means"] if settings.mean else named), "prompts"]


def readers_of(model: ModelHandle, settings: Settings) -> tuple[Reader, ...]:
    """A reader for each `--for` (the token's logit, or its difference to that of `--against`) and each file.

    Raises:
        InputError: A text that is several tokens, or a file that holds no reader.
        ModelError: The model has no linear head.
    """
    if settings.wanted and model.wiring_of(settings.stream).head is None:
        raise ModelError(f"--for reads a logit, and {model.name} has no linear head. {model.wiring.no_head}")
    pairs = zip(settings.wanted, settings.against or [""] * len(settings.wanted), strict=True)
    tokens = [Reader.logit_diff(model, a, b) if b else Reader.logits(model, [a]) for a, b in pairs]
    return (*tokens, *(Reader.load(path) for path in settings.reader))


def memory_of(model: ModelHandle, settings: Settings) -> tuple[int, int]:
    """Bytes that a batch takes per token of the run, and per kept token: estimates for the size of batches.

    Per token: the activations of a layer (taken as 16 vectors) and the final stream. Per kept token: all writes, twice
    for their copies in float64 a row at a time, and the logits where they are kept.
    """
    wiring, number = model.wiring_of(settings.stream), torch.finfo(model.dtype).bits // 8
    kept = 2 * len(wiring.writes) * wiring.d_model * number
    if any(analysis.logits for analysis in chosen(settings)):
        kept += 3 * model.token_rows * 4
    return 16 * wiring.d_model * number, kept
