"""Frames about depth: trajectories, Jacobians, perturbations, scaled steps; columns in `depth_schemas.py`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from streamlens.frames.depth_schemas import DEPTH
from streamlens.frames.ledgers import attributes, flat, table
from streamlens.readouts.depth.jacobian import Jacobian, Perturbation
from streamlens.readouts.depth.scaling import ScaledSteps
from streamlens.readouts.depth.trajectory import Trajectory
from streamlens.sites import Site

_GEOMETRY = (
    "norm",
    "write_norm",
    "step",
    "cosine_stream",
    "cosine_earlier",
    "turn",
    "var_stream",
    "var_write",
    "covariance",
    "var_sum",
    "var_closure",
)
_RANKS = ("rank_embedding", "rank_unembedding")


def trajectory_frame(found: Trajectory) -> pd.DataFrame:
    """One row per (prompt, position, write)."""
    ledger = found.ledger
    values: dict[str, Any] = {name: flat(getattr(found, name), ledger) for name in _GEOMETRY}
    values |= {"plane_x": flat(found.plane[..., 0], ledger), "plane_y": flat(found.plane[..., 1], ledger)}
    values["plane_share"] = flat(found.plane_share.expand(len(found.sites), -1, -1), ledger)
    rows = len(values["norm"])
    for name in _RANKS:
        ranks = getattr(found, name)
        values[name] = pd.array([pd.NA] * rows if ranks is None else flat(ranks, ledger).tolist(), dtype="Int32")
    frame = table("trajectory", ledger, found.sites, values)
    frame.attrs.update(attributes(ledger))
    return frame


def trajectory_summary(found: Trajectory) -> pd.DataFrame:
    """One row per write: medians over the tokens that are no sinks."""
    frame = trajectory_frame(found)
    kept: Any = frame.loc[~frame["sink"]]
    kept = kept.assign(var_growth=(kept["var_sum"] / kept["var_stream"]).where(kept["var_stream"] > 0))
    told = {"told_embedding": "rank_embedding", "told_unembedding": "rank_unembedding"}
    for name, rank in told.items():
        kept[name] = (kept[rank] == 0).astype("Float64")  # missing stays missing
    groups = kept.groupby("component", observed=True, sort=False)
    columns = ["norm", "step", "cosine_stream", "cosine_earlier", "turn", "var_growth"]
    summary = groups[["layer", "kind", "order"]].first().join(groups[columns].median())
    summary = summary.join(groups[list(told)].mean()).join(groups.size().rename("tokens")).reset_index()
    schema = DEPTH["trajectory_summary"]
    summary = summary[list(schema)].astype({name: kind for name, (kind, _) in schema.items() if name != "component"})
    summary.attrs.update(attributes(found.ledger), sinks_left_out=int(found.ledger.sinks.sum()))
    return summary


def jacobian_frame(found: Jacobian) -> pd.DataFrame:
    """One row per step, in order."""
    bound = np.cumprod([step.largest for step in found.steps])
    rows = [
        {
            "largest": step.largest,
            "smallest": step.smallest,
            "branch": step.branch,
            "reached": step.reached,
            "bound": bound[number],
            "rms": step.rms,
        }
        for number, step in enumerate(found.steps)
    ]
    frame = _typed(
        "jacobian", [step.label for step in found.steps], [step.site for step in found.steps], rows, _place(found)
    )
    frame.attrs.update(
        found.provenance,
        start=found.start,
        end=found.end,
        others=found.others,
        method=found.method,
        jacobian_closure=found.closure,
        singular_values=found.values.tolist(),
    )
    return frame


def perturbation_frame(found: Perturbation) -> pd.DataFrame:
    """One row per size and point of the stream, the start first."""
    rows, labels, sites = [], [], []
    for n, size in enumerate(found.sizes):
        for k, label in enumerate(found.labels):
            measured = {"growth": found.growth[n, k], "linear": found.linear[k], "error": found.error[n, k]}
            rows.append({"size": size, **{name: float(value) for name, value in measured.items()}})
            labels.append(label)
            sites.append(found.sites[k])
    frame = _typed("perturbation", labels, sites, rows, {**_place(found), "direction": found.direction})
    frame.attrs.update(found.provenance, start=found.start, others=found.others, stream_norm=found.stream_norm)
    return frame


def _place(found: Jacobian | Perturbation) -> dict[str, Any]:
    return {"position": found.position, "token": found.token, "start": found.start}


def _typed(
    name: str, labels: Sequence[str], sites: Sequence[Site], rows: Sequence[dict[str, Any]], constants: dict[str, Any]
) -> pd.DataFrame:
    """The frame of some rows beside the columns that name the step each is of."""
    schema = DEPTH[name]
    steps = list(dict.fromkeys(labels))
    named = [
        {"layer": site.layer, "kind": site.kind, "component": label, "order": steps.index(label)}
        for label, site in zip(labels, sites, strict=True)
    ]
    data = [{**constants, **one, **row} for one, row in zip(named, rows, strict=True)]
    frame = pd.DataFrame(data, columns=list(schema))
    frame["layer"] = frame["layer"].astype("Float64")
    frame = frame.astype({column: kind for column, (kind, _) in schema.items()})
    frame["component"] = pd.Categorical(frame["component"].astype("str"), steps, ordered=True)
    return frame


def scale_steps_frame(found: ScaledSteps) -> pd.DataFrame:
    """One row per run."""
    schema = DEPTH["scale_steps"]
    frame = pd.DataFrame(
        {
            "position": found.position,
            "token": found.token,
            "h": found.h,
            "calls": found.calls,
            "kl": found.kl,
            "loss": found.loss,
            "delta": torch.tensor(found.loss, dtype=torch.float64) - found.base_loss,
            "tokens": found.tokens,
            "top": found.top,
        },
        columns=list(schema),
    ).astype({column: kind for column, (kind, _) in schema.items()})
    frame.attrs.update(found.provenance, base_loss=found.base_loss, base_top=found.base_top)
    return frame
