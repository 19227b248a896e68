"""`streamlens lens`: the guesses after every sublayer, the last of which is the model's own prediction."""

import io
import json

import pandas as pd
import pytest

pytestmark = pytest.mark.model


def test_the_last_row_is_the_models_own_prediction(run, loaded, default_model, bank: str) -> None:
    import torch

    found = json.loads(run("lens", bank, "--top", "3").stdout)
    with torch.inference_mode():
        logits = default_model.model(**default_model.tokenizer(bank, return_tensors="pt")).logits[0, -1]
    last = found["steps"][-1]
    assert last["after"] == "L29.mlp"
    assert [guess["token_id"] for guess in last["top"]] == logits.topk(3).indices.tolist()
    assert last["top"][0]["probability"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
    assert found["closure"]["logits"] < 1e-3
    assert found["closure"]["in_order"] == 0.0


def test_a_row_for_every_write_at_the_token_that_was_asked_for(run, loaded, bank: str) -> None:
    found = json.loads(run("lens", bank, "--token", "river", "--top", "1").stdout)
    assert (found["token"], found["position"]) == (" river", 3)
    assert len(found["steps"]) == 61
    frame = pd.read_csv(io.StringIO(run("lens", bank, "--token", "river", "--top", "2", "--format", "csv").stdout))
    assert len(frame) == 122
    assert set(frame["position"]) == {3}


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_the_table_fits_a_terminal(run, loaded, bank: str, terminal, monkeypatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    said = run("lens", bank, "--top", "9").stdout
    assert max(map(len, said.splitlines())) <= columns
    assert "%" in said.splitlines()[-6]
    assert "more do not fit here" in said or columns == 160
    shares = [word for line in said.splitlines() for word in line.split() if word.endswith("%")]
    assert len(shares) >= 61 * 4


def test_too_many_guesses(run, loaded, bank: str) -> None:
    said = run("lens", bank, "--top", "60000")
    assert said.exit_code == 2
    assert "top is between 1 and 49152; got 60000." in said.stderr
