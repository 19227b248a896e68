"""What one tab shows, as its URL: a reload restores it, and another tab is another URL.

1. `State.from_search` reads the query of the URL, `State.search` writes it.
2. An edit is a label with a factor: 0 is off, 0.5 half. `State.edits` says them in the library's own text form, at the
   picked token or at every token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode

from streamlens.errors import InputError
from streamlens.sites import Site

#: where edits act: at the token that is picked, or at every token
WHERE = ("here", "all")


@dataclass(frozen=True, kw_only=True)
class State:
    """One state of the page.

    Attributes:
        prompt: The text.
        position: The token that is picked; None is the last.
        wanted: The next token whose logit is read; "" for the likeliest one.
        against: The token whose logit is subtracted, or "".
        reader: The name of a saved reader, instead of the two above.
        factors: What each edited write is multiplied by: 0 off, 0.5 half.
        where: One of `WHERE`.
        second: A prompt to compare with, or "".
        second_position: The token of it that is compared; None finds the picked token's text.
        pin: The write whose numbers are shown, or "".
    """

    prompt: str
    position: int | None = None
    wanted: str = ""
    against: str = ""
    reader: str = ""
    factors: Mapping[str, float] = field(default_factory=dict)
    where: str = "here"
    second: str = ""
    second_position: int | None = None
    pin: str = ""

    @classmethod
    def from_search(cls, search: str) -> "State":
        """The state of a URL's query, `?prompt=...&edits=L9.attn,L3.mlp%3D0.5`.

        Raises:
            InputError: Something in it is no position, edit or place.
        """
        given = {key: values[-1] for key, values in parse_qs(search.removeprefix("?"), keep_blank_values=True).items()}
        where = given.get("where", "here")
        if where not in WHERE:
            raise InputError(f"Edits act at one of {', '.join(WHERE)}; the address says {where!r}.")
        return cls(
            prompt=given.get("prompt", ""),
            position=_position(given.get("pos", "")),
            wanted=given.get("for", ""),
            against=given.get("against", ""),
            reader=given.get("reader", ""),
            factors=dict(_edit(text) for text in given.get("edits", "").split(",") if text.strip()),
            where=where,
            second=given.get("second", ""),
            second_position=_position(given.get("pos2", "")),
            pin=given.get("pin", ""),
        )

    @property
    def search(self) -> str:
        """The URL's query; what is not set is left out."""
        edits = (label if factor == 0 else f"{label}={factor:g}" for label, factor in self.factors.items())
        entries = {
            "prompt": self.prompt,
            "pos": "" if self.position is None else str(self.position),
            "for": self.wanted,
            "against": self.against,
            "reader": self.reader,
            "edits": ",".join(edits),
            "where": "" if self.where == "here" else self.where,
            "second": self.second,
            "pos2": "" if self.second_position is None else str(self.second_position),
            "pin": self.pin,
        }
        return "?" + urlencode({key: value for key, value in entries.items() if value}, errors="replace")

    def edits(self, place: int) -> list[str]:
        """The edits as the library reads them: `L9.attn@9`, `L3.mlp@9=0.5`; without `@9` where they act everywhere."""
        at = f"@{place}" if self.where == "here" else ""
        return [f"{label}{at}" + ("" if factor == 0 else f"={factor:g}") for label, factor in self.factors.items()]


def _position(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"A position is a number; the address says {text!r}.") from None


def _edit(text: str) -> tuple[str, float]:
    label, _, factor = text.strip().partition("=")
    try:
        value = float(factor) if factor else 0.0
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"An edit is a write, or a write and a factor, as in L9.attn=0.5; the address says {text!r}.")
    return Site.parse(label).label, value
