"""Running prompts one after another: progress on a terminal, what becomes of a prompt that fails, the exit code."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamlens.cli.options import ModelChoice, Output
from streamlens.cli.output import Result, busy, console, emit, note
from streamlens.cli.prompts import Prompt
from streamlens.errors import StreamlensError

#: seconds between two lines of progress where there is no terminal for a bar
EVERY = 5.0


def load_model(choice: ModelChoice, *, quiet: bool) -> Any:
    """The handle of the chosen model; what takes long is said on standard error."""
    with busy(f"loading {choice.model}", quiet=quiet) as log:
        from streamlens.models.load import load

        return load(choice.model, device=choice.device, dtype=choice.dtype, log=log)


def answer(
    prompts: Sequence[Prompt], work: Callable[[int, Prompt], Result], out: Output, *, html: Path | None = None
) -> int:
    """`work` on every prompt, and the results written as `out` says; the exit code.

    A prompt that fails is named on standard error and the others go on; the only one raises.

    Args:
        prompts: The prompts.
        work: From a prompt's number and the prompt to its result.
        out: Where and how the results are written.
        html: The page that `work` has written; None for none.
    """
    results, failed = _each(prompts, work, quiet=out.quiet)
    emit(results, out, many=len(prompts) > 1)
    if html is not None:
        note(f"wrote {html}", quiet=out.quiet)
    return 1 if failed else 0


def _each(prompts: Sequence[Prompt], work: Callable[[int, Prompt], Result], *, quiet: bool) -> tuple[list[Result], int]:
    """The results, and how many prompts failed."""
    results: list[Result] = []
    failed = 0
    if len(prompts) == 1:
        return [work(0, prompts[0])], 0
    for number, prompt in _watched(prompts, quiet=quiet):
        try:
            results.append(work(number, prompt))
        except StreamlensError as error:
            failed += 1
            note(f"error: {prompt.where}: {error}")
    if failed:
        note(f"{failed} of {len(prompts)} prompts failed")
    return results, failed


def _watched(prompts: Sequence[Prompt], *, quiet: bool) -> Iterator[tuple[int, Prompt]]:
    """The numbered prompts, on a terminal under a bar."""
    if quiet or not sys.stderr.isatty():
        yield from enumerate(prompts)
        return
    with counted("prompts", quiet=False) as progress:
        for number, prompt in enumerate(prompts):
            progress(number, len(prompts))
            yield number, prompt


@contextmanager
def counted(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Counts done of total: a bar with rate and time left on a terminal, else a line every few seconds."""
    if quiet:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        last = [time.monotonic()]

        def line(done: int, total: int) -> None:
            now = time.monotonic()
            if done == total or now - last[0] >= EVERY:
                last[0] = now
                note(f"{done} of {total} {what}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    rate = TextColumn("{task.fields[rate]}")
    shown = console(sys.stderr, terminal=True)
    with Progress(*columns, rate, TimeRemainingColumn(), console=shown, transient=True) as bar:
        task = bar.add_task(what, total=None, rate="")

        def move(done: int, total: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, total=total, rate=f"{speed:.1f}/s" if speed else "")

        yield move
