"""Benchmarks: what streamlens costs beside a bare forward and beside others, in one run.

bash scripts/peers.sh                                   # once: nnsight and interpkit, in an environment of their own
python scripts/bench.py all --json out.json             # everything, with the targets
python scripts/bench.py capture --tokens 10,128,512
python scripts/bench.py sweep --peers ''                # without nnsight and interpkit
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import torch
import transformers
from benchmarks import accuracy, batch, capture, dla, load, memory, page, scaling, sweep, table
from benchmarks.peers import NAMES, Peer, environment, started
from benchmarks.subject import folder_of, setting

import streamlens

SHARE = "Of the loop every so many-th run is timed and the time multiplied; 1 times all."
#: each table: its module, and what stands over it
PARTS: dict[str, tuple[ModuleType, str]] = {
    "capture": (capture, "Capture: medians with quartiles; ratios taken within each round"),
    "dla": (dla, "From a prompt to direct logit attribution: medians with quartiles; ratios taken within each round"),
    "memory": (memory, "Memory: resident bytes over those of the loaded model; writes and logits: their own size"),
    "sweep": (sweep, "Sweeps: ratios taken within each round; ours with the clean run, effects and responses"),
    "batch": (batch, "Batches: throughput of the run as a share of the bare forward's, of all shards and by quartiles"),
    "load": (load, "Starting: medians with quartiles; ratios taken within each round"),
    "scaling": (scaling, "Scaling: medians with quartiles; the exponent is fitted over the upper half of the numbers"),
    "accuracy": (accuracy, "Accuracy: the largest closing error of each level, relative, in float32"),
}


@dataclass(frozen=True)
class Subject:
    """What is measured, and beside what.

    Attributes:
        model: A name, or a local folder.
        dtype: The model's.
        peers: Names of the peers that have processes of their own.
        json_path: Where all figures go.
    """

    model: str
    dtype: str
    peers: tuple[str, ...]
    json_path: Path | None

    @cached_property
    def handle(self) -> Any:
        return streamlens.load(self.model, dtype=self.dtype)

    def processes(self) -> AbstractContextManager[dict[str, Peer]]:
        """The peers with the model loaded; they end with the block."""
        return started(self.peers, folder_of(self.handle), self.dtype, torch.get_num_threads())

    def setting(self) -> dict[str, Any]:
        return setting(self.handle) | page.peer_versions(self.peers)


def measured(*, beside: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a table, which stands `beside` the peers or not; the command gets a `Subject` first."""

    def options_of(command: Callable[..., None]) -> Callable[..., None]:
        def run(
            model: str, dtype: str, threads: int | None, json_path: Path | None, peers: str = "", **options: Any
        ) -> None:
            transformers.utils.logging.disable_progress_bar()
            transformers.logging.set_verbosity_error()
            if threads:
                torch.set_num_threads(threads)
            names = tuple(name for name in peers.split(",") if name)
            if names:
                try:
                    environment()
                except FileNotFoundError as error:
                    raise click.ClickException(str(error)) from error
            command(Subject(model, dtype, names, json_path), **options)

        run.__doc__ = command.__doc__
        run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
        given = [
            click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures there."),
            click.option("--threads", type=click.IntRange(min=1), help="torch's threads; by default its own choice."),
            click.option("--dtype", default="float32", show_default=True),
            click.option("--model", "-m", default="smollm2-135m", show_default=True, help="A name, or a local folder."),
        ]
        if beside:
            names = ",".join(NAMES)
            given.insert(0, click.option("--peers", default=names, show_default=True, help="Which of them, or ''."))
        for option in given:
            run = option(run)
        return run

    return options_of


def numbers(text: str) -> list[int]:
    """`10,128,512` as numbers."""
    return [int(number) for number in text.split(",") if number]


@click.group()
def main() -> None:
    """Figures that depend on the machine, each beside what it is to be compared with."""


@main.command("capture")
@click.option("--tokens", default="10,128,512", show_default=True, help="Lengths of the prompt, with commas.")
@click.option("--rounds", type=click.IntRange(min=1), help="By default 60 at 10 tokens, fewer where they are longer.")
@measured(beside=True)
def capture_command(subject: Subject, tokens: str, rounds: int | None) -> None:
    """Time of a bare forward, of decompose, and of the peers' ways to the same tensors."""
    with subject.processes() as peers:
        report("capture", subject, capture.measure(subject.handle, numbers(tokens), rounds, peers))


@main.command("dla")
@click.option("--tokens", default="10,128,512", show_default=True, help="Lengths of the prompt, with commas.")
@click.option("--rounds", type=click.IntRange(min=1), help="By default 30 at 10 tokens, fewer where they are longer.")
@measured(beside=True)
def dla_command(subject: Subject, tokens: str, rounds: int | None) -> None:
    """Time from a prompt to direct logit attribution."""
    with subject.processes() as peers:
        report("dla", subject, dla.measure(subject.handle, numbers(tokens), rounds, peers))


