"""Token text that is safe to show and still legible.

A tokenizer's text is arbitrary: it can hold markup, terminal escapes, right-to-left overrides, half
characters. Each function here turns such text into something a reader can see and no renderer can act on:

1. cut the token into characters, keeping a raw-byte piece such as ``⟨F0⟩`` whole;
2. give every space that would vanish (leading, trailing, next to another space) a dot, newline and tab a
   sign, and every other character without a shape of its own (control, zero-width, bidi, unassigned,
   surrogate) its code point;
3. shorten what is too long, whole pieces at a time, and dash what is special;
4. escape the result for the place it goes to: HTML, plotly, or a terminal that reads rich markup.

Nothing is lost: frames keep the raw token and its id beside what is shown.
"""

import html
import re
import unicodedata
from functools import lru_cache

from streamlens.errors import InputError

__all__ = [
    "cells",
    "display_token",
    "html_token",
    "markup_escape",
    "plotly_escape",
    "plotly_token",
    "terminal_token",
    "visible",
]

EMPTY = "∅"
CUT = "…"
SPACE = "·"
DASH = "╌"
_SIGNS = {"\n": "⏎", "\t": "⇥"}

# Categories with no glyph of their own: control, format (zero-width, bidi), surrogate, private,
# unassigned, line and paragraph separators, and every space that is not U+0020 (a no-break space looks
# like a space and is not one).
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})

# Letters and marks that Unicode nevertheless draws as nothing (Default_Ignorable_Code_Point, and the
# blank Braille cell), followed by our own signs, which in a token's text would otherwise read as
# something else.
_UNSEEN_RANGES = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)
_OWN_SIGNS = frozenset(_SIGNS.values())

_PIECES = re.compile(r"⟨[0-9A-F]{2}⟩|.", re.DOTALL)
_RICH_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")


def _code(char: str) -> str:
    return f"⟨U+{ord(char):04X}⟩"


@lru_cache(maxsize=4096)  # a vocabulary has 49,152 tokens and few characters
def _has_no_shape(char: str) -> bool:
    if char == " ":
        return False
    point = ord(char)
    return unicodedata.category(char) in _UNSEEN_CATEGORIES or any(lo <= point <= hi for lo, hi in _UNSEEN_RANGES)


def _piece(piece: str) -> str:
    if len(piece) > 1:  # a raw byte, already legible
        return piece
    if piece in _SIGNS:
        return _SIGNS[piece]
    return _code(piece) if _has_no_shape(piece) else piece


def visible(text: str) -> str:
    """`text` with every character that has no shape of its own replaced by a sign or its code point.

    For sentences, names and titles: single spaces stay as they are. The result holds no control,
    zero-width, bidi or surrogate character, so it encodes as UTF-8 and moves no cursor. Escape it for its
    destination all the same. Applied twice it changes nothing more.
    """
    return "".join(_piece(piece) for piece in _PIECES.findall(text))


def _dotted_spaces(pieces: list[str]) -> list[str]:
    """A dot for each space that a renderer would trim or collapse: at either end, or beside another space."""
    last = len(pieces) - 1
    return [
        SPACE if piece == " " and (i in (0, last) or " " in (pieces[i - 1], pieces[i + 1])) else piece
        for i, piece in enumerate(pieces)
    ]


def _own_signs_coded(pieces: list[str]) -> list[str]:
    """A real ``⏎``, or a dot where ours would stand, is shown by its code: each sign has one meaning."""
    edges = (0, len(pieces) - 1)
    return [
        _code(piece) if piece in _OWN_SIGNS or (piece == SPACE and i in edges) else piece
        for i, piece in enumerate(pieces)
    ]


def cells(text: str) -> int:
    """Terminal cells: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _cut(pieces: list[str], width: int) -> str:
    text = "".join(pieces)
    if cells(text) <= width:
        return text
    kept, used = [], cells(CUT)
    for piece in pieces:
        used += cells(piece)
        if used > width:
            break
        kept.append(piece)
    return "".join(kept) + CUT


def display_token(token: str, *, special: bool = False, width: int | None = None) -> str:
    """The token as a person should see it, on one line, with no character that a renderer could act on.

    Args:
        token: the raw text, such as ``" bank"``; an incomplete UTF-8 byte arrives as ``⟨F0⟩`` and stays.
        special: mark it as a special token: ``╌<s>╌``.
        width: the most terminal cells the result may take; a longer token ends in ``…``. None never cuts.

    Returns:
        ``·bank`` for ``" bank"``, ``⏎`` for a newline, ``⟨U+202E⟩`` for a bidi override, ``∅`` for the
        empty token.

    Raises:
        InputError: `width` is too small to show anything (under 1, or under 3 for a special token).
    """
    room = None if width is None else width - 2 * special
    if room is not None and room < 1:
        least = 3 if special else 1
        raise InputError(f"a token needs a width of at least {least}; got width={width}.", hint="None never cuts.")
    raw = _PIECES.findall(token)
    if raw and unicodedata.category(raw[0][0]).startswith("M") and not _has_no_shape(raw[0][0]):
        raw[0] = "◌" + raw[0]  # a combining mark would otherwise sit on whatever is printed before it
    pieces = [piece if piece[0] == "◌" else _piece(piece) for piece in _dotted_spaces(_own_signs_coded(raw))]
    if token == EMPTY:
        pieces = [_code(EMPTY)]
    text = "".join(pieces or [EMPTY]) if room is None else _cut(pieces or [EMPTY], room)
    return f"{DASH}{text}{DASH}" if special else text


def html_token(token: str, *, special: bool = False, width: int | None = None) -> str:
    """`display_token` escaped for HTML text (not for an attribute: quotes stay)."""
    return html.escape(display_token(token, special=special, width=width), quote=False)


def plotly_token(token: str, *, special: bool = False, width: int | None = None) -> str:
    """`display_token` for any text that plotly draws: tick labels, titles, hover data.

    Beyond HTML, plotly fills in ``%{...}`` and, where MathJax is on the page, sets ``$...$`` as a
    formula. It looks for both before it decodes entities, so an entity in their place is shown as typed
    and acted on by neither.
    """
    return plotly_escape(display_token(token, special=special, width=width))


def plotly_escape(text: str) -> str:
    """Text without control characters (see `visible`) made inert for plotly."""
    text = html.escape(text, quote=False).replace("%{", "%&#123;").replace("$", "&#36;")
    if any(unicodedata.bidirectional(char) in ("R", "AL") for char in text):
        # Isolated, so that right-to-left letters do not reorder what stands beside them.
        return f"\u2068{text}\u2069"
    return text


def terminal_token(token: str, *, special: bool = False, width: int | None = None) -> str:
    """`display_token` for a string that rich will read as markup: ``[bold]`` is printed, not obeyed.

    Markup is found in the whole string, so tokens ``[``, ``bold``, ``]`` joined after escaping would make
    a tag again: join first and pass the joined text to `markup_escape`. Print with ``emoji=False``, or
    use ``rich.text.Text`` over `display_token`, which reads no markup at all.
    """
    return markup_escape(display_token(token, special=special, width=width))


def markup_escape(text: str) -> str:
    """Text in which rich finds no tag, by rich's own rule: a backslash before what looks like one.

    A backslash at the end would escape whatever tag follows: it is doubled, before an empty tag that
    halves it.
    """
    text = _RICH_TAG.sub(lambda tag: f"{tag[1]}{tag[1]}\\{tag[2]}", text)
    tail = text[len(text.rstrip("\\")) :]
    return f"{text}{tail}[none][/none]" if tail else text
