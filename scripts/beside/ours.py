"""The same numbers from streamlens, through its public names."""

from typing import Any

import torch
from torch import Tensor

import streamlens as sl
from beside.subject import Subject


def numbers(subject: Subject) -> dict[str, dict[str, Tensor]]:
    """Every quantity, by the label of its parts; those that need a linear head only where there is one."""
    model = sl.load(subject.model)
    ledger = sl.decompose(model, subject.ids)
    rows = ledger.added if subject.names.after else ledger.writes
    writes = dict(zip(ledger.labels, rows, strict=True))
    found: dict[str, Any] = {
        "writes": writes,
        "sum": {"final": ledger.writes.sum(0, dtype=torch.float64)},
        "stream": {label: ledger.at(label).stream for label in ledger.labels if label.startswith("L")},
    }
    split = sl.decompose(model, subject.ids, level="head")
    rows = split.added if subject.names.after else split.writes
    parts = dict(zip(split.labels, rows, strict=True))
    found["heads"] = parts
    found["heads sum"] = {f"L{n}.attn": _sum(parts, f"L{n}H", f"L{n}.attn.bias") for n in range(subject.layers)}
    if subject.names.head is not None:
        given = sl.read(ledger, _pair(subject, model)).contributions[..., 0]
        found["attribution"] = dict(zip(ledger.labels, given, strict=False))  # the rows behind are no writes
        found["lens"] = _lens(ledger, model)
    return found | _ablations(subject, model, ledger)


def _pair(subject: Subject, model: Any) -> sl.Reader:
    """The difference of the two logits."""
    return sl.Reader.logit_diff(model, *subject.pair)


def _sum(parts: dict[str, Tensor], *starts: str) -> Tensor:
    return torch.stack([part for label, part in parts.items() if label.startswith(starts)]).sum(0, dtype=torch.float64)


def _lens(ledger: sl.Ledger, model: Any) -> dict[str, Tensor]:
    """The whole vocabulary, put back into its own order."""
    assert ledger.logits is not None
    lens = sl.logit_lens(ledger, model, top=ledger.logits.shape[-1])
    logits = torch.empty_like(lens.logits).scatter_(-1, lens.ids, lens.logits)
    return {site.label: row for site, row in zip(lens.sites, logits, strict=True)}


def _ablations(subject: Subject, model: Any, clean: sl.Ledger) -> dict[str, dict[str, Tensor]]:
    labels = [f"L{layer}.{kind}" for layer, kind in subject.sublayers]
    heads = [f"L{layer}H{head}" for layer, head in subject.heads]
    readers = [] if subject.names.head is None else [_pair(subject, model)]
    swept = sl.sweep(model, subject.ids, over=[*labels, *heads], readers=readers, read_at=-1)
    rows = torch.cat([_last(part.ablated) for part in swept.parts]) - _last(clean)
    change = dict(zip([*labels, *heads], rows, strict=True))
    found = {"ablated": {label: change[label] for label in labels}, "ablated heads": {h: change[h] for h in heads}}
    if readers:
        totals = torch.cat([part.effect_of(readers[0]).total[:, -1, 0] for part in swept.parts])
        found["effects"] = dict(zip(change, totals, strict=True))
    return found


def _last(ledger: sl.Ledger) -> Tensor:
    """Logits of the last token, or its final stream where the head is not linear, [prompt, ...]."""
    return (ledger.stream if ledger.logits is None else ledger.logits)[:, -1]
