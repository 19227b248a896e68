"""Prompts out of files and arguments: `.txt`, `.jsonl`, `.csv`, `.parquet`, lines of standard input, texts like names.

What is accepted has to be usable: every prompt is Unicode with some text in it, and says where it came from.
"""

import io
import json
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz import files
from fuzz.mutate import TELLING_TEXT, VALUES, as_bytes, mutated_bytes, mutated_json, mutated_text
from fuzz.target import Input, Target

ROWS = [
    {"prompt": "the bank of the river", "n": 1},
    {"prompt": "money, in a bank", "n": 2},
    {"prompt": 'said "no"', "n": 3},
]
LINES = "\n".join(row["prompt"] for row in ROWS)
_JSON = "\n".join(map(json.dumps, ROWS))
_CSV = 'prompt,n\nthe bank of the river,1\n"money, in a bank",2\n"said ""no""",3\n'
ARGUMENTS = ["the bank", "He opened notes.txt", "nowhere.csv"]


def parquet(table: pa.Table, **options: Any) -> bytes:
    held = io.BytesIO()
    pq.write_table(table, held, **options)
    return held.getvalue()


_PARQUETS = (
    parquet(pa.table({"prompt": [row["prompt"] for row in ROWS], "n": [1, 2, 3]}), compression="none"),
    parquet(
        pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode(), "x": [[1], [], None]}), compression="snappy"
    ),
)
FILES = {
    ".txt": (LINES.encode(),),
    ".jsonl": (_JSON.encode(), b'"a text"\n"another"'),
    ".csv": (_CSV.encode(), b"text\na\nb\n"),
    ".parquet": _PARQUETS,
    "<stdin>": (LINES.encode(),),
}

#: columns of every kind that Parquet stores, with values at the end of their ranges
_COLUMNS = [
    pa.array(["a", None, "c"]),
    pa.array(["a", "", " "], pa.large_string()),
    pa.array([b"a", b"\xff", None], pa.binary()),
    pa.array([1, 2, None], pa.int64()),
    pa.array([1.5, float("nan"), None], pa.float16()),
    pa.array([True, None, False]),
    pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
    pa.array([-(2**31), 2**31 - 1, 0], pa.int32()).view(pa.date32()),
    pa.array([2**63 - 1, -(2**63), 0], pa.int64()).view(pa.timestamp("s")),
    pa.array([2**63 - 1, 0, None], pa.int64()).view(pa.timestamp("us", tz="Nowhere/Land")),
    pa.array([datetime(2000, 1, 1), None, None], pa.timestamp("ns", tz="UTC")),
    pa.array([2**63 - 1, 0, None], pa.int64()).view(pa.duration("us")),
    pa.array([timedelta(1), None, None]),
    pa.array([2**62, 0, None], pa.int64()).view(pa.time64("us")),
    pa.array([Decimal("1.1"), None, Decimal("-9")], pa.decimal128(38, 10)),
    pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array([["a"], [], None]),
    pa.array([{"a": 1}, None, {"a": 2}]),
    pa.array([None, None, None], pa.null()),
    pa.array([b"\xff\xfe", b"ok", None], pa.binary()).view(pa.string()),  # no UTF-8, though the file says so
]
_NAME = st.one_of(
    st.sampled_from(["prompt", "text", "n", "", "Prompt"]), st.sampled_from(TELLING_TEXT), st.text(max_size=4)
)
_UNICODE_NAME = _NAME.filter(lambda name: name.isascii() or "\ud800" not in name)


def _table(columns: list[tuple[str, int]]) -> bytes:
    arrays = [_COLUMNS[number] for _, number in columns]
    try:
        return parquet(pa.Table.from_arrays(arrays, names=[name for name, _ in columns]))
    except (pa.ArrowException, ValueError):  # what Parquet cannot hold
        return b"PAR1"


