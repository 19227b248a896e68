"""Labelled sentences: the bundled set with " bank" in two senses, and any file with a label beside each text.

1. A sentence is a text, a label, and optionally the template it was made from and whether it is to train or to test.
2. `bank_senses` is the bundled set. `read_sentences` reads `.jsonl`, `.csv` or `.parquet`; what is wrong is named by
   file and line.
3. `split` says which sentences are held out: those marked "test"; else whole templates, so that none is on both sides;
   else a share of each label.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlens.errors import InputError
from streamlens.prompts import BadPrompt, Prompt, rows_of

#: columns of the label that are taken without being named, the first that is there
LABELS = ("label", "sense")
SPLITS = ("train", "test")
_BANK = Path(__file__).parent / "data" / "bank_senses.jsonl"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One labelled sentence.

    Attributes:
        text: The sentence.
        label: What it is an example of.
        template: The frame it was made from; sentences of one template are never on both sides of a split.
        split: "train" or "test"; None where that is to be drawn.
        where: Where it came from, for messages: `sentences.jsonl:12`.
    """

    text: str
    label: str
    template: str | None = None
    split: str | None = None
    where: str


def bank_senses(*, neutral: bool = False) -> list[Sentence]:
    """The bundled set: 240 English sentences with " bank", half of a river's edge, half of a financial institution.

    Written for this package (MIT, like the rest of it). Sixty templates, each filled twice per sense; the fillings of a
    sense differ in the words before " bank" alone, and have one length in tokens of the default model, so that length,
    position and syntax tell nothing. Forty templates are to train, twenty to test. " bank" stands once in each
    sentence, and what decides its sense stands before it: a causal model has seen it there.

    Args:
        neutral: Also the 120 fillings that decide nothing ("He followed the girl to the bank"), labelled "neutral".

    Returns:
        Sentences labelled "river" and "money", in the order of the templates.
    """
    found = read_sentences(_BANK)
    return found if neutral else [sentence for sentence in found if sentence.label != "neutral"]


def read_sentences(path: str | Path, *, label: str | None = None, column: str | None = None) -> list[Sentence]:
    """Every sentence of a labelled file; the columns `template` and `split` are used where they exist.

    Args:
        path: A `.jsonl`, `.csv` or `.parquet` file.
        label: The column of the label; None for `label`, or `sense`.
        column: The column of the text; None for `prompt`, or `text`.

    Raises:
        InputError: A file that cannot be read; a row without text or label; a split other than train and test.
    """
    if Path(path).suffix.lower() not in (".jsonl", ".csv", ".parquet"):
        raise InputError(f"Labelled sentences are a .jsonl, .csv or .parquet file; got {str(path)!r}.")
    found = list(_rows(path, column))
    name = label or next((known for known in LABELS if known in found[0].others), LABELS[0])
    return [_sentence(row, name) for row in found]


def split(sentences: Sequence[Sentence], *, held_out: float = 0.25, seed: int = 0) -> tuple[list[int], list[int]]:
    """The numbers of the sentences to train and to test.

    Args:
        sentences: All of them.
        held_out: The share to test, of the templates or of each label; not used where the sentences say it.
        seed: For the draw.

    Raises:
        InputError: Only some sentences have a split or a template; a label that is not on both sides.
    """
    if not 0 < held_out < 1:
        raise InputError(f"held_out is a share between 0 and 1; got {held_out:g}.")
    if _all_have(sentences, "split"):
        test = {n for n, sentence in enumerate(sentences) if sentence.split == "test"}
    else:
        by_template = _all_have(sentences, "template")
        test = _drawn(sentences, random.Random(seed), held_out, by_template=by_template)
    train = [n for n in range(len(sentences)) if n not in test]
    for name in sorted({sentence.label for sentence in sentences}):
        for side, chosen in zip(SPLITS, (train, test), strict=True):
            if not any(sentences[n].label == name for n in chosen):
                raise InputError(
                    f"Every label needs sentences to train and to test; none of {name!r} is to {side}.",
                    hint="Add sentences, or mark them in a column called split.",
                )
    return train, sorted(test)


def _rows(path: str | Path, column: str | None) -> Iterator[Prompt]:
    for row in rows_of([str(path)], column=column):
        if isinstance(row, BadPrompt):
            row.throw()
        if row.where.startswith("argument "):  # a name with a space that is no file
            raise InputError(f"{path}: no such file.")
        yield row


def _sentence(row: Prompt, label: str) -> Sentence:
    if label not in row.others:
        there = ", ".join(map(repr, row.others)) or "none"
        raise InputError(f"{row.where}: no column {label!r}; there are {there}.", hint="Name the label's column.")
    value = row.others[label]
    if value is None or not str(value).strip():
        raise InputError(f"{row.where}: a label is a text or a number; {label!r} is empty here.")
    side, template = _optional(row.others.get("split")), _optional(row.others.get("template"))
    if side is not None and side not in SPLITS:
        raise InputError(f"{row.where}: a split is train or test; got {side!r}.")
    return Sentence(text=row.text, label=str(value), template=template, split=side, where=row.where)


def _optional(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _all_have(sentences: Sequence[Sentence], name: str) -> bool:
    """Whether all have it; refused if only some do."""
    without = [sentence.where for sentence in sentences if getattr(sentence, name) is None]
    if without and len(without) < len(sentences):
        raise InputError(f"{without[0]}: all sentences have a {name} or none; this one has none.")
    return not without


def _drawn(sentences: Sequence[Sentence], draw: random.Random, share: float, *, by_template: bool) -> set[int]:
    """The held-out sentences: of a random order of templates the first ones, or of each label's sentences."""
    groups: dict[str, list[list[int]]] = {}
    if by_template:
        templates: dict[str, list[int]] = {}
        for n, sentence in enumerate(sentences):
            templates.setdefault(str(sentence.template), []).append(n)
        groups["all"] = list(templates.values())
    else:
        for n, sentence in enumerate(sentences):
            groups.setdefault(sentence.label, []).append([n])
    held: set[int] = set()
    for group in groups.values():
        draw.shuffle(group)
        held.update(n for members in group[: max(1, round(share * len(group)))] for n in members)
    return held