@main.command("memory")
@click.option("--tokens", default="512,2000", show_default=True, help="Lengths of the prompt, with commas.")
@measured(beside=True)
def memory_command(subject: Subject, tokens: str) -> None:
    """Peak memory of the same, over what the loaded model takes; every row in a fresh process."""
    report("memory", subject, memory.measure(subject.model, subject.dtype, numbers(tokens), subject.peers))


@main.command("sweep")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--share", default=6, show_default=True, type=click.IntRange(min=1), help=SHARE)
@click.option("--only", default="", help="Parts whose name starts so: sublayers, heads, 'sublayers, every'.")
@measured(beside=True)
def sweep_command(subject: Subject, rounds: int, share: int, only: str) -> None:
    """Time and memory of switching every branch off, beside the peers' loops."""
    with subject.processes() as peers:
        report("sweep", subject, swept(subject, peers, rounds=rounds, share=share, only=only))


@main.command("heads")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--share", default=6, show_default=True, type=click.IntRange(min=1), help=SHARE)
@measured(beside=True)
def heads_command(subject: Subject, rounds: int, share: int) -> None:
    """The heads' part of `sweep`."""
    with subject.processes() as peers:
        report("sweep", subject, swept(subject, peers, rounds=rounds, share=share, only="heads"))


@main.command("batch")
@click.option("--prompts", default=2000, show_default=True, type=click.IntRange(min=1))
@click.option("--peaks", default="200,2000", show_default=True, help="Peak memory over so many prompts, with commas.")
@measured(beside=False)
def batch_command(subject: Subject, prompts: int, peaks: str) -> None:
    """Throughput of `streamlens run` beside bare forwards of the same batches, and its peak memory."""
    report("batch", subject, batch.measure(subject.handle, prompts, numbers(peaks)))


@main.command("load")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@measured(beside=True)
def load_command(subject: Subject, rounds: int) -> None:
    """Time of whole commands, and of loading a model."""
    report("load", subject, load.measure(subject.handle, rounds, subject.peers))


@main.command("scaling")
@click.option(
    "--longest", default=2048, show_default=True, type=click.IntRange(min=10), help="Of the prompts, in tokens."
)
@click.option("--rounds", type=click.IntRange(min=1), help="By default 5 for tokens, 9 for the others.")
@measured(beside=False)
def scaling_command(subject: Subject, longest: int, rounds: int | None) -> None:
    """How the cost grows with tokens, layers, prompts and branches."""
    report("scaling", subject, scaling.measure(subject.handle, longest=longest, rounds=rounds))


@main.command("accuracy")
@click.option("--whole-zoo/--ten", default=True, show_default=True, help="Ours on every architecture, or on ten.")
@measured(beside=True)
def accuracy_command(subject: Subject, whole_zoo: bool) -> None:
    """The largest closing error of each level and tool."""
    with subject.processes() as peers:
        report("accuracy", subject, accuracy.measure(subject.handle, peers, whole_zoo=whole_zoo))


@main.command("all")
@click.option("--page", "page_path", type=click.Path(path_type=Path), help="Write the documentation's page there.")
@measured(beside=True)
def all_command(subject: Subject, page_path: Path | None) -> None:
    """Every table, and which targets are met."""
    began, handle = time.monotonic(), subject.handle
    with subject.processes() as peers:
        tables = {
            "capture": capture.measure(handle, [10, 128, 512], None, peers),
            "dla": dla.measure(handle, [10, 128, 512], None, peers),
            "sweep": swept(subject, peers, rounds=3, share=6),
            "scaling": scaling.measure(handle, longest=2048, rounds=3),
            "accuracy": accuracy.measure(handle, peers, whole_zoo=True),
        }
    tables["load"] = load.measure(handle, 5, subject.peers)
    tables["batch"] = batch.measure(handle, 1000, [200, 1000])
    tables["memory"] = memory.measure(subject.model, subject.dtype, [512, 2000], subject.peers)
    noted = subject.setting() | {"minutes": round((time.monotonic() - began) / 60, 1)}
    for name in PARTS:
        click.echo(shown(name, noted, tables[name]) + "\n")
    click.echo(page.targets(tables, PARTS))
    if subject.json_path is not None:
        table.write_json(subject.json_path, "all", noted, tables)
    if page_path is not None:
        page_path.write_text(page.make(noted, tables, PARTS), encoding="utf-8")


def swept(subject: Subject, peers: dict[str, Peer], *, rounds: int, share: int, only: str = "") -> list[dict[str, Any]]:
    """The rows of `sweep`, of the parts whose name starts so."""
    parts = [part for part in sweep.PARTS if part.name.startswith(only)]
    return sweep.measure(subject.handle, parts, rounds, share, subject.dtype, peers)


def shown(name: str, noted: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """A table as text."""
    module, title = PARTS[name]
    return table.show(title, noted, module.COLUMNS, [module.cells(row) for row in rows])


def report(name: str, subject: Subject, rows: list[dict[str, Any]]) -> None:
    """Prints the table, and writes the file if one is asked for."""
    noted = subject.setting()
    click.echo(shown(name, noted, rows))
    if subject.json_path is not None:
        table.write_json(subject.json_path, name, noted, rows)


if __name__ == "__main__":
    main()
