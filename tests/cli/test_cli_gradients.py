"""`streamlens backward` and `streamlens paths` on the default model: numbers, tables, and what is refused."""

import io
import json

import pandas as pd
import pytest

from streamlens.frames import SCHEMAS

READ = ["--token", "bank", "--for", " river", "--against", " money"]


@pytest.mark.model
class TestBackward:
    def test_the_numbers_and_that_they_sum(self, run, loaded, bank: str) -> None:
        said = run("backward", bank, *READ)
        assert said.exit_code == 0, said.stderr
        found = json.loads(said.stdout)
        assert (found["positions"], found["tokens"]) == ([9], [" bank"])
        assert found["metric"]["unit"] == "logits"
        assert found["value"] == pytest.approx(3.742, abs=5e-4)
        assert len(found["writes"]) == 61
        assert found["writes"][0]["gradient"] == pytest.approx(21.24, rel=1e-3)
        assert found["writes"][0]["reads_after"] is None
        assert found["writes"][2]["reads_after"] == "L0.attn"
        shares = [row["share"] for row in found["writes"]]
        assert sum(shares) + found["direct_share"] == pytest.approx(1, abs=1e-5)
        assert 0 < found["closure"]["gradient"] < 1e-5

    def test_the_table_and_the_frame(self, run, loaded, bank: str) -> None:
        text = run("backward", bank, *READ, "--format", "table", "--top", "3").stdout
        rows = [line.split()[0] for line in text.splitlines() if line.startswith("L")]
        assert rows[1:] == ["L0.mlp", "L0.attn"]  # in the order in which the gradient meets them
        assert "The 3 of 60 branches that hand back most." in text
        assert "sum to autograd's gradient at every depth within" in text
        frame = pd.read_csv(io.StringIO(run("backward", bank, *READ, "--format", "csv").stdout))
        assert list(frame.columns) == list(SCHEMAS["backward"])
        assert frame["share"].sum() == pytest.approx(1)

    def test_a_loss(self, run, loaded, bank: str) -> None:
        found = json.loads(run("backward", bank, "--loss").stdout)
        assert found["metric"] == {"name": "loss", "unit": "nats"}
        assert found["positions"] == list(range(9))
        said = run("backward", bank, "--loss", "--token", "bank")
        assert said.exit_code == 2
        assert "position 9 is the last of 10" in said.stderr


@pytest.mark.model
def test_paths(run, loaded, bank: str) -> None:
    said = run("paths", bank, *READ)
    assert said.exit_code == 0, said.stderr
    found = json.loads(said.stdout)
    assert list(found["families"]) == ["all", "attn", "attn only", "mlp", "mlp only"]
    every = found["families"]["all"]
    assert [row["length"] for row in every] == list(range(61))
    assert sum(row["share"] for row in every) == pytest.approx(1, abs=1e-9)
    assert found["sums"]["all"] == pytest.approx(21.24, rel=1e-3)
    assert found["closure"]["gradient"] < 1e-9
    text = run("paths", bank, *READ, "--format", "table", "--family", "attn only").stdout
    assert "95 % of it from 7 to 24" in text
    assert "Lengths sum to autograd's gradient within" in text


@pytest.mark.parametrize("command", ["backward", "paths"])
def test_what_is_refused_before_a_model_is_loaded(run, unloaded, command: str) -> None:
    said = run(command, "a text")
    assert said.exit_code == 2
    assert "A gradient is of --for TOKEN or of --loss; got neither." in said.stderr
    assert "got both" in run(command, "a text", "--loss", "--for", " river").stderr
    assert run(command, "a text", "--against", " money").exit_code == 2
