"""`streamlens report`: a page and a study of the worked example; a saved study needs no model; what is refused."""

import json
import re
from pathlib import Path

import pytest

from streamlens.studies import Study
from study_frames import small_study

READ = ["--token", "bank", "--for", " river", "--against", " money"]


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return str(small_study(layers=2).save(tmp_path / "small.study"))


@pytest.mark.model
def test_a_prompt_becomes_a_page_and_a_study(run, loaded, bank: str, tmp_path: Path) -> None:
    page, study = tmp_path / "bank.html", tmp_path / "bank.study"
    said = run("report", bank, *READ, "-o", str(page), "--save", str(study))
    assert said.exit_code == 0, said.stderr
    assert said.stdout == ""
    assert f"wrote {page}" in said.stderr
    source = page.read_text(encoding="utf-8")
    assert "Subtracting L1.attn@bank predicts +0.421 logits; rerunning the model gives −3.89" in source
    assert "logit(·river) - logit(·money) is +3.742 logits, the sum of 62 parts" in source
    assert "It adds up. Re-added in the model&#x27;s own order and precision" in source
    assert len(source.encode()) <= 5_500_000
    back = Study.load(study)
    assert len(back.facts["checks"]) == 6
    assert back.provenance["model"] == "smollm2-135m"


def test_a_saved_study_becomes_a_page_without_a_model(run, unloaded, saved: str, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    assert run("report", saved, "-o", str(page), "--section", "parts", "--section", "sum").exit_code == 0
    source = page.read_text(encoding="utf-8")
    assert re.findall(r"<h2 id=[^>]*>([^<]*)", source) == ["What each part contributes", "Does it add up?"]


def test_what_does_not_add_up_ends_with_1(run, unloaded, tmp_path: Path) -> None:
    study = small_study(layers=1)
    closure = {**study.facts["closure"], "relative": 1.0}
    wrong = Study(frames=study.frames, facts={**study.facts, "closure": closure}, provenance={})
    said = run("report", str(wrong.save(tmp_path / "wrong")), "-o", str(tmp_path / "a.html"), "-q")
    assert said.exit_code == 1
    assert "It does not add up: the sum of the writes." in (tmp_path / "a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--section", "maps"], "--section is one of model, tokens, sum"),
        (["--against", " money"], "--against is the other side of --for"),
        (["--save", "nowhere/a.study"], "--save names a file in an existing folder"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(run, unloaded, tmp_path, arguments, message) -> None:
    said = run("report", "The bank", "-o", str(tmp_path / "a.html"), *arguments)
    assert said.exit_code == 2
    assert message in said.stderr


def test_several_prompts_are_refused(run, unloaded, tmp_path: Path) -> None:
    prompts = tmp_path / "two.txt"
    prompts.write_text("one\ntwo\n", encoding="utf-8")
    said = run("report", str(prompts), "-o", str(tmp_path / "a.html"))
    assert said.exit_code == 2
    assert "A report is about one prompt" in said.stderr


class TestPlot:
    @pytest.fixture
    def frames(self, tmp_path: Path) -> Path:
        for name, frame in small_study(layers=2).frames.items():
            frame.to_parquet(tmp_path / f"{name}.parquet", index=False)
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        return tmp_path

    KINDS = (
        ("contributions", "readout"),
        ("heatmap", "writes"),
        ("norm_growth", "writes"),
        ("token_strip", "readout"),
        ("before_after", "steps"),
        ("effects", "effects"),
        ("lens", "lens"),
        ("sources", "sources"),
        ("visibility", "visibility"),
    )

    @pytest.mark.parametrize(("kind", "name"), KINDS)
    @pytest.mark.parametrize("suffix", ["parquet", "csv"])
    def test_a_frame_becomes_a_page_with_the_figure_of_the_frame(self, run, frames, kind, name, suffix) -> None:
        from streamlens import plots

        page = frames / "out.html"
        said = run("plot", kind, str(frames / f"{name}.{suffix}"), "-o", str(page))
        assert said.exit_code == 0, said.stderr
        figures = figures_of(page)
        expected = getattr(plots, kind)(small_study(layers=2).frames[name])
        assert len(figures) == 1
        assert [trace["type"] for trace in figures[0]["data"]] == [trace.type for trace in expected.data]
        assert len(figures[0]["data"][0].get("x", [])) == len(expected.data[0].x or [])

    def test_attributes_survive_parquet_and_are_left_unsaid_after_csv(self, run, frames) -> None:
        titles = {}
        for suffix in ("parquet", "csv"):
            run("plot", "contributions", str(frames / f"readout.{suffix}"), "-o", str(frames / "a.html"))
            titles[suffix] = " ".join(figures_of(frames / "a.html")[0]["title"])
        assert "the model's own value within 4e-06" in titles["parquet"]
        assert "within 3.1e-07 of it · tiny-model" in titles["parquet"]
        assert "within" not in titles["csv"]
        assert titles["csv"].startswith("logit( river) - logit( money): +3.742 logits at ·bank (position 9)")

    @pytest.mark.parametrize("kind", ["downstream", "responses", "contributions"])
    def test_a_study_has_the_frames_of_its_figures(self, run, saved, tmp_path, kind) -> None:
        options = ["--variant", "L1.attn@9"] if kind == "downstream" else []
        said = run("plot", kind, saved, "-o", str(tmp_path / "a.html"), *options)
        assert said.exit_code == 0, said.stderr
        assert len(figures_of(tmp_path / "a.html")) == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["pie", "writes.parquet", "-o", "a.html"], "A figure is one of .*; got 'pie'"),
            (["heatmap", "writes.parquet", "-o", "a.gif"], r"\.html, \.png, \.svg or \.pdf; got 'a.gif'"),
            (["heatmap", "nowhere.parquet", "-o", "a.html"], r"nowhere\.parquet: no such file"),
            (["lens", "lens.parquet", "-o", "a.html", "--top", "3"], "lens takes prompt_id, dark; it has no top"),
            (["lens", "writes.parquet", "-o", "a.html"], "the frame of a logit lens"),
            (["heatmap", "bad.jsonl", "-o", "a.html"], "holds results with parts inside"),
            (["heatmap", "bad.txt", "-o", "a.html"], "a frame is a .parquet, .csv, .jsonl or .json file"),
        ],
    )
    def test_what_is_wrong_is_said(self, run, frames, monkeypatch, arguments, message) -> None:
        monkeypatch.chdir(frames)
        (frames / "bad.jsonl").write_text('{"parts": [1]}\n', encoding="utf-8")
        (frames / "bad.txt").write_text("x", encoding="utf-8")
        said = run("plot", *arguments)
        assert said.exit_code == 2
        assert re.search(message, said.stderr)
        assert not (frames / "a.html").exists()

    @pytest.mark.browser
    @pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")])
    def test_pictures_are_drawn_by_the_browser_of_this_machine(self, run, frames, suffix, start) -> None:
        picture = frames / f"a.{suffix}"
        said = run("plot", "contributions", str(frames / "readout.parquet"), "-o", str(picture))
        assert said.exit_code == 0, said.stderr
        assert picture.read_bytes().startswith(start)

    def test_without_a_browser_the_fix_and_the_page_are_named(self, run, frames, monkeypatch) -> None:
        monkeypatch.setenv("BROWSER_PATH", "/nonexistent/chromium")
        said = run("plot", "contributions", str(frames / "readout.parquet"), "-o", str(frames / "a.png"))
        assert said.exit_code == 2
        assert "A PNG needs kaleido and a browser" in said.stderr
        assert "apt-get install chromium" in said.stderr
        assert "-o FILE.html" in said.stderr
        assert not (frames / "a.png").exists()


def figures_of(page: Path) -> list[dict]:
    found = re.search(r'id="streamlens-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    data = json.loads(found[1])

    def put(value):
        if isinstance(value, list):
            return [put(item) for item in value]
        if isinstance(value, dict):
            return data["pool"][value["$"]] if "$" in value else {key: put(item) for key, item in value.items()}
        return value

    return put(data["figures"])
