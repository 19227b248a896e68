"""The command line as a process: what it loads, how it ends, and what it says when it fails."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest

from layout_rules import HEAVY
from streamlens.cli import COMMANDS
from streamlens.errors import InputError

WITHOUT_A_MODEL = [
    ["--help"],
    ["--version"],
    ["--bad"],
    ["nonsense"],
    *([name, "--help"] for name in COMMANDS),
    ["models", "pull", "--help"],
    ["decompose", "--bad"],
    ["decompose", "x", "--top", "0"],
    ["decompose", "nothing.txt"],
    ["decompose", "x", "--against", " y"],
    ["models", "--format", "table"],
    ["models", "--format", "json"],
]


def python(code: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


@pytest.mark.parametrize("args", WITHOUT_A_MODEL, ids=" ".join)
def test_nothing_heavy_is_loaded_without_work_to_do(args: list[str]) -> None:
    ran = python(f"""
import sys
from streamlens.cli import main
try:
    main({args})
except SystemExit as end:
    print("ENDED", end.code)
print("LOADED", *set({HEAVY}).intersection(sys.modules))
""")
    assert ran.stdout.splitlines()[-1].split() == ["LOADED"], ran.stdout
    assert "ENDED" in ran.stdout, ran.stderr


@pytest.mark.model
def test_pulling_a_model_that_is_there_loads_nothing_heavy() -> None:
    ran = python(f"""
import sys
from streamlens.cli import main
main(["models", "pull"], standalone_mode=False)
print("LOADED", *set({HEAVY}).intersection(sys.modules))
""")
    folder, loaded = ran.stdout.splitlines()
    assert folder.endswith("smollm2-135m")
    assert loaded.split() == ["LOADED"]
    assert ran.stderr == "streamlens: smollm2-135m is already there\n"


def test_help_lists_every_command(run) -> None:
    said = run("--help")
    assert said.exit_code == 0
    for name, (_, line) in COMMANDS.items():
        assert f"{name} " in said.output
        assert line in said.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_takes_debug(run, name: str) -> None:
    said = run(name, "-h")
    assert said.exit_code == 0
    assert said.output.startswith("Usage: streamlens")
    assert "--debug" in said.output


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["--bad"], "No such option '--bad'.", "`streamlens --help` says what it takes."),
        (["decompose"], "Missing argument 'PROMPT...'.", "`streamlens decompose --help` says what it takes."),
        (["decomp"], "No such command 'decomp'. Did you mean decompose?", "`streamlens --help` says"),
        (["check", "a", "-m", "b"], "A model is given once: as MODEL or with -m.", "`streamlens check --help`"),
        (["decompose", "x", "--against", " y"], "--against is the other side of --for", "`streamlens decompose"),
        (["models", "pull", "smolm2"], "got 'smolm2'", "Did you mean smollm2-135m?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_is_one_line_and_a_hint(run, args: list[str], error: str, hint: str) -> None:
    said = run(*args)
    assert said.exit_code == 2
    assert said.stdout == ""
    first, second = said.stderr.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def test_without_a_command_it_shows_its_help(run) -> None:
    said = run()
    assert said.exit_code == 2
    assert "Commands:" in said.stderr


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_traceback_comes_with_debug_only(run, where: str) -> None:
    args = ["decompose", "x", "-m", "./no/such/folder"]
    plain = run(*args)
    assert plain.exit_code == 2
    assert "Traceback" not in plain.stderr
    debug = run("--debug", *args) if where == "before" else run(*args, "--debug")
    assert debug.exit_code == 2
    assert "Traceback" in debug.stderr
    assert debug.stderr.endswith(plain.stderr)


def test_a_mistake_of_ours_is_one_line_too(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_, **__):
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr("streamlens.models.load.load", load)
    said = run("check")
    assert said.exit_code == 2
    assert said.stderr.splitlines() == [
        "error: RuntimeError: out of luck",
        "hint: The same command with --debug shows where it happened; please report it.",
    ]


@pytest.mark.model
@pytest.mark.parametrize("device", ["nonsense", "cuda:77"])
def test_a_device_that_is_not_there(run, device: str) -> None:
    said = run("check", "--device", device)
    assert said.exit_code == 2
    assert f"cannot be put on the device '{device}'" in said.stderr
    assert "hint: The device cpu is always there" in said.stderr


def test_errors_are_raised_where_the_caller_wants_them(unloaded) -> None:
    from streamlens.cli import main

    with pytest.raises(InputError, match=r"nothing\.txt: cannot be read"):
        main(["decompose", "nothing.txt"], standalone_mode=False)


def test_an_error_shows_what_it_was_given_and_moves_no_cursor(run, unloaded) -> None:
    said = run("decompose", "\x1b[31m[bold]\u202e.txt")
    assert said.stderr == "error: ⟨U+001B⟩[31m[bold]⟨U+202E⟩.txt: cannot be read: No such file or directory.\n"


WAITS = "    import time\n    time.sleep(600)"
CONVERTS = "    try:\n        import time; time.sleep(600)\n    except BaseException:\n        raise ImportError('x')"


@pytest.mark.parametrize("loading", [WAITS, CONVERTS], ids=["plain", "turned into an ImportError"])
def test_interrupted_while_loading_ends_with_130(loading: str) -> None:
    code = f"""
import streamlens.models.load as home
def load(*_, **__):
    print("loading", flush=True)
{loading}
home.load = load
from streamlens.cli import main
main(["decompose", "x"])
"""
    ran = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ran.stdout is not None
    assert ran.stdout.readline() == "loading\n"
    ran.send_signal(signal.SIGINT)
    stdout, stderr = ran.communicate(timeout=60)
    assert ran.returncode == 130
    assert stdout == ""
    assert stderr.split() == ["interrupted"]


@pytest.mark.parametrize("format", ["table", "json", "csv"])
def test_a_reader_that_leaves_is_no_error(format: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "streamlens", "models", "--format", format]
    with os.fdopen(write) as nobody:
        ran = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def in_a_terminal(*args: str, environment: Mapping[str, str]) -> str:
    """What a command prints into a pseudo-terminal."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "streamlens", *args]
    ran = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**kept, **environment})
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert ran.wait(timeout=60) == 0
    return said.decode()


def test_colour_is_for_terminals_that_want_it() -> None:
    assert "\x1b[" in in_a_terminal("models", environment={"TERM": "xterm-256color"})
    assert "\x1b" not in in_a_terminal("models", environment={"TERM": "xterm-256color", "NO_COLOR": "1"})
    assert "\x1b" not in in_a_terminal("models", environment={"TERM": "dumb"})


def test_a_terminal_gets_a_table_and_a_pipe_gets_json(run) -> None:
    assert "wiring" in in_a_terminal("models", environment={"TERM": "dumb"})
    assert run("models").output.startswith("[")
