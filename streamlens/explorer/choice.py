"""What is read: a token's logit, a difference of two, a saved reader, or the likeliest next token.

Each choice knows the Python that makes it, so that what the page shows can be had elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamlens.display import visible
from streamlens.errors import InputError
from streamlens.explorer.state import State
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.readouts.readers.reader import Reader

_ROWS = 64  # of a saved reader, up to which each is a choice of its own


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """A reader, the row of it that is shown, and the Python expression that makes it."""

    reader: Reader
    row: str
    code: str


def saved_choices(paths: Sequence[Path], *, width: int) -> Mapping[str, Choice]:
    """Every row of some reader files, by name.

    Raises:
        InputError: A file that cannot be read, a reader of another width, or of too many rows.
    """
    found: dict[str, Choice] = {}
    for path in paths:
        reader = Reader.load(path)
        if reader.matrix.shape[-1] != width:
            raise InputError(f"A reader is as wide as the stream, {width}; {path} is {reader.matrix.shape[-1]} wide.")
        if len(reader.rows) > _ROWS:
            raise InputError(f"The explorer offers up to {_ROWS} rows of a reader; {path} has {len(reader.rows)}.")
        for row in reader.rows:
            name = visible(row)
            number = sum(taken == name or taken.startswith(f"{name} (") for taken in found)
            code = f"streamlens.Reader.load({str(path)!r})"
            found[f"{name} ({number + 1})" if number else name] = Choice(reader=reader, row=row, code=code)
    return found


def choose(model: ModelHandle, state: State, ledger: Ledger, saved: Mapping[str, Choice]) -> Choice | None:
    """What a state reads; None where the model has no linear head and nothing else was chosen.

    Args:
        model: The model.
        state: The state.
        ledger: The clean run at the picked token, for its likeliest next token.
        saved: From `saved_choices`.

    Raises:
        InputError: No such reader, or a text that is not one token.
    """
    if state.reader:
        if state.reader not in saved:
            known = ", ".join(saved) or "none: start with --reader FILE"
            raise InputError(f"No saved reader is called {state.reader!r} here; there are {known}.")
        return saved[state.reader]
    if state.against and not state.wanted:
        raise InputError("A difference needs the token that is read as well; only the one against it is given.")
    if state.against:
        reader = Reader.logit_diff(model, state.wanted, state.against)
        code = f"streamlens.Reader.logit_diff(model, {state.wanted!r}, {state.against!r})"
        return Choice(reader=reader, row=reader.rows[0], code=code)
    if state.wanted:
        reader = Reader.logits(model, [state.wanted])
        return Choice(reader=reader, row=reader.rows[0], code=f"streamlens.Reader.logits(model, [{state.wanted!r}])")
    if ledger.logits is None or model.wiring.head is None:
        return None
    likeliest = int(ledger.logits[0, -1].argmax())
    reader = Reader.logits(model, [likeliest])
    return Choice(reader=reader, row=reader.rows[0], code=f"streamlens.Reader.logits(model, [{likeliest}])")
