"""Compares streamlens' numbers with transformer-lens', both against the model's own, and writes docs/parity.md.

    python scripts/parity.py                      # print the table
    python scripts/parity.py --json parity.json   # and every figure
    python scripts/parity.py --write              # and docs/parity.md

1. `beside/by_hand.py` gets each number from the model itself, in float64, with hooks of its own: the arbiter.
2. `beside/ours.py` and `beside/theirs.py` get it from the two packages.
3. `beside/cells.py` says who is how far from the model; `beside/page.py` writes it down.
"""

import json
import os
import sys
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # no model and no tokenizer is asked for
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import click
import torch
import transformers
from beside import cells, page, subject
from beside.meanings import meanings
from beside.names import BY_ENTRY

import zoo_bridge

SENTENCE = "After crossing the river, she rested on the bank"


@click.command()
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every figure there.")
@click.option("--write", is_flag=True, help="Write docs/parity.md.")
def main(json_path: Path | None, write: bool) -> None:
    """About a minute on one core, 5 GiB of memory."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found: list[cells.Cell] = []
    wirings = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = zoo_bridge.tokenizer(folder)
        default = subject.default(SENTENCE, " river", " money")
        for name in ("", *BY_ENTRY):
            one = subject.tiny(name, tokenizer) if name else default
            found += cells.measure(one)
            wirings[one.name] = one.wiring
            click.echo(f"{one.name}: {', '.join(page.shown(cell) for cell in found[-len(cells.COLUMNS) :])}", err=True)
        different = meanings(default, SENTENCE, subject.tiny("gpt2", tokenizer))
    text = page.write(found, wirings, different)
    click.echo(text)
    if json_path is not None:
        content = {"versions": page.versions(), "meanings": different, "cells": [asdict(cell) for cell in found]}
        json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if write:
        page.PAGE.write_text(text, encoding="utf-8")
        click.echo(f"wrote {page.PAGE.relative_to(page.PAGE.parents[1])}", err=True)


if __name__ == "__main__":
    main()
