"""Mutations, as hypothesis strategies: lists of small changes, so that a crash shrinks to the change that matters.

1. `mutated_bytes` takes a valid file and flips, cuts, inserts, repeats or overwrites bytes.
2. `mutated_text` does the same to a text, with characters that mean something to some parser.
3. `mutated_json` changes plain data: a value becomes one of another kind, a name goes, is doubled or renamed.

A place in a file is drawn as a share of its length, so that the same list of changes fits every seed.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

_PLACE = st.integers(0, 2**16)
#: bytes that lengths, offsets and quotes are made of
_TELLING = [
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\n",
    b'"',
    b",",
    b"{",
    b"[",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"\xed\xa0\x80",
]
#: characters and words that some parser, number or tokenizer takes for more than a letter
TELLING_TEXT = [
    "", " ", "0", "-1", "9" * 5000, "1e999", "nan", "inf", "٣", "²", "½", "\0", "\n", "\r", "\t", "\u2028", "\u202e",
    "\ud800",
    "\ufeff", "é", "😀", "=", "<", "@", ".", "..", ":", "#", "&", "*", "!", "%", "'", '"', "\\", "/", "{}", "[]",
    "[" * 200, "{" * 200,
    "- ", "? ", "| ", "!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "!!python/object:os.system ", "&a [*a]",
    "null", "true",
]  # fmt: skip
_CHANGES = ("flip", "cut", "insert", "repeat", "overwrite", "shorten")


def _changed(data: Any, change: tuple[str, int, int, Any]) -> Any:
    how, place, size, new = change
    at = place * len(data) // 2**16
    end = min(len(data), at + 1 + size)
    if how == "insert":
        return data[:at] + new + data[at:]
    if how == "cut":
        return data[:at] + data[end:]
    if how == "repeat":
        return data[:end] + data[at:end] + data[end:]
    if how == "shorten":
        return data[:at]
    if how == "overwrite":
        return data[:at] + new + data[at + len(new) :]
    return _flipped(data, at, size)


def _flipped(data: Any, at: int, size: int) -> Any:
    if not data:
        return data
    at = min(at, len(data) - 1)
    if isinstance(data, bytes):
        return data[:at] + bytes([data[at] ^ 1 << size % 8]) + data[at + 1 :]
    return data[:at] + chr(ord(data[at]) ^ 1 << size % 7) + data[at + 1 :]


def with_changes(data: Any, changes: Sequence[Any]) -> Any:
    """A text or file with a list of changes made, one after another."""
    for change in changes:
        data = _changed(data, change)
    return data


def changes(new: Callable[[bytes], Any]) -> SearchStrategy[list[Any]]:
    """Lists of one to four changes, which `with_changes` makes; `new` turns three bytes into what is put in.

    They are cut out of one draw of bytes, eight for a change: drawing each number by itself takes four times as long.
    """

    def cut(raw: bytes) -> list[Any]:
        parts = (raw[at : at + 8] for at in range(0, len(raw) - 7, 8))
        return [(_CHANGES[p[0] % len(_CHANGES)], p[1] << 8 | p[2], p[3] % 40, new(p[4:])) for p in parts]

    return st.binary(min_size=8, max_size=32).map(cut)


def new_bytes(drawn: bytes) -> bytes:
    """One of `_TELLING`, or one to three bytes."""
    return drawn[1 : 2 + drawn[0] % 3] if drawn[0] % 2 else _TELLING[drawn[1] % len(_TELLING)]


def new_text(drawn: bytes) -> str:
    """One of `TELLING_TEXT`, or one to three characters below U+0100."""
    if drawn[0] % 2:
        return TELLING_TEXT[drawn[1] % len(TELLING_TEXT)]
    return drawn[1 : 2 + drawn[0] % 3].decode("latin-1")


def mutated_bytes(seeds: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    """A valid file with one to four changes."""
    return st.builds(with_changes, seeds, changes(new_bytes))


def mutated_text(seeds: SearchStrategy[str]) -> SearchStrategy[str]:
    """A valid text with one to four changes."""
    return st.builds(with_changes, seeds, changes(new_text))


def as_bytes(text: str) -> bytes:
    """The text as a file would hold it; what is no Unicode as the bytes it would take."""
    return text.encode("utf-8", "surrogatepass")


#: plain data of every kind, with the values that break a reader which trusts its file
VALUES: SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, float("nan"), float("inf"), -0.0]),
    st.sampled_from(TELLING_TEXT),
    st.text(max_size=4),
    st.sampled_from([[], {}, [[]], [{}], [None], {"": None}, {"a": {"b": []}}, [1, "a"], ["a", "b"]]),
)


def mutated_json(seeds: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Valid plain data with one to three values exchanged, dropped, doubled or renamed."""
    change = st.tuples(st.sampled_from(["exchange", "exchange", "drop", "double", "rename"]), _PLACE, VALUES)
    return st.builds(_edited, seeds, st.lists(change, min_size=1, max_size=3))


def _edited(seed: Any, changes: Sequence[tuple[str, int, Any]]) -> Any:
    whole = [copy.deepcopy(seed)]
    for how, place, value in changes:
        spots = list(_spots(whole))
        parent, key = spots[place * len(spots) // (2**16 + 1)]
        if how == "exchange" or parent is whole:
            parent[key] = copy.deepcopy(value)
        elif how == "drop":
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        else:
            parent[f"{key}{key if how == 'double' else str(value)[:9]}"] = (
                parent.pop(key) if how == "rename" else copy.deepcopy(parent[key])
            )
    return whole[0]


def _spots(node: Any) -> Any:
    """Every place of a value within plain data: what holds it, and under which name or number."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(value, dict | list):
            yield from _spots(value)
