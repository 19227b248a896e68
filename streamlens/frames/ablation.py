"""Frames of an ablation: effects per reader, changes per write, and the edited x responding matrix.

Signs everywhere: ablated - clean. Several batches of one sweep make one frame.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from streamlens.errors import InputError
from streamlens.frames.ledgers import attributes, flat, table
from streamlens.frames.schemas import CHANGES, SCHEMAS
from streamlens.ledger import Ledger
from streamlens.readouts.ablation import AblationLedger
from streamlens.readouts.attribution import observe, read
from streamlens.readouts.effects import cosine
from streamlens.readouts.readers.reader import Reader


def effects_frame(parts: Sequence[AblationLedger]) -> pd.DataFrame:
    """One row per (variant, reader row, position), without readers per (variant, position).

    Columns: `SCHEMAS["effects"]`.
    """
    schema = SCHEMAS["effects"]
    blocks = [_effects_of(part, reader) for part in parts for reader in part.readers or (None,)]
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in schema}
    order = list(dict.fromkeys(variant for part in parts for variant in part.variants))
    codes = {variant: code for code, variant in enumerate(order)}
    frame = pd.DataFrame({name: values for name, values in columns.items() if name != "variant"})
    frame = frame.astype({name: kind for name, (kind, _) in schema.items() if name != "variant"})
    frame.insert(0, "variant", pd.Categorical.from_codes([codes[v] for v in columns["variant"]], order, ordered=True))
    frame.attrs.update(attributes(parts[0].clean), reused=all(part.reused for part in parts))
    return frame


_EFFECTS = ("direct", "indirect", "rescale", "carry", "softcap", "total", "observed", "closure", "self_repair")


def _effects_of(part: AblationLedger, reader: Reader | None) -> dict[str, np.ndarray]:
    """The columns of one reader: variants, then positions, then the reader's rows. None: one row that reads nothing."""
    clean, ablated = part.clean, part.ablated
    names, unit = ([""], "") if reader is None else (reader.rows, reader.unit)
    runs, places, k = len(part.variants), clean.stream.shape[1], len(names)
    effect = None if reader is None else part.effect_of(reader)
    before = None if reader is None else observe(clean, reader)

    tokens = [token_columns(clean, place) for place in range(places)]

    def each(per_place: Sequence[Any]) -> np.ndarray:
        return np.tile(np.repeat(np.array(per_place, dtype=object), k), runs)

    def all_of(value: Tensor | None) -> np.ndarray:
        if value is None:
            return np.full(runs * places * k, np.nan)
        return value.expand(runs, places, k).cpu().numpy().reshape(-1)

    texts_before, texts_after = _predictions(part, clean), _predictions(part, ablated)
    return {
        "variant": np.repeat(np.array(part.variants, dtype=object), places * k),
        **{name: each([token[name] for token in tokens]) for name in tokens[0]},
        "reader": np.tile(np.array(names, dtype=object), runs * places),
        "unit": np.full(runs * places * k, unit, dtype=object),
        "clean": all_of(before),
        **{name: all_of(None if effect is None else getattr(effect, name)) for name in _EFFECTS},
        "kl": all_of(part.divergence[..., None]),
        "top_before": each(texts_before),
        "top_after": np.repeat(np.array(texts_after, dtype=object), k),
    }


def token_columns(ledger: Ledger, place: int) -> dict[str, Any]:
    """The columns that name the token at a kept position of a ledger's first prompt."""
    return {
        "prompt_id": 0,
        "position": int(ledger.indices[0, place]),
        "token_id": int(ledger.token_ids[0, place]),
        "token": ledger.tokens[0][place],
        "special": bool(ledger.special[0, place]),
        "sink": bool(ledger.sinks[0, place]),
    }


def _predictions(part: AblationLedger, ledger: Ledger) -> list[str]:
    """The most likely next token at each (variant, position); "" without logits."""
    if ledger.logits is None:
        return [""] * (ledger.stream.shape[0] * ledger.stream.shape[1])
    return list(part.vocabulary(ledger.logits.argmax(-1).flatten().tolist()))


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
    """Variants x writes: what each write's change gives the reader at the last kept position, in its unit.

    `attrs` hold the `reader` (its first row), its `unit`, and the `position` and `token` where it is read.

    Raises:
        InputError: No such reader, or no reader at all.
    """
    if not parts[0].readers:
        raise InputError("Responses are what a reader sees; this sweep has no reader.", hint="Give sweep readers=.")
    wanted = parts[0].readers[0] if reader is None else reader
    mine = parts[0].effect_of(wanted).reader
    blocks = []
    for part in parts:
        effect = part.effect_of(wanted)
        values = effect.writes[:, :, -1, 0].T.cpu().numpy()
        blocks.append(pd.DataFrame(values, index=list(part.variants), columns=list(part.clean.labels)))
    frame = pd.concat(blocks)
    frame.index.name, frame.columns.name = "edited", "responding"
    token = token_columns(parts[0].clean, -1)
    frame.attrs.update(attributes(parts[0].clean), reader=mine.rows[0], unit=mine.unit)
    frame.attrs.update(position=token["position"], token=token["token"], special=token["special"])
    return frame
