"""`streamlens compare` on the default model: the known difference, its parts, swaps, formats, the page, refusals."""

import csv
import io
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

SAVINGS = "She checked her savings account balance at the bank"
READ = ["--token", "bank", "--for", " river", "--against", " money"]


@pytest.fixture
def answer(run, loaded, bank: str):
    """Runs `compare` on the worked example; standard output, which must be JSON."""

    def answer(*args: str):
        said = run("compare", bank, SAVINGS, *args)
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    return answer


def test_the_known_values(answer, bank: str) -> None:
    found = answer(*READ)
    assert (found["a"]["prompt"], found["a"]["position"]) == (bank, 9)
    assert (found["b"]["prompt"], found["b"]["position"]) == (SAVINGS, 8)
    sizes = {name: round(found["difference"][name], 3) for name in ("a", "b", "observed")}
    assert sizes == {"a": 3.742, "b": -11.208, "observed": 14.95}
    parts = sorted(found["parts"], key=lambda row: -abs(row["difference"]))
    assert [row["component"] for row in parts[:3]] == ["L29.mlp", "L27.attn", "L26.mlp"]
    assert [row["difference"] for row in parts[:3]] == pytest.approx([5.608, 2.777, 1.583], abs=5e-3)
    assert sum(row["difference"] for row in parts) == pytest.approx(found["difference"]["total"], abs=1e-4)
    assert found["closure"]["difference"] < 1e-4
    assert found["closure"]["in_order"] == 0


def test_the_difference_is_that_of_two_decompositions(answer, run, bank: str) -> None:
    found = answer(*READ)
    values = [json.loads(run("decompose", text, *READ).stdout)["value"] for text in (bank, SAVINGS)]
    assert found["difference"]["observed"] == pytest.approx(values[0] - values[1], abs=1e-5)


def test_heads_and_whose_norm_reads(answer) -> None:
    heads = answer(*READ, "--level", "head")
    own = [row for row in heads["parts"] if row["component"].startswith("L27H")]
    assert len(own) == 9
    assert sum(row["difference"] for row in own) == pytest.approx(2.777, abs=5e-3)
    through_a, through_b = (answer(*READ, "--scale", scale) for scale in ("a", "b"))
    assert through_a["difference"]["observed"] == through_b["difference"]["observed"]
    assert through_a["difference"]["rescale"] != pytest.approx(through_b["difference"]["rescale"], abs=1e-4)
    for found in (through_a, through_b):
        assert found["difference"]["total"] == pytest.approx(14.95, abs=1e-3)


def test_without_a_reader_shares_sum_to_one(answer, run, bank: str) -> None:
    found = answer("--token", "bank")
    assert "difference" not in found
    assert sum(row["share"] for row in found["parts"]) == pytest.approx(1, abs=1e-5)
    table = run("compare", bank, SAVINGS, "--token", "bank", "--format", "table").stdout
    sums = next(line.split() for line in table.splitlines() if line.startswith("sum"))
    assert sums == ["sum", "+1.000"]
    assert "nan" not in table


def test_swaps_show_what_matters(answer, run, bank: str) -> None:
    found = answer(*READ, "--swap")
    swaps = {row["variant"]: row for row in found["swaps"]}
    assert len(swaps) == 61
    parts = {row["component"]: row["difference"] for row in found["parts"]}
    for label in ("L27.attn", "L29.mlp", "L8.mlp"):  # what the difference predicts, with the other sign
        assert swaps[f"{label}@bank=resample"]["direct"] == pytest.approx(-parts[label], abs=1e-4)
    largest = min(found["swaps"], key=lambda row: row["total"])
    assert largest["variant"] == "L27.attn@bank=resample"
    assert largest["total"] == pytest.approx(-5.936, abs=5e-3)
    assert found["closure"]["effect"] < 1e-3
    said = run("compare", bank, SAVINGS, *READ, "--swap", "--format", "table", "--top", "3")
    rows = [line.split()[0] for line in said.stdout.splitlines() if line.startswith("L")]
    assert rows == ["L27.attn@bank=resample", "L29.mlp@bank=resample", "L26.mlp@bank=resample"]
    assert "The 3 largest of 61 swaps by size of the total." in said.stdout
    assert "61 of 61 swaps" in said.stderr


def test_two_different_tokens(answer) -> None:
    found = answer("--token", "river", "--token-b", "savings", "--for", " river")
    assert (found["a"]["token"], found["b"]["token"]) == (" river", " savings")
    assert found["closure"]["difference"] < 1e-4


def test_the_table_sums(run, loaded, bank: str, terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    said = run("compare", bank, SAVINGS, *READ, "--format", "table", "--top", "4").stdout
    assert max(map(len, said.splitlines())) <= 80
    words = " ".join(said.split())
    assert "+3.742 in A, −11.208 in B, A − B +14.950 logits" in words
    rows = {line.split("  ")[0].strip(): line.split() for line in said.splitlines() if line.strip()}
    assert {"L29.mlp", "other (57)", "rescale"} <= set(rows)
    assert rows["sum"][1] == rows["the model's own"][3] == "+14.950"


def test_the_frames(run, loaded, bank: str) -> None:
    plain = run("compare", bank, SAVINGS, *READ, "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(plain)))
    assert len(rows) == 64
    assert sum(float(row["difference: logit(·river) - logit(·money)"]) for row in rows) == pytest.approx(
        14.95, abs=2e-3
    )
    swapped = run("compare", bank, SAVINGS, *READ, "--swap", "--format", "csv").stdout
    assert len(list(csv.DictReader(io.StringIO(swapped)))) == 61


def test_the_page(run, loaded, bank: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    said = run("compare", bank, SAVINGS, *READ, "--swap", "--html", str(path), "--format", "table")
    assert said.exit_code == 0, said.stderr
    assert f"wrote {path}" in said.stderr
    page = path.read_text(encoding="utf-8")
    assert page.count('class="plot"') == 2
    for text in ("What separates A from B", "What swapping each write does to A", SAVINGS):
        assert text in page


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--token", "tree"], "'tree' is not among the tokens"),
        (["--token", "5"], "position 5 is ' she' in A and ' balance' in B"),
        (["--token", "bank", "--against", " money"], "--against is the other side of --for"),
        (["--token", "bank", "--swap"], "A swap is read at a logit"),
        ([], "Missing option '--token'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_said(run, loaded, bank: str, args: list[str], error: str) -> None:
    said = run("compare", bank, SAVINGS, *args)
    assert said.exit_code == 2
    assert said.stdout == ""
    assert error in said.stderr.splitlines()[0]


def test_a_missing_token_is_told_with_both_lists(run, loaded, bank: str) -> None:
    said = run("compare", bank, "She sat", "--token", "bank")
    assert "A: 0:'After'" in said.stderr
    assert "B: 0:'She' 1:' sat'" in said.stderr


def test_two_prompts_are_needed_before_a_model(run, unloaded, bank: str, tmp_path: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    said = run("compare", bank, str(path), "--token", "bank")
    assert said.exit_code == 2
    assert "A comparison is of two prompts; these arguments hold 3." in said.stderr
