"""The sentences of the benchmark, and the benchmark itself: what it prints, no time asserted."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPTS / name), *arguments], capture_output=True, text=True)


def test_bank_sentences_are_the_same_every_time_and_hold_the_word_once(tmp_path):
    first, again = (script("make_bank_sentences.py", "2000").stdout for _ in range(2))
    assert first == again
    assert script("make_bank_sentences.py", "2000", "--seed", "1").stdout != first
    rows = [json.loads(line) for line in first.splitlines()]
    assert len({row["prompt"] for row in rows}) == 2000
    assert sum(row["sense"] == "river" for row in rows) == 1000
    assert all(len(re.findall(r"\bbank\b", row["prompt"])) == 1 for row in rows)
    assert len({len(row["prompt"].split()) for row in rows}) > 8  # of many lengths
    refused = script("make_bank_sentences.py", "999999")
    assert refused.returncode == 2
    assert "The templates make" in refused.stderr


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel's account is Linux's")
def test_the_benchmark_gives_its_rows(tmp_path):
    out = tmp_path / "batch.json"
    done = script("bench.py", "batch", "--prompts", "4", "--peaks", "2", "--threads", "1", "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    whole = [f"streamlens run --memory {budget}, whole" for budget in (24, 64)]
    names = ["streamlens run", "bare forward without the head", "bare forward", *whole]
    assert [row["what"] for row in rows] == names
    assert [row["prompts"] for row in rows] == [4, 4, 4, 2, 2]
    assert all(row["tokens_per_second"] > 0 for row in rows[:3])
    assert rows[1]["target"] == 0.8
    assert rows[1]["throughput_whole"] > 0
    assert all(row["peak"] >= 0 for row in rows[3:])
    assert all(name in done.stdout for name in names)
