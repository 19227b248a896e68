"""The README runs: its Python blocks are executed in order, its commands exist, its figures are what comes out."""

import re
import shlex
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_blocks_run_and_give_the_figures_beside_them() -> None:
    names: dict = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["ledger"].labels[:3] == ("embed", "L0.attn", "L0.mlp")
    assert names["ledger"].writes.shape == (61, 1, 10, 576)
    assert float(names["ledger"].closure.max()) < 1e-6
    assert names["ledger"].in_order == 0.0
    assert float(names["readout"].total[0, -1]) == pytest.approx(3.742, abs=5e-4)
    assert max(names["heads"].split_error.values()) < 1e-6
    assert float(names["sources"].attention[names["row"], 0, 0]) == pytest.approx(0.83, abs=5e-3)
    said = "Subtracting L1.attn@bank predicts +0.42 logits; rerunning the model gives -3.89."
    assert names["ablation"].headline() == said
    assert f"# {said}" in README
    assert len(names["everything"].variants) == 60


def test_the_commands_and_their_options_exist() -> None:
    from streamlens.cli import COMMANDS, main

    lines = [line for block in blocks("console") for line in block.splitlines()]
    commands = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    ours = [words for words in commands if words[0] == "streamlens"]
    assert {words[1] for words in ours} >= {"decompose", "lens", "sources", "check", "models", "doctor"}
    for _, name, *words in ours:
        assert name in COMMANDS
        command = main.get_command(main.make_context("streamlens", ["--debug", name]), name)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150
