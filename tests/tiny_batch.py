"""A tiny model with a tokenizer of words, in a folder, and prompts for it: a batch of them takes milliseconds."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from pandas.testing import assert_frame_equal
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import zoo
from streamlens.batch.store import Folder

WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "bank", "river", "money", "water", *(f"w{n}" for n in range(91))]


def save_tiny(folder: Path, name: str = "llama") -> Path:
    """One architecture of the zoo with a word as token for each of its 99 ids."""
    zoo.build(name).save_pretrained(folder)
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", bos_token="[BOS]", eos_token="[EOS]"
    )
    tokenizer.save_pretrained(folder)
    return folder


def sentences(count: int, *, longest: int = 12, seed: int = 0) -> list[str]:
    """Prompts of 2 to `longest` words, each with one "bank"."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        words = chance.choices(WORDS[5:], k=chance.randint(1, longest - 1))
        words.insert(chance.randint(0, len(words)), "bank")
        found.append(" ".join(words))
    return found


def contents(folder: Path) -> dict[str, pd.DataFrame]:
    """Every row of every table as it is stored, shard after shard."""
    place = Folder(folder)
    tables = place.manifest()["tables"]
    files = {table: [place.shard(n) / f"{table}.parquet" for n in place.done()] for table in tables}
    return {
        table: pd.concat([pq.read_table(path).to_pandas() for path in paths], ignore_index=True).astype(
            {name: "str" for name, kind in pq.read_table(paths[0]).to_pandas().dtypes.items() if kind == "category"}
        )
        for table, paths in files.items()
    }


def assert_same_rows(one: Path, other: Path) -> None:
    """Both folders hold the same rows in the same order, bit for bit."""
    found, wanted = contents(one), contents(other)
    assert found.keys() == wanted.keys()
    for table in wanted:
        assert_frame_equal(found[table], wanted[table], check_exact=True, obj=table)


def assert_same_bytes(one: Path, other: Path) -> None:
    """Both folders hold the same files of data."""
    found, wanted = (
        {path.relative_to(side): path.read_bytes() for path in side.glob("shard-*/*")} for side in (one, other)
    )
    assert found == wanted


def command(tiny: Path, prompts: Path, folder: Path, *options: str) -> list[str]:
    """`streamlens run` on the tiny model in a process of its own: two readers at "bank", two prompts a shard."""
    read = ["--for", "river", "--against", "money", "--for", "water", "--against", "", "--token", "bank"]
    where = [str(prompts), "-o", str(folder), "-m", str(tiny), "--shard", "2"]
    return [sys.executable, "-m", "streamlens", "run", *where, *read, *options]


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_shards(folder: Path, count: int, running: subprocess.Popen[str]) -> None:
    """Until so many shards are stored. Fails with the process' output if it ends first."""
    while len(Folder(folder).done()) < count:
        assert running.poll() is None, running.communicate()[0]
        time.sleep(0.001)
