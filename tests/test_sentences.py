"""Labelled sentences: the bundled set is balanced, splits keep templates apart, a bad row is named by its line."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd
import pytest

from streamlens.errors import InputError
from streamlens.models.tokens import encode, token_texts
from streamlens.sentences import Sentence, bank_senses, read_sentences, split


def by(sentences, *names):
    groups = defaultdict(list)
    for sentence in sentences:
        groups[tuple(getattr(sentence, name) for name in names)].append(sentence)
    return groups


class TestTheBundledSet:
    def test_its_size_and_balance(self) -> None:
        counts = Counter((s.label, s.split) for s in bank_senses())
        sizes = {("river", "train"): 80, ("money", "train"): 80, ("river", "test"): 40, ("money", "test"): 40}
        assert counts == sizes
        assert Counter(s.label for s in bank_senses(neutral=True)) == {"river": 120, "money": 120, "neutral": 120}

    def test_every_sentence_is_there_once_and_holds_the_word_once(self) -> None:
        texts = [s.text for s in bank_senses(neutral=True)]
        assert len(set(texts)) == len(texts)
        for text in texts:
            assert re.findall("bank", text, re.IGNORECASE) == ["bank"], text
            assert re.search(r" bank\b", text), text

    def test_no_template_is_on_both_sides(self) -> None:
        sides = by(bank_senses(neutral=True), "template")
        assert len(sides) == 60
        assert all(len({s.split for s in group}) == 1 for group in sides.values())
        assert Counter(group[0].split for group in sides.values()) == {"train": 40, "test": 20}

    def test_every_template_is_filled_twice_for_each_sense(self) -> None:
        assert {len(group) for group in by(bank_senses(neutral=True), "template", "label").values()} == {2}

    def test_the_senses_share_what_follows_and_the_word_before(self) -> None:
        for group in by(bank_senses(neutral=True), "template").values():
            ends = by_label(group, lambda text: text.partition(" bank")[2])
            before = by_label(group, lambda text: text.partition(" bank")[0].split()[-1])
            assert ends["river"] == ends["money"] == ends["neutral"]
            assert before["river"] == before["money"] == before["neutral"]

    def test_the_example_of_the_documentation_is_not_in_it(self, bank: str) -> None:
        assert not any(bank in s.text for s in bank_senses(neutral=True))


def by_label(group, cut):
    return {label: sorted(cut(s.text) for s in found) for (label,), found in by(group, "label").items()}


@pytest.mark.model
def test_length_and_position_tell_nothing(default_model) -> None:
    places = defaultdict(list)
    for sentence in bank_senses(neutral=True):
        ids = encode(default_model.tokenizer, sentence.text).ids[0].tolist()
        texts = token_texts(default_model.tokenizer, ids)
        assert texts.count(" bank") == 1, sentence.text
        places[sentence.template, sentence.label].append((texts.index(" bank"), len(ids)))
    for template in {template for template, _ in places}:
        found = [sorted(places[template, label]) for label in ("river", "money", "neutral")]
        assert found[0] == found[1] == found[2], template


def sentence(label: str, n: int, **more) -> Sentence:
    return Sentence(text=f"{label} {n}", label=label, where=f"x.jsonl:{n + 1}", **more)


class TestSplit:
    def test_as_the_sentences_say(self) -> None:
        given = [sentence("ab"[n % 2], n, split=("train", "test")[n > 3]) for n in range(8)]
        assert split(given) == ([0, 1, 2, 3], [4, 5, 6, 7])

    def test_by_template_none_is_on_both_sides(self) -> None:
        given = [sentence("ab"[n % 2], n, template=f"t{n // 4}") for n in range(80)]
        train, test = split(given, held_out=0.25, seed=3)
        assert sorted(train + test) == list(range(80))
        assert len(test) == 20
        assert not {given[n].template for n in train} & {given[n].template for n in test}
        assert split(given, held_out=0.25, seed=3) == (train, test)
        assert split(given, held_out=0.25, seed=4) != (train, test)

    def test_without_either_a_share_of_each_label(self) -> None:
        given = [sentence("a" if n < 30 else "b", n) for n in range(40)]
        train, test = split(given, held_out=0.2)
        assert Counter(given[n].label for n in test) == {"a": 6, "b": 2}
        assert len(train) == 32

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ([sentence("a", 0, split="train"), sentence("b", 1)], r"x.jsonl:2: all sentences have a split or none"),
            ([sentence("a", 0, template="t"), sentence("b", 1)], r"x.jsonl:2: all sentences have a template or none"),
            ([sentence("a", 0, split="train"), sentence("b", 1, split="test")], r"none of 'a' is to test"),
            ([sentence("a", 0), sentence("a", 1), sentence("b", 2)], r"none of 'b' is to train"),
        ],
        ids=["split", "template", "test side", "train side"],
    )
    def test_what_cannot_be_split(self, given, error: str) -> None:
        with pytest.raises(InputError, match=error):
            split(given)

    def test_a_share_is_a_share(self) -> None:
        with pytest.raises(InputError, match=r"held_out is a share between 0 and 1; got 2"):
            split([sentence("a", 0)], held_out=2.0)


class TestFiles:
    def write(self, folder: Path, *rows) -> Path:
        path = folder / "s.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return path

    def test_all_columns(self, tmp_path: Path) -> None:
        row = {"text": "the bank", "sense": "x", "template": 3, "split": "test"}
        [found] = read_sentences(self.write(tmp_path, row))
        assert (found.text, found.label, found.template, found.split) == ("the bank", "x", "3", "test")
        assert found.where.endswith("s.jsonl:1")

    def test_named_columns_numbers_and_no_more(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, {"words": "the bank", "class": 0}, {"words": "a bank", "class": 1})
        found = read_sentences(path, label="class", column="words")
        assert [s.label for s in found] == ["0", "1"]
        assert {(s.template, s.split) for s in found} == {(None, None)}

    def test_csv_and_parquet_are_the_same(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"text": ["the bank", "a bank"], "label": ["x", "y"], "split": ["train", ""]})
        frame.to_csv(tmp_path / "s.csv", index=False)
        frame.to_parquet(tmp_path / "s.parquet")
        a, b = read_sentences(tmp_path / "s.csv"), read_sentences(tmp_path / "s.parquet")
        assert [(s.text, s.label, s.split) for s in a] == [(s.text, s.label, s.split) for s in b]
        assert [s.split for s in a] == ["train", None]

    @pytest.mark.parametrize(
        ("rows", "error"),
        [
            (
                [{"text": "the bank", "label": "x"}, {"text": "the bank"}],
                r"s.jsonl:2: no column 'label'; there are 'text'",
            ),
            ([{"text": "the bank", "label": None}], r"s.jsonl:1: a label is a text or a number; 'label' is empty"),
            ([{"text": " ", "label": "x"}], r"s.jsonl:1: a prompt has some text"),
            ([{"text": "the bank", "label": "x", "split": "dev"}], r"s.jsonl:1: a split is train or test; got 'dev'"),
            (["the bank"], r"s.jsonl:1: no column 'label'; there are none"),
        ],
        ids=["column", "null", "no text", "split", "no object"],
    )
    def test_a_bad_row_is_named_by_its_line(self, tmp_path: Path, rows, error: str) -> None:
        with pytest.raises(InputError, match=error):
            read_sentences(self.write(tmp_path, *rows))

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("s.txt", r"are a .jsonl, .csv or .parquet file"),
            ("no such.csv", r"no such file"),
            ("no.csv", "cannot be read"),
        ],
    )
    def test_a_file_that_is_none(self, tmp_path: Path, name: str, error: str) -> None:
        with pytest.raises(InputError, match=error):
            read_sentences(tmp_path / name)
