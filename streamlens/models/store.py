"""Where named models live, and why what lies there is whole.

1. A model's folder is `$STREAMLENS_HOME/models/NAME`, by default under the platform's cache folder.
2. It is complete if its manifest says so: written last, it lists every file with its size and SHA-256, the
   wheel they came from and the releases that made them. Without one, or with another wheel's, a folder counts
   as absent.
3. Whoever makes a model holds its lock. The system lets go of a lock when its process dies, so none is left.
4. It is made in a hidden folder beside the target. What interrupted runs left is removed by the next holder.
5. It is published by one rename, after everything is on disk: a loader sees all of it or nothing.

Nothing here imports torch.
"""

import errno
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from streamlens import __version__
from streamlens.errors import ModelError
from streamlens.models.registry import ModelSpec, find_model

Log = Callable[[str], None]

MANIFEST = "streamlens.json"
_FORMAT = 1
_CANNOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_MADE_WITH = ("transformers", "torch", "safetensors", "tokenizers", "gguf")


def silent(_: str) -> None:
    """A log that nobody reads."""


def home() -> Path:
    """The folder of everything streamlens keeps: `$STREAMLENS_HOME`, or the platform's cache folder."""
    chosen = os.environ.get("STREAMLENS_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("streamlens", appauthor=False))


def model_folder(name: str) -> Path:
    """Where a named model is, or would be, kept.

    Raises:
        ModelError: No model has this name.
    """
    return home() / "models" / find_model(name).name


def manifest(name: str) -> dict[str, Any] | None:
    """What a stored model says of itself, or None if there is no readable manifest.

    Its keys: `format`, `model`, `source` (package, version, sha256, member), `files` (path to size and
    sha256) and `made_with` (releases).
    """
    try:
        found = json.loads((model_folder(name) / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        return None
    source, files = found.get("source"), found.get("files")
    readable = isinstance(source, dict) and isinstance(files, dict) and all(isinstance(f, dict) for f in files.values())
    return found if readable else None


def is_complete(name: str) -> bool:
    """Whether a model is there, whole, and made from the wheel the registry names.

    Looks at sizes, not at content: microseconds, so every load can ask.
    """
    found = manifest(name)
    if found is None or found["source"].get("sha256") != find_model(name).wheel.sha256:
        return False
    try:
        return all(
            (model_folder(name) / path).stat().st_size == entry.get("size") for path, entry in found["files"].items()
        )
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False


@contextmanager
def locked(name: str, *, log: Log = silent) -> Iterator[None]:
    """Hold a model's lock, waiting for another process if need be, and remove what interrupted runs left.

    Whoever had to wait should ask `is_complete` again: the other process may have done the work.
    """
    models = model_folder(name).parent
    models.mkdir(parents=True, exist_ok=True)
    lock = FileLock(models / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log(f"another process is fetching {name}; waiting for it")
        lock.acquire()
    try:
        for leftover in models.glob(f".{name}.build-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        lock.release()


@contextmanager
def building(name: str) -> Iterator[Path]:
    """A hidden folder beside the target to make a model in, gone afterwards. The lock must be held."""
    build = Path(tempfile.mkdtemp(prefix=f".{name}.build-", dir=model_folder(name).parent))
    try:
        yield build
    finally:
        shutil.rmtree(build, ignore_errors=True)


def publish(name: str, made: Path) -> Path:
    """Turn a finished folder into the stored model.

    Args:
        name: The model's name. Its lock must be held.
        made: A folder with the model's files, inside what `building` gave.

    Returns:
        The model's folder. Cost: reads every file once to hash it (2 s for 540 MB).
    """
    spec = find_model(name)
    files = sorted(path for path in made.rglob("*") if path.is_file())
    record = {
        "format": _FORMAT,
        "model": spec.name,
        "source": {
            "package": spec.wheel.package,
            "version": spec.wheel.version,
            "sha256": spec.wheel.sha256,
            "member": spec.wheel.member,
        },
        "files": {
            path.relative_to(made).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files
        },
        "made_with": {
            "python": platform.python_version(),
            "streamlens": __version__,
            **{tool: _release(tool) for tool in _MADE_WITH},
        },
    }
    written = made / MANIFEST
    written.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for path in [*files, written]:
        # safetensors makes files that only their owner can read; a shared cache needs what the umask says.
        path.chmod(written.stat().st_mode)
        _to_disk(path)
    _to_disk(made)

    target = model_folder(name)
    if target.exists() or target.is_symlink():  # incomplete, or made from another wheel
        os.replace(target, made.parent / "replaced")
    os.replace(made, target)
    _to_disk(target.parent)
    return target


def sha256(path: Path) -> str:
    """A file's SHA-256, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_space(spec: ModelSpec, folder: Path) -> None:
    """Refuse before the work what would fail after it.

    Raises:
        ModelError: The disk that `folder` is on has less room than the model needs at its peak.
    """
    if shutil.disk_usage(folder).free < spec.space:
        raise _full(spec, folder)


@contextmanager
def explained(spec: ModelSpec, folder: Path) -> Iterator[None]:
    """Turn a full disk and a folder that cannot be written into a `ModelError` that names the next step."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if says_full(str(error)) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise _full(spec, folder) from error
        if getattr(error, "errno", None) in _CANNOT_WRITE:
            raise ModelError(
                f"Models are kept in {folder}, which cannot be written: {error}.",
                hint="Set STREAMLENS_HOME to a folder of yours and try again.",
            ) from error
        raise


def says_full(text: str) -> bool:
    """Whether a tool's message means a full disk: safetensors and pip report it as text, without errno."""
    signs = ("No space left on device", "Disk quota exceeded", "not enough space on the disk")
    return any(sign in text for sign in signs)


def _full(spec: ModelSpec, folder: Path) -> ModelError:
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    free = shutil.disk_usage(there).free
    return ModelError(
        f"Fetching {spec.name} takes {spec.space / 1e6:,.0f} MB of disk for a while; {folder} has"
        f" {free / 1e6:,.0f} MB free.",
        hint="Make room, or set STREAMLENS_HOME to a folder on another disk, and try again.",
    )


def _release(tool: str) -> str | None:
    try:
        return version(tool)
    except PackageNotFoundError:
        return None


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # a folder cannot be synced there
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
