"""One prompt studied at one token: everything that a report shows, as frames and facts.

1. A clean run, its ledger, and the reader: the one that is given, or the logit of the likeliest next token.
2. Every write read along the stream: contributions, running value, logit lens, visibility.
3. Every sublayer switched off at the token, one after another, with what every other write did in answer.
4. From which tokens attention brought what: the attention writes that give most, split by head and source token.
5. What cannot be had of this model is left out, and `facts["missing"]` says why.
"""

import platform
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from streamlens.arguments import typed
from streamlens.display import display_token
from streamlens.errors import InputError, StreamlensError
from streamlens.experiments.ablate import Sweep, sweep
from streamlens.experiments.checks import LOGITS, SUM, examine
from streamlens.hooks.writes.capture import decompose
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import find_position
from streamlens.models.wiring import Projection
from streamlens.models.words import describe, in_words
from streamlens.readouts.attribution import read
from streamlens.readouts.lens import logit_lens
from streamlens.readouts.readers.reader import Reader
from streamlens.readouts.steps import before_after
from streamlens.readouts.visible.visibility import visibility
from streamlens.studies import Study

#: tokens up to the one that is studied that the lens reads, and how many next tokens it keeps
LENS_TOKENS, LENS_TOP = 24, 3
#: attention writes that are split by head and source token
SOURCES = 6


