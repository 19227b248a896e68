"""What a notebook shows: the largest numbers, sums that add up, closure, and nothing that a browser acts on."""

import re

import pytest
import torch

from figure_frames import HOSTILE
from small_ledger import ledger_of, reader_of
from streamlens import read
from streamlens.notebook import summary_html


def cells(source: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", source, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]


@pytest.fixture(scope="module")
def ledger():
    draw = torch.Generator().manual_seed(0)
    return ledger_of(torch.randn(12, 1, 3, 8, generator=draw))


def test_a_ledger_shows_its_largest_shares_and_closure(ledger) -> None:
    shown = ledger._repr_html_()
    head, *rows, rest = cells(shown)
    assert head == ["write", "norm", "share of the stream"]
    frame = ledger.to_frame()
    last = frame[(frame["position"] == 2) & (frame["kind"].astype(str) != "rounding")].set_index("component")
    largest = last["share"].abs().sort_values(ascending=False).index[:8]
    assert [row[0] for row in rows] == [str(label) for label in largest]
    assert float(rows[0][2].replace("−", "-")) == pytest.approx(float(last["share"][largest[0]]), rel=1e-3)
    assert rest == ["and 4 more"]
    assert "closure " in shown
    assert "at t2 (position 2)" in shown


def test_a_readout_sums_to_its_total(ledger) -> None:
    readout = read(ledger, reader_of(torch.ones(1, 8)))
    *_, other, total = ([float(v.replace("−", "-")) for v in row[1:]] for row in cells(readout._repr_html_())[1:])
    rows = cells(readout._repr_html_())[1:]
    assert [row[0] for row in rows[-2:]] == ["other (5)", "total"]
    named = sum(float(row[1].replace("−", "-")) for row in rows[:-2])
    assert named + other[0] == pytest.approx(total[0], abs=5e-3)
    assert total[0] == pytest.approx(float(readout.total[0, -1, 0]), rel=1e-3)


@pytest.mark.model
def test_an_ablation_shows_its_parts(default_model, bank) -> None:
    from streamlens import Reader, ablate

    reader = Reader.logit_diff(default_model, " river", " money")
    found = ablate(default_model, bank, "L1.attn@bank", readers=reader, position="bank")
    shown = found._repr_html_()
    head, (label, *sizes) = cells(shown)
    assert (head, label) == (["edited", "direct", "indirect", "rescale", "total"], "L1.attn@bank")
    assert [float(size.replace("−", "-")) for size in sizes] == pytest.approx([0.421, -4.293, -0.019, -3.891], abs=1e-2)
    assert "at ·bank (position 9), ablated - clean, in logits" in shown
    assert "KL(clean, ablated)" in ablate(default_model, bank, "L1.attn@bank", position="bank")._repr_html_()


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_an_element(text: str) -> None:
    shown = summary_html(text, ("a", text), [(text, (1.0,))], others=1, closing=f"closing {text}")
    plain = summary_html("x", ("a", "x"), [("x", (1.0,))], others=1, closing="x")
    assert re.findall(r"<[^>]*>", shown) == re.findall(r"<[^>]*>", plain)
    assert not set(shown) & {"\x1b", "\u202e", "\u200d"}
