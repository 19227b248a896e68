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
Where a peer is as fast or faster:

* nnsight's trace keeps references to the outputs of modules. It does not copy them, sum them or compare the sum with
  the stream, which is most of what `decompose` costs over a bare forward.
* A capture that costs a bare forward and nothing else would still not be 1.8 times faster than transformer-lens where
  its three calls take less than 1.8 bare forwards. `keep_logits=False` leaves the unembedding out, which is a fifth of
  this model, and gives the same attributions.
* A loop's peak memory is that of one run; a sweep holds the variants of a batch and all their writes, within the
  memory it is given."""


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
        sections.append(f"## {name.capitalize()}\n\n{title}.\n\n{table.lines(module.COLUMNS, rows)}")
    setting = ", ".join(f"{name} {value}" for name, value in noted.items() if name != "minutes")
    return PAGE.format(
        minutes=noted["minutes"],
        setting=setting[0].upper() + setting[1:],
        targets=targets(tables, parts),
        notes=NOTES,
        tables="\n\n".join(sections),
    )


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
