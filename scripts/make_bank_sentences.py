"""Writes sentences with the word " bank" in both senses, made from templates: input for batches of any size.

python scripts/make_bank_sentences.py 2000 -o bank.jsonl

1. A template has gaps for a person, a thing, a time; each sense has its own templates and things, and a few templates
   take either, so that the sense hangs on the thing alone.
2. Sentences are drawn without repetition under a seed: the same call writes the same file.
3. A line is {"prompt": ..., "sense": ...}; every prompt holds " bank" exactly once and differs in length.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import click

PEOPLE = ("she", "he", "the girl", "the old man", "my sister", "their uncle", "the guide", "a stranger", "the teacher")
TIMES = ("", "before noon, ", "after the storm, ", "late in the evening, ", "on the first day of the year, ", "again ")
THINGS = {
    "river": ("the boat", "the canoe", "the fishing rod", "the wet rope", "the raft", "the paddle", "the net"),
    "money": ("the cash", "the cheque", "the savings", "the loan papers", "the coins", "the gold", "the deposit"),
}
EITHER = (
    "{time}{person} carried {thing} to the bank",
    "{time}{person} left {thing} at the bank",
    "{time}{person} walked with {thing} towards the bank, where nobody was waiting",
    "{thing} that {person} had forgotten was still at the bank",
)
TEMPLATES = {
    "river": (
        *EITHER,
        "{time}{person} crossed the river with {thing} and rested on the bank",
        "the water rose until {thing} was swept off the bank",
        "{time}{person} pulled {thing} out of the water and up the muddy bank while the current went by",
    ),
    "money": (
        *EITHER,
        "{time}{person} opened an account for {thing} at the bank",
        "{time}{person} asked about {thing} and the interest rate at the bank",
        "the manager locked {thing} in the vault of the bank and went home without another word",
    ),
}


def sentences(count: int, seed: int) -> Iterator[dict[str, str]]:
    """So many different sentences, the senses in turn.

    Raises:
        ValueError: More than the templates can make.
    """
    chance = random.Random(seed)
    drawn = {sense: _all(sense) for sense in TEMPLATES}
    most = 2 * min(map(len, drawn.values()))
    if count > most:
        raise ValueError(f"The templates make {most} sentences; {count} are too many.")
    for sense in drawn:
        chance.shuffle(drawn[sense])
    for number in range(count):
        sense = ("river", "money")[number % 2]
        yield {"prompt": drawn[sense].pop(), "sense": sense}


def _all(sense: str) -> list[str]:
    filled = itertools.product(TEMPLATES[sense], TIMES, PEOPLE, THINGS[sense])
    texts = (text.format(time=time, person=person, thing=thing) for text, time, person, thing in filled)
    return list(dict.fromkeys(text[0].upper() + text[1:] for text in texts))


@click.command()
@click.argument("count", type=click.IntRange(min=1))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A .jsonl file; by default standard output.")
@click.option("--seed", default=0, show_default=True)
def main(count: int, output: Path | None, seed: int) -> None:
    """Writes COUNT sentences."""
    try:
        lines = "".join(f"{json.dumps(row)}\n" for row in sentences(count, seed))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if output is None:
        sys.stdout.write(lines)
    else:
        output.write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
