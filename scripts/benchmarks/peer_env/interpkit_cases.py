"""What interpkit is asked for: `decompose` and `dla` of one position, and a loop of `ablate`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Subject:
    """A model, and interpkit's handle on it."""

    def __init__(self, model: nn.Module, tokenizer: Any) -> None:
        import interpkit

        self.model = interpkit.load(model, tokenizer=tokenizer)


def decompose(subject: Subject, ids: list[list[int]]) -> Callable[[], Any]:
    """The components at the last position."""
    tokens = torch.tensor(ids)
    return lambda: subject.model.decompose(tokens)


def attribution(subject: Subject, ids: list[list[int]], token: int) -> Callable[[], Any]:
    """The components at the last position, and what each gives one logit."""
    tokens = torch.tensor(ids)
    return lambda: (subject.model.decompose(tokens), subject.model.dla(tokens, token=token))


def closing(subject: Subject, ids: list[list[int]], token: int) -> Callable[[], dict[str, float | str]]:
    """How far its parts are from what they are parts of, relative to it."""
    tokens = torch.tensor(ids)

    def run() -> dict[str, float | str]:
        figures: dict[str, float | str] = {}
        for what, figure in (("sublayers", stream), ("heads", heads), ("logits", logits)):
            try:
                figures[what] = figure()
            except Exception as error:  # whatever it raises is the answer
                figures[what] = f"raises {type(error).__name__}"
        return figures

    def stream() -> float:
        found = subject.model.decompose(tokens)
        total = sum(part["vector"].double() for part in found["components"])
        end = found["residual"].double()
        return float((total - end).norm() / end.norm())

    def heads() -> float:
        """What a layer's heads give the logit against what its attention gives."""
        found = subject.model.dla(tokens, token=token)
        whole = {c["layer"]: c["logit_contribution"] for c in found["contributions"] if c["type"] == "attn"}
        parts = dict.fromkeys(whole, 0.0)
        for head in found["head_contributions"]:
            parts[head["layer"]] += head["logit_contribution"]
        return max(abs(parts[layer] - whole[layer]) / abs(whole[layer]) for layer in whole)

    def logits() -> float:
        found = subject.model.dla(tokens, token=token)
        return abs(found["total_logit_pre_ln"] - found["model_logit"]) / abs(found["model_logit"])

    return run


def ablate(
    subject: Subject, ids: list[list[int]], sites: list[list[Any]], everywhere: bool, width: int
) -> Callable[[], list[Any]]:
    """A loop over [layer, "attn" or "mlp", None]; whole modules at every position, and a clean run each time."""
    assert everywhere
    tokens = torch.tensor(ids)
    layers = subject.model.arch_info.layer_infos
    paths = [layers[layer].attn_path if kind == "attn" else layers[layer].mlp_path for layer, kind, _ in sites]
    return lambda: [subject.model.ablate(tokens, at=path) for path in paths]


CASES = {"decompose": decompose, "attribution": attribution, "closing": closing, "ablate": ablate}
