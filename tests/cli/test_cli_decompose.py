"""`streamlens decompose` on the default model: known values, sums, formats, and text that no terminal obeys."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.model

CHECK = "After cashing the check, she waited at the bank"
READ = ["--token", "bank", "--for", " river", "--against", " money"]


@pytest.fixture
def answer(run, loaded, bank: str):
    """Runs `decompose` on the worked example, or on another prompt; standard output, which must be JSON."""

    def answer(*args: str, prompt: str = bank):
        said = run("decompose", prompt, *args)
        assert said.exit_code == 0, said.stderr
        return json.loads(said.stdout)

    return answer


def test_the_known_values(answer) -> None:
    found = answer(*READ)
    assert (found["position"], found["token"], found["token_id"]) == (9, " bank", 5461)
    assert found["reader"] == {"name": "logit(·river) - logit(·money)", "unit": "logits"}
    assert found["value"] == pytest.approx(3.742, abs=5e-4)
    sizes = {part["component"]: part["contribution"] for part in found["parts"]}
    largest = sorted(sizes, key=lambda name: -abs(sizes[name]))[:4]
    assert largest == ["L27.mlp", "L26.mlp", "L27.attn", "L24.attn"]
    assert [round(sizes[name], 2) for name in largest] == [-1.51, 1.28, 0.97, 0.96]


def test_it_adds_up(answer) -> None:
    found = answer(*READ)
    assert found["closure"]["in_order"] == 0.0
    assert found["closure"]["relative"] < 1e-6
    total = sum(part["contribution"] for part in found["parts"])
    assert total == pytest.approx(found["value"], abs=1e-4)
    assert total == pytest.approx(found["sum"], abs=1e-9)
    assert found["closure"]["readout"] == pytest.approx(abs(found["sum"] - found["value"]), abs=1e-9)


def test_all_parts_in_stream_order(answer) -> None:
    parts = answer(*READ)["parts"]
    blocks = [f"L{layer}.{kind}" for layer in range(30) for kind in ("attn", "mlp")]
    assert [part["component"] for part in parts] == ["embed", *blocks, "rounding"]
    assert parts[0]["layer"] is None
    assert (parts[-2]["layer"], parts[-2]["kind"]) == (29, "mlp")


def test_the_other_sentence(answer) -> None:
    assert answer(*READ, prompt=CHECK)["value"] == pytest.approx(-6.249, abs=5e-4)


def test_every_answer_says_what_made_it(answer) -> None:
    made = answer(*READ)["model"]
    assert made["model"] == "smollm2-135m"
    assert {"revision", "device", "dtype", "bos", "streamlens", "torch", "transformers"} <= set(made)


def test_one_logit_without_against(answer) -> None:
    river, money = (answer("--token", "9", "--for", token)["value"] for token in (" river", " money"))
    assert river - money == pytest.approx(3.742, abs=5e-4)


def test_a_token_by_text_by_index_and_from_the_end(answer) -> None:
    first, *others = (answer("--token", token) for token in ("bank", " bank", "9", "-1"))
    assert all(found == first for found in others)


def test_the_writes_at_a_token(answer) -> None:
    found = answer("--token", "bank")
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1, abs=1e-9)
    assert set(found["parts"][0]) == {"component", "layer", "kind", "norm", "share", "cosine"}
    assert set(found["closure"]) == {"in_order", "relative"}


def test_every_token_and_its_sink(answer) -> None:
    found = answer("--for", " river")
    assert [place["token"] for place in found["positions"]] == found["tokens"]
    assert [place["sink"] for place in found["positions"]] == [True] + [False] * 9
    alone = answer("--token", "bank", "--for", " river")
    assert found["positions"][9]["value"] == pytest.approx(alone["value"], abs=1e-4)
    assert found["closure"]["readout"] == max(place["closure"]["readout"] for place in found["positions"])


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["--token", "the"], "'the' stands at positions 2, 8", "2:' the'"),
        (["--token", "tree"], "'tree' is not among the tokens", "9:' bank'"),
        (["--token", "10"], "A position is between 0 and 9; got 10.", "0:'After'"),
        (["--for", "zebra"], "'zebra' is 2: 'ze', 'bra'", "' zebra' is one token"),
        (["--for", " river", "--against", " river"], "A difference needs two tokens", ""),
        (["--html", "no/such/folder/page.html"], "--html names a file in an existing folder", ""),
        (["-o", "no/such/folder/x.json"], "-o names a file in an existing folder", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_said(run, loaded, bank: str, args: list[str], error: str, hint: str) -> None:
    said = run("decompose", bank, *args)
    assert said.exit_code == 2
    assert said.stdout == ""
    assert error in said.stderr.splitlines()[0]
    assert hint in said.stderr


def test_a_model_without_a_head_says_so(run, default_model, bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    headless = replace(default_model, wiring=replace(default_model.wiring, head=None, no_head="It is an encoder."))
    monkeypatch.setattr("streamlens.models.load.load", lambda *_, **__: headless)
    said = run("decompose", bank, "--for", " river")
    assert said.exit_code == 2
    assert "has no linear head. It is an encoder." in said.stderr
    assert "hint: Leave --for out" in said.stderr
    assert run("decompose", bank, "--token", "bank").exit_code == 0


def test_the_table_shows_the_largest_the_rest_and_the_sum(run, loaded, bank: str) -> None:
    said = run("decompose", bank, *READ, "--format", "table", "--top", "4").stdout
    lines = [line.split() for line in said.splitlines() if line]
    rows = {" ".join(line[:-1]): line[-1] for line in lines}
    assert rows["L27.mlp"] == "−1.513"
    assert rows["sum"] == rows["the model's own value"] == "+3.742"
    shown = [float(rows[name].replace("−", "-")) for name in ("L27.mlp", "L26.mlp", "L27.attn", "L24.attn")]
    rest = float(rows["other (57)"].replace("−", "-"))
    assert sum(shown) + rest == pytest.approx(3.742, abs=0.004)
    assert "rounding" in rows
    assert "logit(·river) − logit(·money) at ·bank (position 9)" in said
    assert "Sums to the model's own value within" in said
    assert "in the model's order: 0.0 off" in said
    assert "\x1b" not in said


def test_the_other_tables(run, loaded, bank: str) -> None:
    writes = run("decompose", bank, "--token", "bank", "--format", "table").stdout
    assert "Writes to a stream of norm 684" in writes
    assert "+1.000" in writes
    every = run("decompose", bank, "--for", " river", "--format", "table").stdout
    assert "After (sink)" in every
    assert len([line for line in every.splitlines() if line[:1].isdigit()]) == 10


def test_the_table_fits_a_terminal(run, loaded, bank: str, terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for args in (READ, ["--token", "bank"], ["--for", " river"], []):
        said = run("decompose", bank, *args, "--format", "table").stdout
        assert max(map(len, said.splitlines())) <= 80
        assert "…" not in said


HOSTILE = "[bold]x[/bold] \x1b[31mred\x07 \u202eevil \x9b31m :smile:"


def test_no_token_acts_on_a_terminal(run, loaded, terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")  # so that every escape would be the prompt's
    for format in ("table", "json", "jsonl", "csv"):
        said = run("decompose", HOSTILE, "--format", format).stdout
        assert not any(char in said for char in "\x1b\x07\x9b\u202e"), format
    table = run("decompose", HOSTILE, "--format", "table").stdout
    assert "[bold]x[/bold] ⟨U+001B⟩[31mred⟨U+0007⟩ ⟨U+202E⟩evil" in table
    assert ":smile:" in table


def test_colour_on_a_terminal_is_ours(run, loaded, terminal) -> None:
    said = run("decompose", HOSTILE, "--token", "0", "--format", "table").stdout
    assert "\x1b[1m" in said
    assert "\x1b[31mred" not in said


def test_json_keeps_the_raw_text(run, loaded) -> None:
    found = json.loads(run("decompose", HOSTILE, "--format", "json").stdout)
    assert found["prompt"] == HOSTILE


def test_json_passes_through_a_pipe(run, loaded, bank: str) -> None:
    said = run("decompose", bank, *READ, "--format", "json").stdout
    tool = subprocess.run([sys.executable, "-m", "json.tool"], input=said, capture_output=True, text=True)
    assert tool.returncode == 0, tool.stderr


def test_frames_in_every_format(run, loaded, bank: str, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("decompose", bank, *READ, "--format", "csv").stdout)))
    assert len(rows) == 62
    assert {row["token"] for row in rows} == {" bank"}
    assert sum(float(row["contribution"]) for row in rows) == pytest.approx(3.742, abs=5e-4)
    path = tmp_path / "x.parquet"
    said = run("decompose", bank, "-o", str(path))
    assert said.stdout == ""
    assert said.stderr == f"streamlens: wrote {path}\n"
    frame = pd.read_parquet(path)
    assert len(frame) == 620
    assert frame.attrs["model"] == "smollm2-135m"


def test_a_file_is_written_whole_or_not_at_all(run, loaded, bank: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.json"
    path.write_text("before")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        said = run("decompose", bank, *READ, "-o", str(path))
    assert said.exit_code == 2
    assert "cannot be written: No space left on device" in said.stderr
    assert path.read_text() == "before"
    assert run("decompose", bank, *READ, "-q", "-o", str(path)).output == ""
    assert json.loads(path.read_text())["position"] == 9
    assert list(tmp_path.iterdir()) == [path]


def test_several_prompts_are_a_list(run, loaded, bank: str) -> None:
    found = json.loads(run("decompose", bank, CHECK, *READ).stdout)
    assert [round(one["value"], 3) for one in found] == [3.742, -6.249]
    lines = run("decompose", bank, CHECK, *READ, "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == [bank, CHECK]
    frame = pd.read_csv(io.StringIO(run("decompose", "-", *READ, "--format", "csv", stdin=f"{bank}\n{CHECK}\n").stdout))
    assert frame.groupby("prompt_id")["contribution"].sum().round(2).to_list() == [3.74, -6.25]


def test_a_prompt_that_fails_is_named_and_the_others_go_on(run, loaded, bank: str) -> None:
    said = run("decompose", "-", *READ, "--format", "jsonl", stdin=f"{bank}\nNo such word\n{CHECK}\n")
    assert said.exit_code == 1
    assert [json.loads(line)["prompt"] for line in said.stdout.splitlines()] == [bank, CHECK]
    assert "error: <stdin>:2: A token names one position; 'bank' is not among the tokens." in said.stderr
    assert "1 of 3 prompts failed" in said.stderr


def test_a_bos_token_only_when_asked(answer) -> None:
    assert answer("--token", "0", "--prepend-bos")["model"]["bos"] == "prepended"


def test_the_page_has_the_plots_and_the_table_is_printed_still(run, loaded, bank: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    said = run("decompose", bank, *READ, "--format", "table", "--html", str(path))
    assert said.exit_code == 0
    assert "L27.mlp" in said.stdout
    assert f"wrote {path}" in said.stderr
    page = path.read_text(encoding="utf-8")
    assert page.count('class="plot"') == 3
    assert "logit(·river) − logit(·money) at ·bank" in page
    assert "Sums to the model&#x27;s own value within" in page
    for made in ("smollm2-135m", "float32", "versions", "date", "plotly "):
        assert made in page
    assert page.count("<tr>") == 1 + 62 + 1


def test_the_page_without_a_reader(run, loaded, bank: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert run("decompose", bank, "--html", str(path)).exit_code == 0
    page = path.read_text(encoding="utf-8")
    assert page.count('class="plot"') == 2
    assert page.count("<tr>") == 1 + 620 + 1


def test_one_page_shows_one_prompt(run, unloaded, bank: str, tmp_path: Path) -> None:
    said = run("decompose", bank, CHECK, "--html", str(tmp_path / "page.html"))
    assert said.exit_code == 2
    assert "--html shows one prompt; got 2." in said.stderr
