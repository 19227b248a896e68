"""The folder of a batch: one writer, whole shards, nothing mixed.

    DIR/manifest.json                what it is: identity, model, settings, versions
    DIR/settings.yaml                the resolved settings, to be used again with --config
    DIR/shard-00000/TABLE.parquet    one file per table; the folder is there whole, or not at all
    DIR/.partial/                    what is being written; never read, emptied at every start
    DIR/.lock                        held by the process that writes

1. `Folder.locked` takes the lock; a second run into the folder is refused.
2. `begin` compares the identity with the manifest's and refuses a difference, by name.
3. `commit` writes a shard beside its place, makes it durable, and moves it there by one rename.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlens.batch.schemas import TABLES
from streamlens.batch.settings import Settings
from streamlens.batch.shard import Done
from streamlens.errors import InputError, StreamlensError

MANIFEST, PARTIAL = "manifest.json", ".partial"
FORMAT = "streamlens batch"


@dataclass(frozen=True)
class Folder:
    """A batch's folder."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for one run, and creates it.

        Raises:
            InputError: Another run holds it, it is no folder, or it holds something else.
        """
        from filelock import FileLock, Timeout

        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: no folder can be made there: {error.strerror}.") from error
        known = {MANIFEST, PARTIAL, ".lock"}
        if not (self.path / MANIFEST).exists() and (
            other := [p.name for p in self.path.iterdir() if p.name not in known]
        ):
            raise InputError(
                f"A batch has a folder of its own; {self.path} holds {sorted(other)[0]!r} and no {MANIFEST}."
            )
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise InputError(
                f"Another run is writing into {self.path}.", hint="Wait for it, or choose another folder."
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}.") from error
        try:
            yield
        finally:
            lock.release()

    def manifest(self) -> dict[str, Any] | None:
        """What the folder says it is; None for a new one.

        Raises:
            InputError: It is not a batch's.
        """
        path = self.path / MANIFEST
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: is no manifest of a batch: {error}.") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InputError(f"{path}: is no manifest of a batch.")
        _require_whole(path, found)
        return found

    def begin(self, manifest: Mapping[str, Any], settings: Settings, *, fresh: bool) -> None:
        """Starts or continues; call it with the lock held.

        Args:
            manifest: Of this run, with its `identity`.
            settings: The resolved settings.
            fresh: Drop what is there.

        Raises:
            InputError: The folder holds results of another identity; the differences are named.
        """
        there = self.manifest()
        with _disk(self.path):
            shutil.rmtree(self.path / PARTIAL, ignore_errors=True)
            if there is not None and fresh:
                (self.path / PARTIAL).mkdir()
                for number in self.done():  # renamed first: a shard is there whole, or not at all
                    self.shard(number).rename(self.path / PARTIAL / str(number))
                shutil.rmtree(self.path / PARTIAL)
                there = None
            if there is not None:
                _require_same(self.path, there["identity"], json.loads(json.dumps(manifest["identity"])))
                return
            self._write("settings.yaml", settings_yaml(settings).encode())
            self._write(MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())

    def shard(self, number: int) -> Path:
        """Where a shard is, or will be."""
        return self.path / f"shard-{number:05d}"

    def done(self) -> list[int]:
        """The numbers of the shards that are there."""
        names = (path.name.removeprefix("shard-") for path in self.path.glob("shard-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def commit(self, done: Done) -> None:
        """Puts a shard in its place, whole; one that is there already is replaced.

        Raises:
            StreamlensError: The disk is full, or cannot be written.
        """
        partial = self.path / PARTIAL / str(done.number)
        with _disk(self.path):
            try:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                for table, content in done.files.items():
                    _durable(partial / f"{table}.parquet", content)
                _sync(partial)
                place = self.shard(done.number)
                if place.exists():
                    place.rename(partial.with_suffix(".old"))
                partial.rename(place)
                _sync(self.path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                shutil.rmtree(partial.with_suffix(".old"), ignore_errors=True)

    def _write(self, name: str, content: bytes) -> None:
        (self.path / PARTIAL).mkdir(exist_ok=True)
        partial = self.path / PARTIAL / name
        _durable(partial, content)
        partial.replace(self.path / name)
        _sync(self.path)


def _require_whole(path: Path, manifest: Mapping[str, Any]) -> None:
    """What every manifest says is there, and of its kind."""
    kinds = {"identity": dict, "model": dict, "settings": dict, "tables": list, "prompts": int, "shards": int}
    wrong = [name for name, kind in kinds.items() if type(manifest.get(name)) is not kind]
    if not wrong and not all(isinstance(table, str) and table in TABLES for table in manifest["tables"]):
        wrong = ["tables"]
    if wrong:
        raise InputError(
            f"{path}: a manifest whose {wrong[0]!r} is missing or of another kind.",
            hint="Move the folder away and run the batch again.",
        )


def _require_same(path: Path, there: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    names = dict.fromkeys([*there, *now])
    different = [
        f"{name}: {there.get(name)} there, {now.get(name)} now" for name in names if there.get(name) != now.get(name)
    ]
    if different:
        raise InputError(
            f"{path} holds the results of another batch; {'; '.join(different)}.",
            hint="Choose another folder, or drop what is there: --fresh.",
        )


def _durable(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What a disk refuses, in a sentence."""
    try:
        yield
    except OSError as error:
        raise StreamlensError(
            f"{path}: cannot be written: {error.strerror or error}.",
            hint="What is stored stays. Mend that, and the same command goes on from there.",
        ) from error


def settings_yaml(settings: Settings) -> str:
    """The settings as a file for `--config`; legible, unless a text holds what YAML takes for the end of a line."""
    import yaml

    given = settings.to_dict()
    legible = yaml.safe_dump(given, sort_keys=False, allow_unicode=True)
    return legible if yaml.safe_load(legible) == given else yaml.safe_dump(given, sort_keys=False)


def parquet_files(folder: Folder, table: str) -> Sequence[Path]:
    """The files of one table, in the order of the shards."""
    return [folder.shard(number) / f"{table}.parquet" for number in folder.done()]
