"""A reader as a file, and a file as a reader.

1. Arrays (`array_files.py` has the formats): `matrix` is [k, d_model] or one vector [d_model], `bias` [k] may be
   absent. The names that other programs use are read too (`LAYOUTS`): scikit-learn's `coef` and `intercept`, a
   linear layer's `weight`, a sparse autoencoder's encoder `W_enc` [d_model, k] with `b_enc` (its rows before the
   activation; a decoder's bias that it subtracts first is not taken).
2. Words, all optional: `name`, `unit`, `norm` ("none", "final" or "input"), `after`, `rows` (a JSON list of names) and
   `tolerance`; any other word becomes the reader's `meta`.
3. The norm it reads through comes along: arrays `norm.gain` and `norm.bias`, words `norm.centred` and `norm.eps`.

The tokens behind a reader are not kept: loaded again it reads the raw logits, before any softcap.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from streamlens.carries import StreamNorm
from streamlens.errors import InputError
from streamlens.readouts.readers.array_files import Arrays, Words, read_arrays, write_arrays
from streamlens.readouts.readers.finite import checked
from streamlens.readouts.readers.reader import Reader

#: array of the matrix -> (array of its bias, whether the matrix is [d_model, k])
LAYOUTS = {
    "matrix": ("bias", False),
    "W_enc": ("b_enc", True),
    "encoder.weight": ("encoder.bias", False),
    "weight": ("bias", False),
    "coef": ("intercept", False),
    "coef_": ("intercept_", False),
}
_NORMS = ("none", "final", "input")
_WORDS = ("name", "unit", "norm", "after", "rows", "tolerance", "norm.centred", "norm.eps")


def save_reader(reader: Reader, path: str | Path) -> None:
    """Writes a reader; see the module's docstring for the layout."""
    arrays = {"matrix": reader.matrix.cpu(), "bias": reader.bias.cpu()}
    words: Words = {
        **reader.meta,
        "name": reader.name,
        "unit": reader.unit,
        "norm": reader.norm,
        "rows": json.dumps(reader.rows),
        "tolerance": repr(reader.tolerance),
    }
    if reader.after is not None:
        words["after"] = reader.after
    if reader.through is not None:
        arrays["norm.gain"] = reader.through.gain.cpu()
        if reader.through.bias is not None:
            arrays["norm.bias"] = reader.through.bias.cpu()
        words |= {"norm.centred": str(reader.through.centred), "norm.eps": repr(reader.through.eps)}
    write_arrays(path, arrays, words)


def load_reader(path: str | Path, given: Mapping[str, str | None]) -> Reader:
    """Reads a reader; `given` words stand before the file's own."""
    arrays, words = read_arrays(path)
    words |= {word: value for word, value in given.items() if value is not None}
    file = Path(path).name
    matrix, bias = matrix_of(arrays, file)
    name = words.get("name", Path(path).stem)
    matrix = checked(matrix, name)
    k = len(matrix)
    norm = words.get("norm", "none")
    if norm not in _NORMS:
        raise InputError(f"norm is one of {', '.join(_NORMS)}; {file!r} says {norm!r}.")
    through = _norm_of(arrays, words, matrix.shape[1]) if norm != "none" else None
    if norm == "input" and through is None:
        raise InputError(f"A reader behind a sublayer's norm brings it; {file!r} has no array norm.gain.")
    rows = _listed(words["rows"], file) if "rows" in words else _row_names(name, k)
    if len(rows) != k:
        raise InputError(f"rows in {file!r} name each of the {k} rows of the matrix; got {len(rows)} names.")
    return Reader(
        name=name,
        rows=rows,
        unit=words.get("unit", "units along the direction"),
        matrix=matrix,
        bias=torch.zeros(k, dtype=torch.float64) if bias is None else bias,
        norm=norm,
        through=through,
        after=words.get("after"),
        tolerance=_number(words, "tolerance", Reader.tolerance, below=1.0),
        meta={word: value for word, value in words.items() if word not in _WORDS},
    )


def matrix_of(arrays: Mapping[str, Tensor], file: str) -> tuple[Tensor, Tensor | None]:
    """The matrix [k, d_model] and bias [k] among a file's arrays, in float64.

    Raises:
        InputError: No array of a known name, or shapes that do not fit.
    """
    key = next((known for known in LAYOUTS if known in arrays), None)
    if key is None:
        held = ", ".join(arrays) or "none"
        raise InputError(f"A reader's file holds an array called {', '.join(LAYOUTS)}; {file!r} holds {held}.")
    bias_key, on_its_side = LAYOUTS[key]
    found = arrays[key].double()
    matrix = found[None] if found.dim() == 1 else found
    if matrix.dim() != 2 or not matrix.numel():
        raise InputError(f"{key!r} in {file!r} is a matrix or one vector; got shape {tuple(found.shape)}.")
    if on_its_side and found.dim() == 2:
        matrix = matrix.T.contiguous()
    bias = arrays.get(bias_key)
    if bias is not None and bias.numel() != len(matrix):
        raise InputError(f"{bias_key!r} in {file!r} has one number for each of {len(matrix)} rows; got {bias.numel()}.")
    if bias is not None and not torch.isfinite(bias).all():
        raise InputError(f"{bias_key!r} in {file!r} holds a number that is not finite.")
    return matrix, None if bias is None else bias.double().reshape(-1)


def _row_names(name: str, k: int) -> tuple[str, ...]:
    return (name,) if k == 1 else tuple(f"{name}[{i}]" for i in range(k))


def _listed(said: str, file: str) -> tuple[str, ...]:
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise InputError(f"rows in {file!r} are a JSON list of names; got {said[:40]!r}.", hint='rows: ["one", "two"]')
    return tuple(map(str, found))


def _number(words: Words, name: str, default: float, *, below: float = math.inf) -> float:
    said = words.get(name, default)
    try:
        found = float(said)
    except ValueError:
        found = math.nan
    if not 0 <= found < below:
        limit = "a finite number" if below == math.inf else f"below {below:g}"
        raise InputError(f"{name} is {limit}, and not negative; got {said!r}.")
    return found


def _norm_of(arrays: Arrays, words: Words, d_model: int) -> StreamNorm | None:
    gain, bias = arrays.get("norm.gain"), arrays.get("norm.bias")
    if gain is None:
        return None
    for name, array in (("norm.gain", gain), ("norm.bias", bias)):
        if array is not None and array.shape != (d_model,):
            raise InputError(f"{name} is as wide as the matrix, {d_model}; got shape {tuple(array.shape)}.")
        if array is not None and not torch.isfinite(array).all():
            raise InputError(f"{name} holds a number that is not finite.")
    return StreamNorm(
        gain=gain.double(),
        bias=None if bias is None else bias.double(),
        centred=words.get("norm.centred", "False") == "True",
        eps=_number(words, "norm.eps", 0.0),
    )
