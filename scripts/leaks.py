"""What a thousand calls leave behind: resident memory, hooks, live tensors, live objects.

    python scripts/leaks.py --calls 1000 --json leaks.json

1. Each row is a process of its own: a model, `--warm` calls that fill every cache, a count, then calls up to `--calls`,
   and the count again; memory is measured half-way, too. `tests/public_calls.py` holds the calls,
   `tests/left_behind.py` counts.
2. All calls are made on a tiny llama, and `decompose` and `ablate` on the default model as well.
3. Hooks and tensors may not grow at all, objects by less than one in ten calls, memory in the second half by less than
   1 MiB. In the first half the allocator's pools still fill, by 0.2 MiB for a bare forward and up to 2 MiB for calls of
   many tensors; one kept result a call is tens of MiB on the tiny model.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

BANK = "After crossing the river, she rested on the bank"
ON_THE_DEFAULT = ("decompose", "ablate")
COLUMNS = ["call", "model", "calls", "MiB", "half-way", "at the end", "bytes per call", "hooks", "tensors", "objects"]
#: MiB by which memory may grow in the second half of the calls
FLAT = 1.0


@click.command()
@click.option("--calls", type=click.IntRange(min=2), default=1000, show_default=True, help="Calls in all.")
@click.option("--warm", type=click.IntRange(min=1), default=100, show_default=True, help="Of these, before the count.")
@click.option("--only", multiple=True, help="These calls alone.")
@click.option("--default/--no-default", default=True, help="Also on the default model.")
@click.option("--plant", is_flag=True, hidden=True, help="Keep every result: what a leak looks like.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows here too.")
@click.option("--row", nargs=2, hidden=True, help="Measure one call in this process.")
def main(
    calls: int, warm: int, only: tuple[str, ...], default: bool, plant: bool, out: Path | None, row: tuple[str, str]
) -> None:
    """Makes every public call many times and counts what is left."""
    from public_calls import CALLS

    if warm >= calls:
        raise click.UsageError(f"--warm is below --calls; got {warm} and {calls}.")
    if wrong := set(only) - set(CALLS):
        raise click.UsageError(f"The calls are {', '.join(CALLS)}; got {', '.join(sorted(wrong))}.")
    if row:
        click.echo(json.dumps(measured(*row, calls=calls, warm=warm, plant=plant)))
        return
    names = [name for name in CALLS if not only or name in only]
    asked = [(name, "tiny llama") for name in names]
    asked += [(name, "smollm2-135m") for name in ON_THE_DEFAULT if default and name in names]
    rows = []
    for name, model in asked:
        command = [sys.executable, __file__, "--row", name, model, "--calls", str(calls), "--warm", str(warm)]
        made = subprocess.run(
            [*command, *(["--plant"] if plant else [])], stdout=subprocess.PIPE, text=True, check=True
        )
        rows.append(json.loads(made.stdout))
        click.echo(f"{name} ({model})", err=True)
    from benchmarks.table import show, write_json

    setting = {name: version(name) for name in ("streamlens", "torch", "transformers")} | {
        "python": sys.version.split()[0]
    }
    click.echo(show("What calls leave behind", setting, COLUMNS, [cells(each) for each in rows]))
    if out is not None:
        write_json(out, "leaks", setting, rows)
    if bad := [f"{each['call']} ({each['model']})" for each in rows if leaks(each)]:
        click.echo(f"Something is left behind by {', '.join(bad)}.", err=True)
        sys.exit(1)


def measured(name: str, model: str, *, calls: int, warm: int, plant: bool) -> dict:
    """One row."""
    import streamlens
    from left_behind import Left, resident
    from public_calls import CALLS, Subject, tiny

    if model == "tiny llama":
        subject = tiny()
    else:
        handle = streamlens.load(model)
        reader = streamlens.Reader.logit_diff(handle, " river", " money")
        subject = Subject(model=handle, reader=reader, prompt=BANK, other=BANK, token=" bank")
    kept = []
    for _ in range(warm):
        CALLS[name](subject)
    counts, memory = Left.now(subject.model.model), resident()
    half = memory
    for number in range(warm, calls):
        result = CALLS[name](subject)
        if plant:
            kept.append(result)
        if number == (warm + calls) // 2:
            result, half = None, resident()
    result = None
    later, after = Left.now(subject.model.model), resident()
    left = later - counts
    return {
        "call": name,
        "model": model,
        "calls": calls,
        "counted": calls - warm,
        "before": memory,
        "half": half,
        "after": after,
        "hooks": left.hooks,
        "tensors": left.tensors,
        "objects": left.objects,
    }


def leaks(row: dict) -> bool:
    """Whether a row says that something is left behind."""
    grown = row["objects"] > max(20, row["counted"] / 10)
    return row["hooks"] != 0 or row["tensors"] > 0 or grown or row["after"] - row["half"] > FLAT


def cells(row: dict) -> list[str]:
    slope = (row["after"] - row["half"]) * 2**20 / (row["counted"] / 2)
    memory = [f"{row[when]:.2f}" for when in ("before", "half", "after")] + [f"{slope:+.0f}"]
    counts = [f"{row[name]:+d}" for name in ("hooks", "tensors", "objects")]
    return [row["call"], row["model"], str(row["calls"]), *memory, *counts]


if __name__ == "__main__":
    main()
