"""A wiring in words: as plain data, and as rows in which equal layers stand once.

1. `describe` turns a wiring into plain data: every step in order, the final norm, the head.
2. `in_words` turns that into (layers, step, module) rows: layers of equal steps once, then the way to the logits.
"""

import re
from collections.abc import Sequence
from typing import Any

from streamlens.carries import Add, Rescale
from streamlens.models.wiring import Norm, Wiring, Write


def describe(wiring: Wiring) -> dict[str, Any]:
    """The wiring as plain data: every step in order, the final norm, the head."""
    head = wiring.head
    return {
        "blocks": wiring.blocks,
        "layers": wiring.n_layers,
        "d_model": wiring.d_model,
        "exact_on_probe": wiring.exact,
        "relative_error_on_probe": wiring.residual,
        "steps": [_step(wiring, step) for step in wiring.program],
        "final_norm": None if wiring.final_norm is None else _norm(wiring.final_norm),
        "head": None
        if head is None
        else {
            "module": head.module,
            "projections": list(head.projections),
            "input_scale": head.input_scale,
            "scale": head.scale,
            "softcap": head.softcap,
            "bias": head.bias,
        },
        "no_head": wiring.no_head,
    }


def _step(wiring: Wiring, step: Any) -> dict[str, Any]:
    if isinstance(step, Add):
        return {"step": "add", "writes": [_write(wiring.writes[row]) for row in step.writes]}
    if isinstance(step, Rescale):
        return {"step": "rescale", "factor": step.factor}
    bias = None if step.bias is None else wiring.writes[step.bias].site.label
    return {"step": "norm", **_norm(wiring.norms[step.norm]), "bias_row": bias}


def _write(write: Write) -> dict[str, Any]:
    return {"label": write.site.label, "module": write.constant or str(write.tap), "scale": write.scale}


def _norm(norm: Norm) -> dict[str, Any]:
    return {
        "module": str(norm.tap),
        "kind": "LayerNorm" if norm.centred else "RMSNorm",
        "gain": norm.gain,
        "bias": norm.bias,
        "eps": norm.eps,
    }


def in_words(wiring: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(layers, step, module) of `describe`'s data; the layers are named in the first row of theirs only."""
    found = []
    for layers, rows in _grouped([_row(step) for step in wiring["steps"]], wiring["blocks"]):
        found += [(layers if number == 0 else "", *row) for number, row in enumerate(rows)]
    for name, row in (("final norm", wiring["final_norm"]), ("head", wiring["head"])):
        if row is not None:
            found.append((name, _ending(row), row["module"]))
    return found


def _row(step: dict[str, Any]) -> tuple[str, str]:
    """What a step does, and the modules it is read from."""
    if step["step"] == "rescale":
        return f"× {step['factor']:.6g}", "the whole stream"
    if step["step"] == "norm":
        bias = f", bias as {step['bias_row']}" if step["bias_row"] else ""
        return f"{step['kind']} of the stream{bias}", step["module"]
    terms = [
        f"{write['scale']:.6g} × {write['label']}" if write["scale"] != 1 else write["label"]
        for write in step["writes"]
    ]
    joined = terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"
    return f"+ {joined}", ", ".join(write["module"] for write in step["writes"])


def _ending(row: dict[str, Any]) -> str:
    if "kind" in row:
        return f"{row['kind']}, eps {row['eps']:.2g}, gain {row['gain'] or 'none'}" + (
            f", bias {row['bias']}" if row["bias"] else ""
        )
    parts = [
        "W h",
        f"input × {row['input_scale']:.6g}" if row["input_scale"] != 1 else "",
        f"output × {row['scale']:.6g}" if row["scale"] != 1 else "",
        f"softcap {row['softcap']:g}" if row["softcap"] is not None else "",
        f"+ {row['bias']}" if row["bias"] else "",
        f"after {', '.join(row['projections'])}" if row["projections"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _grouped(rows: Sequence[tuple[str, str]], blocks: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Consecutive layers whose steps differ in the number only, once, with the numbers they stand for."""
    layers: list[tuple[int | None, list[tuple[str, str]]]] = []
    for step, module in rows:
        found = re.search(r"\bL(\d+)\.", step)
        layer = int(found[1]) if found else layers[-1][0] if layers else None
        if layers and layers[-1][0] == layer:
            layers[-1][1].append((step, module))
        else:
            layers.append((layer, [(step, module)]))
    groups: list[tuple[int | None, int | None, list[tuple[str, str]]]] = []
    for layer, own in layers:
        general = [_general(row, layer, blocks) for row in own]
        if groups and layer is not None and groups[-1][0] is not None and groups[-1][2] == general:
            groups[-1] = (groups[-1][0], layer, general)
        else:
            groups.append((layer, layer, general))
    return [("" if a is None else str(a) if a == b else f"{a} to {b}", own) for a, b, own in groups]


def _general(row: tuple[str, str], layer: int | None, blocks: str) -> tuple[str, str]:
    """The row with `*` for the layer's number, in the labels and behind the name of the list of blocks."""
    if layer is None:
        return row
    step, modules = row
    return re.sub(rf"\bL{layer}\.", "L*.", step), re.sub(rf"\b{re.escape(blocks)}\.{layer}\b", f"{blocks}.*", modules)
