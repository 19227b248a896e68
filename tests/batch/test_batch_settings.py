"""Settings from YAML and TOML files with the flags' names, and what is wrong with them."""

from pathlib import Path

import pytest

from streamlens.batch import Settings
from streamlens.batch.settings import read_settings
from streamlens.errors import InputError

YAML = """
analysis: [writes, ablations]
for: [" river", " water"]
against: [" money", ""]
token: [bank, -1]
max-tokens: 20
prepend_bos: true
"""
TOML = """
analysis = ["writes", "ablations"]
for = [" river", " water"]
against = [" money", ""]
token = ["bank", -1]
max-tokens = 20
prepend-bos = true
"""


def settings(tmp_path: Path, name: str, text: str) -> Settings:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return Settings().changed(read_settings(path), where=name)


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.toml", TOML)])
def test_a_file_has_the_flags_names(tmp_path, name, text):
    found = settings(tmp_path, name, text)
    assert found.wanted == (" river", " water")
    assert found.against == (" money", "")
    assert found.token == ("bank", -1)
    assert (found.max_tokens, found.prepend_bos, found.dtype) == (20, True, "float32")
    assert Settings.of(found.to_dict()) == found


def test_what_is_given_later_wins(tmp_path):
    found = settings(tmp_path, "a.yaml", YAML).changed({"token": "river", "max-tokens": None})
    assert (found.token, found.max_tokens, found.prepend_bos) == (("river",), None, True)


def test_only_what_decides_the_numbers_is_identity():
    base = Settings()
    for name, value in {"device": "cuda", "column": "x", "model": "m", "memory": 3}.items():
        assert base.changed({name: value}).identity == base.identity
    for name, value in {"dtype": "float64", "token": "x", "for": "x", "mean": "role", "shard": 3}.items():
        assert base.changed({name: value}).identity != base.identity


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.yaml", "tokens: bank", r"a.yaml: there is no setting 'tokens'. Did you mean token\?"),
        ("a.yaml", "xyz: 1", r"a.yaml: there is no setting 'xyz'. There are model, dtype"),
        ("a.yaml", "top: many", 'a.yaml: top is a whole number; got "many".'),
        ("a.yaml", "top: true", "a.yaml: top is a whole number; got true."),
        ("a.yaml", "prepend-bos: 1", "a.yaml: prepend-bos is true or false; got 1."),
        ("a.yaml", "for: [1]", "a.yaml: for is a text or a list of texts; got 1."),
        ("a.yaml", "model: [x]", "a.yaml: model is a text; got"),
        ("a.yaml", "- x", "settings are names with values; this is a list."),
        ("a.yaml", "a: b: c", "a.yaml: not YAML: mapping values are not allowed here"),
        ("a.toml", "a = ", "a.toml: not TOML: Invalid value"),
        ("a.json", "{}", "Settings stand in a .yaml or .toml file; got a.json."),
    ],
)
def test_what_is_wrong_is_said(tmp_path, name, text, error):
    with pytest.raises(InputError, match=error):
        settings(tmp_path, name, text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"a\.yaml: cannot be read: No such file"):
        read_settings(tmp_path / "a.yaml")
