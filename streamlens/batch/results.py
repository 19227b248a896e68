"""What a batch has stored, read lazily.

1. Nothing is read when a folder is opened but its manifest; a table is read when it is asked for, and only the columns
   and rows that are wanted.
2. A folder can be read while a run writes into it: shards appear whole.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from streamlens.arguments import typed
from streamlens.batch.means import merged
from streamlens.batch.schemas import schema_of
from streamlens.batch.store import Folder, parquet_files
from streamlens.errors import InputError, StreamlensError, first_line

#: whole numbers that may be missing stay whole numbers
_PANDAS: dict[str, Any] = {"ignore_metadata": True, "types_mapper": {pa.int16(): pd.Int16Dtype()}.get}


@dataclass(frozen=True)
class Results:
    """The results in a folder.

    Attributes:
        path: The folder.
    """

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What was computed: model and its hash, versions, settings, number of prompts and shards."""
        found = Folder(self.path).manifest()
        if found is None:
            raise InputError(f"{self.path} is no batch's folder: it has no manifest.json.")
        return found

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(self.manifest["tables"])

    @property
    def complete(self) -> bool:
        """Whether every prompt is stored, failures included."""
        return len(Folder(self.path).done()) == self.manifest["shards"]

    def files(self, table: str) -> list[Path]:
        """The Parquet files of a table, as far as they are stored."""
        self._require(table)
        return list(parquet_files(Folder(self.path), table))

    def dataset(self, table: str) -> ds.Dataset:
        """A table as an Arrow dataset: nothing is read until it is scanned."""
        return ds.dataset(list(map(str, self.files(table))), schema=schema_of(table), format="parquet")

    def frame(
        self, table: str, *, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> pd.DataFrame:
        """A table as a frame, sorted by prompt; `streamlens.batch.schemas.TABLES` says what its columns are.

        Means are merged over the shards: their numbers are `n`, `mean` and `std`.

        Args:
            table: Its name.
            columns: Only these.
            where: Only these rows, e.g. `pyarrow.compute.field("component") == "L9.attn"`.

        Raises:
            InputError: No such table or column, or a shard that is damaged.

        Cost: reads the columns that are asked for, of all shards.
        """
        found: Any
        with reading(self.path, table):
            if table == "means":
                found = merged(self.dataset(table).to_table(filter=where).to_pandas(**_PANDAS))
            else:
                wanted = None if columns is None else list(dict.fromkeys([*columns, "prompt_id"]))
                read = self.dataset(table).to_table(columns=wanted, filter=where).to_pandas(**_PANDAS)
                found = _in_order(read.sort_values("prompt_id", kind="stable", ignore_index=True))
            found = found if columns is None else found[list(columns)]
        found.attrs.update(self.manifest["model"], settings=self.manifest["settings"])
        return found

    def failures(self) -> pd.DataFrame:
        """The prompts that failed, with the stage and the reason."""
        return self.frame("prompts", where=ds.field("status") == "failed")

    def _require(self, table: str) -> None:
        if table not in self.tables:
            raise InputError(f"{self.path} has the tables {', '.join(self.tables)}; got {table!r}.")

    def __repr__(self) -> str:
        done, about = len(Folder(self.path).done()), self.manifest
        said = f"{about['prompts']} prompts, {done} of {about['shards']} shards"
        return f"Results({self.path}: {said}; {', '.join(self.tables)})"


@contextmanager
def reading(folder: Path, table: str) -> Iterator[None]:
    """Says in one sentence why a stored table cannot be read.

    Raises:
        InputError: No such column, or a file that is damaged.
    """
    try:
        yield
    except StreamlensError:
        raise
    except Exception as error:  # Arrow and pandas each have errors of their own for a broken file
        raise InputError(
            f"{folder}: the table {table} cannot be read: {first_line(error)}",
            hint="Where a file is damaged, remove its shard's folder: the same `streamlens run` makes it again.",
        ) from error


def _in_order(frame: Any) -> Any:
    """Components as categories in stream order, as in the frames of one prompt."""
    if "component" in frame and "order" in frame:
        labels = frame[["component", "order"]].drop_duplicates("component").sort_values("order", kind="stable")
        frame["component"] = pd.Categorical(frame["component"], labels["component"].astype(str), ordered=True)
    return frame


@typed
def open_results(folder: str | Path) -> Results:
    """The results in a folder, finished or not.

    Raises:
        InputError: It is no batch's folder.
    """
    found = Results(Path(folder))
    assert found.manifest
    return found
