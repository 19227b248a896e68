"""Small frames with the schema of `streamlens.frames`, made of numbers alone, to draw."""

import numpy as np
import pandas as pd

PROMPT = ["After", " crossing", " the", " river", ",", " she", " rested", " on", " the", " bank"]

READER = "logit( river) - logit( money)"

HOSTILE = [
    "<script>alert(1)</script>",
    "</s>",
    "&amp;",
    "[bold]",
    "\x1b[31mred",
    "\u202eevil",
    "a\u200db",
    "%{x}",
    "$x$",
    "<b>",
    "</script><img src=x onerror=alert(2)>",
    "",
    '" onmouseover="alert(3)',
    "\u05e9\u05dc\u05d5\u05dd",
    "⟨F0⟩⟨9F⟩",
]


def parts(layers: int) -> list[tuple[str, str, int | None]]:
    """(component, kind, layer) of a pre-norm model: two writes a layer, the embedding, the rounding."""
    blocks = [(f"L{i}.{kind}", kind, i) for i in range(layers) for kind in ("attn", "mlp")]
    return [("embed", "embed", None), *blocks, ("rounding", "rounding", None)]


def writes_frame(
    tokens: list[str] | None = None,
    *,
    layers: int = 30,
    sinks: tuple[int, ...] = (0,),
    special: tuple[int, ...] = (),
    seed: int = 0,
) -> pd.DataFrame:
    """A ledger's frame: one prompt, growing norms, shares that sum to 1, sinks ten times as large."""
    tokens = PROMPT if tokens is None else tokens
    rng = np.random.default_rng(seed)
    rows = []
    for position, token in enumerate(tokens):
        sink = position in sinks
        share = rng.normal(0, 1, 2 * layers + 2) * np.linspace(0.2, 1.5, 2 * layers + 2)
        share[-1] = 1e-7
        share = share - (share.sum() - 1) / len(share)
        norm = 30.0
        for order, (component, kind, layer) in enumerate(parts(layers)):
            write = 1e-4 if kind == "rounding" else float(abs(rng.normal(8 + order, 4))) * (12 if sink else 1)
            norm += 0 if kind == "rounding" else 0.4 * write
            rows.append(
                {
                    "prompt_id": 0,
                    "position": position,
                    "token_id": 100 + position,
                    "token": token,
                    "special": position in special,
                    "layer": layer,
                    "kind": kind,
                    "component": component,
                    "order": order,
                    "norm": write,
                    "share": share[order],
                    "cosine": np.clip(share[order], -1, 1),
                    "stream_norm": norm,
                    "sink": sink,
                }
            )
    return _typed(pd.DataFrame(rows), layers, tokens)


def readout_frame(tokens: list[str] | None = None, *, layers: int = 30, total: float = 3.742, **kwargs) -> pd.DataFrame:
    """A readout's frame of the same prompt whose contributions sum to `total` at every position."""
    frame = writes_frame(tokens, layers=layers, **kwargs)
    attrs = frame.attrs
    rng = np.random.default_rng(1)
    value = rng.normal(0, 1, len(frame)) ** 3 * 0.3 * (1 + 20 * frame["sink"].to_numpy())
    value[frame["kind"] == "rounding"] = 1e-6
    sums = pd.Series(value).groupby(frame["position"].to_numpy()).transform("sum").to_numpy()
    value[frame["component"] == "embed"] += (total - sums)[frame["component"] == "embed"]
    frame = frame.drop(columns=["norm", "share", "cosine", "stream_norm"])
    frame["reader"] = pd.Categorical([READER] * len(frame), categories=[READER], ordered=True)
    frame["unit"] = pd.Categorical(["logits"] * len(frame))
    frame["contribution"] = value.astype("float32")
    frame.attrs = {**attrs, "reader": READER, "unit": "logits", "readout_closure": 4.2e-06}
    return frame


def _typed(frame: pd.DataFrame, layers: int, tokens: list[str]) -> pd.DataFrame:
    frame = frame.astype(
        {
            **dict.fromkeys(("prompt_id", "position", "token_id", "order"), "int32"),
            **dict.fromkeys(("norm", "share", "cosine", "stream_norm"), "float32"),
            "layer": "Int16",
            "kind": "category",
            "token": "str",
        }
    )
    labels = [component for component, _, _ in parts(layers)]
    frame["component"] = pd.Categorical(frame["component"], categories=labels, ordered=True)
    frame.attrs = {"prompts": ["".join(tokens)], "model": "tiny-model", "closure": 3.1e-07, "in_order": 0.0}
    return frame
