"""What `import streamlens` offers, and what it must not load: checked by `sys.modules`, not by a clock."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import streamlens
from layout_rules import HEAVY, write_tree

ROOT = Path(__file__).parents[1]
HELP = """
from streamlens.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
"""


def loaded_by(code: str, *, cwd: Path = ROOT) -> set[str]:
    """Which of `HEAVY` a fresh interpreter, started in `cwd`, has loaded once `code` has run."""
    report = f"{code}\nimport sys\nprint('LOADED', *set({HEAVY}).intersection(sys.modules))"
    run = subprocess.run([sys.executable, "-c", report], cwd=cwd, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("code", ["import streamlens", HELP], ids=["import", "help"])
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str) -> None:
    assert loaded_by(code) == set()


def test_the_check_of_what_is_loaded_can_fail(tmp_path: Path) -> None:
    files = {"pandas.py": "", "streamlens/__init__.py": "import pandas", "streamlens/cli.py": ""}
    write_tree(tmp_path, files)
    assert loaded_by("import streamlens", cwd=tmp_path) == {"pandas"}


def test_every_public_name_is_there() -> None:
    for name in streamlens.__all__:
        assert getattr(streamlens, name) is not None
        assert name in dir(streamlens)


def test_the_names_that_checkers_see_are_the_names_that_run() -> None:
    tree = ast.parse((ROOT / "streamlens" / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            whole_module = statement.module == "streamlens"
            seen[alias.name] = f"streamlens.{alias.name}" if whole_module else statement.module
    assert seen == streamlens._HOME
    assert set(streamlens.__all__) == {*seen, "__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'streamlens' has no attribute 'laod'"):
        _ = streamlens.laod
