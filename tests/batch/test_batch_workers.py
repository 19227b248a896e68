"""Spawned workers: the same rows as in one process, whoever is killed."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from streamlens import batch
from streamlens.batch import local
from streamlens.batch.shard import Shard
from streamlens.batch.store import Folder
from streamlens.batch.work import Item
from streamlens.errors import ModelError
from tiny_batch import assert_same_bytes, assert_same_rows, command, sentences, start, wait_for_shards

READ = {"wanted": ["river", "water"], "against": ["money", ""], "token": "bank", "shard": 2}
TEXTS = sentences(120, seed=3)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n".join([*TEXTS, "", "no such word"]) + "\n")
    return path


@pytest.fixture(scope="module")
def alone(tiny, prompts, tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "out"
    batch.run(prompts, folder, model=str(tiny), **READ)
    return folder


def workers_of(pid: int) -> list[psutil.Process]:
    """The spawned workers of a run, without multiprocessing's resource tracker."""
    children = psutil.Process(pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_shard_run_again(tiny, prompts, alone, tmp_path):
    folder = tmp_path / "out"
    running = start(command(tiny, prompts, folder, "--workers", "2"))
    for count in (1, 12):
        wait_for_shards(folder, count, running)
        crew = workers_of(running.pid)
        assert 1 <= len(crew) <= 2
        crew[0].send_signal(signal.SIGKILL)
    said = running.communicate(timeout=240)[0]
    assert running.returncode == 1, said  # for the two prompts that fail anyway
    assert "2 of 122 prompts failed" in said
    assert_same_rows(folder, alone)
    assert_same_bytes(folder, alone)


@pytest.mark.slow
def test_a_killed_run_leaves_no_worker_that_writes(tiny, prompts, alone, tmp_path):
    folder = tmp_path / "out"
    running = start(command(tiny, prompts, folder, "--workers", "2"))
    wait_for_shards(folder, 5, running)
    crew = workers_of(running.pid)
    os.kill(running.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(crew, timeout=60)
    assert gone
    assert not alive
    running.communicate()
    assert len(Folder(folder).done()) < 61
    again = start(command(tiny, prompts, folder))  # with another number of workers
    said = again.communicate(timeout=240)[0]
    assert again.returncode == 1, said
    assert_same_rows(folder, alone)


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so(tiny, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from streamlens import batch\n"
        f"batch.run(['bank', 'w1 bank'], {str(tmp_path / 'out')!r}, model={str(tiny)!r}, workers=2, shard=1)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "3 workers ended before they were ready." in done.stderr.splitlines()[-1]
    assert '`if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
    assert Folder(tmp_path / "out").done() == []


def test_a_shard_that_kills_its_workers_is_recorded():
    shard = Shard(3, (Item(5, "a:6", "bank", 1), Item(6, "a:7", None, stage="input", reason="empty")))
    items = local.lost(shard).items
    assert [item.stage for item in items] == ["model", "input"]
    assert items[0].reason == "The worker died 3 times on this prompt or one stored with it."
    assert items[1].reason == "empty"


@pytest.mark.slow
def test_workers_that_cannot_load_the_model_end_the_run(tiny, handle, tmp_path):
    import shutil

    import streamlens

    moved = shutil.copytree(tiny, tmp_path / "model")
    own = streamlens.load(moved)
    shutil.rmtree(moved)
    with pytest.raises(ModelError, match="model"):
        batch.run(sentences(4), tmp_path / "out", model=own, workers=2)


def test_threads_are_divided_and_devices_shared_out(handle, monkeypatch):
    from dataclasses import replace

    from streamlens.batch.settings import Settings
    from streamlens.batch.shard import Runner

    runner = Runner(model=handle, settings=Settings(), readers=(), equal=False, key="")
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [local.job_of(runner, workers=n).threads for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    runner = replace(runner, settings=Settings(device="cuda"))
    assert [local.job_of(runner, workers=3, number=n).settings.device for n in range(3)] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
