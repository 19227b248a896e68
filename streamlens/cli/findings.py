"""What `streamlens doctor` looks at, one function each. None of them lets an exception out.

1. The packages that the installed metadata asks for, each against its bounds.
2. Where models are kept, which are complete, whether their files are still what was stored, room on the disk.
3. What fetches models (pip) and what saves pictures (kaleido, a browser).
4. How torch runs here: threads, speed by dtype, accelerators.
5. A sum that must close, on a tiny model made on the spot.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal

from streamlens import __version__
from streamlens.models.registry import DEFAULT_MODEL, MODELS, ModelSpec

State = Literal["ok", "note", "broken"]
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line: the state, what was looked at, what was found, and the step that mends it."""

    state: State
    what: str
    found: str
    fix: str = ""


def examine() -> Iterator[Finding]:
    """All findings, in an order in which the first broken one explains the later ones."""
    for look in (_packages, _extras, _models, _pip, _pictures, _torch, _sum):
        try:
            yield from look()
        except Exception as error:  # a doctor that falls ill helps nobody
            text = str(error).strip().splitlines()
            said = f"{type(error).__name__}: {text[0] if text else ''}"
            yield Finding(state="broken", what=look.__name__[1:], found=said, fix="mend what is broken above")


def _packages() -> Iterator[Finding]:
    machine = f"{platform.system()} {platform.machine()}"
    where = f"{__version__} on Python {platform.python_version()}, {machine}"
    yield Finding(state="ok", what="streamlens", found=where)
    needed = [line for line in requires("streamlens") or [] if "extra ==" not in line]
    there = []
    for line in needed:
        name, said, fits = _installed(line)
        if fits:
            there.append(f"{name} {said}")
        else:
            fix = f'{sys.executable} -m pip install "{line}"'
            yield Finding(state="broken", what=name, found=f"{said}; needed is {line}", fix=fix)
    yield Finding(state="ok", what="packages", found=", ".join(there))


def _installed(requirement: str) -> tuple[str, str, bool]:
    """The package's name, its version or "missing", and whether that is what is asked for."""
    from packaging.requirements import Requirement

    asked = Requirement(requirement)
    try:
        found = version(asked.name)
    except PackageNotFoundError:
        return asked.name, "missing", False
    return asked.name, found, asked.specifier.contains(found, prereleases=True)


def _extras() -> Iterator[Finding]:
    for line in requires("streamlens") or []:
        if extra := re.search(r"""extra == ['"](app|ray)['"]""", line):
            requirement = line.partition(";")[0].strip()
            name, said, fits = _installed(requirement)
            purpose = {"app": "the explorer", "ray": "batches on many machines"}[extra[1]]
            if fits:
                yield Finding(state="ok", what=name, found=f"{said}, for {purpose}")
            else:
                fix = f'{sys.executable} -m pip install "{requirement}"'
                yield Finding(state="note", what=name, found=f"{said}; only {purpose} needs it", fix=fix)


def _models() -> Iterator[Finding]:
    from streamlens.models import store

    folder = store.home() / "models"
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    free = shutil.disk_usage(there).free
    found = f"{folder}, {free / 1e9:,.1f} GB free"
    if not os.access(there, os.W_OK):
        fix = "set STREAMLENS_HOME to a folder of yours"
        yield Finding(state="broken", what="models in", found=f"{found}, cannot be written", fix=fix)
    else:
        yield Finding(state="ok", what="models in", found=found)
    for spec in MODELS.values():
        yield _model(spec, free)


