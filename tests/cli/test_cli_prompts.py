"""Prompts out of arguments and files; and that what is wrong is named by file and line before a model loads."""

from pathlib import Path

import pandas as pd
import pytest

from streamlens.cli.prompts import Prompt, read_prompts
from streamlens.errors import InputError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a prompt file; its name stands for its path."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, content: bytes | str) -> str:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    return write


def test_an_argument_is_a_prompt() -> None:
    given = ["Hello there", "He opened notes.txt", " leading"]
    assert [p.text for p in read_prompts(given)] == given
    assert read_prompts(given)[1].where == "argument 2"


def test_lines_of_a_text_file(file) -> None:
    name = file("some.txt", "\ufeffOne\r\nTwo \u2028 still two\nLast")
    assert read_prompts([name]) == [
        Prompt("One", "some.txt:1"),
        Prompt("Two \u2028 still two", "some.txt:2"),
        Prompt("Last", "some.txt:3"),
    ]


def test_lines_of_json(file) -> None:
    name = file("some.jsonl", '{"id": 1, "text": "One"}\n"Two"\n{"prompt": "Three", "text": "no"}\n')
    assert [p.text for p in read_prompts([name])] == ["One", "Two", "Three"]
    assert [p.text for p in read_prompts([file("b.jsonl", '{"id": "x", "q": "A"}\n')], column="q")] == ["A"]


def test_rows_of_csv_keep_commas_quotes_and_line_breaks(file) -> None:
    name = file("some.csv", 'id,prompt\n1,"After, she"\n2,"a ""b""\nc"\n3,last\n')
    assert read_prompts([name]) == [
        Prompt("After, she", "some.csv:2"),
        Prompt('a "b"\nc', "some.csv:3"),
        Prompt("last", "some.csv:5"),
    ]
    assert [p.text for p in read_prompts([name], column="id")] == ["1", "2", "3"]


def test_the_only_column_needs_no_name(file) -> None:
    assert [p.text for p in read_prompts([file("a.csv", "sentence\nHello\n")])] == ["Hello"]


def test_rows_of_parquet(tmp_path: Path) -> None:
    path = str(tmp_path / "some.parquet")
    pd.DataFrame({"n": [1, 2], "text": ["One", "Two"]}).to_parquet(path)
    assert read_prompts([path]) == [Prompt("One", f"{path}:1"), Prompt("Two", f"{path}:2")]


BAD = [
    ("a.txt", "One\n\nThree\n", "a.txt:2: a prompt has some text; this one is empty."),
    ("a.txt", b"One\ncaf\xe9\n", "a.txt:2: prompts are UTF-8; this line holds the byte 0xE9."),
    ("a.txt", "", "a.txt: holds no prompt."),
    ("a.jsonl", '{"prompt": "x"}\n{"prompt" "y"}\n', "a.jsonl:2: not JSON: Expecting ':' delimiter"),
    ("a.jsonl", '{"prompt": "x"}\n{"prompt": 3}\n', "a.jsonl:2: a prompt is a text; got 3."),
    ("a.jsonl", '{"prompt": null}\n', "a.jsonl:1: a prompt is a text; got null."),
    ("a.jsonl", '{"a": "x", "b": "y"}\n', "a.jsonl:1: none of its columns is called prompt or text; there are"),
    ("a.jsonl", '{"prompt": "x"}\n\n', "a.jsonl:2: a line of JSON holds one prompt; this one is empty."),
    ("a.jsonl", '{"prompt": "\\ud800"}\n', "a.jsonl:1: a prompt is Unicode text; character 1 is none."),
    ("a.jsonl", b'"x"\n"\xff"\n', "a.jsonl:2: prompts are UTF-8"),
    ("a.jsonl", "[" * 100_000, "a.jsonl:1: not JSON"),
    ("a.csv", "prompt\nAfter, she\n", "a.csv:2: a row has as many fields as the header, 1; this one has 2."),
    ("a.csv", 'prompt\n"open\n', "a.csv:2: not CSV: unexpected end of data"),
    ("a.csv", 'prompt,n\nx,1\n"",2\n', "a.csv:3: a prompt has some text; this one is empty."),
    ("a.csv", b"prompt\nx\n\xe9\n", "a.csv:3: prompts are UTF-8"),
    ("a.csv", "a,b\n1,2\n", 'a.csv:1: none of its columns is called prompt or text; there are "a", "b".'),
    ("a.csv", "prompt\n", "a.csv: holds no prompt."),
    ("a.parquet", b"nonsense", "a.parquet: not Parquet"),
]


@pytest.mark.parametrize(("name", "content", "error"), BAD, ids=[error for *_, error in BAD])
def test_what_is_wrong_is_named_before_the_model_loads(run, unloaded, file, name, content, error) -> None:
    for command in ("decompose", "lens"):
        said = run(command, file(name, content))
        assert said.exit_code == 2
        assert said.stdout == ""
        assert said.stderr.startswith(f"error: {error}")


def test_a_bad_row_of_parquet_is_named(run, unloaded, tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pd.DataFrame({"prompt": ["x", None]}).to_parquet(path)
    assert run("decompose", path).stderr.startswith(f"error: {path}:2: a prompt is a text; got null.")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl"])
def test_a_missing_column_lists_the_columns(run, unloaded, file, name: str) -> None:
    if name.endswith("parquet"):
        pd.DataFrame({"prompt": ["x"], "id": [1]}).to_parquet(name)
    else:
        file(name, "prompt,id\nx,1\n" if name.endswith("csv") else '{"prompt": "x", "id": 1}\n')
    said = run("decompose", name, "--column", "question")
    assert f"{name}" in said.stderr
    assert 'no column \'question\'; there are "prompt", "id".' in said.stderr
    assert "hint: Name one with --column." in said.stderr


def test_standard_input_is_lines(run, unloaded) -> None:
    assert run("decompose", "-", stdin="One\n\n").stderr.startswith("error: <stdin>:2: a prompt has some text")
    assert run("decompose", "-", stdin=b"\xff").stderr.startswith("error: <stdin>:1: prompts are UTF-8")


def test_an_argument_that_is_no_text(run, unloaded) -> None:
    assert run("decompose", " ").stderr.startswith("error: argument 1: a prompt has some text")
    with pytest.raises(InputError, match="argument 1: a prompt is Unicode text; character 2 is none"):
        read_prompts(["a\udcff"])
