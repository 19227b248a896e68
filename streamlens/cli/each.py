"""Running prompts one after another: progress on a terminal, and what becomes of a prompt that fails."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from streamlens.cli.options import ModelChoice
from streamlens.cli.output import Result, busy, console, note
from streamlens.cli.prompts import Prompt
from streamlens.errors import StreamlensError


def load_model(choice: ModelChoice, *, quiet: bool) -> Any:
    """The handle of the chosen model; what takes long is said on standard error."""
    with busy(f"loading {choice.model}", quiet=quiet) as log:
        from streamlens.models.load import load

        return load(choice.model, device=choice.device, dtype=choice.dtype, log=log)


def each(prompts: Sequence[Prompt], work: Callable[[int, Prompt], Result], *, quiet: bool) -> tuple[list[Result], int]:
    """`work` on every prompt: the results, and how many prompts failed.

    A prompt that fails is named on standard error and the others go on; the only one raises.
    """
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


def _watched(prompts: Sequence[Prompt], *, quiet: bool) -> Any:
    """The numbered prompts, on a terminal under a bar: done, total, rate, time left."""
    if quiet or not sys.stderr.isatty():
        return enumerate(prompts)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    def watched() -> Any:
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        rate = TextColumn("{task.fields[rate]}")
        shown = console(sys.stderr, terminal=True)
        with Progress(*columns, rate, TimeRemainingColumn(), console=shown, transient=True) as progress:
            task = progress.add_task("prompts", total=len(prompts), rate="")
            for number, prompt in enumerate(prompts):
                yield number, prompt
                speed = progress.tasks[0].speed
                progress.update(task, advance=1, rate=f"{speed:.1f}/s" if speed else "")

    return watched()
