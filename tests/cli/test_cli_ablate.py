"""`streamlens ablate` on the default model: the known split, what responds, formats, and what is refused."""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.model

READ = ["--for", " river", "--against", " money"]


@pytest.fixture
def answer(run, loaded, bank: str):
    """Runs `ablate` on the worked example; standard output, which must be JSON."""

    def answer(*args: str):
        said = run("ablate", bank, *args)
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    return answer


def test_the_known_values(answer) -> None:
    found = answer("-e", "L1.attn@bank", *READ)
    assert (found["position"], found["token"]) == (9, " bank")
    assert found["headline"].startswith("Subtracting L1.attn@bank predicts +0.42 logits")
    assert found["headline"].endswith("gives -3.89.")
    sizes = {name: round(found["effect"][name], 2) for name in ("direct", "indirect", "rescale", "total", "observed")}
    assert sizes == {"direct": 0.42, "indirect": -4.29, "rescale": -0.02, "total": -3.89, "observed": -3.89}
    assert found["effect"]["clean"] == pytest.approx(3.742, abs=5e-4)
    assert found["effect"]["closure"] < 1e-4
    assert found["effect"]["self_repair"] == pytest.approx(4.293 / 0.421, rel=0.01)
    assert found["output"]["kl"] > 1
    assert found["output"]["top_before"] != found["output"]["top_after"]


def test_the_writes_sum_to_the_split(answer) -> None:
    found = answer("-e", "L1.attn@bank", *READ)
    status = [row["status"] for row in found["writes"]]
    assert status == ["unchanged"] * 3 + ["edit"] + ["response"] * 57
    for part, name in (("direct", "edit"), ("indirect", "response")):
        total = sum(row["delta"] for row in found["writes"] if row["status"] == name)
        assert total == pytest.approx(found["effect"][part], abs=1e-5)
    assert found["writes"][0]["layer"] is None
    assert found["writes"][3]["layer"] == 1


def test_the_token_holds_where_an_edit_names_none(answer) -> None:
    typed = answer("-e", "L1.attn@bank", *READ)
    given = answer("-e", "L1.attn", "--token", "bank", *READ)
    assert given["effect"] == typed["effect"]
    everywhere = answer("-e", "L1.attn", *READ)
    assert everywhere["position"] == 9
    assert everywhere["effect"]["total"] != pytest.approx(typed["effect"]["total"], abs=1e-3)


def test_read_at_another_token_than_the_edit(answer) -> None:
    found = answer("-e", "L1.attn@river", "--read-at", "bank", *READ)
    assert found["effect"]["direct"] == 0
    assert found["effect"]["indirect"] != 0
    assert answer("-e", "L1.attn@river", *READ)["token"] == " river"


def test_frozen_writes_do_not_respond(answer) -> None:
    found = answer("-e", "L1.attn@bank", "--freeze", "all", *READ)
    assert found["freeze"] == ["all"]
    assert found["effect"]["indirect"] == 0
    assert found["effect"]["direct"] == pytest.approx(0.42, abs=0.005)
    one = answer("-e", "L1.attn@bank", "--freeze", "L1.mlp", "--freeze", "L2.attn", *READ)
    still = [row["component"] for row in one["writes"] if row["status"] == "unchanged"]
    assert {"L1.mlp", "L2.attn"} <= set(still)


def test_several_edits_of_every_form_at_once(answer) -> None:
    found = answer("-e", "L9H2=0.5", "-e", "L5H1<river@bank", "-e", "L3.mlp=mean", "--reference", "He sat down", *READ)
    assert found["edits"] == "L9H2=0.5 + L5H1<river@bank + L3.mlp=mean"
    edited = [row["component"] for row in found["writes"] if row["status"] == "edit"]
    assert edited == ["L3.mlp", "L5.attn", "L9.attn"]
    assert found["effect"]["closure"] < 1e-4


