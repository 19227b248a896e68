"""`streamlens trajectory`, `jacobian` and `steps`: the numbers of the library, in the command line's three faces."""

import io
import json

import pandas as pd
import pytest

pytestmark = pytest.mark.model


def test_the_trajectory_of_a_token(run, loaded, bank: str) -> None:
    found = json.loads(run("trajectory", bank, "--token", "bank").stdout)
    assert (found["token"], found["position"], found["sink"]) == (" bank", 9, False)
    assert len(found["steps"]) == 61
    first, last = found["steps"][0], found["steps"][-1]
    assert (first["component"], first["step"], first["rank_embedding"]) == ("embed", None, 0)
    assert last["norm"] == pytest.approx(684.0, abs=0.1)
    assert last["cosine_stream"] == pytest.approx(-0.403, abs=1e-3)
    assert found["closure"]["variance"] < 1e-6
    assert found["closure"]["in_order"] == 0.0
    frame = pd.read_csv(io.StringIO(run("trajectory", bank, "--token", "bank", "--format", "csv").stdout))
    assert len(frame) == 61
    said = run("trajectory", bank, "--token", "bank", "--format", "table").stdout
    assert "The path of the stream at ·bank (position 9)" in said
    assert "L29.mlp" in said


def test_the_jacobian_of_the_last_layer(run, loaded, bank: str) -> None:
    options = ["--token", "bank", "--start", "L28.mlp", "--method", "lanczos"]
    found = json.loads(run("jacobian", bank, *options).stdout)
    assert (found["start"], found["end"], found["others"]) == ("L28.mlp", "L29.mlp", "held")
    assert [step["component"] for step in found["steps"]] == ["L29.attn", "L29.mlp"]
    assert found["steps"][-1]["reached"] == pytest.approx(found["singular_values"][0], rel=1e-5)
    assert found["singular_values"][0] < found["bound"] == pytest.approx(12.3, abs=0.1)
    assert found["steps"][0]["smallest"] is None  # products alone do not tell
    assert found["closure"]["product"] < 1e-5
    said = run("jacobian", bank, *options, "--format", "table").stdout
    assert "d x[L29.mlp] / d x[L28.mlp] of the stream at ·bank (position 9), the other positions held" in said


def test_scaled_steps(run, loaded, bank: str) -> None:
    found = json.loads(run("steps", bank, "--h", "1", "--h", "0.25", "--calls", "1", "--calls", "2").stdout)
    assert [(each["h"], each["calls"]) for each in found["runs"]] == [(1, 1), (0.25, 1), (1, 2), (0.25, 2)]
    assert found["runs"][0]["kl"] == 0.0
    assert found["runs"][0]["loss"] == found["loss"] == pytest.approx(4.090, abs=2e-3)
    assert found["runs"][2]["loss"] == pytest.approx(6.315, abs=5e-3)
    middle = json.loads(run("steps", bank, "--h", "1", "--calls", "2", "--layers", "10-19").stdout)
    assert middle["layers"] == list(range(10, 20))
    assert middle["runs"][0]["loss"] == pytest.approx(4.041, abs=5e-3)
    said = run("steps", bank, "--h", "0", "--format", "table").stdout
    assert "Every write of layers 0 to 29 times h; as it is 4.090 nats per token" in said


def test_what_is_wrong_is_said_before_a_model_is_loaded(run, unloaded, bank: str) -> None:
    said = run("steps", bank, "--layers", "3,4")
    assert said.exit_code == 2
    assert "--layers is a number or a range such as 10-19; got '3,4'" in said.stderr
    assert run("jacobian", bank, "--others", "still").exit_code == 2


def test_what_does_not_fit_the_model(run, loaded, bank: str) -> None:
    for args, said in [
        (("steps", bank, "--layers", "29-30"), "The layers are 0 to 29"),
        (("jacobian", bank, "--start", "L29.mlp"), "The end comes after the start"),
        (("trajectory", bank, "--token", "boat"), "boat"),
    ]:
        result = run(*args)
        assert result.exit_code == 2
        assert said in result.stderr
