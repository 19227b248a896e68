"""`streamlens sweep` on the default model: known effects, methods, estimates, formats, pages, and what is refused."""

import csv
import io
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

READ = ["--token", "bank", "--for", " river", "--against", " money"]
#: variant -> direct, indirect, rescale, total, from one-at-a-time reruns
KNOWN = {
    "L1.attn@bank": (0.42, -4.29, -0.02, -3.89),
    "L0.mlp@bank": (-0.53, 2.70, -0.18, 2.00),
    "L27.mlp@bank": (1.51, 0.71, -0.22, 2.00),
    "L27.attn@bank": (-0.97, -0.99, 0.32, -1.63),
    "L24.attn@bank": (-0.96, 1.53, 0.48, 1.05),
}


@pytest.fixture
def answer(run, loaded, bank: str):
    """Runs `sweep` on the worked example; standard output, which must be JSON."""

    def answer(*args: str):
        said = run("sweep", bank, *args)
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    return answer


def test_the_known_values(answer) -> None:
    found = answer(*READ)
    assert (found["position"], found["token"], len(found["effects"])) == (9, " bank", 60)
    assert found["value"] == pytest.approx(3.742, abs=5e-4)
    rows = {row["variant"]: row for row in found["effects"]}
    for variant, sizes in KNOWN.items():
        parts = [rows[variant][name] for name in ("direct", "indirect", "rescale", "total")]
        assert parts == pytest.approx(sizes, abs=0.0075), variant
    assert found["closure"]["effect"] < 1e-4
    assert found["closure"]["in_order"] == 0


def test_heads_by_half_at_every_token(answer) -> None:
    found = answer("--over", "heads", "--method", "0.5", "--for", " river")
    assert len(found["effects"]) == 270
    assert found["effects"][0]["variant"] == "L0H0=0.5"
    assert found["closure"]["effect"] < 1e-3


def test_frozen_and_read_elsewhere(answer) -> None:
    frozen = answer(*READ, "--freeze", "all")
    assert {row["indirect"] for row in frozen["effects"]} == {0}
    away = answer("--token", "river", "--read-at", "bank", "--for", " river")
    assert {row["direct"] for row in away["effects"]} == {0}
    assert away["token"] == " bank"


def test_the_table_shows_the_largest(run, loaded, bank: str) -> None:
    said = run("sweep", bank, *READ, "--format", "table", "--top", "2")
    lines = said.stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith("L")]
    assert [row[0] for row in rows] == ["L1.attn@bank", "L27.mlp@bank"]
    assert rows[0][1:4] == ["+0.421", "−4.293", "−0.019"]
    assert "The 2 largest of 60 variants by size of the total." in lines
    assert "The parts sum to the model's own change within" in said.stdout
    assert "streamlens: 60 of 60 variants" in said.stderr
    assert run("sweep", bank, *READ, "-q").stderr == ""


def test_the_table_fits_a_terminal(run, loaded, bank: str, terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    said = run("sweep", bank, *READ, "--format", "table").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said


def test_the_frame(run, loaded, bank: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("sweep", bank, *READ, "--format", "csv").stdout)))
    assert len(rows) == 60
    for row in rows:
        parts = sum(float(row[name]) for name in ("direct", "indirect", "rescale", "carry", "softcap"))
        assert parts == pytest.approx(float(row["total"]), abs=1e-9)


def test_without_a_reader_the_output_is_what_changes(answer, run, bank: str) -> None:
    found = answer("--token", "bank")
    assert "reader" not in found
    assert list(found["effects"][0]) == ["variant", "kl", "top_after"]
    read = {row["variant"]: row for row in answer(*READ)["effects"]}
    for row in found["effects"]:
        assert row["kl"] == pytest.approx(read[row["variant"]]["kl"], rel=1e-3, abs=1e-6)
        assert row["top_after"] == read[row["variant"]]["top_after"]
    said = run("sweep", bank, "--token", "bank", "--format", "table", "--top", "2").stdout
    rows = [line.split()[0] for line in said.splitlines() if line.startswith("L")]
    assert rows == ["L1.attn@bank", "L0.attn@bank"]
    turned = sum(row["top_after"] != found["top_before"] for row in found["effects"])
    assert f"{turned} of 60 change the likeliest token, “,”." in said