_CELL = st.one_of(
    st.sampled_from(["a b", "", " ", '"', '""', 'a"b', '"a,b"', '"a\nb"', "a,b", "\xff"]), st.sampled_from(TELLING_TEXT)
)
_GRAMMAR: dict[str, SearchStrategy[bytes]] = {
    ".txt": st.lists(_CELL, max_size=5).map(lambda lines: as_bytes("\n".join(lines))),
    ".jsonl": st.lists(
        st.one_of(
            VALUES.map(json.dumps),
            st.dictionaries(_NAME, VALUES, max_size=3).map(json.dumps),
            st.sampled_from(
                ['{"prompt": NaN}', '{"prompt": 1', "[" * 100_000, '{"prompt": "\\ud800"}', '{"a":1}{', "9" * 5000]
            ),
            st.builds(
                lambda deep, name: f'{{"{name}": {"[" * deep}{"]" * deep}}}',
                st.integers(900, 1000),
                st.sampled_from(["prompt", "n"]),
            ),
            _CELL,
        ),
        max_size=4,
    ).map(lambda lines: as_bytes("\n".join(lines))),
    ".csv": st.lists(st.lists(_CELL, max_size=4).map(",".join), max_size=5).map(
        lambda lines: as_bytes("\n".join(lines))
    ),
    ".parquet": st.lists(st.tuples(_UNICODE_NAME, st.integers(0, len(_COLUMNS) - 1)), max_size=4).map(_table),
    "<stdin>": st.binary(max_size=40),
}
_COLUMN = st.one_of(st.none(), st.none(), st.sampled_from(["prompt", "text", "n"]), _NAME)


def feed(given: Input) -> None:
    """Reads (suffix, content, column), or ("argument", text, column), as a command would."""
    kind, content, column = given
    if kind == "argument":
        argument = content
    elif kind == "<stdin>":
        argument = "-"
    else:
        argument = str(files.written(f"prompts{kind}", content))
    stdin = sys.stdin
    try:
        for read in (_as_a_batch, _as_a_command):
            sys.stdin = io.TextIOWrapper(io.BytesIO(content if kind == "<stdin>" else b""))
            read(argument, column)
    finally:
        sys.stdin = stdin


def _as_a_batch(argument: str, column: str | None) -> None:
    """A row that is no prompt is recorded."""
    from streamlens.batch.datasets import data_set
    from streamlens.prompts import Prompt, rows_of

    if "/" not in argument:  # else it is the name of a file, or of a data set on a hub
        data_set(argument, column)
    for row in rows_of([argument], column=column):
        assert row.where
        if isinstance(row, Prompt):
            assert row.text.strip()
            row.text.encode()
        else:
            assert row.rule


def _as_a_command(argument: str, column: str | None) -> None:
    """The first row that is no prompt is refused."""
    from streamlens.cli.prompts import read_prompts

    read_prompts([argument], column=column)


_ARGUMENT = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            "x" * 300 + ".txt",
            "a " * 300 + ".csv",
            "\0.txt",
            "a \0.csv",
            "\ud800.jsonl",
            "/.txt",
            "/dev/null/.csv",
            ".txt",
            "~.csv",
            "/tmp.parquet",
        ]
    ),
)


def _lines(rows: Any) -> bytes:
    return as_bytes("\n".join(map(json.dumps, rows if isinstance(rows, list) else [rows])))


_MUTATED = [
    *(st.tuples(st.just(kind), mutated_bytes(st.sampled_from(seeds)), _COLUMN) for kind, seeds in FILES.items()),
    st.tuples(st.just("argument"), mutated_text(st.sampled_from(ARGUMENTS)), st.none()),
    st.tuples(
        st.just(".jsonl"),
        mutated_json(st.just(ROWS)).map(_lines),
        _COLUMN,
    ),
]

TARGET = Target(
    name="prompts",
    about="prompts in .txt, .jsonl, .csv and .parquet files, on standard input, and as arguments",
    seeds=(
        *((kind, content, None) for kind, seeds in FILES.items() for content in seeds),
        ("argument", "He opened notes.txt", None),
    ),
    grammar=st.one_of(
        *(st.tuples(st.just(kind), content, _COLUMN) for kind, content in _GRAMMAR.items()),
        st.tuples(st.just("argument"), _ARGUMENT, st.none()),
    ),
    mutated=st.one_of(*_MUTATED),
    feed=feed,
)
