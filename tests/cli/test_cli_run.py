"""`streamlens run`: settings from a file and from flags, progress as JSON lines, exit codes, data sets."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from streamlens import batch
from tiny_batch import save_tiny, sentences


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in sentences(7)), encoding="utf-8")
    return path


def test_a_file_of_settings_and_flags_that_win(run, tiny, prompts, tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text(f"model: {tiny}\nfor: [river]\nagainst: [money]\ntoken: bank\nshard: 3\ntop: 2\n")
    said = run("run", str(prompts), "-o", str(tmp_path / "out"), "--config", str(config), "--for", "water")
    assert said.exit_code == 0, said.stderr
    assert said.stdout == ""
    results = batch.open(tmp_path / "out")
    assert results.frame("readout")["reader"].unique().tolist() == ["logit(water) - logit(money)"]
    stored = tmp_path / "out" / "settings.yaml"
    again = run("run", str(prompts), "-o", str(tmp_path / "out"), "--config", str(stored))
    assert again.exit_code == 0, again.stderr  # the resolved settings are the same settings
    lines = [json.loads(line) for line in said.stderr.splitlines() if line.startswith("{")]
    assert (lines[0]["done"], lines[0]["total"]) == (0, 7)
    assert lines[-1].keys() == {
        "event",
        "done",
        "total",
        "failed",
        "tokens_per_second",
        "prompts_per_second",
        "seconds_left",
    }
    assert (lines[-1]["done"], lines[-1]["failed"], lines[-1]["seconds_left"]) == (7, 0, 0)
    assert lines[-1]["tokens_per_second"] > 0
    assert "7 prompts in" in said.stderr


def test_a_page_about_the_readers(run, tiny, prompts, tmp_path):
    options = ["-m", str(tiny), "--token", "bank", "--html", str(tmp_path / "page.html")]
    said = run("run", str(prompts), "-o", str(tmp_path / "out"), *options)
    assert said.exit_code == 2
    assert "--html shows what is written along readers" in said.stderr
    said = run("run", str(prompts), "-o", str(tmp_path / "out"), *options, "--for", "river")
    assert said.exit_code == 0, said.stderr
    assert "7 of 7 prompts, 0 failed." in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_failures_are_named_and_the_exit_code_is_1(run, tiny, tmp_path):
    said = run("run", "-", "-o", str(tmp_path / "out"), "-m", str(tiny), "-q", stdin="bank\n\nw1\n")
    assert said.exit_code == 1
    assert said.stderr.splitlines() == [
        "streamlens: failed: <stdin>:2: a prompt has some text; this one is empty.",
        "streamlens: 1 of 3 prompts failed; their reasons are in the table prompts",
    ]


def test_what_is_wrong_with_the_file_is_said_before_a_model_loads(run, unloaded, tmp_path, prompts):
    for arguments, error in (
        ([str(tmp_path / "none.txt")], "none.txt: cannot be read: No such file"),
        ([str(prompts), "--config", str(tmp_path / "none.yaml")], "none.yaml: cannot be read"),
        ([str(prompts), "--against", "x"], "--against stands once for each --for, or not at all; got 0 and 1."),
        ([str(prompts), "--column", "question"], "prompts.jsonl:1: no column 'question'; there are \"prompt\"."),
    ):
        said = run("run", *arguments, "-o", str(tmp_path / "out"))
        assert said.exit_code == 2
        assert error in said.stderr.splitlines()[0]


def test_a_data_set_needs_its_library(run, unloaded, tmp_path, monkeypatch):
    monkeypatch.setattr("streamlens.batch.datasets.find_spec", lambda name: None)
    said = run("run", "owner/sentences:test", "-o", str(tmp_path / "out"))
    assert said.exit_code == 2
    assert said.stderr.startswith(
        "error: 'owner/sentences:test' is no file; data sets need the library datasets, which is not installed.\n"
        "hint: pip install datasets"
    )


class Sentences(list):
    """What `datasets` gives: rows, and the names of the columns."""

    column_names = ("id", "text")


def test_a_data_set_by_name(run, tiny, tmp_path, monkeypatch):
    asked = []

    def load_dataset(name, split):
        asked.append((name, split))
        if name == "owner/none":
            raise ValueError("no such\ndata set")
        return Sentences({"id": number, "text": text} for number, text in enumerate(sentences(3)))

    monkeypatch.setattr("streamlens.batch.datasets.find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    said = run("run", "owner/sentences:test", "-o", str(tmp_path / "out"), "-m", str(tiny), "--token", "bank")
    assert said.exit_code == 0, said.stderr
    prompts = batch.open(tmp_path / "out").frame("prompts")
    assert prompts["text"].tolist() == sentences(3)
    assert prompts["where"].tolist() == [f"owner/sentences:test:{n}" for n in (1, 2, 3)]
    assert asked == [("owner/sentences", "test")]
    assert run("run", "owner/none", "-o", str(tmp_path / "no")).stderr.startswith(
        "error: owner/none: is no data set: no such data set"
    )
    said = run("run", "owner/sentences", "-o", str(tmp_path / "no"), "--column", "question")
    assert said.stderr.startswith("error: owner/sentences: no column question; there are id, text.")


def test_help_and_errors_import_no_torch():
    code = (
        "import sys; from streamlens.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
