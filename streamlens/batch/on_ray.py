"""The Ray engine: the same shards, on the actors of a Ray cluster.

1. Each actor loads the model once and takes one shard at a time. A shard's result travels back and is stored by the
   process that asked, so that no machine of the cluster needs to share a disk with another.
2. A worker or a node that dies is replaced by Ray and its shard runs again. A shard that has ended three is recorded
   as failed.
3. Actors ask for a fraction of a processor where there are few: Ray's own tasks must find room beside them.
4. Without an address a cluster is started on this machine for as long as the run lasts, reachable from here only. It
   reports to nobody.

A model given by its name is fetched by every machine; one given as a folder has to lie there on every machine.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streamlens.batch.local import DEATHS, Job, job_of, lost
from streamlens.batch.shard import Done, Runner, Shard
from streamlens.errors import InputError, ModelError, StreamlensError


class _Actor:
    """A worker on Ray: a model, and shards through it."""

    def __init__(self, job: Job) -> None:
        self.runner = job.runner()

    def ready(self) -> bool:
        return True

    def run(self, shard: Shard) -> Done:
        return self.runner.run(shard)


def on_ray(runner: Runner, shards: Sequence[Shard], *, workers: int, address: str | None = None) -> Iterator[Done]:
    """Runs the shards on so many actors; they come in the order in which they are done.

    Args:
        runner: What every actor becomes.
        shards: The shards.
        workers: How many actors.
        address: Of a running cluster; None for one of this machine alone.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address.
        ModelError: An actor cannot load the model.
    """
    if not shards:
        return
    with _cluster(address) as ray:
        cores = float(ray.cluster_resources().get("CPU", 1))
        options: dict[str, Any] = {
            "num_cpus": min(1.0, int(100 * cores / (workers + 1)) / 100),
            "num_gpus": 1 if runner.settings.device.startswith("cuda") else 0,
            "max_restarts": -1,
            "max_task_retries": DEATHS - 1,
        }
        actor: Any = ray.remote(**options)(_Actor)
        crew = [actor.remote(job_of(runner, workers=workers)) for _ in range(min(workers, len(shards)))]
        _require_ready(ray, crew)
        waiting, running = deque(shards), {}
        for worker in crew:
            shard = waiting.popleft()
            running[worker.run.remote(shard)] = worker, shard
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            worker, shard = running.pop(ready)
            if waiting:
                following = waiting.popleft()
                running[worker.run.remote(following)] = worker, following
            try:
                yield ray.get(ready)
            except ray.exceptions.RayActorError:
                yield runner.run(lost(shard))


def _require_ready(ray: Any, crew: Sequence[Any]) -> None:
    try:
        ray.get([worker.ready.remote() for worker in crew])
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, StreamlensError):
            raise cause from None
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"A worker on Ray cannot load the model: {said[-1] if said else error}") from error


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected; what is started here ends here."""
    # read when Ray is imported: nothing is reported, and processors hidden from a worker stay hidden
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "--engine ray needs Ray, which is not installed.", hint="pip install streamlens[ray]"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init(address=address or "local", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"Ray cannot be reached{f' at {address}' if address else ''}: {said}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
