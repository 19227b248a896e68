"""Runs what a page of the documentation shows, and says where something else comes out.

1. A page is its fenced blocks, in order: Python, console sessions, and files (a block with a title is written down).
2. Python blocks share one namespace. A comment behind an expression, or on the lines right after it, is what it gives:
   its value, or what it prints. After ": " stands commentary.
3. In a console block `$ ` starts a command, and what follows is its output on a terminal of 100 columns. A line `...`
   stands for any lines. Commands of other programs, and the explorer, which runs until it is stopped, are not run.
4. What is shown and what comes out agree if their words are the same and their numbers differ by at most one unit of
   the last digit that is shown. A number below 1e-4 is the size of a rounding: it may be up to ten times as large.
"""

import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\d)")
ROUNDING = 1e-4
BARS = re.compile("[\u2500-\u259f]+")  # rules, and the bars that some tables draw on a terminal
NOT_RUN = ("explore",)


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str


@dataclass(frozen=True)
class Call:
    """A command of a console block and the output that is shown under it."""

    words: tuple[str, ...]
    shown: str

    @property
    def ours(self) -> bool:
        return self.words[0] == "streamlens"


def blocks(page: Path) -> list[Block]:
    return [Block(*found.groups()) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def calls(text: str) -> list[Call]:
    found = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = re.sub(r"\\\n", " ", part).partition("\n")
        found.append(Call(tuple(shlex.split(command, comments=True)), shown.strip("\n")))
    return found


def complaints(page: Path) -> Iterator[str]:
    """Runs a page in the current folder; yields what is shown and does not come out."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            yield from _python(block.text, names, page.name)
        elif block.language == "console":
            for call in calls(block.text):
                if call.ours and call.words[1] not in NOT_RUN:
                    yield from _command(call)


def _command(call: Call) -> Iterator[str]:
    from streamlens.cli import main

    ended = CliRunner().invoke(main, list(call.words[1:]))
    if ended.exit_code:
        yield f"{shlex.join(call.words)}: ends with {ended.exit_code}: {ended.stderr[-300:]}"
    elif call.shown and (said := differs(call.shown, ended.stdout)):
        yield f"{shlex.join(call.words)}: {said}"


def _python(text: str, names: dict[str, Any], page: str) -> Iterator[str]:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        code = compile(ast.unparse(node), page, "exec")
        if not isinstance(node, ast.Expr):
            exec(code, names)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = eval(compile(ast.Expression(node.value), page, "eval"), names)
        if shown := _claim(lines, node):
            got = printed.getvalue() or repr(value)
            if not isinstance(value, str) and not printed.getvalue():
                shown = shown.partition(": ")[0]
            if said := differs(shown, got):
                yield f"{page}: {ast.unparse(node)}: {said}"


def _claim(lines: list[str], node: ast.Expr) -> str:
    """The comment behind an expression, else those on the lines right after it."""
    last = node.end_lineno or 0
    behind = lines[last - 1][node.end_col_offset :].strip()
    if behind.startswith("#"):
        return behind[1:].strip()
    found = []
    for line in lines[last:]:
        if not line.startswith("#"):
            break
        found.append(line[1:].removeprefix(" "))
    return "\n".join(found)


def differs(shown: str, got: str) -> str | None:
    """Where `got` is not what is shown; None where it is."""
    rest = [line for line in map(_plain, got.splitlines()) if line]
    anywhere = False
    for line in (line for line in map(_plain, shown.splitlines()) if line):
        if line == "...":
            anywhere = True
            continue
        near = next((n for n, other in enumerate(rest) if _same(line, other)), None) if anywhere else 0
        if near is None or not rest or not _same(line, rest[near]):
            return f"shown {line!r}, got {rest[:3] if not anywhere else got!r}"
        rest, anywhere = rest[near + 1 :], False
    return f"shown ends before {rest[0]!r}" if rest and not anywhere else None


def _plain(line: str) -> str:
    return " ".join(BARS.sub(" ", line).replace("\N{MINUS SIGN}", "-").split())


def _same(shown: str, got: str) -> bool:
    numbers, others = NUMBER.findall(shown), NUMBER.findall(got)
    words, theirs = NUMBER.split(shown), NUMBER.split(got)
    spaced = [[part.split() for part in parts] for parts in (words, theirs)]
    after = [part.startswith("%") for part in words[1:]]
    return spaced[0] == spaced[1] and all(map(_close, numbers, others, after))


def _close(shown: str, got: str, percent: bool) -> bool:
    mantissa, _, exponent = shown.partition("e")
    value, other = float(shown), float(got)
    if 0 < abs(value) < ROUNDING:
        return abs(other) <= 10 * abs(value)
    digits = len(mantissa.partition(".")[2])
    if not digits and not exponent and not percent and "." not in got:
        return value == other  # counts are counts
    return abs(value - other) <= 1.001 * 10.0 ** (int(exponent or 0) - digits)
