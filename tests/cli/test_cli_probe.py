"""`streamlens probe fit` and `score` on the default model: files, formats, and what is refused before it loads."""

import csv
import io
import json
from pathlib import Path

import pytest

from streamlens.readouts.readers.reader import Reader
from streamlens.sentences import bank_senses

pytestmark = pytest.mark.model


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Four templates of the bundled set, under other column names and without a split."""
    path = tmp_path / "small.jsonl"
    rows = [{"text": s.text, "meaning": s.label, "template": s.template} for s in bank_senses()[:16]]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def answer(said):
    assert said.exit_code == 0, said.stderr
    return json.loads(said.stdout)


def test_fit_and_score_any_labelled_file(run, loaded, small: Path, tmp_path: Path) -> None:
    probe = tmp_path / "sense.safetensors"
    args = [str(small), "--token", "bank", "--label", "meaning"]
    found = answer(run("probe", "fit", *args, "-o", str(probe), "--at", "L12.mlp", "--shuffles", "2"))
    assert found["labels"] == {"money": 8, "river": 8}
    assert (found["train"], found["held_out"]) == (12, 4)
    assert found["reader"]["after"] == "L12.mlp"
    assert [depth["after"] for depth in found["depths"]][:2] == ["embed", "L0.attn"]
    assert found["depths"][0]["accuracy"] == found["chance"]["accuracy"] == 0.5
    assert len(found["depths"]) == 61
    assert Reader.load(probe).after == "L12.mlp"
    scored = answer(run("probe", "score", str(probe), *args))
    assert len(scored["sentences"]) == 16
    for row in scored["sentences"]:
        assert row["predicted"] == ("river" if row["values"]["river - money"] > 0 else "money")
    right = [row["predicted"] == row["label"] for row in scored["sentences"]]
    assert scored["accuracy"] == {"all": sum(right) / 16}
    assert scored["accuracy"]["all"] > 0.8


def test_the_logistic_probe_and_the_table(run, loaded, small: Path) -> None:
    args = [str(small), "--token", "bank", "--label", "meaning", "--method", "logistic", "--shuffles", "1"]
    said = run("probe", "fit", *args, "--format", "table").stdout
    assert "logistic probes at ·bank: 8 money, 8 river" in said
    assert "fitted to 12 sentences, tested on 4 others" in said
    assert "A bag of the context's tokens" in said
    assert said.count("best") == 1
    assert "in logits of the probe" in said
    assert "\x1b" not in said


def test_scores_as_a_table_and_as_csv(run, loaded, small: Path, tmp_path: Path) -> None:
    probe = tmp_path / "p.npz"
    args = [str(small), "--token", "bank", "--label", "meaning"]
    assert run("probe", "fit", *args, "-o", str(probe), "--shuffles", "1", "-q").exit_code == 0
    said = run("probe", "score", str(probe), *args, "--format", "table").stdout
    assert "He pushed the canoe to the bank before noon." in said
    assert "Right: " in said
    rows = list(csv.DictReader(io.StringIO(run("probe", "score", str(probe), *args, "--format", "csv").stdout)))
    assert {row["reader"] for row in rows} == {"river - money"}
    assert len(rows) == 16


@pytest.mark.parametrize(
    ("lines", "args", "error"),
    [
        (['{"text": "the bank", "label": "a"}', "no"], ["--token", "bank"], "s.jsonl:2: not JSON"),
        (['{"text": "the bank"}'], ["--token", "bank"], "s.jsonl:1: no column 'label'"),
        (['{"text": "the bank", "label": "a"}'], ["--token", "bank", "--label", "kind"], "s.jsonl:1: no column 'kind'"),
        (['{"text": "the bank", "label": "a"}'], [], "A file of sentences needs --token"),
        (['{"text": "the bank", "label": "a"}'], ["--token", "bank", "-o", "x.txt"], "to a .safetensors or .npz file"),
    ],
    ids=["json", "no label", "no such label", "no token", "suffix"],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    run, unloaded, tmp_path: Path, lines: list[str], args: list[str], error: str
) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    said = run("probe", "fit", str(path), *args)
    assert said.exit_code == 2
    assert said.stdout == ""
    assert error in said.stderr.splitlines()[0]


def test_columns_need_a_file(run, unloaded) -> None:
    said = run("probe", "fit", "--label", "sense")
    assert said.exit_code == 2
    assert "--label and --column name columns of a file" in said.stderr


@pytest.mark.parametrize(
    ("rows", "args", "error"),
    [
        (["the bank", "the shore"], [], "s.jsonl:2: A token names one position; 'bank' is not among the tokens"),
        (["the bank", "a bank of the bank"], [], "s.jsonl:2: A token names one position; 'bank' stands at"),
        (["the bank", "a bank"], ["--at", "L99.mlp"], "No write is called 'L99.mlp' here"),
    ],
    ids=["absent", "twice", "no write"],
)
def test_what_a_model_is_needed_to_see(
    run, loaded, tmp_path: Path, rows: list[str], args: list[str], error: str
) -> None:
    path = tmp_path / "s.jsonl"
    sides = [("a", "train"), ("b", "train"), ("a", "test"), ("b", "test")]
    made = [{"text": rows[min(n, 1)], "label": label, "split": split} for n, (label, split) in enumerate(sides)]
    path.write_text("\n".join(map(json.dumps, made)), encoding="utf-8")
    said = run("probe", "fit", str(path), "--token", "bank", *args)
    assert said.exit_code == 2
    assert error in said.stderr.splitlines()[0]


def test_a_score_needs_a_probe(run, unloaded, tmp_path: Path) -> None:
    import torch

    path = tmp_path / "r.safetensors"
    Reader.direction(torch.ones(576)).save(path)
    said = run("probe", "score", str(path))
    assert said.exit_code == 2
    assert "does not say which classes it tells apart" in said.stderr
