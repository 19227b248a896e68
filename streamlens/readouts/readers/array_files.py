"""Files of named arrays and words: `.safetensors`, `.npz` and `.csv`, one layout for all three.

1. Words are the header of a `.safetensors`, arrays of one text each in an `.npz` (`rows` may be an array of texts), and
   lines `# word: value` above the table of a `.csv`.
2. A `.csv` is one line for each row of `matrix`, under a header line that may be absent: a column `name` and a column
   `bias` if there are any, and d_model columns of numbers under any names.
3. A file is written beside its place and then moved there, so that no half of one is ever found.

Nothing is unpickled. What a file lacks or holds wrongly is said in one sentence.
"""

import csv
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamlens.errors import InputError, first_line

Arrays = dict[str, Tensor]
Words = dict[str, str]


def read_arrays(path: str | Path) -> tuple[Arrays, Words]:
    """The arrays and words of a file.

    Raises:
        InputError: No such file, another kind of file, or one that cannot be read as what its name says.
    """
    path = Path(path)
    reader, _ = _kind(path)
    if not path.is_file():
        raise InputError(
            f"A reader is loaded from a file; {str(path)!r} is {'a folder' if path.is_dir() else 'not there'}."
        )
    try:
        return reader(path)
    except InputError:
        raise
    except Exception as error:  # what each library raises for a file that is not its own
        raise InputError(f"{path.name!r} cannot be read as a {path.suffix} file: {first_line(error)}") from error


def write_arrays(path: str | Path, arrays: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
    """Writes a file beside its place, then moves it there, so that no half of one is ever found.

    Raises:
        InputError: Another kind of file, or a folder that is not there.
    """
    path = Path(path)
    _, writer = _kind(path)
    if not path.parent.is_dir():
        raise InputError(f"A reader is saved into a folder that exists; {str(path.parent)!r} does not.")
    half = path.with_name(f"{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        writer(half, arrays, words)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _kind(path: Path) -> tuple[Callable[[Path], tuple[Arrays, Words]], Callable[..., None]]:
    kinds = {
        ".safetensors": (_read_safetensors, _write_safetensors),
        ".npz": (_read_npz, _write_npz),
        ".csv": (_read_csv, _write_csv),
    }
    if path.suffix not in kinds:
        raise InputError(f"A reader's file ends in {', '.join(kinds)}; got {path.name!r}.")
    return kinds[path.suffix]


def _read_safetensors(path: Path) -> tuple[Arrays, Words]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def _write_safetensors(path: Path, arrays: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
    from safetensors.torch import save_file

    save_file({name: array.contiguous() for name, array in arrays.items()}, path, metadata=dict(words))


def _read_npz(path: Path) -> tuple[Arrays, Words]:
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and say so at length
        raise InputError(f"{path.name!r} cannot be read as a .npz file: it is no archive of arrays.")
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # numpy leaves a broken one open
        found: dict[str, Any] = {name: file[name] for name in file.files}
    texts = {name: array.tolist() for name, array in found.items() if array.dtype.kind == "U"}
    words = {name: text if isinstance(text, str) else json.dumps(text) for name, text in texts.items()}
    return {name: torch.from_numpy(array) for name, array in found.items() if array.dtype.kind in "fiu"}, words


def _write_npz(path: Path, arrays: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
    values: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    values |= {name: np.array(word) for name, word in words.items()}
    np.savez(path, **values)


def _read_csv(path: Path) -> tuple[Arrays, Words]:
    words: Words = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(file)
    while lines and lines[0].startswith("#"):
        word, _, value = lines.pop(0)[1:].partition(":")
        words[word.strip()] = value.strip()
    header, *rows = csv.reader(lines)
    if not {"name", "bias"} & set(header) and _numbers(header) and header != [str(n) for n in range(len(header))]:
        header, rows = [str(n) for n in range(len(header))], [header, *rows]  # a bare table of numbers
    if uneven := [number for number, row in enumerate(rows, 1) if len(row) != len(header)]:
        raise InputError(f"Row {uneven[0]} of {path.name!r} has {len(rows[uneven[0] - 1])} columns of {len(header)}.")
    cells = [
        [float(cell) for cell, name in zip(row, header, strict=True) if name not in ("name", "bias")] for row in rows
    ]
    arrays = {"matrix": torch.tensor(cells, dtype=torch.float64)}
    if "bias" in header:
        arrays["bias"] = torch.tensor([float(row[header.index("bias")]) for row in rows], dtype=torch.float64)
    if "name" in header:
        words.setdefault("rows", json.dumps([row[header.index("name")] for row in rows]))
    return arrays, words


def _numbers(cells: list[str]) -> bool:
    try:
        return bool([float(cell) for cell in cells])
    except ValueError:
        return False


def _write_csv(path: Path, arrays: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
    if extra := sorted(set(arrays) - {"matrix", "bias"}):
        raise InputError(f"A .csv holds a matrix and a bias, not {', '.join(extra)}.", hint="Save as .safetensors.")
    matrix, bias = arrays["matrix"], arrays["bias"]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {word}: {value}\n" for word, value in words.items() if word != "rows")
        table = csv.writer(file)
        table.writerow(["name", "bias", *range(matrix.shape[1])])
        for name, constant, row in zip(json.loads(words["rows"]), bias.tolist(), matrix.tolist(), strict=True):
            table.writerow([name, repr(constant), *map(repr, row)])