def test_without_a_reader_the_changes_are_norms(answer, run, loaded, bank: str) -> None:
    found = answer("-e", "L1.attn@bank")
    assert "effect" not in found
    assert "delta" not in found["writes"][3]
    table = run("ablate", bank, "-e", "L1.attn@bank", "--format", "table").stdout
    assert "L1.attn@bank edited." in table
    assert "norm of change" in table


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["-e", "L99.attn"], "L99.attn"),
        (["-e", "L1.attn@tree"], "'tree' is not among the tokens"),
        (["-e", "L1.attn", "--freeze", "L99.mlp"], "L99.mlp"),
        (["-e", "L1.attn=mean"], "The method 'mean' of L1.attn needs prompts="),
        (["-e", "L1.attn", "--against", " money"], "--against is the other side of --for"),
        ([], "Missing option '-e' / '--edit'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_said(run, loaded, bank: str, args: list[str], error: str) -> None:
    said = run("ablate", bank, *args)
    assert said.exit_code == 2
    assert said.stdout == ""
    assert error in said.stderr.splitlines()[0]


def test_an_edit_is_read_before_a_model_is_loaded(run, unloaded, bank: str) -> None:
    said = run("ablate", bank, "-e", "L1.attn=mean")
    assert said.exit_code == 2
    assert "needs prompts=" in said.stderr


def test_the_table_says_it_in_one_line(run, loaded, bank: str) -> None:
    said = run("ablate", bank, "-e", "L1.attn@bank", *READ, "--format", "table", "--top", "3").stdout
    assert "Subtracting L1.attn@bank predicts +0.42 logits; rerunning the model gives −3.89." in said
    rows = {line.split("  ")[0].strip(): line.split() for line in said.splitlines() if line}
    assert [rows[name][1] for name in ("direct", "indirect", "rescale")] == ["+0.421", "−4.293", "−0.019"]
    assert rows["total"][1].startswith("−3.89")
    assert "carry" not in rows
    assert rows["L1.attn"][1] == "edit"
    assert "other (54)" in rows
    assert "3 of 61 writes are unchanged to the last bit." in said
    assert "Self-repair" in said
    assert "\x1b" not in said


def test_the_table_fits_a_terminal(run, loaded, bank: str, terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for args in (READ, []):
        said = run("ablate", bank, "-e", "L1.attn@bank", *args, "--format", "table").stdout
        assert max(map(len, said.splitlines())) <= 80
        assert "…" not in said


def test_the_frame_and_many_prompts(run, loaded, bank: str, tmp_path: Path) -> None:
    args = ["-e", "L1.attn", "--token", "-1", *READ]
    rows = list(csv.DictReader(io.StringIO(run("ablate", bank, *args, "--format", "csv").stdout)))
    assert [row["status"] for row in rows].count("edit") == 1
    path = tmp_path / "x.parquet"
    assert run("ablate", bank, "We sat at the bank", *args, "-o", str(path)).exit_code == 0
    frame = pd.read_parquet(path)
    assert frame["prompt_id"].value_counts().to_dict() == {0: 61, 1: 61}
    assert len(json.loads(run("ablate", bank, "We sat at the bank", *args).stdout)) == 2


def test_the_page(run, loaded, bank: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    said = run("ablate", bank, "-e", "L1.attn@river", "--read-at", "bank", *READ, "--html", str(path))
    assert said.exit_code == 0, said.stderr
    page = path.read_text(encoding="utf-8")
    assert page.count('class="plot"') == 3
    for text in ("L1.attn@river edited", "Every write at every token", "The parts sum to the model&#x27;s own change"):
        assert text in page
    # an edit at the last token moves no other: nothing to show there, and nothing that is read
    assert run("ablate", bank, "-e", "L1.attn@bank", "--html", str(path)).exit_code == 0
    assert path.read_text(encoding="utf-8").count('class="plot"') == 1
    several = run("ablate", bank, "We sat", "-e", "L1.attn", "--html", str(path))
    assert "--html shows one prompt; got 2." in several.stderr


def test_references_from_a_file_and_what_is_no_subtraction(answer, tmp_path: Path) -> None:
    path = tmp_path / "reference.txt"
    path.write_text("He sat by the water.\nThe bank was closed.\n", encoding="utf-8")
    found = answer("-e", "L1.attn=mean", "--token", "bank", "--reference", str(path), *READ)
    texts = ["--reference", "He sat by the water.", "--reference", "The bank was closed."]
    assert found["effect"] == answer("-e", "L1.attn=mean", "--token", "bank", *texts, *READ)["effect"]
    assert found["headline"].startswith("Changing L1.attn@bank=mean alone predicts ")
