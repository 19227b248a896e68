"""Arguments of another type than a function is written for, refused in one sentence before anything runs.

1. `typed` reads a function's own annotations, once, when it is first called.
2. Every argument is held against its annotation: classes, unions, sequences with what is in them, literals by their
   type. Shapes and ranges are not its business; each function says those itself.
3. What does not fit is an `InputError` that names the argument, what it is, and what was given.

What this cannot judge (a protocol without methods, an annotation that is only there for type checkers) it lets pass.
"""

import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from streamlens.errors import InputError

Given = ParamSpec("Given")
Made = TypeVar("Made")

#: class -> where one comes from
_FROM = {
    "ModelHandle": "streamlens.load(...) gives a model.",
    "Ledger": "streamlens.decompose(model, prompt) gives a ledger.",
    "Reader": 'streamlens.Reader.logit_diff(model, " river", " money") is one, as are the other Reader.* constructors.',
}


def typed(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """The function, which refuses arguments of another type than its annotations."""

    @cache
    def kinds() -> tuple[list[str], dict[str, Any]]:
        parameters = inspect.signature(function).parameters
        named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        found = {name: _evaluated(parameter.annotation, function) for name, parameter in named.items()}
        return [n for n, p in named.items() if p.kind is p.POSITIONAL_OR_KEYWORD], found

    @wraps(function)
    def checking(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        order, known = kinds()
        for name, value in [*zip(order, args, strict=False), *kwargs.items()]:
            kind = known.get(name, Any)
            if not fits(value, kind):
                hint = next((text for word, text in _FROM.items() if word in said(kind)), None)
                raise InputError(f"{name} of {function.__name__}() is {said(kind)}; got {_shown(value)}.", hint=hint)
        return function(*args, **kwargs)

    return checking


def check_fields(made: Any) -> None:
    """Refuses a dataclass, while it is made, whose fields are of another type than its annotations.

    Raises:
        InputError: Such a field.
    """
    for field in dataclasses.fields(made):
        kind, value = _evaluated(field.type, type(made)), getattr(made, field.name)
        if not fits(value, kind):
            raise InputError(f"{field.name} of {type(made).__name__}() is {said(kind)}; got {_shown(value)}.")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is what an annotation says, as far as this can be told without a shape."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inside)
    if origin is Literal:
        return any(type(value) is type(each) for each in inside)
    if kind is None or kind is type(None):
        return value is None
    if kind in (int, float):  # numpy's numbers count, truth values do not
        return (
            not isinstance(value, bool)
            and hasattr(value, "__index__" if kind is int else "__float__")
            and _scalar(value)
        )
    if origin is tuple:
        if not isinstance(value, tuple) or (len(inside) != len(value) and inside[-1] is not Ellipsis):
            return False
        return all(fits(v, inside[0 if inside[-1] is Ellipsis else n]) for n, v in enumerate(value))
    if origin in (Sequence, Collection, Iterable):
        if type(value).__name__ == "ndarray":
            value = value.tolist()
        if not isinstance(value, origin):
            return False
        if isinstance(value, str):
            return fits(value[:1], inside[0])
        return not isinstance(value, Sequence) or all(fits(v, inside[0]) for v in value)
    kind = getattr(kind, "array_type", origin or kind)  # jaxtyping's annotations know their array's class
    try:
        return isinstance(value, kind)
    except TypeError:  # Any, type variables, protocols that cannot be asked
        return True


def said(kind: Any) -> str:
    """An annotation in words."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        words = list(dict.fromkeys(said(each) for each in inside))
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is Literal:
        return " or ".join(repr(each) for each in inside)
    if kind is None or kind is type(None):
        return "None"
    if origin in (Sequence, Collection, Iterable):
        return f"several ({said(inside[0])})"
    if origin is tuple:
        return f"a pair ({said(inside[0])})" if len(inside) == 2 and inside[1] is not Ellipsis else "a tuple"
    if origin is Mapping:
        return "a mapping"
    if kind in (bool, int, float, str):
        return {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}[kind]
    found = getattr(kind, "array_type", origin or kind)
    return f"a {getattr(found, '__name__', found)}"


def _scalar(value: Any) -> bool:
    """A number, and no array or tensor."""
    return not hasattr(value, "shape") or (type(value).__module__ == "numpy" and value.shape == ())


def _evaluated(annotation: Any, function: Callable) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[function.__module__]))
    except NameError:  # a name that only type checkers see
        return Any


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return f"{type(value).__name__} {value!r}"[:80] if value is not None else "None"
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} of {type(value[0]).__name__}"
    return f"{'an empty ' if isinstance(value, list | tuple | dict) and not value else 'a '}{type(value).__name__}"