def _model(spec: ModelSpec, free: int) -> Finding:
    from streamlens.models import store

    said = store.manifest(spec.name)
    if said is None or not store.is_complete(spec.name):
        room = f", needs {spec.space / 1e6:,.0f} MB for a while"
        short = free < spec.space
        fix = "make room, or set STREAMLENS_HOME to another disk" if short else f"streamlens models pull {spec.name}"
        state: State = "broken" if short and spec.name == DEFAULT_MODEL else "note"
        return Finding(state=state, what=spec.name, found=f"not fetched yet{room}", fix=fix)
    folder = store.model_folder(spec.name)
    spoiled = [path for path, entry in said["files"].items() if store.sha256(folder / path) != entry.get("sha256")]
    size = sum(entry["size"] for entry in said["files"].values())
    if spoiled:
        fix = f"remove the folder {folder} and run: streamlens models pull {spec.name}"
        return Finding(state="broken", what=spec.name, found=f"files changed: {', '.join(spoiled)}", fix=fix)
    return Finding(state="ok", what=spec.name, found=f"complete, {size / 1e6:,.0f} MB, every file as it was stored")


def _pip() -> Iterator[Finding]:
    command = [sys.executable, "-m", "pip", "--version"]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONSAFEPATH": "1"}
        )
        said = ran.stdout.split(" from ")[0] if ran.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    if said:
        yield Finding(state="ok", what="pip", found=f"{said}, fetches models")
        return
    from streamlens.models import store

    needed = not store.is_complete(DEFAULT_MODEL)
    fix = f"{sys.executable} -m ensurepip --upgrade"
    yield Finding(
        state="broken" if needed else "note",
        what="pip",
        found="does not run; models are fetched with it",
        fix=fix,
    )


def _pictures() -> Iterator[Finding]:
    _, said, fits = _installed("kaleido>=1.0")
    if fits:
        yield Finding(state="ok", what="kaleido", found=f"{said}, saves PNG, SVG and PDF")
    else:
        fix = f'{sys.executable} -m pip install "kaleido>=1.0"'
        yield Finding(state="note", what="kaleido", found=f"{said}; only PNG, SVG and PDF need it", fix=fix)
    browser = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser:
        yield Finding(state="ok", what="browser", found=f"{browser}, draws what kaleido saves")
    else:
        fix = "install Chromium or Chrome (Debian: apt-get install chromium), or set BROWSER_PATH"
        yield Finding(state="note", what="browser", found="no Chromium or Chrome; only kaleido needs it", fix=fix)


def _torch() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    found = f"{threads} threads on {cores} cores"
    if threads > cores:
        yield Finding(state="note", what="threads", found=found, fix=f"OMP_NUM_THREADS={cores} is faster")
    else:
        yield Finding(state="ok", what="threads", found=found)
    speed = {name: _speed(getattr(torch, name)) for name in ("float32", "bfloat16")}
    said = ", ".join(f"{name} {rate:,.0f}" for name, rate in speed.items())
    slower = "; bfloat16 saves memory here, not time" if speed["bfloat16"] < speed["float32"] else ""
    yield Finding(state="ok", what="speed", found=f"matrix products, GFLOP/s: {said}{slower}")
    devices = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    yield Finding(state="ok", what="devices", found=", ".join(devices))


def _speed(dtype) -> float:
    """Billions of operations a second of a small matrix product."""
    import torch

    a = torch.ones(256, 256, dtype=dtype)
    times = []
    for _ in range(60):  # the best of many: other work on the machine only ever slows one down
        start = time.perf_counter()
        torch.mm(a, a)
        times.append(time.perf_counter() - start)
    return 2 * 256**3 / min(times) / 1e9


def _sum() -> Iterator[Finding]:
    """A two-layer Llama with random weights: its writes and logits must sum to its own."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from streamlens.experiments.checks import examine as check
    from streamlens.models.load import load

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    wrong = [f"{c.name}: {c.note or c.value}" for c in check(load(model)) if not c.ok]
    if wrong:
        fix = "please report this with the lines above"
        yield Finding(state="broken", what="a known sum", found="; ".join(wrong), fix=fix)
    else:
        yield Finding(state="ok", what="a known sum", found="a tiny model's writes, stream and logits close")
