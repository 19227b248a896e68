"""Beside transformer-lens: docs/parity.md says what a run says, and the third run that settles it can say no.

transformer-lens and streamlens are each held against the model itself in float64 (`scripts/beside/by_hand.py`).
"""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import zoo_bridge

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

import parity
from beside import by_hand, cells, page, subject
from beside.names import BY_ENTRY, LLAMA
from beside.reasons import REASONS

pytestmark = [
    # transformer-lens and what it imports; none of it is ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not support center_writing_weights"),
]

TEXT = page.PAGE.read_text(encoding="utf-8")
SHOWN = page.parse(TEXT)
DEFAULT = "smollm2-135m"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return zoo_bridge.tokenizer(str(tmp_path_factory.mktemp("tokenizer")))


def assert_as_shown(found: list[cells.Cell]) -> None:
    """The page's words, and its figures times ten: they are roundings, and other machines round otherwise."""
    for cell in found:
        shown = SHOWN[cell.name, cell.quantity]
        assert page.verdict(page.shown(cell)) == page.verdict(shown), f"{cell}; run scripts/parity.py --write"
        if cell.verdict == "agree":
            assert isinstance(cell.theirs, float)
            assert max(cell.ours, cell.theirs) <= 10 * page.figures(shown)[0], cell
            assert cell.apart <= cell.ours + 2 * cell.theirs + 1e-12, cell
        elif cell.verdict != "none":
            assert cell.ours <= 10 * page.figures(shown)[-1], cell


@pytest.mark.parametrize("name", list(BY_ENTRY))
def test_a_line_of_the_page(name, tokenizer):
    assert_as_shown(cells.measure(subject.tiny(name, tokenizer)))


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model(bank):
    """With fewer tokens, and fewer things switched off, than on the page."""
    whole = subject.default(bank, " river", " money")
    few = dataclasses.replace(whole, ids=whole.ids[:, :4], switched=(0, 14, 29), heads=((0, 2), (14, 5), (29, 8)))
    assert_as_shown(cells.measure(few))


def test_the_page_has_these_lines_and_was_written_with_these_versions():
    assert list(SHOWN) == [(name, quantity) for name in (DEFAULT, *BY_ENTRY) for quantity in cells.COLUMNS]
    assert page.versions() in TEXT, "run scripts/parity.py --write"


def test_nothing_on_the_page_is_wrong_by_ours():
    assert "streamlens is wrong in **0**" in TEXT
    assert not any("**ours" in cell for cell in SHOWN.values())
    assert sum("agree" in cell for cell in SHOWN.values()) > 100


def test_every_wrong_cell_has_its_reason_and_every_reason_a_cell():
    wrong = {key for key, cell in SHOWN.items() if "theirs" in cell}
    told = {
        (name, quantity)
        for (who, quantities) in REASONS
        for name in ((DEFAULT, *BY_ENTRY) if who == "*" else (who,))
        for quantity in quantities
    }
    assert told - {("bert", page.BOOTED)} == wrong  # BERT has no attribution at all
    for why in REASONS.values():
        assert why in TEXT


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("gemma2", {"attn": "self_attn", "mlp": "mlp"}, "the addends up to L0.attn and the stream differ"),
        ("gemma2", {"middle": "post_attention_layernorm"}, "the addends up to L0.attn and the stream differ"),
        ("gpt2", {"out": "mlp.c_proj"}, "gains on the heads of block 0 differ"),
        ("gpt2", {"embed": {"embed": "transformer.wte"}}, "the addends up to L0.attn and the stream differ"),
        (
            "bert",
            {"mlp": "output"},
            "the addends up to L0.mlp and the input of bert.encoder.layer.0.output.LayerNorm differ",
        ),
        (
            "opt",
            {"norm": "model.decoder.layers.0.final_layer_norm"},
            "the lens of the last stream and the logits differ",
        ),
    ],
)
def test_the_arbiter_refuses_names_that_do_not_add_up(name, change, complaint, tokenizer):
    one = subject.tiny(name, tokenizer)
    by_hand.numbers(one)  # it does with the right ones
    with pytest.raises(AssertionError, match=complaint):
        by_hand.numbers(dataclasses.replace(one, names=dataclasses.replace(one.names, **change)))


def test_the_arbiter_knows_granites_multiplier(tokenizer):
    one = subject.tiny("granite", tokenizer)
    assert one.names == LLAMA
    by_hand.numbers(one)
    one.exact.config.residual_multiplier *= 1.01  # the modules keep theirs
    with pytest.raises(AssertionError, match="the addends up to L0"):
        by_hand.numbers(one)


def test_distances_by_hand():
    """(3, 4) against (3, 4.5) is 0.5 / 5; of numbers all parts count together, token by token."""
    wanted = {"a": torch.tensor([[[3.0, 4.0], [1.0, 0.0]]]), "b": torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])}
    found = {**wanted, "a": torch.tensor([[[3.0, 4.5], [1.0, 0.0]]])}
    assert cells._distance("writes", found, wanted) == pytest.approx(0.1)
    numbers = {"a": torch.tensor([[3.0, 1.0]]), "b": torch.tensor([[4.0, 0.0]])}
    moved = {"a": torch.tensor([[3.0, 1.2]]), "b": torch.tensor([[4.5, 0.0]])}
    assert cells._distance("attribution", moved, numbers) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("mine", "theirs", "missing", "verdict", "shown"),
    [
        (1e-7, 3e-7, (), "agree", "agree 3e-07"),
        (1e-7, 0.31, (), "theirs", "**theirs 0.31**, ours 1e-07"),
        (0.31, 0.31, (), "ours", "**ours 3e-01**"),  # agreement of the two settles nothing
        (float("nan"), 1e-7, (), "ours", "**ours nan**"),
        (1e-7, float("nan"), (), "theirs", "**theirs nan**, ours 1e-07"),
        (1e-7, "ValueError: no", (), "raises", "**theirs raises**, ours 1e-07"),
        (1e-7, 2e-7, ("pos_embed",), "incomplete", "**theirs without pos_embed**, else 2e-07"),
        (None, None, (), "none", "neither"),
    ],
)
def test_verdicts(mine, theirs, missing, verdict, shown):
    cell = cells.Cell(name="x", quantity="writes", ours=mine, theirs=theirs, apart=0.0, missing=missing)
    assert cell.verdict == verdict
    assert page.shown(cell) == shown


def test_the_script_says_what_it_does():
    shown = CliRunner().invoke(parity.main, ["--help"])
    assert shown.exit_code == 0
    assert "--write" in shown.output
