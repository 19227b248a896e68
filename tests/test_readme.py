"""The README runs: its Python blocks are executed in order, its commands exist, its figures are what comes out."""

import re
import shlex
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_blocks_run_and_give_the_figures_beside_them(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["ledger"].labels[:3] == ("embed", "L0.attn", "L0.mlp")
    assert names["ledger"].writes.shape == (61, 1, 10, 576)
    assert float(names["ledger"].closure.max()) < 1e-6
    assert names["ledger"].in_order == 0.0
    assert float(names["readout"].total[0, -1]) == pytest.approx(3.742, abs=5e-4)
    said = "Subtracting L1.attn@bank predicts +0.42 logits; rerunning the model gives -3.89."
    assert names["ablation"].headline() == said
    assert f"# {said}" in README
    assert len(names["everything"].variants) == 60
    assert (names["sl"].nullspace(names["head"]).dimension, names["head"].matrix.shape[1]) == (512, 576)
    probes, sense = names["probes"], names["sense"]
    assert (probes.best, sense.after) == ("L6.mlp", "L6.mlp")
    for text, column in ((names["bank"], 2), ("After depositing the money, she waited at the bank", 3)):
        steps = names["sl"].before_after(names["sl"].decompose(names["model"], text, positions="bank"), sense)
        told = steps.to_frame().set_index("component")[["before", "update", "after"]]
        for line in re.findall(r"^\| (L\d+\.\w+) \|(.*)\|(.*)\|$", README, flags=re.MULTILINE):
            printed = [float(number.strip("* ")) for number in line[column - 1].split(",")]
            assert list(told.loc[line[0]].astype(float).round(2)) == pytest.approx(printed, abs=0.011), line[0]
    rows = names["results"].frame("readout")
    assert len(set(rows["prompt_id"])) == 4


def test_the_commands_and_their_options_exist() -> None:
    from streamlens.cli import COMMANDS, main

    lines = [line for block in blocks("console") for line in block.splitlines()]
    commands = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    ours = [words for words in commands if words[0] == "streamlens"]
    assert {words[1] for words in ours} >= {"decompose", "sweep", "report", "explore", "check", "--help"}
    for _, name, *words in ours:
        if name == "--help":
            continue
        assert name in COMMANDS
        command = main.get_command(main.make_context("streamlens", ["--debug", name]), name)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150
