"""What a tab shows is its URL, and back."""

import pytest

from streamlens.errors import InputError
from streamlens.explorer.cache import Recent
from streamlens.explorer.code import as_python
from streamlens.explorer.state import State

FULL = State(
    prompt="A <b> & “bank”, #1?\n+ more",
    position=3,
    wanted=" river",
    against=" money",
    factors={"L9.attn": 0.0, "L3.mlp": 0.5, "L2H1": 0.0},
    where="all",
    second="another bank",
    second_position=0,
    pin="L20.mlp",
)


@pytest.mark.parametrize("state", [FULL, State(prompt=""), State(prompt="x", reader="sense (2)")])
def test_a_state_is_its_address(state: State) -> None:
    assert State.from_search(state.search) == state


def test_spaces_at_the_edges_of_tokens_survive() -> None:
    assert State.from_search("?prompt=a&for=+river").wanted == " river"


def test_switches_become_edits_at_the_picked_token() -> None:
    assert FULL.factors == {"L9.attn": 0.0, "L3.mlp": 0.5, "L2H1": 0.0}
    assert FULL.edits(9) == ["L9.attn", "L3.mlp=0.5", "L2H1"]
    here = State(prompt="x", factors=FULL.factors)
    assert here.edits(9) == ["L9.attn@9", "L3.mlp@9=0.5", "L2H1@9"]


def test_what_the_page_writes_is_read() -> None:
    assert State.from_search("?prompt=x&edits=L9.attn,L3.mlp=0.5").factors == {"L9.attn": 0.0, "L3.mlp": 0.5}


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("?pos=nine", "A position is a number; the address says 'nine'."),
        ("?edits=L9.attn=much", "a write and a factor, as in L9.attn=0.5; the address says 'L9.attn=much'"),
        ("?edits=L9.attn=nan", "as in L9.attn=0.5"),
        ("?edits=<script>", "A site is written like embed, L9.attn"),
        ("?where=there", "Edits act at one of here, all; the address says 'there'."),
    ],
)
def test_an_address_that_says_nothing_sensible_is_refused(search: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        State.from_search(search)
    assert said in str(refused.value)


def test_the_cache_forgets_what_was_asked_for_longest_ago() -> None:
    kept: Recent[str] = Recent(2)
    for key in "ab":
        kept.put(key, key)
    assert kept.get("a") == "a"
    kept.put("c", "c")
    assert (kept.get("b"), kept.get("a"), len(kept)) == (None, "a", 2)
    assert kept.made("a", lambda: "new") == "a"
    assert kept.made("b", lambda: "new") == "new"


def test_the_calls_name_what_is_not_the_default() -> None:
    said = as_python(FULL, model="m", place=3, choice=None, dtype="float64", device="cuda", prepend_bos=True, other=0)
    assert "streamlens.load('m', dtype='float64', device='cuda')" in said
    assert "clean_run(model, prompt, prepend_bos=True)" in said
    assert "compare(model, prompt, 'another bank', token=(3, 0), prepend_bos=True)" in said
    assert repr(FULL.prompt) in said
    compile(said, "copied", "exec")
