"""`streamlens lab` lists, runs and writes the worked examples, and its exit code says whether they hold."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from streamlens import lab
from streamlens.lab.example import Check

EULER_STEPS = [1.0, -0.5, 0.25, -0.125]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two of the examples, so that running all of them takes no training."""
    kept = {name: lab.EXAMPLES[name] for name in ("euler", "gradient_factor")}
    monkeypatch.setattr("streamlens.lab.EXAMPLES", kept)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One claim of the Euler example does not hold."""
    example = replace(lab.run("euler"), checks=(Check(says="1 = 2", error=1.0), Check(says="1 = 1", error=0.0)))
    monkeypatch.setattr("streamlens.lab.run", lambda name: example)


def test_the_list_names_every_example(run) -> None:
    found = json.loads(run("lab", "--list").stdout)
    assert {row["name"]: row["about"] for row in found} == lab.EXAMPLES
    assert "a residual network as Euler steps" in run("lab", "--list", "--format", "table").stdout


def test_one_example_as_json_and_as_csv(run) -> None:
    done = run("lab", "euler")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["name"] == "euler"
    assert found["holds"] is True
    assert all(check["error"] <= check["limit"] for check in found["checks"])
    row = next(row for row in found["table"] if row["h"] == 0.75)
    assert [row["step 1"], row["step 2"], row["step 3"]] == EULER_STEPS[1:]
    assert found["closure"]["relative"] == 0.0
    lines = run("lab", "euler", "--format", "csv").stdout.splitlines()
    assert lines[0].startswith("h,factor 1 - 2h,step 1")
    assert len(lines) == 1 + 5


def test_as_a_table(run) -> None:
    said = run("lab", "euler", "--format", "table").stdout
    assert "Depth as time: Euler steps of x' = -2x (euler)" in said
    assert "holds  h = 0.5 lands on 0 at once (0.0 off)" in said
    assert "9 of 9 claims hold." in said


def test_all_of_them(run, quick) -> None:
    found = json.loads(run("lab").stdout)
    assert [each["name"] for each in found] == ["euler", "gradient_factor"]
    lines = run("lab", "--format", "csv").stdout.splitlines()
    assert lines[0] == "example,says,error,limit,holds"
    assert {line.partition(",")[0] for line in lines[1:]} == {"euler", "gradient_factor"}


def test_a_claim_that_fails_is_shown_and_is_exit_code_1(run, broken) -> None:
    done = run("lab", "euler", "--format", "table")
    assert done.exit_code == 1
    assert "FAILS  1 = 2 (1.0e+00 off)" in done.stdout
    assert "1 of 2 claims hold." in done.stdout


def test_the_page_holds_figures_tables_and_claims(run, quick, tmp_path: Path) -> None:
    path = tmp_path / "lab.html"
    done = run("lab", "--html", str(path), "--format", "json")
    assert done.exit_code == 0
    assert done.stderr.endswith(f"wrote {path}\n")
    page = path.read_text(encoding="utf-8")
    assert page.count('<div class="plot"') == 3  # one an example, and the one that the settings of Euler's choose
    assert [f">h = {h}<" in page for h in ("0.1", "0.75", "1.1")] == [True] * 3
    assert "Every step multiplies by 1 − 2h = 0.8." in page
    assert page.count("<table") == 3  # one an example, and the claims
    assert "claims hold." in page
    assert "decays, changing sign" in page


def test_what_is_wrong_is_said_before_anything_runs(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("lab", "eulr")
    assert done.exit_code == 2
    assert "No example of the lab is called 'eulr'." in done.stderr
    assert "Did you mean euler?" in done.stderr

    def never(name: str) -> None:
        raise AssertionError("an example ran")

    monkeypatch.setattr("streamlens.lab.run", never)
    done = run("lab", "--html", str(tmp_path / "none" / "lab.html"))
    assert done.exit_code == 2
    assert "--html names a file in an existing folder" in done.stderr
