"""A small study of numbers alone, for the page: every frame of it, with closure, and no model."""

import numpy as np
import pandas as pd

from figure_frames import PROMPT, READER, parts, readout_frame, writes_frame
from streamlens.studies import Study

UNIT = "logits"


def _here(frame: pd.DataFrame) -> pd.DataFrame:
    rows = frame[frame["position"] == frame["position"].max()].reset_index(drop=True)
    rows.attrs = frame.attrs
    return rows


def _identity(tokens: list[str], layers: int) -> pd.DataFrame:
    """The columns that name a write at the last token, one row a write (roundings left out)."""
    frame = _here(writes_frame(tokens, layers=layers))
    return frame[frame["kind"] != "rounding"].drop(columns=["norm", "share", "cosine", "stream_norm"])


def _effects(changes: pd.DataFrame, delta: str, reader: str) -> pd.DataFrame:
    rows = []
    for number, (variant, mine) in enumerate(changes.groupby("variant", observed=True, sort=False)):
        direct = float(mine.loc[mine["status"] == "edit", delta].sum())
        indirect = float(mine.loc[mine["status"] == "response", delta].sum())
        rescale = -0.01 * direct
        total = direct + indirect + rescale
        rows.append(
            {
                "variant": variant,
                **{
                    name: mine.iloc[0][name]
                    for name in ("prompt_id", "position", "token_id", "token", "special", "sink")
                },
                "reader": reader,
                "unit": UNIT if reader else "",
                "clean": 3.742,
                **{"direct": direct, "indirect": indirect, "rescale": rescale, "carry": 0.0, "softcap": 0.0},
                **{"total": total, "observed": total + 1e-6, "closure": 1e-6},
                "self_repair": max(0.0, -indirect / direct) if direct else 0.0,
                "kl": abs(total) / (3 + number),
                "top_before": " of",
                "top_after": " of" if number % 3 else "\u202e,",
            }
        )
    frame = pd.DataFrame(rows)
    frame["variant"] = pd.Categorical(frame["variant"], list(changes["variant"].cat.categories), ordered=True)
    return frame


def _changes(tokens: list[str], layers: int, reader: str) -> pd.DataFrame:
    """Every sublayer switched off: later writes answer, earlier ones stand."""
    rng = np.random.default_rng(5)
    base = _identity(tokens, layers)
    labels = [label for label, kind, _ in parts(layers) if kind in ("attn", "mlp")]
    blocks = []
    for label in labels:
        at = list(base["component"]).index(label)
        delta = np.where(base["order"] > at, rng.normal(0, 0.2, len(base)), 0.0)
        delta[at] = rng.normal(0, 1)
        status = np.where(base["order"] == at, "edit", np.where(base["order"] > at, "response", "unchanged"))
        block = base.assign(variant=f"{label}@{len(tokens) - 1}", status=status, clean_norm=1.0, ablated_norm=1.0)
        block = block.assign(delta_norm=np.abs(delta), cosine=1.0)
        blocks.append(block.assign(**{f"clean: {reader}": 0.5, f"delta: {reader}": delta.astype("float32")}))
    frame = pd.concat(blocks, ignore_index=True)
    frame["component"] = pd.Categorical(frame["component"], list(base["component"].cat.categories), ordered=True)
    frame["variant"] = pd.Categorical(
        frame["variant"], [f"{label}@{len(tokens) - 1}" for label in labels], ordered=True
    )
    return frame if reader else frame.drop(columns=[f"clean: {reader}", f"delta: {reader}"])


def _lens(tokens: list[str], layers: int) -> pd.DataFrame:
    """The final token comes first after the third write, goes, and stays from the last but one on."""
    frame = writes_frame(tokens, layers=layers)
    frame = frame[frame["kind"] != "rounding"].drop(columns=["norm", "share", "cosine", "stream_norm"])
    last = int(frame["order"].max())
    text = [" of" if order in (2, last - 1, last) else " and" for order in frame["order"]]
    frame = frame.assign(rank=0, top_token_id=1, top_token=text, logit=10.0)
    return frame.assign(probability=np.linspace(0.1, 0.9, len(frame)).astype("float32")).reset_index(drop=True)