@typed
def study(
    model: ModelHandle,
    prompt: str,
    *,
    position: str | int = -1,
    reader: Reader | None = None,
    prepend_bos: bool = False,
    checks: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Everything about one token of one prompt, ready to be shown, saved or sent.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt.
        position: The token: its text or its position.
        reader: One row that reads at the end of the stream. None for the logit of the likeliest next token; nothing
            is read where the model has no linear head.
        prepend_bos: Put the BOS token in front.
        checks: Also measure how well the model's books close on other prompts, as `streamlens check` does.
        progress: Called with (done, total) as sublayers are switched off.

    Raises:
        InputError: A position or a reader that does not fit.

    Cost: a clean forward, a sweep over all sublayers (about three forwards), one forward at source level, and with
    `checks` six forwards of short prompts.
    """
    if reader is not None and (reader.after is not None or len(reader.rows) != 1):
        raise InputError(f"A study reads one row at the end of the stream; {reader.name!r} is another reader.")
    clean = start_run(model, prompt, prepend_bos=prepend_bos)
    at = find_position(clean.context[0], position)
    ledger = clean.ledger
    if reader is None and model.wiring.head is not None and ledger.logits is not None:
        reader = Reader.logits(model, [int(ledger.logits[0, at].argmax())])
    missing: dict[str, str] = {}
    frames = {"writes": ledger.to_frame()}
    if reader is None:
        missing |= dict.fromkeys(("readout", "steps", "visibility"), f"Nothing is read. {model.wiring.no_head}".strip())
    else:
        frames["readout"] = read(ledger, reader).to_frame()
        frames["steps"] = before_after(ledger.place(at), reader).to_frame()
        frames["visibility"] = visibility(ledger.place(at), reader).to_frame()
    if model.wiring.head is None:
        missing["lens"] = f"The logit lens needs a linear head. {model.wiring.no_head}".strip()
    else:
        window = slice(max(0, at + 1 - LENS_TOKENS), at + 1)
        frames["lens"] = logit_lens(ledger.prompt(slice(0, 1), window), model, top=LENS_TOP).to_frame()
    if reader is None and ledger.logits is None:
        missing["effects"] = "Nothing is read, and this model has no next token whose change could be told."
    else:
        place = position if isinstance(position, str) else at
        asked = () if reader is None else reader
        swept = sweep(model, clean, position=place, readers=asked, progress=progress)
        frames |= {"effects": swept.effects(), "changes": changes(swept)}
    try:
        frames["sources"] = _sources(model, clean, at, reader, frames)
    except StreamlensError as error:
        missing["sources"] = str(error)
    return Study(
        frames=frames,
        facts={
            **_token_facts(ledger, at),
            "reader": None if reader is None else _reader_facts(model, reader, frames["readout"], at),
            "model": _model_facts(model),
            "checks": [asdict(check) for check in examine(model)] if checks else [],
            "closure": _closure(model, ledger, frames, at),
            "settings": {"method": "zero", "edited at": f"position {at}", "lens": "top 3 after every write"},
            "missing": missing,
        },
        provenance={**ledger.provenance, "versions": _versions(), "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}"},
    )


def changes(swept: Sweep) -> pd.DataFrame:
    """The ablation frames of all batches of a sweep as one: a row per (variant, position, write)."""
    frames = [part.to_frame() for part in swept.parts]
    whole = pd.concat([frame.astype({"variant": str}) for frame in frames], ignore_index=True)
    whole["variant"] = pd.Categorical(whole["variant"], list(swept.variants), ordered=True)
    for name in ("component", "kind", "status"):
        whole[name] = whole[name].astype(frames[0][name].dtype)
    whole.attrs = {**frames[0].attrs, "variants": list(swept.variants)}
    return whole


def _sources(
    model: ModelHandle, clean: Clean, at: int, reader: Reader | None, frames: dict[str, pd.DataFrame]
) -> pd.DataFrame:
    """The attention writes with the largest contributions (or shares) by head and source token."""
    key = "share" if reader is None else "contribution"
    rows: Any = frames["writes" if reader is None else "readout"]
    rows = rows.loc[(rows["position"] == at) & (rows["kind"].astype(str) == "attn")]
    order = np.argsort(-rows[key].abs().to_numpy(), kind="stable")[:SOURCES]
    sites = [str(label) for label in rows["component"].iloc[order]]
    if not sites:
        raise InputError("This model has no attention writes.")
    split = decompose(
        model,
        clean.batch.ids.cpu(),
        attention_mask=clean.batch.mask.cpu(),
        positions=[at],
        level="source",
        sites=sites,
        keep_logits=False,
    )
    frame = split.to_frame() if reader is None else read(split, reader).to_frame()
    return frame.loc[frame["source"].notna()].reset_index(drop=True)


def _token_facts(ledger: Ledger, at: int) -> dict[str, Any]:
    return {
        "prompt": ledger.prompts[0],
        "tokens": list(ledger.context[0]),
        "special": ledger.special[0].tolist(),
        "sinks": ledger.sinks[0].tolist(),
        "position": at,
    }


def _reader_facts(model: ModelHandle, reader: Reader, readout: pd.DataFrame, at: int) -> dict[str, Any]:
    ids = [] if reader.vocabulary is None else list(reader.vocabulary.ids)
    rows = readout.loc[readout["position"] == at, "contribution"]
    return {
        "name": reader.rows[0],
        "unit": reader.unit,
        "tokens": list(model.token_texts(ids)),
        "value": float(rows.astype("float64").sum()),
        "says": display_token(reader.name),
    }


def _model_facts(model: ModelHandle) -> dict[str, Any]:
    wiring = model.wiring
    makers = [maker for maker in model.projections(wiring.stream).values() if isinstance(maker, Projection)]
    heads = next(((maker.heads, maker.kv_heads) for maker in makers if maker.heads), None)
    return {
        "name": model.name,
        "layers": wiring.n_layers,
        "d_model": wiring.d_model,
        "heads": heads and heads[0],
        "kv_heads": heads and heads[1],
        "parameters": sum(weight.numel() for weight in model.model.parameters()),
        "writes": len(wiring.writes),
        "exact": wiring.exact,
        "wiring": [list(row) for row in in_words(describe(wiring))],
        "no_head": wiring.no_head,
    }


def _closure(model: ModelHandle, ledger: Ledger, frames: dict[str, pd.DataFrame], at: int) -> dict[str, Any]:
    """How well the writes sum to the stream, the parts to the value, and the effects to the changes; and the limits.

    What is read closes within a share of the parts' sizes together, since that is what the roundings are of.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    found: dict[str, float | None] = {"in_order": ledger.in_order, "relative": float(ledger.closure.max())}
    limits = {"in_order": 0.0 if model.wiring.exact else None, "relative": SUM[dtype]}
    if "readout" in frames:
        rows: Any = frames["readout"]
        effects: Any = frames["effects"]
        size = float(rows.loc[rows["position"] == at, "contribution"].abs().sum())
        found |= {"readout": float(rows.attrs["readout_closure"]), "effect": float(effects["closure"].max())}
        limits |= dict.fromkeys(("readout", "effect"), max(1.0, size) * LOGITS[dtype])
    else:
        found |= {"readout": None, "effect": None}
    return {**{name: None if value != value else value for name, value in found.items()}, "limits": limits}


def _versions() -> dict[str, str]:
    tools = ("transformers", "plotly", "numpy", "pandas")
    return {"python": platform.python_version(), **{tool: version(tool) for tool in tools}}
