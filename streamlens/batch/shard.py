"""One shard: some prompts in, a Parquet file per table out, as bytes. The same prompts always give the same bytes.

1. The prompts are cut into batches of about equal length, each within the memory that a batch may take.
2. Every analysis runs on every batch. If anything raises, the two halves of that batch run by themselves, and so on;
   a prompt that raises alone becomes a failed row with the reason.
3. The tables are put in the order of the prompts, averaged if means are asked for, and written as Parquet (zstd).

Nothing here touches a file, so a shard can run in any process of any machine, and twice.
"""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamlens.batch.analyses import chosen, memory_of, tables_of
from streamlens.batch.columns import made
from streamlens.batch.means import averaged
from streamlens.batch.schemas import VERSION, schema_of
from streamlens.batch.settings import Settings
from streamlens.batch.work import Closes, Item, Work, start
from streamlens.errors import InputError
from streamlens.hooks.padding import require_invisible_padding
from streamlens.models.handle import ModelHandle
from streamlens.readouts.readers.reader import Reader

MIB = 1 << 20
#: tokens after which a larger batch is hardly faster, so that padding is no longer worth it
ENOUGH = 512


@dataclass(frozen=True)
class Shard:
    """Prompts that are stored together."""

    number: int
    items: tuple[Item, ...]


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a shard gave: a Parquet file per table, and how it went."""

    number: int
    files: dict[str, bytes]
    prompts: int
    failed: int
    tokens: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Runner:
    """A model and what is asked of it; one in every process that works.

    Attributes:
        model: The handle.
        settings: What is computed.
        readers: What is read.
        equal: Prompts of one batch have one length, since the model sees padding.
        key: Of the whole batch, written into every file.
    """

    model: ModelHandle
    settings: Settings
    readers: tuple[Reader, ...]
    equal: bool
    key: str

    @classmethod
    def of(cls, model: ModelHandle, settings: Settings, readers: Sequence[Reader], *, key: str) -> "Runner":
        """With what has to be found out about the model. Cost: two forwards of a few tokens."""
        return cls(model=model, settings=settings, readers=tuple(readers), equal=_sees_padding(model), key=key)

    def run(self, shard: Shard) -> Done:
        """Runs a shard. Raises nothing that one prompt could cause."""
        tables: dict[str, list[pa.Table]] = defaultdict(list)
        outcomes: dict[int, tuple[Item, Closes]] = {item.number: (item, Closes()) for item in shard.items}
        good = [item for item in shard.items if not item.stage]
        for items in self.batches(good):
            for found in self._batch(items):
                if isinstance(found, Item):
                    outcomes[found.number] = (found, Closes())
                else:
                    work, made_tables = found
                    for name, table in made_tables:
                        tables[name].append(table)
                    for item, closes in zip(work.items, work.closes, strict=True):
                        outcomes[item.number] = (item, closes)
        rows = [outcomes[number] for number in sorted(outcomes)]
        return Done(
            number=shard.number,
            files=self._files(shard, tables, rows),
            prompts=len(rows),
            failed=sum(bool(item.stage) for item, _ in rows),
            tokens=sum(item.tokens for item in good),
        )

    def batches(self, items: Sequence[Item]) -> list[list[Item]]:
        """Prompts of about the same length, as many as the memory allows.

        A batch ends when it is full, and where padding would begin: once it has `ENOUGH` tokens, or at once if the
        model sees padding.
        """
        token, kept = memory_of(self.model, self.settings)
        selected = len(self.settings.token) or (1 if self.settings.token_column else None)
        limit = self.settings.memory * MIB
        found: list[list[Item]] = []
        for item in sorted(items, key=lambda item: (item.tokens, item.number)):
            size = item.tokens * token + (item.tokens if selected is None else selected) * kept
            here = found[-1] if found else []
            taken = (len(here) + 1) * size  # all rows become as long as the longest
            longer = bool(here) and item.tokens > here[-1].tokens
            enough = self.equal or (bool(here) and len(here) * here[-1].tokens >= ENOUGH)
            if not here or taken > limit or (longer and enough):
                found.append([item])
            else:
                here.append(item)
        return found

    def _batch(self, items: Sequence[Item]) -> Iterator[tuple[Work, list[tuple[str, pa.Table]]] | Item]:
        """The tables of these prompts, or a failed item for each prompt that raises."""
        try:
            yield self._analysed(items)
        except Exception as error:  # one prompt's error is that prompt's row, whatever it is
            if len(items) > 1:
                half = len(items) // 2
                yield from self._batch(items[:half])
                yield from self._batch(items[half:])
            else:
                stage = "tokens" if isinstance(error, InputError) else "model"
                yield replace(items[0], stage=stage, reason=_said(error))

    def _analysed(self, items: Sequence[Item]) -> tuple[Work, list[tuple[str, pa.Table]]]:
        analyses = chosen(self.settings)
        logits = any(analysis.logits for analysis in analyses)
        work = start(self.model, self.settings, self.readers, items, logits=logits)
        return work, [pair for analysis in analyses for pair in analysis.run(work)]

    def _files(
        self, shard: Shard, tables: Mapping[str, Sequence[pa.Table]], rows: Sequence[tuple[Item, Closes]]
    ) -> dict[str, bytes]:
        wanted = tables_of(self.settings, self.readers)
        if self.settings.mean is not None:
            means = [averaged(name, _whole(name, parts), self.settings.mean) for name, parts in tables.items()]
            tables = {"means": means}
        whole = {name: _whole(name, tables.get(name, ())) for name in wanted if name != "prompts"}
        whole["prompts"] = _prompts(rows)
        return {name: self._parquet(name, shard, table) for name, table in whole.items()}

    def _parquet(self, name: str, shard: Shard, table: pa.Table) -> bytes:
        about = {"table": name, "version": VERSION, "key": self.key, "shard": shard.number}
        table = table.unify_dictionaries().replace_schema_metadata({"streamlens": json.dumps(about)})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        return buffer.getvalue()


def _whole(name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """All rows in the order of the prompts, where they have one; those of one prompt stay as they are."""
    if not parts:
        return schema_of(name).empty_table()
    table = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    if "prompt_id" not in table.column_names:
        return table
    return table.take(pa.array(table["prompt_id"].to_numpy().argsort(kind="stable")))


def _prompts(rows: Sequence[tuple[Item, Closes]]) -> pa.Table:
    items, closes = [item for item, _ in rows], [closes for _, closes in rows]
    columns: dict[str, Any] = {
        "prompt_id": [item.number for item in items],
        "where": [item.where for item in items],
        "text": [item.text for item in items],
        "tokens": [item.tokens for item in items],
        "status": ["failed" if item.stage else "done" for item in items],
        "stage": [item.stage or None for item in items],
        "reason": [item.reason for item in items],
        **{name: [getattr(one, name) for one in closes] for name in ("closure", "in_order", "readout_closure")},
    }
    return made("prompts", columns)


def _sees_padding(model: ModelHandle) -> bool:
    try:
        require_invisible_padding(model)
    except InputError:
        return True
    return False


def _said(error: Exception) -> str:
    """A model's error in one line."""
    if isinstance(error, InputError):
        return str(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
