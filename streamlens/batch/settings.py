"""What a batch computes: one frozen value, from flags, from a YAML or TOML file, or from both.

1. A file has the same names as the flags (`for`, `token-column`); a flag that is given wins over the file.
2. Everything that can be refused without a model is refused here.
3. `identity` is the part that decides the numbers: a folder holds the results of one identity only. Where the model
   runs, in how many processes and with how much memory, is not part of it: that moves roundings only.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from streamlens.errors import InputError
from streamlens.models.registry import DEFAULT_MODEL

MEANS = ("role", "layer")
MODES = ("frozen", "local", "finite")
#: fields that change where something is computed or read from; the model and reader files have hashes of their own
_ELSEWHERE = ("device", "column", "model", "reader", "memory")
#: fields whose flag is called otherwise
_FLAGS = {"wanted": "for"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is computed for every prompt.

    Attributes:
        model: A name, a folder or a Hugging Face id.
        dtype: Numbers it runs in.
        device: Where it runs.
        prepend_bos: Put the BOS token in front.
        stream: For a model with two: "encoder"; None for the one it has.
        column: The prompts' column in a file.
        analysis: Names of `streamlens.batch.analyses.ANALYSES`.
        wanted: Tokens whose logits are read, with their spaces; one reader each. The flag is `--for`.
        against: For each of them the token whose logit is subtracted, "" for none; or empty for none at all.
        reader: Files of further readers; see `streamlens.Reader.load`.
        token: Which tokens are looked at: texts or positions; empty for every token.
        token_column: A column that names each prompt's own token instead, as text or position.
        mean: "role" or "layer": store means over prompts instead of one row per prompt; None for the rows.
        mode: "frozen", "local" or "finite": what the norm in front of a reader does, for the analysis `visibility`.
        top: How many next tokens the analysis `logits` keeps.
        max_tokens: Longer prompts are failures; None for as many as the model was made for.
        memory: MiB that one batch of prompts may take beside the model; an estimate.
        shard: Prompts whose results are stored, and lost by a crash, together; fewer where they are long. None for 128,
            or 16 where an analysis runs every prompt by itself.
    """

    model: str = DEFAULT_MODEL
    dtype: str = "float32"
    device: str = "cpu"
    prepend_bos: bool = False
    stream: str | None = None
    column: str | None = None
    analysis: tuple[str, ...] = ("writes",)
    wanted: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    reader: tuple[str, ...] = ()
    token: tuple[str | int, ...] = ()
    token_column: str | None = None
    mean: str | None = None
    mode: str = "frozen"
    top: int = 5
    max_tokens: int | None = None
    memory: int = 64
    shard: int | None = None

    def __post_init__(self) -> None:
        if not self.analysis:
            raise InputError("A batch runs at least one analysis; got none.")
        if self.against and len(self.against) != len(self.wanted):
            raise InputError(
                f"--against stands once for each --for, or not at all; got {len(self.wanted)} and {len(self.against)}.",
                hint='An empty text subtracts nothing: --against "".',
            )
        if self.token and self.token_column:
            raise InputError("--token names one token for all prompts, --token-column one for each; got both.")
        if self.mean not in (None, *MEANS):
            raise InputError(f"A mean is taken by {' or '.join(MEANS)}; got {self.mean!r}.")
        if self.mode not in MODES:
            raise InputError(f"A mode is one of {', '.join(MODES)}; got {self.mode!r}.")
        if self.stream not in (None, "encoder", "decoder"):
            raise InputError(f'A stream is "encoder" or "decoder"; got {self.stream!r}.')
        for name in ("top", "max_tokens", "memory", "shard"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} is at least 1; got {value}.")

    def to_dict(self) -> dict[str, Any]:
        """By the names of the flags, as plain data; what `Settings.of` takes."""
        return {
            flag_of(field.name): list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in fields(self)
        }

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the numbers, apart from the model's weights and the prompts."""
        elsewhere = {flag_of(name) for name in _ELSEWHERE}
        return {name: value for name, value in self.to_dict().items() if name not in elsewhere}

    @classmethod
    def of(cls, given: Mapping[str, Any], *, where: str = "settings") -> "Settings":
        """From names and plain values, as in a file; what is missing has its default.

        Raises:
            InputError: A name that is none, or a value of another kind.
        """
        return cls().changed(given, where=where)

    def changed(self, given: Mapping[str, Any], *, where: str = "settings") -> "Settings":
        """The same with some values replaced, by the names of the flags."""
        known = {flag_of(field.name): field for field in fields(self)}
        new: dict[str, Any] = {}
        for name, value in given.items():
            flag = str(name).replace("_", "-").removeprefix("--")
            if flag not in known:
                near = difflib.get_close_matches(flag, known, n=1)
                hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
                raise InputError(f"{where}: there is no setting {name!r}.", hint=hint)
            field = known[flag]
            new[field.name] = _value(value, str(field.type), f"{where}: {flag}")
        return replace(self, **new)


def read_settings(path: Path) -> dict[str, Any]:
    """The names and values of a YAML or TOML file.

    Raises:
        InputError: It cannot be read, or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path}: cannot be read: {said}.") from error
    kind = path.suffix.lower()
    if kind not in (".toml", ".yaml", ".yml"):
        raise InputError(f"Settings stand in a .yaml or .toml file; got {path.name}.")
    try:
        found = _parsed(text, toml=kind == ".toml")
    except ValueError as error:
        raise InputError(f"{path}: not {kind[1:].upper()}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: settings are names with values; this is a {type(found).__name__}.")
    return found


def _parsed(text: str, *, toml: bool) -> Any:
    import tomllib

    import yaml

    try:
        return tomllib.loads(text) if toml else yaml.safe_load(text) or {}
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(error) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # PyYAML on a value that its tag does not fit: "top: !!bool maybe" is a KeyError
        raise ValueError(f"a value that its tag does not fit ({error})") from error


def flag_of(name: str) -> str:
    """The name of a field's flag and of its line in a file."""
    return _FLAGS.get(name, name.replace("_", "-"))


def _value(value: Any, kind: str, where: str) -> Any:
    """A value of a file as the field's type."""
    if "tuple" in kind:
        items: Sequence[Any] = value if isinstance(value, list | tuple) else [] if value is None else [value]
        allowed = (str, int) if "int" in kind else (str,)
        if wrong := [item for item in items if not isinstance(item, allowed) or isinstance(item, bool)]:
            raise InputError(f"{where} is a text or a list of texts; got {_short(wrong[0])}.")
        return tuple(items)
    if value is None and "None" in kind:
        return None
    expected = bool if "bool" in kind else int if "int" in kind else str
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        words = {bool: "true or false", int: "a whole number", str: "a text"}
        raise InputError(f"{where} is {words[expected]}; got {_short(value)}.")
    return value


def _short(value: Any) -> str:
    if isinstance(value, list | dict):  # which in YAML may hold itself
        return "a list" if isinstance(value, list) else "a mapping"
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:39]}…"
