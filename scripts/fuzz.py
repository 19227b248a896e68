"""Fuzzing: feeds what reads texts and files with inputs that nobody would write; only our own errors may come back.

    python scripts/fuzz.py all --jobs 2
    python scripts/fuzz.py readers --inputs 100000 --seed 7 --json out.json

1. Each target runs in a process of its own with a limit on its memory, one thread, and no hub.
2. It notes every input before it is fed, so that one that kills the process is known.
3. Exit code 1 if anything crashed: an error that is not ours, a process that died, an input that took 20 seconds of
   processor time.
"""

import json
import multiprocessing
import os
import pickle
import queue
import resource
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import click  # noqa: E402

from fuzz import TARGETS, target  # noqa: E402

#: bytes a target may take beside what it has when it starts: a length that a broken file claims ends in a MemoryError
MEMORY = 4 << 30
COLUMNS = ("target", "inputs", "accepted", "refused", "crashes", "CPU seconds")


@click.command()
@click.argument("name", type=click.Choice(["all", *TARGETS]))
@click.option("--inputs", default=100_000, show_default=True, type=click.IntRange(min=1), help="For each target.")
@click.option("--only", multiple=True, type=click.Choice(TARGETS), help="Of all, only this target. Repeatable.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Targets at the same time.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same inputs.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures and crashes there.")
def main(name: str, inputs: int, only: tuple[str, ...], jobs: int, seed: int, json_path: Path | None) -> None:
    """Feeds one target, or all of them, and prints what came of it."""
    names = (name,) if name != "all" else only or TARGETS
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda each: in_a_process(each, inputs, seed), names))
    if json_path is not None:
        json_path.write_text(json.dumps({"seed": seed, "targets": found}, indent=1) + "\n", encoding="utf-8")
    click.echo(
        "\n".join(["| " + " | ".join(COLUMNS) + " |", "| --- | --- | --- | --- | --- | --- |", *map(row, found)])
    )
    for tally in found:
        for crash in tally["crashes"]:
            click.echo(f"\n{tally['target']}: {crash['place']}, {crash['count']} times\n{crash['input'][:2000]}")
            click.echo(crash["traceback"])
    sys.exit(1 if any(tally["crashes"] for tally in found) else 0)


def row(tally: dict[str, Any]) -> str:
    """One line of the table."""
    refused = ", ".join(f"{count:,} {error}" for error, count in sorted(tally["refused"].items(), key=lambda e: -e[1]))
    crashes = sum(crash["count"] for crash in tally["crashes"])
    cells = (
        tally["target"],
        f"{tally['inputs']:,}",
        f"{tally['accepted']:,}",
        refused or "0",
        crashes,
        f"{tally['seconds']:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def in_a_process(name: str, inputs: int, seed: int) -> dict[str, Any]:
    """The tally of one target; where its process dies, the input it died of is the one crash."""
    spawned = multiprocessing.get_context("spawn")
    answers = spawned.Queue()
    with tempfile.NamedTemporaryFile() as note:
        child = spawned.Process(target=run, args=(name, inputs, seed, note.name, answers))
        child.start()
        while True:
            try:
                tally = answers.get(timeout=1)
                child.join()
                click.echo(f"{name}: {tally['inputs']:,} inputs", err=True)
                return tally
            except queue.Empty:
                if not child.is_alive() and answers.empty():
                    break
        fed, given = pickle.load(note) if os.path.getsize(note.name) else (0, None)
    crash = {"place": f"the process ended with {child.exitcode}", "count": 1, "input": repr(given), "traceback": ""}
    return {"target": name, "inputs": fed, "accepted": 0, "refused": {}, "crashes": [crash], "seconds": 0.0}


def run(name: str, inputs: int, seed: int, note: str, answers: Any) -> None:
    """One target, in the process that is its own."""
    from fuzz.drive import run as drive

    about = target(name)  # with its model, before the memory is limited
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, resource.RLIM_INFINITY))
    file = os.open(note, os.O_WRONLY)
    count = 0

    def watch(given: Any) -> None:
        nonlocal count
        count += 1
        os.pwrite(file, pickle.dumps((count, given)), 0)

    answers.put(drive(about, inputs, start=seed, watch=watch).to_dict())


if __name__ == "__main__":
    main()
