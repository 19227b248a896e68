"""The benchmarks run and give the rows they promise. No time is asserted: the machine is shared."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zoo
import zoo_bridge

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
    given = ["--threads", "1", "--json", str(out), *([] if arguments[0] == "scaling" else ["--peers", ""])]
    command = [sys.executable, str(SCRIPT), *arguments, "--model", str(folder), *given]
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


def test_dla(folder):
    printed, written = bench(folder, "dla", "--tokens", "4", "--rounds", "1")
    assert [row["what"].partition(" ")[0] for row in written["rows"]] == [
        "bare",
        *["streamlens"] * 3,
        "transformer-lens",
        "the",  # same with gradients on
        "transformer-lens",
    ]
    held = [row for row in written["rows"] if "target" in row]
    assert [row["what"] for row in held] == ["transformer-lens cache, decompose_resid, logit_attrs"]
    assert held[0]["faster"]["median"] > 0
    assert held[0]["met"] == (held[0]["faster"]["median"] >= 1.8)
    assert "| 1.8 " in printed


def test_scaling(folder):
    _, written = bench(folder, "scaling", "--longest", "32", "--rounds", "1")
    exponents = {(row["of"], row["what"]) for row in written["rows"] if "exponent" in row}
    assert {what for _, what in exponents} == {"bare forward", "streamlens.decompose", "streamlens.sweep"}
    assert len(exponents) == 7  # two cases in each of four series, but no bare forward for the branches swept over
    assert [row["number"] for row in written["rows"] if row["of"] == "tokens"] == [10, 32] * 2


def test_the_exponent_of_a_power_is_its_power():
    sys.path.insert(0, str(SCRIPT.parent))
    from benchmarks.scaling import exponent
    from benchmarks.timing import Times

    numbers = [1, 2, 4, 8]
    assert exponent(numbers, [Times(wall=[3.0 * n**2]) for n in numbers]) == pytest.approx(2)
    assert exponent(numbers, [Times(wall=[w]) for w in (9.0, 9.0, 4.0, 8.0)]) == pytest.approx(1)  # the upper half


def test_the_page_of_the_docs_has_every_table_and_target():
    """What `bench.py all --page` wrote is of the tables as they are now."""
    sys.path.insert(0, str(SCRIPT.parent))
    import bench
    from benchmarks.page import heading

    text = (SCRIPT.parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name, (module, title) in bench.PARTS.items():
        section = text.partition(f"\n## {heading(name)}\n")[2].partition("\n## ")[0]
        assert title in section
        header = next(line for line in section.splitlines() if line.startswith("|"))
        assert tuple(cell.strip() for cell in header.strip("|").split("|")) == module.COLUMNS
    assert "python scripts/bench.py all" in text
    assert re.search(r"nnsight 0\.8\.\d+, interpkit 0\.7\.\d+", text)


def test_a_peer_that_is_not_there_says_so(folder, tmp_path):
    """The worker's own words come through; nothing is skipped in silence."""
    zoo_bridge.tokenizer(str(tmp_path))
    zoo.build("llama").save_pretrained(tmp_path)
    sys.path.insert(0, str(SCRIPT.parent))
    from benchmarks.peers import Peer, PeerError

    with Peer("nnsight", Path(sys.executable), threads=1) as peer, pytest.raises(PeerError, match="No module named"):
        peer.load(str(tmp_path))
    environment = {**os.environ, "STREAMLENS_PEERS": str(folder / "nowhere")}
    command = [sys.executable, str(SCRIPT), "capture", "--model", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 1
    assert "scripts/peers.sh" in done.stderr


@LINUX
def test_memory(folder):
    printed, written = bench(folder, "memory", "--tokens", "8")
    ways = ["bare forward", "decompose", "decompose keep_logits=False", "decompose positions=[-1]"]
    lens = ["transformer-lens run_with_cache", "transformer-lens, with attribution"]
    assert [row["what"] for row in written["rows"]] == [*ways, "decompose, with attribution", *lens]
    for row in written["rows"]:
        assert row["what"] in printed
        assert "not_measured" in row or row["peak"] >= 0
    asked = {row["what"]: (row["writes"], row["logits"]) for row in written["rows"][:4]}
    writes, logits = 7 * 8 * 32 * 4, 8 * 99 * 4  # rows x tokens x width, tokens x vocabulary, four bytes each
    assert asked["bare forward"] == (0, logits)
    assert asked["decompose"] == (writes, logits)
    assert asked["decompose keep_logits=False"] == (writes, 0)
    assert asked["decompose positions=[-1]"] == (writes // 8, logits // 8)
