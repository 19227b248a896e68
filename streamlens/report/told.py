"""A study as its page tells it: the names that every section uses, and the frames that are made of the study's.

1. `Told` is a study with its token, reader and verdict in words.
2. `parts_table`, `responses` and `saved` are frames of frames: what is read and saved as a table, and the matrix of a
   sweep.
"""

from typing import Any

import pandas as pd

from streamlens.display import display_token
from streamlens.errors import InputError
from streamlens.report import sentences
from streamlens.studies import Study

__all__ = ["Told", "adds_up", "parts_table", "responses", "responses_of", "saved"]

#: columns of the tables that are saved; what is the same in every row is among what made the page
_EFFECTS = (
    "variant",
    "direct",
    "indirect",
    "rescale",
    "carry",
    "softcap",
    "total",
    "observed",
    "closure",
    "self_repair",
)
#: left out where they are 0 throughout
_RARE = ("carry", "softcap")
_OUTPUT = ("kl", "top_before", "top_after")


class Told:
    """A study with the names that every section uses."""

    def __init__(self, study: Study) -> None:
        self.study, self.facts = study, study.facts
        reader = study.facts["reader"]
        self.position: int = study.facts["position"]
        self.token: str = study.facts["tokens"][self.position]
        special = study.facts["special"][self.position]
        self.place = f"{display_token(self.token, special=special)} (position {self.position})"
        self.reader: str = reader["name"] if reader else ""
        self.unit: str = reader["unit"] if reader else ""
        self.says: str = reader["says"] if reader else ""
        self.verdict = sentences.adds_up(study.facts["closure"], study.facts["checks"], self.unit)

    def frame(self, name: str) -> pd.DataFrame | None:
        return self.study.frames.get(name)

    def here(self, name: str) -> pd.DataFrame:
        """The rows of a frame at the token that is studied, with the frame's attributes."""
        frame: Any = self.study.frames[name]
        return frame.loc[frame["position"] == self.position]


def adds_up(study: Study) -> bool:
    """Whether all that a study says of sums holds."""
    return not sentences.failures(study.facts["closure"], study.facts["checks"])


def responses_of(study: Study) -> pd.DataFrame:
    """The edited x responding matrix of a study.

    Raises:
        InputError: A study without a reader.
    """
    reader = study.facts["reader"]
    if reader is None:
        raise InputError("Responses are what a reader sees; this study reads nothing.")
    return responses(study.frames["changes"], reader["name"], reader["unit"])


def parts_table(study: Study) -> pd.DataFrame:
    """A row per part at the token: contribution (where something is read), norm, share and cosine."""
    at = study.facts["position"]
    writes: Any = study.frames["writes"]
    writes = writes.loc[writes["position"] == at, ["component", "norm", "share", "cosine", "stream_norm"]]
    writes = writes.assign(component=writes["component"].astype(str))
    readout: Any = study.frames.get("readout")
    if readout is None:
        return writes.reset_index(drop=True)
    parts = readout.loc[readout["position"] == at, ["component", "contribution"]]
    parts = parts.assign(component=parts["component"].astype(str))
    return parts.merge(writes, on="component", how="left")


def responses(changes: pd.DataFrame, reader: str, unit: str) -> pd.DataFrame:
    """The edited x responding matrix of one token's changes, as `Sweep.responses` gives it."""
    value = f"delta: {reader}"
    wide = changes.pivot(index="variant", columns="component", values=value)
    rows = [name for name in changes["variant"].cat.categories if name in wide.index]
    columns = [name for name in changes["component"].cat.categories if name in wide.columns]
    matrix = wide.reindex(index=rows, columns=columns)
    matrix.index, matrix.columns = pd.Index(rows, name="edited"), pd.Index(columns, name="responding")
    first = changes.iloc[0]
    place = {"position": int(first["position"]), "token": str(first["token"]), "special": bool(first["special"])}
    matrix.attrs = {**changes.attrs, **place, "reader": reader, "unit": unit}
    return matrix


def saved(told: Told) -> list[tuple[str, pd.DataFrame]]:
    """The tables of the page by name; those that are also there to read come first."""
    tables: list[tuple[str, Any]] = [("Parts at the token", parts_table(told.study))]
    if told.frame("effects") is not None:
        rows: Any = told.here("effects")
        kept = (*_EFFECTS, *_OUTPUT) if told.reader else ("variant", *_OUTPUT)
        tables.append(("Ablations", rows[[name for name in kept if name not in _RARE or bool(rows[name].any())]]))
        moved = told.here("changes")
        values = [name for name in moved.columns if ": " in str(name)] or ["clean_norm", "ablated_norm", "delta_norm"]
        tables.append(("Changes of every write", moved[["variant", "component", "status", *values]]))
    every: Any = told.frame("readout") if told.frame("readout") is not None else told.study.frames["writes"]
    sizes = [name for name in ("contribution", "norm", "share", "stream_norm") if name in every.columns]
    tables.append(("Every part at every token", every[["position", "token", "component", *sizes]]))
    for name, title, columns in (
        ("sources", "Heads by source token", ["component", "source", "source_token", "attention"]),
        ("lens", "Logit lens at the token", ["component", "rank", "top_token", "logit", "probability"]),
        ("visibility", "Visibility", ["component", "norm", "visible_share", "chance", "lift", "gain", "change"]),
    ):
        if told.frame(name) is not None:
            frame = told.here(name)
            value = [c for c in ("contribution", "share") if c in frame.columns and name == "sources"]
            tables.append((title, frame[[*columns, *value]]))
    return tables
