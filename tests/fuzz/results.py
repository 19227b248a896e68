"""What is read back: frames, studies, the folders of batches, and the manifests of stored models.

A result is a pair of a kind and what lies on the disk. `batch` is a manifest and the content of one shard's tables,
`model` the manifest of a named model, `study` an archive, and the others are the suffixes of frames.
"""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz import files
from fuzz.mutate import (
    TELLING_TEXT,
    VALUES,
    as_bytes,
    changes,
    mutated_bytes,
    mutated_json,
    mutated_text,
    new_bytes,
    with_changes,
)
from fuzz.stored import FRAMES, META, PARQUET, ROWS, STUDY, TABLES, archive_of, batch, model_manifest, study
from fuzz.target import Input, Target

MANIFEST, SHARD = batch()


def feed(given: Input) -> None:
    """Reads what was stored, as far as it is asked for by the commands and by hand."""
    kind = given[0]
    if kind == "batch":
        _batch(given[1], given[2])
    elif kind == "model":
        _model(given[1])
    elif kind == "study":
        _study_read(files.written("a.study", given[1]))
    else:
        _frame_read(files.written(f"frame{kind}", given[1]))


def _frame_read(path: Path) -> None:
    from streamlens.frames.files import read_frame

    frame = read_frame(path)
    assert len(frame)
    assert repr(frame.head(3))


def _study_read(path: Path) -> None:
    from streamlens.studies import Study, is_study

    if is_study(path):
        assert repr(Study.load(path))
    else:
        Study.load(path)


def _batch(manifest: bytes, tables: tuple[bytes, ...]) -> None:
    from streamlens.batch import Settings, corpus
    from streamlens.batch import open as open_results
    from streamlens.batch.store import Folder

    folder = files.folder() / "results"
    place = folder / "shard-00000"
    if not place.is_dir():
        place.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest)
    for name, content in zip(TABLES, tables, strict=True):
        (place / f"{name}.parquet").write_bytes(content)
    results = open_results(folder)
    assert repr(results)
    assert results.complete in (True, False)
    for table in results.tables:
        results.frame(table)
    results.failures()
    corpus(results)
    Folder(folder).begin({"identity": MANIFEST["identity"]}, Settings(), fresh=False)


def _model(manifest: bytes) -> None:
    from streamlens.models.store import is_complete
    from streamlens.models.store import manifest as stored

    home = os.environ.get("STREAMLENS_HOME")
    os.environ["STREAMLENS_HOME"] = str(files.folder() / "home")
    try:
        folder = files.folder() / "home" / "models" / "minilm-l6"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_bytes(b"{}")
        (folder / "streamlens.json").write_bytes(manifest)
        stored("minilm-l6")
        assert is_complete("minilm-l6") in (True, False)
    finally:
        os.environ.pop("STREAMLENS_HOME")
        if home is not None:
            os.environ["STREAMLENS_HOME"] = home


def _dumped(data: SearchStrategy[Any]) -> SearchStrategy[bytes]:
    return data.map(json.dumps).map(as_bytes)


_CELL = st.one_of(
    st.sampled_from(["1", "-2.5", "True", "nan", "", "a", '"', '"a', "L0.attn", "1e999", "٣"]),
    st.sampled_from(TELLING_TEXT),
)
_NAME = st.one_of(
    st.sampled_from(["component", "token", "norm", "position", "", "layer", "status"]), st.sampled_from(TELLING_TEXT)
)
_ROW = st.dictionaries(_NAME, VALUES, max_size=3)
_CSV = st.lists(st.lists(_CELL, max_size=4).map(",".join), max_size=4).map("\n".join).map(as_bytes)
_ENTRIES = st.dictionaries(
    st.sampled_from(["study.json", "study.json", "writes.parquet", "../up", "/etc/x", "frames"]),
    st.one_of(st.just(PARQUET), _dumped(VALUES), _dumped(mutated_json(st.just(META))), st.binary(max_size=9)),
    max_size=3,
)
_PACKED = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
_GRAMMAR: list[SearchStrategy[Input]] = [
    st.tuples(st.just(".csv"), _CSV),
    st.tuples(st.just(".json"), _dumped(st.one_of(VALUES, st.lists(_ROW, max_size=3)))),
    st.tuples(
        st.just(".jsonl"), st.lists(st.one_of(_ROW, VALUES).map(json.dumps), max_size=3).map("\n".join).map(as_bytes)
    ),
    st.tuples(
        st.sampled_from([".json", ".jsonl"]), st.sampled_from([b"[" * 100_000, b"9" * 5000, b'{"a": NaN}', b"\xff"])
    ),
    st.tuples(
        st.just("study"), st.builds(archive_of, _ENTRIES, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    ),
    st.tuples(st.just("batch"), _dumped(VALUES), st.just(SHARD)),
    st.tuples(st.just("model"), _dumped(VALUES)),
]


def _one_changed(made: Any, which: int) -> tuple[bytes, ...]:
    return tuple(with_changes(content, made) if n == which else content for n, content in enumerate(SHARD))


_MUTATED: list[SearchStrategy[Input]] = [
    *(st.tuples(st.just(kind), mutated_bytes(st.sampled_from(seeds))) for kind, seeds in FRAMES.items()),
    st.tuples(st.just(".csv"), mutated_text(st.just(FRAMES[".csv"][0].decode())).map(as_bytes)),
    st.tuples(st.just(".json"), _dumped(mutated_json(st.just(ROWS)))),
    st.tuples(st.just("study"), mutated_bytes(st.just(STUDY))),
    st.tuples(st.just("study"), mutated_json(st.just(META)).map(lambda meta: study(meta, PARQUET))),
    st.tuples(st.just("study"), mutated_bytes(st.just(PARQUET)).map(lambda frame: study(META, frame))),
    st.tuples(st.just("batch"), _dumped(mutated_json(st.just(MANIFEST))), st.just(SHARD)),
    st.tuples(
        st.just("batch"),
        st.just(json.dumps(MANIFEST).encode()),
        st.builds(_one_changed, changes(new_bytes), st.integers(0, 2)),
    ),
    st.tuples(st.just("model"), _dumped(mutated_json(st.just(model_manifest())))),
    st.tuples(st.just("model"), mutated_bytes(st.just(json.dumps(model_manifest()).encode()))),
]

TARGET = Target(
    name="results",
    about="frames in .parquet, .csv, .json and .jsonl, studies, folders of batches, manifests of stored models",
    seeds=(
        *((kind, content) for kind, seeds in FRAMES.items() for content in seeds),
        ("study", STUDY),
        ("batch", json.dumps(MANIFEST).encode(), SHARD),
        ("model", json.dumps(model_manifest()).encode()),
    ),
    grammar=st.one_of(*_GRAMMAR),
    mutated=st.one_of(*_MUTATED),
    feed=feed,
)
