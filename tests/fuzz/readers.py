"""Readers out of files: `.safetensors`, `.npz` and `.csv`, written by us, by other programs, and by nobody.

What is accepted has to be usable: it says what it is, has a rank, finite numbers, and folds its norm in.
"""

import io
import json
import struct
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz import files
from fuzz.mutate import TELLING_TEXT, VALUES, as_bytes, mutated_bytes, mutated_json, mutated_text
from fuzz.target import Input, Target

_MATRIX = np.arange(1.0, 9.0).reshape(2, 4)
_WORDS = {
    "name": "probe",
    "unit": "logits",
    "norm": "input",
    "rows": '["a", "b"]',
    "tolerance": "1e-9",
    "after": "L0.attn",
}
_WORDS |= {"norm.centred": "True", "norm.eps": "1e-5", "layer": "9"}
_ARRAYS = {"matrix": _MATRIX, "bias": np.zeros(2), "norm.gain": np.ones(4), "norm.bias": np.zeros(4)}
CSV = "# name: probe\n# norm: none\nname,bias,0,1,2\na,0.5,1,2,3\nb,0,0,1e-3,-2\n"


def _safetensors(header: Any, body: bytes) -> bytes:
    """A file with this header, true or not."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _header(arrays: dict[str, np.ndarray], words: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int8": "I8", "bool": "BOOL"}
    header: dict[str, Any] = {"__metadata__": words}
    body = b""
    for name, array in arrays.items():
        content = array.tobytes()
        kind = names.get(array.dtype.name, "F8_E4M3")
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(content)],
        }
        body += content
    return header, body


def npz(arrays: dict[str, Any]) -> bytes:
    held = io.BytesIO()
    np.savez(held, **{name or "x": array for name, array in arrays.items()})
    return held.getvalue()


HEADER, BODY = _header(_ARRAYS, _WORDS)
FILES = {
    ".safetensors": (_safetensors(HEADER, BODY), _safetensors(*_header({"coef_": _MATRIX.astype("float32")}, {}))),
    ".npz": (npz({**_ARRAYS, **{name: np.array(word) for name, word in _WORDS.items()}}), npz({"W_enc": _MATRIX})),
    ".csv": (CSV.encode(), b"1,2,3\n4,5,6\n"),
}

_NUMBERS = st.sampled_from([0.0, 1.0, -2.5, 1e-300, 1e300, float("nan"), float("inf"), 3.0])
_KINDS = [
    "float64",
    "float32",
    "float16",
    "int64",
    "int8",
    "bool",
    "complex64",
    "uint16",
    "float128",
    ">f8",
    "datetime64[s]",
]
_SHAPES = st.sampled_from([(2, 4), (4,), (1, 4), (2,), (4, 2), (0, 4), (), (1, 1, 4), (3, 0), (2, 3)])


def _array(shape: tuple[int, ...], kind: str, first: float) -> np.ndarray:
    whole = np.ones(shape)
    whole.reshape(-1)[:1] = first
    with np.errstate(all="ignore"):
        return whole.astype(kind)


_ARRAY = st.builds(_array, _SHAPES, st.one_of(st.just("float64"), st.sampled_from(_KINDS)), _NUMBERS)
_NAMES = st.sampled_from(
    ["matrix", "matrix", "bias", "W_enc", "b_enc", "weight", "coef", "intercept", "coef_", "norm.gain", "norm.bias",
     "other", "rows"]
)  # fmt: skip
_SOME_ARRAYS = st.dictionaries(_NAMES, _ARRAY, max_size=4)
_WORD = st.sampled_from([*_WORDS, "tolerance", "norm", "rows", "classes", ""])
_ROWS = st.sampled_from(
    [
        '["a"]',
        '["a","b"]',
        "[1,2]",
        "5",
        "null",
        "{}",
        '{"a":1,"b":2}',
        "[",
        '"ab"',
        "[[1],[2]]",
        "[" * 100_000,
        '["\\ud800","b"]',
    ]
)
_SAID = st.one_of(
    st.sampled_from(["none", "final", "input", "nan", "-1", "1e-5", "inf", "True", "", "x"]),
    _ROWS,
    st.sampled_from(TELLING_TEXT),
)
_SOME_WORDS = st.dictionaries(_WORD, _SAID, max_size=4)
_TEXTS = st.one_of(
    _SAID.map(lambda text: np.array(text.replace("\ud800", "?"))),
    st.lists(_SAID.map(lambda text: text.replace("\ud800", "?")), max_size=3).map(
        lambda found: np.array(found, dtype="U9")
    ),
)
_CELL = st.sampled_from(
    ["1", "2.5", "-1e-3", "nan", "inf", "", " ", "a", '"', '"a', "1_0", "٣", "9" * 500, "0x1", "name", "bias", "\0"]
)
_GRAMMAR: dict[str, SearchStrategy[bytes]] = {
    ".safetensors": st.builds(lambda arrays, words: _safetensors(*_header(arrays, words)), _SOME_ARRAYS, _SOME_WORDS),
    ".npz": st.builds(
        lambda arrays, words: npz({**words, **arrays}),
        _SOME_ARRAYS,
        st.dictionaries(_WORD.filter(bool), _TEXTS, max_size=3),
    ),
    ".csv": st.builds(
        lambda words, rows: as_bytes("".join(f"# {name}: {word}\n" for name, word in words.items()) + "\n".join(rows)),
        _SOME_WORDS,
        st.lists(st.lists(_CELL, max_size=5).map(",".join), max_size=5),
    ),
}
_MUTATED: list[SearchStrategy[Input]] = [
    *(st.tuples(st.just(kind), mutated_bytes(st.sampled_from(seeds))) for kind, seeds in FILES.items()),
    st.tuples(st.just(".safetensors"), mutated_json(st.just(HEADER)).map(lambda header: _safetensors(header, BODY))),
    st.tuples(st.just(".safetensors"), VALUES.map(lambda header: _safetensors(header, BODY))),
    st.tuples(st.just(".csv"), mutated_text(st.just(CSV)).map(as_bytes)),
]


def feed(given: Input) -> None:
    """Loads (suffix, content) and uses what was loaded."""
    from streamlens import Reader

    kind, content = given
    reader = Reader.load(files.written(f"reader{kind}", content))
    assert repr(reader)
    assert reader.rank > 0
    assert torch.isfinite(reader.matrix).all()
    assert torch.isfinite(reader.bias).all()
    assert len(reader.rows) == len(reader.matrix) == len(reader.bias)
    if reader.norm != "final":
        reader.folded()
    reader.save(files.folder() / "again.safetensors")


TARGET = Target(
    name="readers",
    about="readers in .safetensors, .npz and .csv files",
    seeds=tuple((kind, content) for kind, seeds in FILES.items() for content in seeds),
    grammar=st.one_of(*(st.tuples(st.just(kind), content) for kind, content in _GRAMMAR.items())),
    mutated=st.one_of(*_MUTATED),
    feed=feed,
)
