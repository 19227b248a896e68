"""Errors say the rule and the next step, are caught together, and survive a process boundary."""

import pickle

import pytest

from streamlens.errors import ClosureError, InputError, ModelError, StreamlensError, WiringError


@pytest.mark.parametrize("kind", [ModelError, WiringError, InputError, ClosureError])
def test_one_except_catches_every_child(kind):
    with pytest.raises(StreamlensError, match="the rule"):
        raise kind("the rule")


def test_a_wrong_input_is_also_a_value_error():
    assert issubclass(InputError, ValueError)


def test_the_text_is_the_message_and_the_hint():
    assert str(StreamlensError("Rule.", hint="Do this.")) == "Rule. Do this."
    assert str(StreamlensError("Rule.")) == "Rule."


def test_an_error_of_a_worker_process_arrives_whole():
    sent = InputError("Rule.", hint="Do this.")
    got = pickle.loads(pickle.dumps(sent))
    assert (type(got), got.message, got.hint, str(got)) == (InputError, "Rule.", "Do this.", str(sent))
