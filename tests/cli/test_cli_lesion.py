"""`streamlens lesion` on the default model: its losses against a plain forward, kinds, formats, the page, refusals."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.model

TEXTS = ["Water boils at one hundred degrees.", "He looked around the room and saw nobody."]


@pytest.fixture
def answer(run, loaded):
    """Runs `lesion` on two texts; standard output, which must be JSON."""

    def answer(*args: str):
        said = run("lesion", *TEXTS, *args)
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    return answer


def plain_loss(model) -> tuple[float, int]:
    """Nats per token of the model's plain forward, text by text, and over how many tokens."""
    total, count = 0.0, 0
    for text in TEXTS:
        ids = torch.tensor([model.tokenizer(text)["input_ids"]])
        with torch.no_grad():
            logits = model.model(input_ids=ids).logits[0, :-1].double()
        total -= float(logits.log_softmax(-1).gather(1, ids[0, 1:, None]).sum())
        count += ids.shape[1] - 1
    return total / count, count


def test_every_layer_in_turn(answer, default_model) -> None:
    found = answer()
    loss, tokens = plain_loss(default_model)
    assert found["loss"] == pytest.approx(loss, abs=1e-4)
    assert (found["texts"], found["tokens"]) == (2, tokens)
    rows = found["lesions"]
    assert [row["lesion"] for row in rows] == [f"L{n}" for n in range(30)]
    for row in rows:
        assert row["delta"] == pytest.approx(row["loss"] - found["loss"])
    deltas = sorted(row["delta"] for row in rows)
    assert rows[0]["delta"] == deltas[-1] > 10 * deltas[15]  # the first layer cannot be left out, most of them can


def test_a_named_set_sublayers_and_random_ones(answer) -> None:
    (both,) = answer("--drop", "3", "--drop", "L4.mlp")["lesions"]
    assert (both["lesion"], both["n_dropped"]) == ("L3 + L4.mlp", 2)
    drawn = answer("--over", "sublayers", "--random", "2", "--repeats", "3", "--seed", "5")
    assert [row["n_dropped"] for row in drawn["lesions"]] == [2, 2, 2]
    assert all("." in row["lesion"] for row in drawn["lesions"])
    assert (drawn["seed"], drawn["over"]) == (5, "sublayers")
    again = answer("--over", "sublayers", "--random", "2", "--repeats", "3", "--seed", "5")
    assert again == drawn


def test_shuffles(answer) -> None:
    found = answer("--shuffle", "1", "--repeats", "2")
    assert [row["lesion"] for row in found["lesions"]] == ["1: 1 swap", "2: 1 swap"]
    assert all(0 < row["kendall_tau"] < 1 for row in found["lesions"])
    (same,) = answer("--shuffle", "0")["lesions"]
    assert same["delta"] == 0


def test_texts_come_from_standard_input_and_files(run, loaded, answer, tmp_path: Path) -> None:
    wanted = answer("--drop", "L3")
    lines = "".join(f"{text}\n" for text in TEXTS)
    path = tmp_path / "texts.txt"
    path.write_text(lines, encoding="utf-8")
    for said in (run("lesion", "-", "--drop", "L3", stdin=lines), run("lesion", str(path), "--drop", "L3")):
        assert said.exit_code == 0, said.stderr
        assert json.loads(said.stdout) == wanted


def test_the_table_and_the_frame(run, loaded) -> None:
    said = run("lesion", *TEXTS, "--drop", "L0", "--format", "table")
    rows = {line.split("  ")[0]: line.split() for line in said.stdout.splitlines()}
    assert rows["the model as it is"][-1] != rows["L0"][1]
    assert rows["L0"][2].startswith("+")
    assert "2 of 2 forwards" in said.stderr
    assert run("lesion", *TEXTS, "--drop", "L0", "-q").stderr == ""
    frame = list(csv.DictReader(io.StringIO(run("lesion", *TEXTS, "--drop", "L0", "--format", "csv").stdout)))
    assert [row["lesion"] for row in frame] == ["none", "L0"]


def test_the_page(run, loaded, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    said = run("lesion", *TEXTS, "--drop", "L3", "--html", str(path))
    assert said.exit_code == 0, said.stderr
    assert f"wrote {path}" in said.stderr
    page = path.read_text(encoding="utf-8")
    assert page.count('class="plot"') == 1
    assert "Loss without L3" in page


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--drop", "L99"], "The layers are L0, L1"),
        (["--drop", "L3", "--drop", "L3"], "A set names each member once"),
        (["--random", "31"], "There are 30 to drop"),
        (["--drop", "L3", "--shuffle", "1"], "A lesion is of one kind; got --drop and --shuffle."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_said(run, loaded, args: list[str], error: str) -> None:
    said = run("lesion", *TEXTS, *args)
    assert said.exit_code == 2
    assert said.stdout == ""
    assert error in said.stderr.splitlines()[0]
