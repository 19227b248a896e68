"""The benchmarks run and give the rows they promise. No time is asserted: the machine is shared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import zoo

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench.py"
LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel's account is Linux's")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model on disk, without a tokenizer."""
    path = tmp_path_factory.mktemp("bench") / "tiny-llama"
    zoo.build("llama").save_pretrained(path)
    return path


def bench(folder: Path, *arguments: str) -> tuple[str, dict]:
    """What a table prints, and what it writes."""
    out = folder.parent / f"{arguments[0]}.json"
    command = [sys.executable, str(SCRIPT), *arguments, "--model", str(folder), "--threads", "1", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text())


def test_capture(folder):
    printed, written = bench(folder, "capture", "--tokens", "4,6", "--rounds", "1")
    assert written["command"] == "capture"
    assert written["setting"].keys() >= {"model", "dtype", "threads", "torch", "transformers", "transformer-lens"}
    assert written["setting"]["model"] == "tiny-llama"  # and no folder of this machine
    names = ["bare forward", "streamlens.decompose(ids)", "transformer-lens run_with_cache"]
    assert [(row["tokens"], row["what"]) for row in written["rows"]] == [(n, name) for n in (4, 6) for name in names]
    for row in written["rows"]:
        if row["what"] == names[0]:
            assert row["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        if row["what"] == names[1]:
            assert row["target"] == 1.05
            assert row["rounds"] == 1
            assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
            assert row["ratio_cpu"]["median"] > 0
        assert f"| {row['tokens']}      | {row['what']} " in printed
    assert "threads 1" in printed
    assert str(folder) not in printed + json.dumps(written)


@LINUX
def test_memory(folder):
    printed, written = bench(folder, "memory", "--tokens", "8")
    ways = ["bare forward", "decompose", "decompose keep_logits=False", "decompose positions=[-1]"]
    assert [row["what"] for row in written["rows"]] == [*ways, "transformer-lens run_with_cache"]
    for row in written["rows"]:
        assert row["what"] in printed
        assert "not_measured" in row or row["peak"] >= 0
    asked = {row["what"]: (row["writes"], row["logits"]) for row in written["rows"][:4]}
    writes, logits = 7 * 8 * 32 * 4, 8 * 99 * 4  # rows x tokens x width, tokens x vocabulary, four bytes each
    assert asked["bare forward"] == (0, logits)
    assert asked["decompose"] == (writes, logits)
    assert asked["decompose keep_logits=False"] == (writes, 0)
    assert asked["decompose positions=[-1]"] == (writes // 8, logits // 8)
