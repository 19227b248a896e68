"""Frames of an ablation: effects per reader, changes per write, and the edited x responding matrix.

Signs everywhere: ablated - clean. Several batches of one sweep make one frame.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamlens.frames.ledgers import attributes, flat, table
from streamlens.frames.schemas import CHANGES, SCHEMAS
from streamlens.ledger import Ledger
from streamlens.readouts.ablation import AblationLedger
from streamlens.readouts.attribution import observe, read
from streamlens.readouts.effects import cosine, kl_divergence
from streamlens.readouts.reader import Reader


def effects_frame(parts: Sequence[AblationLedger]) -> pd.DataFrame:
    """One row per (variant, reader row, position); columns: `SCHEMAS["effects"]`."""
    rows = [row for part in parts for row in _effect_rows(part)]
    schema = SCHEMAS["effects"]
    frame = pd.DataFrame(rows, columns=list(schema)).astype({name: kind for name, (kind, _) in schema.items()})
    order = [variant for part in parts for variant in part.variants]
    frame["variant"] = pd.Categorical(frame["variant"], list(dict.fromkeys(order)), ordered=True)
    frame.attrs.update(attributes(parts[0].clean), reused=all(part.reused for part in parts))
    return frame


def _effect_rows(part: AblationLedger) -> list[dict[str, Any]]:
    clean, ablated = part.clean, part.ablated
    divergence = kl_divergence(clean, ablated)
    tops = [None if ledger.logits is None else ledger.logits.argmax(-1) for ledger in (clean, ablated)]
    rows = []
    for reader in part.readers:
        effect = part.effect_of(reader)
        before = observe(clean, reader)
        for variant, name in enumerate(part.variants):
            for place in range(clean.stream.shape[1]):
                token = token_columns(clean, place)
                for k, row in enumerate(reader.rows):
                    at = (variant, place, k)
                    rows.append(
                        {
                            "variant": name,
                            **token,
                            "reader": row,
                            "unit": reader.unit,
                            "clean": float("nan") if before is None else float(before[0, place, k]),
                            **{n: float(getattr(effect, n)[at]) for n in _EFFECTS},
                            "kl": float(divergence[variant, place]),
                            "top_before": _text(part, tops[0], 0, place),
                            "top_after": _text(part, tops[1], variant, place),
                        }
                    )
    return rows


_EFFECTS = ("direct", "indirect", "rescale", "carry", "softcap", "total", "observed", "closure", "self_repair")


def token_columns(ledger: Ledger, place: int) -> dict[str, Any]:
    """The columns that say which token a row of the first prompt is about."""
    return {
        "prompt_id": 0,
        "position": int(ledger.indices[0, place]),
        "token_id": int(ledger.token_ids[0, place]),
        "token": ledger.tokens[0][place],
        "special": bool(ledger.special[0, place]),
        "sink": bool(ledger.sinks[0, place]),
    }


def _text(part: AblationLedger, top: Tensor | None, variant: int, place: int) -> str:
    return "" if top is None else part.text_of(int(top[variant, place]))


def ablation_frame(part: AblationLedger) -> pd.DataFrame:
    """One row per (variant, position, write); columns: `SCHEMAS["ablation"]`, then two per reader row.

    The reader columns are named `clean: NAME` and `delta: NAME`.
    """
    clean, ablated = part.clean, part.ablated
    runs = len(part.variants)
    before, after = clean.writes.double(), ablated.writes.double()
    change = after - before
    moved = (ablated.added != clean.added).any(-1)
    edited = part.changed.to(moved.device)
    status = torch.where(edited, 0, torch.where(moved, 1, 2))
    values: dict[str, Any] = {
        "status": pd.Categorical.from_codes(flat(status, ablated), ["edit", "response", "unchanged"]),
        "clean_norm": flat(before.norm(dim=-1).expand(-1, runs, -1), ablated),
        "ablated_norm": flat(after.norm(dim=-1), ablated),
        "delta_norm": flat(change.norm(dim=-1), ablated),
        "cosine": flat(cosine(before, after), ablated),
    }
    frame = table("ablation", ablated, ablated.sites, values, variant="")
    frame["variant"] = pd.Categorical.from_codes(
        np.asarray(frame["prompt_id"]), list(part.variants) if len(set(part.variants)) == runs else range(runs)
    )
    frame["prompt_id"] = np.zeros(len(frame), dtype=np.int32)
    for reader in part.readers:
        contributions = read(clean, reader).contributions[: len(clean.sites)]
        deltas = part.effect_of(reader).writes
        for k, row in enumerate(reader.rows):
            frame[f"clean: {row}"] = flat(contributions[..., k].expand(-1, runs, -1), ablated).astype(np.float32)
            frame[f"delta: {row}"] = flat(deltas[..., k], ablated).astype(np.float32)
    assert set(CHANGES) == {"clean", "delta"}
    frame.attrs.update(attributes(clean), variants=list(part.variants))
    return frame


def responses_frame(parts: Sequence[AblationLedger], reader: Reader | str | None = None) -> pd.DataFrame:
    """Variants x writes: what each write's change gives the reader at the last kept position, in its unit."""
    blocks = []
    for part in parts:
        effect = part.effect_of(part.readers[0] if reader is None else reader)
        values = effect.writes[:, :, -1, 0].T.cpu().numpy()
        blocks.append(pd.DataFrame(values, index=list(part.variants), columns=list(part.clean.labels)))
    frame = pd.concat(blocks)
    frame.index.name, frame.columns.name = "edited", "responding"
    frame.attrs.update(attributes(parts[0].clean))
    return frame
