"""Edit: a change to some writes, as data. Nothing here touches a model.

1. An edit names a site (`L9.attn`, `L9H2`, `L12N104`, `embed`, or an attention edge `L9H2<river`), a method, and the
   positions it acts on.
2. `Edit.parse` reads the short text form: `L9.attn`, `L9H2@bank`, `L12.mlp=0.5`, `L9H2=mean`, `L9H2<river@bank`.
3. What does not depend on a model is checked here; `hooks/edits/edit.py` checks the rest before anything runs.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from streamlens.arguments import check_fields, typed
from streamlens.errors import InputError
from streamlens.positions import index_or_text
from streamlens.sites import Site

#: method -> what it sets a write to
METHODS = {
    "zero": "0. A sublayer loses its output bias with it; a head does not, since the bias is no head's",
    "scale": "its own value times `value`",
    "mean": "its mean over the reference `prompts` and their positions, sinks left out",
    "resample": "its value on another prompt, at the aligned token",
    "replace": "the vector `value`",
    "project_out": "itself without what the reader sees: only u_null stays",
    "project_onto": "only what the reader sees: u_row",
}
#: the argument that a method cannot do without
_NEEDS = {
    "scale": "value",
    "mean": "prompts",
    "resample": "prompts",
    "replace": "value",
    "project_out": "reader",
    "project_onto": "reader",
}
_TEXT = re.compile(r"(?P<site>[^<@=]+)(?:<(?P<source>[^@=]+))?(?:@(?P<position>[^=]+))?(?:=(?P<how>.+))?$")


@runtime_checkable
class HasMatrix(Protocol):
    """What a projection needs of a reader."""

    @property
    def matrix(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Edit:
    """One change to a write.

    Attributes:
        site: A label or a Site: a sublayer, head, neuron or embedding.
        method: One of `METHODS`.
        position: A position or token text within the prompt, several of them, or None for all.
        value: The factor of "scale"; the vector [d_model] of "replace".
        prompts: The reference prompts of "mean"; the one other prompt of "resample".
        per_position: "mean" over prompts at each position instead of over positions too.
        reader: Whose row space "project_out" and "project_onto" speak of.
        source: For a head: only what it takes from this token (an attention edge).
    """

    site: str | Site
    method: str = "zero"
    position: int | str | Sequence[int | str] | None = None
    value: float | Tensor | None = None
    prompts: str | Sequence[str] | None = None
    per_position: bool = False
    reader: HasMatrix | None = None
    source: int | str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.method not in METHODS:
            raise InputError(f"A method is one of {', '.join(METHODS)}; got {self.method!r}.")
        needed = _NEEDS.get(self.method)
        if needed is not None and getattr(self, needed) is None:
            raise InputError(f"The method {self.method!r} of {self.site} needs {needed}=.")
        if self.method == "scale" and not isinstance(self.value, int | float):
            raise InputError(f"The method 'scale' takes a number; got {type(self.value).__name__}.")
        if self.method == "scale" and isinstance(self.value, int | float) and not math.isfinite(self.value):
            raise InputError(f"The method 'scale' takes a finite number; got {self.value}.")
        if self.method == "resample" and not isinstance(self.prompts, str):
            raise InputError("The method 'resample' takes one other prompt.")
        if "<" in str(self.site):
            head, _, source = str(self.site).partition("<")
            raise InputError(
                f"An edit names its head and the token it takes from apart; got {str(self.site)!r}.",
                hint=f'Edit("{head}", source={source}), or the text "{self.site}" in place of the edit.',
            )
        if self.source is not None and self.method not in ("zero", "scale"):
            raise InputError(f"An attention edge is zeroed or scaled; got {self.method!r}.")

    @classmethod
    @typed
    def parse(
        cls,
        text: str,
        *,
        position: int | str | Sequence[int | str] | None = None,
        prompts: str | Sequence[str] | None = None,
    ) -> "Edit":
        """Reads `SITE[<SOURCE][@POSITION][=FACTOR|METHOD]`.

        Args:
            text: `L9.attn` zeroes it everywhere, `L9H2@bank` at one token, `L12.mlp=0.5` halves it, `L9H2=mean`.
            position: Used where the text names none.
            prompts: The reference of "mean" or "resample".

        Raises:
            InputError: The text is no edit.
        """
        found = _TEXT.match(text.strip())
        if found is None:
            raise InputError(f"An edit is written like L9.attn, L9H2@bank, L12.mlp=0.5 or L9H2=mean; got {text!r}.")
        how = (found["how"] or "zero").strip()
        method, value = how, None
        if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", how):
            method, value = "scale", float(how)
        return cls(
            site=Site.parse(found["site"]),
            method=method,
            position=position if found["position"] is None else _token(found["position"]),
            value=value,
            prompts=prompts if method in ("mean", "resample") else None,
            source=None if found["source"] is None else _token(found["source"]),
        )

    @property
    def label(self) -> str:
        """The text form, for tables and titles."""
        source = "" if self.source is None else f"<{self.source}"
        where = "" if self.position is None else f"@{_shown(self.position)}"
        how = {"zero": "", "scale": f"={self.value}"}.get(self.method, f"={self.method}")
        return f"{self.site}{source}{where}{how}"


def as_edits(edits: "str | Edit | Sequence[str | Edit]") -> list[Edit]:
    """One or several edits, given as text or as data.

    Raises:
        InputError: None, or a text that is no edit.
    """
    given = [edits] if isinstance(edits, str | Edit) else list(edits)
    if not given:
        raise InputError("At least one edit is needed; got none.")
    return [Edit.parse(edit) if isinstance(edit, str) else edit for edit in given]


def _token(text: str) -> int | str:
    found = index_or_text(text.strip())
    return found if isinstance(found, int) else text


def _shown(position: int | str | Sequence[int | str]) -> str:
    return str(position).strip() if isinstance(position, int | str) else ",".join(str(p).strip() for p in position)
