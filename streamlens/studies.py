"""One prompt studied once: the frames, the facts and what made them, in one object and in one file.

1. A `Study` holds tidy frames by name and plain facts (the model, the tokens, how well things add up). It runs nothing.
2. `save` writes it as a zip of one Parquet file a frame, with the frame's own attributes, and one JSON file.
3. `load` reads such a file and nothing else: no pickles, no paths out of the archive.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamlens.arguments import typed
from streamlens.errors import InputError, first_line

__all__ = ["Study", "is_study"]

FORMAT = 1
_META = "study.json"
_PARTS = {"frames": list, "facts": dict, "provenance": dict}
_FACTS = {"prompt": str, "reader": dict | None, "position": int}
_FACTS |= dict.fromkeys(("tokens", "special", "sinks", "checks"), list)
_FACTS |= dict.fromkeys(("model", "closure", "settings", "missing"), dict)
_AGAIN = "`streamlens report PROMPT --save FILE` writes one."


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """What was found for one prompt at one token.

    Attributes:
        frames: Name -> tidy frame. `writes` is always there; `readout`, `steps`, `visibility`, `lens`, `sources`,
            `effects` and `changes` where the model and the reader have them.
        facts: Plain data: `prompt`, `tokens`, `special`, `sinks`, `position`, `reader`, `model`, `checks`, `closure`,
            `settings`, and under `missing` why a frame is not there.
        provenance: Model, revision, device, dtype, BOS choice, versions, date.
    """

    frames: Mapping[str, pd.DataFrame]
    facts: Mapping[str, Any]
    provenance: Mapping[str, Any]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it to a file, whole or not at all; returns the path.

        Raises:
            InputError: The folder does not exist, or `path` is a folder.
        """
        target = Path(path)
        if target.is_dir() or not target.parent.is_dir():
            raise InputError(f"A study is written to a file in an existing folder; got {target}.")
        meta = {"format": FORMAT, "frames": list(self.frames), "facts": self.facts, "provenance": self.provenance}
        partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(_META, json.dumps(meta, indent=1))
                for name, frame in self.frames.items():
                    held = io.BytesIO()
                    frame.to_parquet(held, index=False)
                    archive.writestr(f"{name}.parquet", held.getvalue())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    @classmethod
    @typed
    def load(cls, path: str | os.PathLike[str]) -> "Study":
        """Reads a file that `save` wrote.

        Raises:
            InputError: No such file, no study, or one of another version.
        """
        meta, frames = _read(Path(path))
        return cls(frames=frames, facts=meta["facts"], provenance=meta["provenance"])

    def __repr__(self) -> str:
        facts = self.facts
        return f"Study({facts['model']['name']}, position {facts['position']}; frames {', '.join(self.frames)})"


def is_study(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a study."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _META in archive.namelist()
    except Exception:  # zipfile has half a dozen errors for what is no archive, or half of one
        return False


def _read(path: Path) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    if not is_study(path):
        raise InputError(f"{path}: no study.", hint=_AGAIN)
    try:
        with zipfile.ZipFile(path) as archive:
            meta = json.loads(archive.read(_META))
            _require_whole(path, meta)
            frames = {name: pd.read_parquet(io.BytesIO(archive.read(f"{name}.parquet"))) for name in meta["frames"]}
    except InputError:
        raise
    except Exception as error:  # zipfile, zlib, json, Arrow and pandas each have errors of their own for a broken file
        raise InputError(f"{path}: a study that cannot be read: {first_line(error)}", hint=_AGAIN) from error
    return meta, frames


def _require_whole(path: Path, meta: Any) -> None:
    """What every study says of itself is there, and of its kind."""
    if not isinstance(meta, dict):
        raise InputError(f"{path}: no study.", hint=_AGAIN)
    if meta.get("format") != FORMAT:
        raise InputError(f"{path}: a study of format {meta.get('format')!r}; this version reads {FORMAT}.")
    facts = meta.get("facts")
    places = (meta, _PARTS), (facts if isinstance(facts, dict) else {}, _FACTS)
    wrong = [name for held, kinds in places for name, kind in kinds.items() if not _is(held.get(name, ...), kind)]
    if not wrong:
        count = len(meta["facts"]["tokens"])
        wrong += ["position"] if not 0 <= meta["facts"]["position"] < count else []
        wrong += [name for name in ("special", "sinks") if len(meta["facts"][name]) != count]
        wrong += ["frames"] if "writes" not in meta["frames"] else []
        wrong += ["model"] if "name" not in meta["facts"]["model"] else []
    if wrong:
        raise InputError(f"{path}: a study whose {wrong[0]!r} is missing or of another kind.", hint=_AGAIN)


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
