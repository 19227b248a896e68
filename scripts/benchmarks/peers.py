"""The peers that live in an environment of their own, driven from here so that they take turns with ours.

Each peer is one process of `peer_env/worker.py`. It measures its own call, so the talk between the processes is not in
the figure, and it waits without work while others have their turn.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "peer_env" / "worker.py"
NAMES = ("nnsight", "interpkit")


class PeerError(RuntimeError):
    """What a peer raised, in its own words."""


class Peer(AbstractContextManager):
    """One peer's process, with one model in it."""

    def __init__(self, name: str, python: Path, threads: int) -> None:
        self.name, self.versions = name, dict[str, str]()
        self._threads = threads
        self._process = subprocess.Popen(
            [str(python), str(WORKER), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},
        )

    def load(self, folder: str, dtype: str = "float32") -> None:
        """Gives it a model; the one before is forgotten."""
        self.versions = self.ask("load", folder=folder, dtype=dtype, threads=self._threads)

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        """One request.

        Raises:
            PeerError: The peer raised, or its process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.name}: the process ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class PeerCase:
    """One case of a peer, to be timed in turn with others."""

    name: str
    peer: Peer
    case: str
    options: dict[str, Any]

    def once(self) -> None:
        self.timed()

    def timed(self) -> tuple[float, float]:
        """Wall and processor time of one call, in seconds."""
        answer = self.peer.ask("time", case=self.case, **self.options)
        return answer["wall"], answer["cpu"]


def environment() -> Path:
    """The Python that has the peers.

    Raises:
        FileNotFoundError: It was not made.
    """
    python = Path(os.environ.get("STREAMLENS_PEERS", ROOT / ".venv-peers")) / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(
            f"{python} is missing: `bash scripts/peers.sh` makes it. To measure without it: --peers ''"
        )
    return python


@contextmanager
def started(names: Sequence[str], folder: str, dtype: str, threads: int) -> Iterator[dict[str, Peer]]:
    """Processes that have the model loaded, by name; they end with the block."""
    with ExitStack() as stack:
        peers = {name: stack.enter_context(Peer(name, environment(), threads)) for name in names}
        for peer in peers.values():
            peer.load(folder, dtype)
        yield peers
