"""The local engine: shards in this process, or in spawned ones.

1. With one worker everything runs here.
2. With more, each process loads the model for itself and takes one shard at a time. Threads are divided among them,
   so that they do not fight over the cores; with several devices each worker has its own.
3. A process that dies takes nothing with it: its shard goes to the next one, and a new process takes its place. A
   shard that has killed three is recorded as failed, so that the others finish.
4. Workers write no file. One that is left over when this process dies sees its pipe closed, and ends.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from streamlens.batch.settings import Settings
from streamlens.batch.shard import Done, Runner, Shard
from streamlens.errors import InputError, StreamlensError
from streamlens.models.handle import ModelHandle
from streamlens.readouts.readers.reader import Reader

#: how many workers one shard may take with it
DEATHS = 3
#: what a worker says once it has the model
READY = True


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a process needs to become a worker: plain data, and tensors of the readers."""

    source: str
    settings: Settings
    readers: tuple[Reader, ...]
    equal: bool
    key: str
    threads: int

    def runner(self) -> Runner:
        """Loads the model. Cost: as `streamlens.load`."""
        from streamlens.models.load import load

        torch.set_num_threads(self.threads)
        model = load(self.source, device=self.settings.device, dtype=self.settings.dtype)
        return Runner(model=model, settings=self.settings, readers=self.readers, equal=self.equal, key=self.key)


def job_of(runner: Runner, *, workers: int, number: int = 0) -> Job:
    """The job of one worker among so many."""
    device = runner.settings.device
    if device == "cuda" and torch.cuda.device_count() > 1:
        device = f"cuda:{number % torch.cuda.device_count()}"
    return Job(
        source=runner.model.name,
        settings=replace(runner.settings, device=device),
        readers=runner.readers,
        equal=runner.equal,
        key=runner.key,
        threads=max(1, torch.get_num_threads() // workers),
    )


def require_source(model: ModelHandle) -> None:
    """Refuses a model that other processes cannot load.

    Raises:
        InputError: A model that is in this process only.
    """
    if model.origin not in ("registry", "folder", "hub"):
        raise InputError(
            "Several workers each load the model; this one was handed over as an object.",
            hint="Give its name or folder, or use one worker.",
        )


def here(runner: Runner, shards: Sequence[Shard]) -> Iterator[Done]:
    """Runs the shards in this process."""
    return map(runner.run, shards)


def spawned(runner: Runner, shards: Sequence[Shard], *, workers: int) -> Iterator[Done]:
    """Runs the shards in so many processes; they come in the order in which they are done.

    Raises:
        StreamlensError: A worker cannot load the model, or no worker starts.
    """
    waiting = deque(shards)
    deaths = dict.fromkeys((shard.number for shard in shards), 0)
    unready = 0  # workers that have died one after another without having loaded the model
    crew: list[_Worker] = []
    try:
        for number in range(min(workers, len(shards))):
            crew.append(_Worker(job_of(runner, workers=workers, number=number)))
        while waiting or any(worker.shard for worker in crew):
            for worker in crew:
                if worker.shard is None and waiting:
                    worker.take(waiting.popleft())
            ready = wait([worker.pipe for worker in crew if worker.shard])
            for place, worker in enumerate(crew):
                if worker.pipe not in ready or worker.shard is None:
                    continue
                shard, answer = worker.shard, worker.answer()
                if isinstance(answer, StreamlensError):
                    raise answer
                if answer is READY:
                    unready, worker.ready = 0, True
                elif isinstance(answer, Done):
                    worker.shard = None
                    yield answer
                else:
                    crew[place] = worker.replaced()
                    deaths[shard.number] += worker.ready
                    unready += not worker.ready
                    if unready == DEATHS:
                        raise StreamlensError(
                            f"{DEATHS} workers ended before they were ready.",
                            hint='A script that uses several workers calls run() under `if __name__ == "__main__":`.',
                        )
                    if deaths[shard.number] < DEATHS:
                        waiting.appendleft(shard)
                    else:
                        yield runner.run(lost(shard))
    finally:
        for worker in crew:
            worker.end()


def lost(shard: Shard) -> Shard:
    """A shard whose prompts have failed, since it ended its worker again and again."""
    reason = f"The worker died {DEATHS} times on this prompt or one stored with it."
    items = (item if item.stage else replace(item, stage="model", reason=reason) for item in shard.items)
    return Shard(shard.number, tuple(items))


class _Worker:
    """A spawned process, and the shard it has."""

    def __init__(self, job: Job) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: Any = context.Process(target=_serve, args=(theirs, job), daemon=True)
        with _threads(job.threads):
            self.process.start()
        theirs.close()
        self.shard: Shard | None = None
        self.ready = False

    def take(self, shard: Shard) -> None:
        self.shard = shard
        with suppress(OSError):  # it is dead; `answer` finds out
            self.pipe.send(shard)

    def answer(self) -> Any:
        """What it says; None if it has died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def replaced(self) -> "_Worker":
        """A new one in its place."""
        self.end()
        return _Worker(self.job)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The environment with which a process starts: libraries read their number of threads there, once."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Connection, job: Job) -> None:
    """The life of a worker: shard in, result out, until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the process that asked ends this one
    try:
        try:
            runner = job.runner()
        except StreamlensError as error:
            pipe.send(error)
            return
        pipe.send(READY)
        while True:
            pipe.send(runner.run(pipe.recv()))
    except (EOFError, OSError):  # the process that asked is gone
        return
