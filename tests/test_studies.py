"""A study is saved and loaded whole; what is no study is refused; and its numbers are those of the single calls."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streamlens.errors import InputError
from streamlens.report import adds_up, responses_of, study_page
from streamlens.studies import Study, is_study
from study_frames import small_study


class TestFile:
    def test_a_study_comes_back_whole(self, tmp_path: Path) -> None:
        study = small_study(["\u202e evil", "nan", "", " bank"])
        back = Study.load(study.save(tmp_path / "a.study"))
        assert back.facts == study.facts
        assert back.provenance == study.provenance
        assert list(back.frames) == list(study.frames)
        for name, frame in study.frames.items():
            pd.testing.assert_frame_equal(back.frames[name], frame)
            assert back.frames[name].attrs == frame.attrs

    def test_the_page_of_what_was_loaded_is_the_page(self, tmp_path: Path) -> None:
        study = small_study(layers=1)
        assert study_page(Study.load(study.save(tmp_path / "a"))) == study_page(study)

    def test_what_is_no_study_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("no zip")
        with pytest.raises(InputError, match="no study"):
            Study.load(tmp_path / "text")
        with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
            archive.writestr("x", "y")
        assert not is_study(tmp_path / "other.zip")
        with pytest.raises(InputError, match="no such file"):
            Study.load(tmp_path / "nowhere")

    def test_a_study_of_another_format_is_refused(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "old", "w") as archive:
            archive.writestr("study.json", json.dumps({"format": 99}))
        with pytest.raises(InputError, match="a study of format 99; this version reads 1"):
            Study.load(tmp_path / "old")

    def test_a_failed_save_leaves_the_old_file_and_no_other(self, tmp_path: Path) -> None:
        target = small_study(layers=1).save(tmp_path / "a.study")
        before = target.read_bytes()
        spoilt = small_study(layers=1)
        facts = {**spoilt.facts, "prompt": object()}
        with pytest.raises(TypeError):
            Study(frames=spoilt.frames, facts=facts, provenance={}).save(target)
        assert target.read_bytes() == before
        assert list(tmp_path.iterdir()) == [target]
        with pytest.raises(InputError, match="a file in an existing folder"):
            spoilt.save(tmp_path / "nowhere" / "a")


def test_a_study_that_does_not_close_does_not_add_up() -> None:
    study = small_study(layers=1)
    assert adds_up(study)
    closure = {**study.facts["closure"], "readout": 1.0}
    wrong = Study(frames=study.frames, facts={**study.facts, "closure": closure}, provenance={})
    assert not adds_up(wrong)
    assert "It does not add up: the contributions." in study_page(wrong, sections=["sum"])


def test_a_section_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"A section is one of model, tokens, .*; got 'maps'"):
        study_page(small_study(layers=1), sections=["maps"])


@pytest.fixture(scope="module")
def reader(default_model):
    from streamlens import Reader

    return Reader.logit_diff(default_model, " river", " money")


@pytest.fixture(scope="module")
def study(default_model, bank, reader) -> Study:
    from streamlens import study

    return study(default_model, bank, position="bank", reader=reader, checks=False)


@pytest.mark.model
class TestOfTheDefaultModel:
    def test_it_holds_every_frame_and_adds_up(self, study) -> None:
        expected = {"writes", "readout", "steps", "visibility", "lens", "effects", "changes", "sources"}
        assert set(study.frames) == expected
        assert study.facts["missing"] == {}
        assert study.facts["reader"]["value"] == pytest.approx(3.742, abs=1e-3)
        assert study.facts["model"]["heads"] == 9
        assert adds_up(study)

    def test_it_says_what_made_it_and_when(self, study) -> None:
        made = study.provenance
        assert {"model", "revision", "device", "dtype", "bos", "versions"} <= set(made)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", made["date"])

    def test_its_changes_are_those_of_the_single_ablation(self, study, default_model, bank, reader) -> None:
        from streamlens import ablate

        alone = ablate(default_model, bank, "L9.attn@bank", readers=reader, position="bank").to_frame()
        changes = study.frames["changes"]
        mine = changes[changes["variant"].astype(str).str.startswith("L9.attn@")]
        value = next(name for name in changes if name.startswith("delta: "))
        np.testing.assert_allclose(mine[value], alone[value], atol=1e-3)
        assert list(mine["status"].astype(str)) == list(alone["status"].astype(str))

    def test_its_matrix_is_that_of_the_sweep(self, study, default_model, bank, reader) -> None:
        from streamlens import sweep

        found = sweep(default_model, bank, over=["L9.attn", "L12.mlp"], position="bank", readers=reader).responses()
        matrix = responses_of(study)
        assert list(matrix.columns) == list(found.columns)
        rows = [name for name in matrix.index if name.split("@")[0] in ("L9.attn", "L12.mlp")]
        np.testing.assert_allclose(matrix.loc[rows], found, atol=1e-3)
        assert matrix.attrs["token"] == " bank"

    def test_a_reader_in_the_middle_is_refused_before_anything_runs(self, default_model, bank) -> None:
        from streamlens import Reader, study

        middle = Reader.direction([1.0] * 576, after="L3.mlp")
        with pytest.raises(InputError, match="one row at the end of the stream"):
            study(default_model, bank, reader=middle)


def test_a_study_without_ablations_and_reader_is_a_page_without_their_sections() -> None:
    study = small_study(layers=1, reader=False)
    frames = {"writes": study.frames["writes"]}
    facts = {**study.facts, "missing": {"effects": "Nothing is read."}}
    source = study_page(Study(frames=frames, facts=facts, provenance={}))
    assert "Switch a branch off" not in source
    assert "<dt>no effects</dt><dd>Nothing is read.</dd>" in source
    assert "Every part at every token" in source
