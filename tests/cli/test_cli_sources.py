"""`streamlens sources` and `decompose --level`: heads, source tokens and neurons on the command line."""

import io
import json

import pandas as pd
import pytest

pytestmark = pytest.mark.model

READ = ["--token", "bank", "--for", " river", "--against", " money"]


@pytest.fixture
def answer(run, loaded, bank: str):
    """Runs a command on the worked example; standard output, which must be JSON."""

    def answer(command: str, *args: str):
        said = run(command, bank, *args)
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    return answer


def test_every_head_and_word_sums_to_its_write(answer) -> None:
    found = answer("sources", *READ)
    whole = {part["component"]: part["contribution"] for part in answer("decompose", *READ)["parts"]}
    attention = sum(size for name, size in whole.items() if name.endswith(".attn"))
    assert len(found["rows"]) == 270 * 10
    assert sum(row["contribution"] for row in found["rows"]) == pytest.approx(attention, abs=1e-4)
    assert sum(row["contribution"] for row in found["sources"]) == pytest.approx(attention, abs=1e-4)
    assert found["closure"]["parts"] < 1e-5
    assert found["value"] == pytest.approx(3.742, abs=5e-4)


def test_the_known_head_reads_the_known_word(answer) -> None:
    (row,) = [r for r in answer("sources", "--site", "L9.attn")["rows"] if r["component"] == "L9H2<3"]
    assert (row["source_token"], round(row["attention"], 2)) == (" river", 0.83)


def test_the_frame_holds_only_source_rows(run, loaded, bank: str) -> None:
    said = run("sources", bank, "--site", "L9.attn", "--format", "csv")
    frame = pd.read_csv(io.StringIO(said.stdout))
    assert set(frame["source"]) == set(range(10))
    assert len(frame) == 90


@pytest.mark.parametrize(("level", "label"), [("head", "L27H1"), ("neuron", "L27.mlp.other")])
def test_decompose_at_a_finer_level_still_sums(answer, level: str, label: str) -> None:
    found = answer("decompose", *READ, "--level", level)
    sizes = {part["component"]: part["contribution"] for part in found["parts"]}
    assert label in sizes
    assert sum(sizes.values()) == pytest.approx(found["value"], abs=1e-4)
    assert found["closure"]["parts"] < 1e-5


def test_a_site_without_a_level_is_a_usage_error(run, unloaded, bank: str) -> None:
    said = run("decompose", bank, "--site", "L9.attn")
    assert said.exit_code == 2
    assert "--site chooses what --level splits" in said.stderr


def test_a_site_that_is_not_there_is_named(run, loaded, bank: str) -> None:
    said = run("sources", bank, "--site", "L99.attn")
    assert said.exit_code == 2
    assert "No write is called 'L99.attn' here." in said.stderr


def test_the_table_says_both_sums(run, loaded, terminal, bank: str) -> None:
    said = run("sources", bank, *READ, "--format", "table")
    assert "all source tokens" in said.output
    assert "Heads and source tokens sum to their attention writes" in said.output
