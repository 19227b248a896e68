"""Benchmarks: what streamlens costs beside a bare forward and beside others, in one run.

python scripts/bench.py capture --tokens 10,128,512 --json capture.json
python scripts/bench.py memory --tokens 2000
python scripts/bench.py sweep --json sweep.json
python scripts/bench.py batch --prompts 2000 --json batch.json
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from benchmarks import batch, capture, memory, subject, sweep, table

import streamlens

SHARE = "Of the loop every so many-th run is timed and the time multiplied; 1 times all."


def common(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every table has."""
    for option in (
        click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures there."),
        click.option("--threads", type=click.IntRange(min=1), help="torch's threads; by default its own choice."),
        click.option("--dtype", default="float32", show_default=True),
        click.option("--model", "-m", default="smollm2-135m", show_default=True, help="A name, or a local folder."),
    ):
        command = option(command)
    return command


@click.group()
def main() -> None:
    """Figures that depend on the machine, each beside what it is to be compared with."""


@main.command("capture")
@click.option("--tokens", default="10,128,512", show_default=True, help="Lengths of the prompt, with commas.")
@click.option("--rounds", type=click.IntRange(min=1), help="By default 60 at 10 tokens, fewer where they are longer.")
@common
def capture_command(
    tokens: str, rounds: int | None, model: str, dtype: str, threads: int | None, json_path: Path | None
) -> None:
    """Time of a bare forward, of decompose, and of transformer-lens' run_with_cache."""
    if threads:
        torch.set_num_threads(threads)
    handle = streamlens.load(model, dtype=dtype)
    rows = capture.measure(handle, [int(length) for length in tokens.split(",")], rounds)
    title = "Capture: medians with quartiles; ratios taken within each round"
    report("capture", title, subject.setting(handle), capture.COLUMNS, rows, capture.cells, json_path)


@main.command("memory")
@click.option("--tokens", default=2000, show_default=True, type=click.IntRange(min=1), help="Length of the prompt.")
@common
def memory_command(tokens: int, model: str, dtype: str, threads: int | None, json_path: Path | None) -> None:
    """Peak memory of the same, over what the loaded model takes; every row in a fresh process."""
    setting, rows = memory.measure(model, dtype, tokens, threads)
    title = "Memory: resident bytes over those of the loaded model; writes and logits: what was asked for takes"
    report("memory", title, setting, memory.COLUMNS, rows, memory.cells, json_path)


@main.command("sweep")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--share", default=6, show_default=True, type=click.IntRange(min=1), help=SHARE)
@click.option("--only", help="Parts whose name starts so: sublayers, heads, 'sublayers, every'.")
@common
def sweep_command(
    rounds: int, share: int, only: str | None, model: str, dtype: str, threads: int | None, json_path: Path | None
) -> None:
    """Time and memory of switching every branch off, beside a loop of transformer-lens' run_with_hooks."""
    if threads:
        torch.set_num_threads(threads)
    handle = streamlens.load(model, dtype=dtype)
    parts = [part for part in sweep.PARTS if part.name.startswith(only or "")]
    rows = sweep.measure(handle, parts, rounds, share, dtype)
    title = "Sweeps: medians with quartiles; ratios taken within each round; ours with the clean run and all results"
    report("sweep", title, subject.setting(handle), sweep.COLUMNS, rows, sweep.cells, json_path)


@main.command("batch")
@click.option("--prompts", default=2000, show_default=True, type=click.IntRange(min=1))
@click.option("--peaks", default="200,2000", show_default=True, help="Peak memory over so many prompts, with commas.")
@common
def batch_command(
    prompts: int, peaks: str, model: str, dtype: str, threads: int | None, json_path: Path | None
) -> None:
    """Throughput of `streamlens run` beside bare forwards of the same batches, and its peak memory."""
    if threads:
        torch.set_num_threads(threads)
    handle = streamlens.load(model, dtype=dtype)
    rows = batch.measure(handle, prompts, [int(count) for count in peaks.split(",") if count])
    title = "Batches: throughput of the run as a share of the bare forward's, of all shards and with their quartiles"
    report("batch", title, subject.setting(handle), batch.COLUMNS, rows, batch.cells, json_path)


@main.command("heads")
@click.pass_context
def heads_command(context: click.Context) -> None:
    """The heads' part of `sweep`."""
    context.invoke(sweep_command, rounds=5, share=6, only="heads", model="smollm2-135m", dtype="float32")


def report(
    command: str,
    title: str,
    setting: dict[str, Any],
    columns: tuple[str, ...],
    rows: list[dict[str, Any]],
    cells: Callable[[dict[str, Any]], list[str]],
    json_path: Path | None,
) -> None:
    """Prints the table, and writes the file if one is asked for."""
    click.echo(table.show(title, setting, columns, [cells(row) for row in rows]))
    if json_path is not None:
        table.write_json(json_path, command, setting, rows)


if __name__ == "__main__":
    main()
