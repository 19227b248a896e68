"""Finding a token among the tokens of a prompt.

An index counts from the start, a negative one from the end; a text has to fit exactly one token, with its spaces or
without them.
"""

import re
from collections.abc import Sequence

from streamlens.errors import InputError

#: no prompt has a billion tokens, and Python refuses to read a number of some thousand digits
_INDEX = re.compile(r"-?\d{1,9}")


def index_or_text(typed: str) -> int | str:
    """What was typed for a token: up to nine digits are an index, anything else is text."""
    return int(typed) if _INDEX.fullmatch(typed) else typed


def find_position(tokens: Sequence[str], token: str | int) -> int:
    """The position of a token given as index (negative from the end) or as text.

    The text is compared exactly, then without surrounding spaces; it must fit one position only.

    Raises:
        InputError: Out of range, absent or ambiguous; the tokens are listed.
    """
    listed = " ".join(f"{i}:{t!r}" for i, t in enumerate(tokens))
    if isinstance(token, int):
        if not -len(tokens) <= token < len(tokens):
            raise InputError(f"A position is between 0 and {len(tokens) - 1}; got {token}.", hint=f"Tokens: {listed}")
        return token % len(tokens)
    exact = [i for i, t in enumerate(tokens) if t == token]
    found = exact or [i for i, t in enumerate(tokens) if t.strip() == token.strip() and t.strip()]
    if len(found) == 1:
        return found[0]
    said = "is not among the tokens" if not found else f"stands at positions {', '.join(map(str, found))}"
    fix = "Give its index. " if found else ""
    raise InputError(f"A token names one position; {token!r} {said}.", hint=f"{fix}Tokens: {listed}")
