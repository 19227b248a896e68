"""Ray with two local workers: the same files as the local engine, whatever is killed."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import psutil
import pytest

from streamlens import batch
from streamlens.batch.store import Folder
from streamlens.errors import InputError
from tiny_batch import assert_same_bytes, assert_same_rows, command, sentences, start, wait_for_shards

READ = {"wanted": ["river", "water"], "against": ["money", ""], "token": "bank", "shard": 2}
RAY = ("--engine", "ray", "--workers", "2")

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="NOT TESTED HERE: Ray is not installed")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n".join([*sentences(160, seed=3), "", "no such word"]) + "\n")
    return path


def actors_of(pid: int) -> list[psutil.Process]:
    """The worker processes of a run's own cluster that hold an actor."""
    found = psutil.Process(pid).children(recursive=True)
    return [process for process in found if "".join(process.cmdline()).startswith("ray::_Actor")]


@needs_ray
@pytest.mark.slow
def test_a_killed_actor_and_a_killed_run_change_nothing(prompts, tiny, tmp_path):
    folder = tmp_path / "out"
    running = start(command(tiny, prompts, folder, *RAY))
    wait_for_shards(folder, 2, running)
    (first, *_) = actors_of(running.pid)
    first.send_signal(signal.SIGKILL)
    wait_for_shards(folder, len(Folder(folder).done()) + 5, running)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    assert len(Folder(folder).done()) < 81
    done = subprocess.run(command(tiny, prompts, folder, *RAY), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "2 of 162 prompts failed" in done.stderr
    batch.run(prompts, tmp_path / "local", model=str(tiny), **READ)
    assert_same_rows(folder, tmp_path / "local")
    assert_same_bytes(folder, tmp_path / "local")


def test_without_ray_the_error_names_the_extra(handle, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs Ray, which is not installed\. pip install streamlens\[ray\]"):
        batch.run(["bank"], tmp_path / "out", model=handle, engine="ray")
