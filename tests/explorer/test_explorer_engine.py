"""The numbers on the page are the library's; the calls it offers give them again."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pytest

import streamlens
from streamlens.errors import InputError
from streamlens.explorer import figures
from streamlens.explorer.choice import saved_choices
from streamlens.explorer.engine import Engine
from streamlens.explorer.state import State

pytestmark = pytest.mark.model
SECOND = "She checked her savings account balance at the bank"


@pytest.fixture
def asked(bank: str) -> State:
    return State(prompt=bank, wanted=" river", against=" money", factors={"L9.attn": 0.0, "L3.mlp": 0.5})


def run_code(code: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the copied calls leave behind; the model is the session's."""
    monkeypatch.setitem(vars(streamlens), "load", lambda *_, **__: model)
    found: dict[str, Any] = {}
    exec(compile(code, "copied", "exec"), found)
    return found


def test_an_answer_is_the_librarys(engine: Engine, default_model, asked: State) -> None:
    reader = streamlens.Reader.logit_diff(default_model, " river", " money")
    own = streamlens.ablate(
        default_model, asked.prompt, ["L9.attn@bank", "L3.mlp@bank=0.5"], readers=reader, position=9
    )
    found = engine.answer(asked)
    assert found.effects is not None
    for name in ("clean", "direct", "indirect", "rescale", "total", "observed", "kl"):
        assert float(found.effects[name].iloc[0]) == pytest.approx(float(own.effects()[name].iloc[0]), abs=1e-5)
    assert float(found.effects["closure"].iloc[0]) < 1e-4
    after = own.ablated.logits[0, -1].double().softmax(-1)
    best = max(found.guesses, key=lambda guess: guess.after)
    assert best.after == pytest.approx(float(after.max()), abs=1e-6)
    assert best.token == own.text_of(int(after.argmax()))
    assert len(found.guesses) == 10


def test_the_copied_calls_give_the_same_numbers(engine, default_model, asked, monkeypatch) -> None:
    found = engine.answer(asked)
    made = run_code(found.code, default_model, monkeypatch)
    pd.testing.assert_frame_equal(made["writes"], found.writes)
    assert made["effects"]["total"].tolist() == found.effects["total"].tolist()


def test_the_copied_calls_without_edits(engine, default_model, bank, monkeypatch) -> None:
    state = State(prompt=bank, position=3, second=SECOND, second_position=8)
    found = engine.answer(state)
    made = run_code(found.code, default_model, monkeypatch)
    pd.testing.assert_frame_equal(made["writes"], found.writes)
    pd.testing.assert_frame_equal(made["parts"], found.parts)
    pd.testing.assert_frame_equal(made["comparison"], engine.compared(state))


def test_edits_at_every_token_reach_further_than_at_one(engine: Engine, asked: State, bank: str) -> None:
    here = engine.answer(asked)
    everywhere = engine.answer(
        State(prompt=bank, wanted=" river", against=" money", factors=asked.factors, where="all")
    )
    assert here.effects is not None
    assert everywhere.effects is not None
    assert here.effects["total"].iloc[0] != pytest.approx(everywhere.effects["total"].iloc[0], abs=1e-3)


def test_the_same_question_is_answered_once(engine: Engine, asked: State) -> None:
    turned = State(**{**vars(asked), "factors": dict(reversed(asked.factors.items())), "pin": "L1.attn"})
    assert engine.answer(turned) is engine.answer(asked)


def test_growth_is_the_ledgers(engine: Engine, bank: str) -> None:
    found = engine.answer(State(prompt=bank))
    norms = found.writes.loc[found.writes["kind"].astype(str) != "rounding"]
    assert found.growth["component"].tolist() == norms["component"].astype(str).tolist()
    assert found.growth["norm"].tolist() == pytest.approx(norms["stream_norm"].tolist(), rel=1e-5)


def test_the_model_answers_one_at_a_time(engine: Engine, bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [0], [0]

    def counted(*args: Any, **options: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        try:
            return streamlens.ablate(*args, **options)
        finally:
            inside[0] -= 1

    monkeypatch.setattr("streamlens.explorer.engine.ablate", counted)
    states = [State(prompt=bank, factors={f"L{layer}.mlp": 0.25}) for layer in range(4, 8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(engine.answer, states))
    assert most == [1]
    for state, answer in zip(states, found, strict=True):
        (edit,) = state.edits(9)
        assert answer.writes["variant"].unique().tolist() == [edit]


def test_without_a_reader_the_likeliest_token_is_read(engine: Engine, bank: str) -> None:
    found = engine.answer(State(prompt=bank))
    likeliest = max(found.guesses, key=lambda guess: guess.before)
    assert found.reader == f"logit({likeliest.token})"
    assert found.effects is None
    assert figures.changed(found) == {"downstream": None, "effects": None}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (State(prompt=" "), "There is no prompt yet"),
        (State(prompt="a " * 300), "A prompt here has up to 200 tokens"),
        (State(prompt="the bank", position=7), "position"),
        (State(prompt="the bank", wanted="riverbankish"), "A reader's token is one token"),
        (State(prompt="the bank", against=" x"), "A difference needs the token that is read as well"),
        (State(prompt="the bank", reader="sense"), "No saved reader is called 'sense' here"),
        (State(prompt="the bank", factors={"L99.attn": 0.0}), "No write is called 'L99.attn' here"),
    ],
)
def test_what_does_not_fit_is_said(engine: Engine, state: State, said: str) -> None:
    with pytest.raises(InputError, match=said):
        engine.answer(state)


def test_every_write_and_head_can_be_switched(engine: Engine) -> None:
    switches = dict(engine.switches())
    assert len(switches) == 61
    assert list(switches)[:3] == ["embed", "L0.attn", "L0.mlp"]
    assert (switches["L9.attn"], switches["L9.mlp"]) == (9, 0)


def test_saved_readers_are_offered_row_by_row(default_model, bank: str, tmp_path, monkeypatch) -> None:
    direction = streamlens.Reader.direction(default_model.unembedding([100]).matrix[0], name="sense", norm="final")
    paths = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for path in paths:
        direction.save(path)
    engine = Engine(default_model, name="smollm2-135m", readers=paths)
    assert list(engine.saved) == ["sense", "sense (2)"]
    state = State(prompt=bank, reader="sense (2)", factors={"L9.attn": 0.0})
    found = engine.answer(state)
    assert found.effects is not None
    assert found.reader == "sense"
    made = run_code(found.code, default_model, monkeypatch)
    assert made["effects"]["total"].tolist() == found.effects["total"].tolist()
    with pytest.raises(InputError, match=r"A reader is as wide as the stream, 577; .* is 576 wide"):
        saved_choices(paths, width=577)


def test_a_model_without_a_head_is_shown_by_norms() -> None:
    engine = Engine(streamlens.load("minilm-l6"), name="minilm-l6")
    found = engine.answer(State(prompt="The boat reached the bank.", position=5, factors={"L2.attn": 0.0}))
    assert (found.reader, found.parts, found.guesses) == ("", None, ())
    drawn = figures.changed(found)
    assert drawn["downstream"] is not None
    assert figures.stream(found)["contributions"] is None