def test_a_mean_over_reference_prompts(answer, tmp_path: Path) -> None:
    """As text and as a file, and like `ablate` with the same edit."""
    texts = ["He sat by the water.", "The bank was closed on Sunday."]
    path = tmp_path / "reference.txt"
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    given = answer(*READ, "--method", "mean", "--reference", texts[0], "--reference", texts[1])
    assert given["reference"] == texts
    assert answer(*READ, "--method", "mean", "--reference", str(path)) == given
    zeroed = {row["variant"]: row["total"] for row in answer(*READ)["effects"]}
    totals = {row["variant"]: row["total"] for row in given["effects"]}
    assert totals["L1.attn@bank=mean"] != pytest.approx(zeroed["L1.attn@bank"], abs=0.5)
    assert given["closure"]["effect"] < 1e-3


def test_a_sweep_by_resampling_is_one_ablation_each(answer, run, bank: str) -> None:
    other = "She checked her savings account balance at the bank"
    found = answer(*READ, "--method", "resample", "--reference", other)
    totals = {row["variant"]: row["total"] for row in found["effects"]}
    edit = ["-e", "L27.attn=resample", "--reference", other]
    one = json.loads(run("ablate", bank, *edit, *READ).stdout)
    assert totals["L27.attn@bank=resample"] == pytest.approx(one["effect"]["total"], abs=1e-4)
    assert one["effect"]["total"] == pytest.approx(-5.936, abs=5e-3)


def test_estimates_and_how_far_to_trust_them(answer, run, bank: str) -> None:
    cheap = answer(*READ, "--estimate", "gradient")
    assert list(cheap["effects"][0]) == ["variant", "estimate"]
    assert "agreement" not in cheap
    checked = answer(*READ, "--estimate", "gradient", "--check")
    exact = {row["variant"]: row["total"] for row in answer(*READ)["effects"]}
    assert {row["variant"]: row["total"] for row in checked["effects"]} == pytest.approx(exact, abs=1e-6)
    assert [row["estimate"] for row in checked["effects"]] == [row["estimate"] for row in cheap["effects"]]
    assert 0.5 < checked["agreement"]["spearman"] < 0.9
    table = run("sweep", bank, *READ, "--estimate", "gradient", "--check", "--format", "table", "--top", "1").stdout
    assert next(line.split() for line in table.splitlines() if line.startswith("L27")) == [
        "L27.mlp@bank",
        "+2.088",
        "+2.002",
    ]
    assert f"rank correlation {checked['agreement']['spearman']:.2f} (Spearman)" in table
    rows = run("sweep", bank, *READ, "--estimate", "gradient", "--check", "--format", "csv").stdout.splitlines()
    assert rows[0].endswith(",clean,estimate,total")


@pytest.mark.parametrize(("read", "plots"), [(READ, 2), (READ[:2], 1)], ids=["logit", "output"])
def test_the_page(run, loaded, bank: str, tmp_path: Path, read: list[str], plots: int) -> None:
    path = tmp_path / "page.html"
    said = run("sweep", bank, *read, "--html", str(path), "--format", "table")
    assert said.exit_code == 0, said.stderr
    assert f"wrote {path}" in said.stderr
    page = path.read_text(encoding="utf-8")
    assert page.count('class="plot"') == plots
    assert ("Which write responded to which edit" in page) == (plots == 2)
    assert "The largest effects" in page


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--against", " money"], "--against is the other side of --for"),
        (["--method", "half"], "--method is zero, a factor such as 0.5, mean or resample; got 'half'."),
        (["--method", "mean"], "--method mean takes its values from other prompts."),
        (["--method", "0.5", "--reference", "x"], "--reference is for the methods mean and resample"),
        (["--method", "resample", "--reference", "a", "--reference", "b"], "takes one other prompt; got 2."),
        (["--method", "mean", "--reference", "no_file.txt"], "no_file.txt: cannot be read"),
        (["--estimate", "gradient"], 'An estimate is of a logit; name the token: --for " river".'),
        (["--for", " a", "--estimate", "gradient", "--freeze", "all"], "An estimate holds nothing at its clean value"),
        (["--for", " a", "--estimate", "gradient", "--html", "x.html"], "--html draws the exact sweep; add --check"),
        (["--for", " a", "--check"], "--check compares an estimate with the sweep"),
        (["--html", "no/such/folder/x.html"], "--html names a file in an existing folder"),
        (["--for", " river", "--over", "neurons"], "Invalid value for '--over'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_said_before_a_model_is_loaded(run, unloaded, bank: str, args: list[str], error: str) -> None:
    said = run("sweep", bank, *args)
    assert said.exit_code == 2
    assert error in said.stderr.splitlines()[0]
