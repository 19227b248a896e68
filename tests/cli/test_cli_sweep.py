"""`streamlens sweep` on the default model: the known effects, heads, formats, progress, and what is refused."""

import csv
import io
import json

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


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ([], 'A sweep reads a logit; name the token: --for " river".'),
        (["--against", " money"], "--against is the other side of --for"),
        (["--for", " river", "--method", "mean"], "--method is zero or a factor such as 0.5; got 'mean'."),
        (["--for", " river", "--over", "neurons"], "Invalid value for '--over'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_said_before_a_model_is_loaded(run, unloaded, bank: str, args: list[str], error: str) -> None:
    said = run("sweep", bank, *args)
    assert said.exit_code == 2
    assert error in said.stderr.splitlines()[0]