def _sources(tokens: list[str]) -> pd.DataFrame:
    rows = []
    for head in range(3):
        for source, text in enumerate(tokens):
            rows.append({"component": f"L0H{head}<{source}", "head": head, "source": source, "source_token": text})
    frame = pd.DataFrame(rows)
    rng = np.random.default_rng(7)
    frame = frame.assign(order=range(len(frame)), kind="attn", attention=1 / len(tokens), layer=0)
    frame = frame.assign(prompt_id=0, position=len(tokens) - 1, token_id=1, token=tokens[-1], special=False, sink=False)
    return frame.assign(reader=READER, unit=UNIT, contribution=rng.normal(0, 1, len(frame)))


def _visibility(tokens: list[str], layers: int) -> pd.DataFrame:
    frame = _identity(tokens, layers)
    share = np.linspace(0.0, 0.01, len(frame))
    frame = frame.assign(reader=READER, unit=UNIT, mode="frozen", norm=1.0, row_norm=0.1, null_norm=0.9)
    frame = frame.assign(visible_share=share, chance=0.002, lift=share / 0.002, gain=1.0, change=share)
    return frame.assign(direct=share, rescale=0.0)


def _steps(tokens: list[str], layers: int) -> pd.DataFrame:
    readout = _here(readout_frame(tokens, layers=layers))
    after = readout["contribution"].astype("float64").cumsum()
    before = after - readout["contribution"]
    return readout.drop(columns="contribution").assign(before=before, update=after - before, after=after)


def small_study(tokens: list[str] | None = None, *, layers: int = 3, reader: bool = True, **kwargs) -> Study:
    """A study whose frames have the shapes of a model with `layers` layers; `kwargs` go to the writes."""
    tokens = list(PROMPT if tokens is None else tokens)
    name = READER if reader else ""
    changes = _changes(tokens, layers, name)
    writes = writes_frame(tokens, layers=layers, **kwargs)
    frames = {
        "writes": writes,
        "changes": changes,
        "effects": _effects(changes, f"delta: {name}" if name else "delta_norm", name),
    }
    frames |= {"lens": _lens(tokens, layers)}
    if reader:
        frames |= {"readout": readout_frame(tokens, layers=layers, **kwargs), "sources": _sources(tokens)}
        frames |= {"visibility": _visibility(tokens, layers), "steps": _steps(tokens, layers)}
    for frame in frames.values():
        frame.attrs = {**writes.attrs, **frame.attrs}
    last = writes[writes["component"] == "embed"]
    closure = {"in_order": 0.0, "relative": 3.1e-07, "readout": 4.2e-06 if reader else None, "effect": 1e-06}
    facts = {
        "prompt": "".join(tokens),
        "tokens": tokens,
        "special": last["special"].tolist(),
        "sinks": last["sink"].tolist(),
        "position": len(tokens) - 1,
        "reader": {"name": READER, "unit": UNIT, "tokens": [" river", " money"], "value": 3.742, "says": READER}
        if reader
        else None,
        "model": {
            "name": "tiny <model>",
            "layers": layers,
            "d_model": 8,
            "heads": 4,
            "kv_heads": 2,
            "parameters": 2_000_000,
            "writes": 2 * layers + 1,
            "exact": True,
            "wiring": [["", "+ embed", "embed_tokens"], [f"0 to {layers - 1}", "+ L*.attn", "layers.*.attn"]],
            "no_head": "",
        },
        "checks": [{"name": "writes summed", "value": 1e-7, "limit": 1e-5, "ok": True, "note": ""}],
        "closure": {**closure, "limits": {"in_order": 0.0, "relative": 1e-5, "readout": 1e-4, "effect": 1e-4}},
        "settings": {"method": "zero"},
        "missing": {} if reader else {"readout": "Nothing is read."},
    }
    return Study(
        frames=frames, facts=facts, provenance={"model": "tiny <model>", "revision": None, "versions": {"x": "1"}}
    )
