"""Whatever ends a run, the same command goes on from there: real processes, killed by SIGKILL, a disk that is full."""

import errno
import os
import random
import shutil
import signal
import subprocess

import pytest

from streamlens import batch
from streamlens.batch import store
from streamlens.batch.store import Folder
from streamlens.errors import InputError, StreamlensError
from tiny_batch import assert_same_rows, command, sentences, start, wait_for_shards

READ = {"wanted": ["river", "water"], "against": ["money", ""], "token": "bank", "shard": 2}
PROMPTS = 240


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Many prompts, one of them bad and one without the token."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n".join([*sentences(PROMPTS - 2), "", "no such word"]) + "\n")
    return path


@pytest.fixture(scope="module")
def uninterrupted(prompts, tiny, tmp_path_factory):
    """The same command, from start to end in one go."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    done = subprocess.run(command(tiny, prompts, folder, "-q"), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr  # two prompts fail
    assert "2 of 240 prompts failed" in done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_points(prompts, tiny, uninterrupted, tmp_path, seed):
    chance, folder = random.Random(seed), tmp_path / "out"
    for _ in range(3):
        before = len(Folder(folder).done())
        running = start(command(tiny, prompts, folder))
        wait_for_shards(folder, before + chance.randint(1, 20), running)
        for _ in range(chance.randint(0, 200_000)):  # some moment within a shard
            pass
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        assert before < len(Folder(folder).done()) < PROMPTS // 2
        for path in folder.glob("shard-*"):  # each is there whole
            assert {file.name for file in path.iterdir()} == {"writes.parquet", "readout.parquet", "prompts.parquet"}
    (folder / ".partial").mkdir(exist_ok=True)
    (folder / ".partial" / "7").mkdir(exist_ok=True)
    (folder / ".partial" / "7" / "writes.parquet").write_bytes(b"half of a file")
    stored = {path: path.stat().st_ino for path in folder.glob("shard-*")}
    done = subprocess.run(command(tiny, prompts, folder), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert {path: path.stat().st_ino for path in stored} == stored  # nothing was computed twice
    assert batch.open(folder).complete
    assert not (folder / ".partial" / "7").exists()
    assert_same_rows(folder, uninterrupted)


class TestOneWriter:
    @pytest.mark.slow
    def test_a_second_run_is_refused_while_the_first_lives(self, prompts, tiny, uninterrupted, tmp_path):
        folder = tmp_path / "out"
        first = start(command(tiny, prompts, folder))
        wait_for_shards(folder, 1, first)
        os.kill(first.pid, signal.SIGSTOP)
        second = subprocess.run(command(tiny, prompts, folder), capture_output=True, text=True)
        assert second.returncode == 2
        assert second.stderr.startswith(f"error: Another run is writing into {folder}.")
        assert len(batch.open(folder).frame("writes")) > 0  # but it can be read
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
        third = subprocess.run(command(tiny, prompts, folder), capture_output=True, text=True)
        assert third.returncode == 1, third.stderr
        assert_same_rows(folder, uninterrupted)

    def test_within_one_process_too(self, handle, tmp_path):
        with (
            Folder(tmp_path / "out").locked(),
            pytest.raises(InputError, match=r"Another run is writing into .*out\. Wait for it"),
        ):
            batch.run(["bank"], tmp_path / "out", model=handle)
        batch.run(["bank"], tmp_path / "out", model=handle)


class TestFullDisk:
    def test_a_device_without_space(self, handle, tmp_path, monkeypatch):
        """The third shard's second file meets ENOSPC; what is stored stays, and the same call goes on."""
        real, written = store._durable, []

        def durable(path, content):
            written.append(path)
            if len(written) == 11:  # two files of the start, three of each shard
                real(path, content[: len(content) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(path, content)

        texts = sentences(10)
        with monkeypatch.context() as patched:
            patched.setattr(store, "_durable", durable)
            with pytest.raises(StreamlensError, match=r"cannot be written: No space left on device\. What is stored"):
                batch.run(texts, tmp_path / "out", model=handle, **READ)
        assert Folder(tmp_path / "out").done() == [0, 1]
        assert list((tmp_path / "out" / ".partial").iterdir()) == []
        batch.run(texts, tmp_path / "out", model=handle, **READ)
        batch.run(texts, tmp_path / "whole", model=handle, **READ)
        assert_same_rows(tmp_path / "out", tmp_path / "whole")

    @pytest.mark.slow
    def test_a_small_file_system(self, prompts, tiny, uninterrupted, tmp_path):
        place = tmp_path / "small"
        place.mkdir()
        mount = shutil.which("mount")
        mounted = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=700k", "tmpfs", place]).returncode == 0
        if not mounted:
            pytest.skip("NOT TESTED HERE: a full file system needs the right to mount a tmpfs (root)")
        try:
            full = subprocess.run(command(tiny, prompts, place / "out"), capture_output=True, text=True)
            assert full.returncode == 2
            error = full.stderr.splitlines()[-2:]
            assert error[0] == f"error: {place / 'out'}: cannot be written: No space left on device."
            assert error[1].startswith("hint: What is stored stays.")
            assert 0 < len(Folder(place / "out").done()) < PROMPTS // 2
            subprocess.run([mount, "-o", "remount,size=64m", place], check=True)
            more = subprocess.run(command(tiny, prompts, place / "out"), capture_output=True, text=True)
            assert more.returncode == 1, more.stderr
            assert_same_rows(place / "out", uninterrupted)
        finally:
            subprocess.run(["umount", place], check=True)


class TestNothingIsMixed:
    @pytest.fixture
    def folder(self, handle, tmp_path):
        batch.run(sentences(4), tmp_path / "out", model=handle, **READ)
        return tmp_path / "out"

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"dtype": "float64"}, r"dtype: float32 there, float64 now"),
            ({"against": ["water", ""]}, r"setting against: \['money', ''\] there, \['water', ''\] now"),
            ({"analysis": ["writes", "logits"]}, r"setting analysis: \['writes'\] there, \['writes', 'logits'\] now"),
            ({"token": -1}, r"setting token: \['bank'\] there, \[-1\] now"),
            ({"shard": 3}, "setting shard: 2 there, 3 now"),
        ],
    )
    def test_another_setting_is_refused_by_name(self, folder, tiny, change, difference):
        with pytest.raises(InputError, match=rf"out holds the results of another batch; .*{difference}"):
            batch.run(sentences(4), folder, model=str(tiny), **(READ | change))

    def test_another_model(self, folder, tmp_path):
        from tiny_batch import save_tiny

        other = save_tiny(tmp_path / "other", "gpt2")
        with pytest.raises(InputError, match=r"model: .*tiny-llama \(.{16}\) there, .*other \(.{16}\) now"):
            batch.run(sentences(4), folder, model=str(other), **READ)

    def test_other_weights_under_the_same_name(self, folder, tiny):
        import torch

        import streamlens

        own = streamlens.load(tiny)
        with torch.no_grad():
            own.model.get_output_embeddings().weight[3, 3] += 1
        with pytest.raises(InputError, match="another batch; model: "):
            batch.run(sentences(4), folder, model=own, **READ)

    def test_other_prompts(self, folder, handle):
        with pytest.raises(InputError, match="number of prompts: 4 there, 5 now"):
            batch.run(sentences(5), folder, model=handle, **READ)
        with pytest.raises(InputError, match="another batch; prompts: "):
            batch.run(sentences(4, seed=1), folder, model=handle, **READ)

    def test_another_schema(self, folder, handle, monkeypatch):
        monkeypatch.setattr("streamlens.batch.plan.VERSION", 2)
        with pytest.raises(InputError, match="schema: 1 there, 2 now"):
            batch.run(sentences(4), folder, model=handle, **READ)

    def test_fresh_drops_what_is_there(self, folder, handle, tmp_path):
        found = batch.run(sentences(3, seed=5), folder, model=handle, start="fresh", **READ)
        wanted = batch.run(sentences(3, seed=5), tmp_path / "new", model=handle, **READ)
        assert len(found.frame("prompts")) == 3
        assert_same_rows(found.path, wanted.path)

    def test_a_folder_of_something_else(self, handle, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(InputError, match=r"A batch has a folder of its own; .* holds 'notes\.txt'"):
            batch.run(["bank"], tmp_path, model=handle, start="fresh")
        assert (tmp_path / "notes.txt").read_text() == "mine"
        with pytest.raises(InputError, match=r"is no batch's folder: it has no manifest\.json"):
            batch.open(tmp_path)
