"""The page of the documentation that a run of `bench.py all` writes: the targets first, then every table."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from benchmarks import table
from benchmarks.peers import environment

PAGE = """\
# Measured against the others

Written by one run of

```text
bash scripts/peers.sh
python scripts/bench.py all --json out.json --page docs/benchmarks.md
```

which took {minutes} minutes. {setting}.

Times depend on the machine, so every figure stands beside what it is to be compared with: all ways to one result take
turns in one run, on the same weights, prompt, dtype and number of threads, and a ratio is taken within a round. A
figure is a median, with its quartiles. transformer-lens runs in streamlens' own process; nnsight and interpkit run in
processes of their own, with an environment of their own, and measure themselves. transformer-lens' bridge needs eager
attention; the others run the model as transformers loads it.

## Targets

{targets}

{notes}

{tables}
"""

NOTES = """\
Where a target is missed, or a peer is as fast or faster:

* **Capture at 10 tokens.** What `decompose` adds to a forward is about 3 ms here, whatever the model: 0.7 ms are the
  hooks and their copies, the rest is Python around the forward: tokens and their texts, 63 hooks put on and taken off,
  the additions repeated in the model's order, the sum in float64. nnsight's trace keeps references to the modules'
  outputs; it copies, sums and compares nothing, and costs about the same.
* **Capture at 512 tokens.** Alone with a bare forward it was 1.026, and in the next table the same call with
  attribution on top, among other neighbours, is 1.02. The 165 MiB of writes and logits are fresh pages in every call,
  which probably cost more right after transformer-lens has given 1.4 GiB back to the system; that was not pinned down.
* **Attribution.** transformer-lens' three calls take 1.2 to 1.7 bare forwards here, so not even a capture that cost
  nothing would be 1.8 times faster. `keep_logits=False` leaves the unembedding out, a fifth of this model, and gives
  the same attributions: "without logits" is that call. (`logit_attrs` on a bridge as it is booted also leaves out the
  final norm's gain, see [beside transformer-lens](parity.md).)
* **Memory at 512 tokens.** Ours is what was asked for, 96 MiB of logits and 69 of writes, and 5 MiB of the forward's
  own. Without logits it is 69 MiB.
* **Loading.** `streamlens.load` runs three short forwards to find and prove the wiring; transformer-lens' adapters are
  written by hand. A whole command is faster than a transformer-lens script all the same.
* **Sweeps.** A loop's peak memory is that of one run; a sweep holds a batch of variants with all their writes."""

#: the first column of each table that is a figure; what stands before it says which row it is
_FIGURES = ("ms", "s", "peak MiB", "tokens/s", "sublayers")


def peer_versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of the peers that have an environment of their own."""
    if not names:
        return {}
    script = f"from importlib.metadata import version\nfor name in {list(names)!r}: print(name, version(name))"
    done = subprocess.run([str(environment()), "-c", script], capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def targets(tables: Mapping[str, Sequence[dict[str, Any]]], parts: Mapping[str, tuple[ModuleType, str]]) -> str:
    """Every row that has a target, from all tables."""
    rows = list(_targets(tables, parts))
    missed = sum(row[-1] == "NO" for row in rows)
    title = f"{len(rows) - missed} of {len(rows)} targets met"
    return table.show(title, {}, ("table", "row", "measured", "target", "met"), rows)


def make(
    noted: Mapping[str, Any],
    tables: Mapping[str, Sequence[dict[str, Any]]],
    parts: Mapping[str, tuple[ModuleType, str]],
) -> str:
    """The page."""
    sections = []
    for name, (module, title) in parts.items():
        rows = [module.cells(row) for row in tables[name]]
        sections.append(f"## {heading(name)}\n\n{title}.\n\n{table.lines(module.COLUMNS, rows)}")
    setting = ", ".join(f"{name} {value}" for name, value in noted.items() if name != "minutes")
    return PAGE.format(
        minutes=noted["minutes"],
        setting=setting[0].upper() + setting[1:],
        targets=targets(tables, parts),
        notes=NOTES,
        tables="\n\n".join(sections),
    )


def heading(name: str) -> str:
    """What stands over a table on the page."""
    return {"dla": "Direct logit attribution", "load": "Starting"}.get(name, name.capitalize())


def _targets(
    tables: Mapping[str, Sequence[dict[str, Any]]], parts: Mapping[str, tuple[ModuleType, str]]
) -> Iterator[list[str]]:
    for name, (module, _) in parts.items():
        columns = module.COLUMNS
        for row in tables[name]:
            if row.get("met") is None:
                continue
            cells = module.cells(row)
            labels = cells[: next(n for n, column in enumerate(columns) if column in _FIGURES)]
            target, met = cells[columns.index("target")], cells[columns.index("met")]
            yield [name, ", ".join(labels), module.measured(row), target, met]
