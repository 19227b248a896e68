"""One handle may be used from several threads: each gets, bit for bit, what it gets alone."""

import contextlib
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import streamlens
import zoo
from model_state import state_of
from public_calls import CALLS, OTHER, PROMPT, Subject, numbers_of, tiny
from streamlens import decompose, lesion, replay, turns
from streamlens.hooks import scope

PATIENCE = 120  # seconds after which a thread counts as stuck
IDS = [[11, 12, 13, 14]]


class NoTurn(contextlib.nullcontext):
    """What `TURN` would be if threads did not wait for each other."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


class Thread(threading.Thread):
    """A thread whose result, or error, can be asked for."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.call, self.value, self.error = call, None, None

    def run(self) -> None:
        try:
            self.value = self.call()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive(), "the thread waits for ever"
        if self.error is not None:
            raise self.error
        return self.value


def elsewhere(call: Callable[[], Any]) -> Any:
    """The result of a call in another thread."""
    thread = Thread(call)
    thread.start()
    return thread.result()


def turn_is_free() -> bool:
    """Whether this thread can have the turn at once."""
    if not turns.TURN.acquire(blocking=False):
        return False
    turns.TURN.release()
    return True


@pytest.fixture
def gpt2():
    """In training mode: where its mode is forgotten, dropout changes the numbers."""
    module = zoo.build("gpt2").train()
    for dropout in (m for m in module.modules() if isinstance(m, torch.nn.Dropout)):
        dropout.p = 0.5
    assert not torch.equal(module(torch.tensor(IDS)).logits, module(torch.tensor(IDS)).logits)
    return module


@pytest.fixture
def restless():
    """Threads change places fifty times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("handles", [1, 2])
def test_every_call_gives_a_thread_what_it_gives_alone(gpt2, restless, handles):
    alone = {}
    for prompt, other in ((PROMPT, OTHER), (OTHER, PROMPT)):
        subject = tiny(gpt2, prompt=prompt, other=other)
        alone |= {(name, prompt): numbers_of(call(subject)) for name, call in CALLS.items()}
    before = state_of(gpt2)
    models = [tiny(gpt2) for _ in range(handles)]  # new ones: what they find out on first use, they find out together
    start = threading.Barrier(4)

    def work(number: int) -> list[str]:
        shared = models[number % handles]
        names = list(CALLS)
        random.Random(number).shuffle(names)
        names = names[: len(names) // 2]
        start.wait(PATIENCE)
        wrong = []
        for turn, name in enumerate(names):
            prompt, other = (PROMPT, OTHER) if (number + turn) % 2 else (OTHER, PROMPT)
            subject = Subject(model=shared.model, reader=shared.reader, prompt=prompt, other=other)
            if numbers_of(CALLS[name](subject)) != alone[name, prompt]:
                wrong.append(name)
        return wrong

    threads = [Thread(lambda number=number: work(number)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert [thread.result() for thread in threads] == [[]] * 4
    assert state_of(gpt2) == before


def test_handles_on_a_module_and_on_its_inside_take_turns(restless):
    """Two modules, two handles, the same layers."""
    whole = zoo.build("llama")
    handles = [streamlens.load(whole), streamlens.load(whole.model)]
    alone = [numbers_of(decompose(handle, IDS, level="head")) for handle in handles]
    threads = [Thread(lambda h=h: [numbers_of(decompose(h, IDS, level="head")) for _ in range(20)]) for h in handles]
    for thread in threads:
        thread.start()
    assert [thread.result() for thread in threads] == [[numbers] * 20 for numbers in alone]


def during(model: torch.nn.Module, first: Callable[[], Any], second: Callable[[], Any], shuffled: bool = False) -> Any:
    """What `second` gives in a thread that begins while `first` is between two blocks (in another order, or in theirs).

    Where it can finish at once it does, so nothing depends on time; where it has to wait, it is left waiting.
    """
    threads: list[Thread] = []
    order = list(model.model.layers)

    def begin(*_: Any) -> None:
        if not threads and (list(model.model.layers) != order) == shuffled:
            threads.append(Thread(second))
            threads[0].start()
            threads[0].join(0.5)

    own = order[1].register_forward_pre_hook(begin)
    try:
        first()
    finally:
        own.remove()
    return threads[0].result()


class TestATurn:
    """Blocks in another order are the plainest thing that one thread does to all."""

    def shuffled(self, handle):
        return lambda: lesion(handle, [[11, 12, 13, 14]], shuffle=3, seed=1)

    def test_waits_until_the_model_is_as_it_was(self):
        llama = zoo.build("llama")
        handle = streamlens.load(llama)
        alone = numbers_of(decompose(handle, IDS))
        made = during(llama, self.shuffled(handle), lambda: numbers_of(decompose(handle, IDS)), shuffled=True)
        assert made == alone

    def test_is_what_keeps_the_numbers_right(self, monkeypatch):
        """A positive control: without it the second thread runs the first one's order of blocks."""
        llama = zoo.build("llama")
        handle = streamlens.load(llama)
        alone = numbers_of(decompose(handle, IDS))
        monkeypatch.setattr(turns, "TURN", NoTurn())
        try:
            made = during(llama, self.shuffled(handle), lambda: numbers_of(decompose(handle, IDS)), shuffled=True)
        except streamlens.StreamlensError:
            return  # found out: the writes came in another order than the wiring's
        assert made != alone

    @pytest.mark.parametrize(
        ("name", "error"),
        [(name, RuntimeError) for name in CALLS if name not in ("nullspace", "overlap", "model_readers")]
        + [(name, KeyboardInterrupt) for name in ("decompose, sources", "lesion", "backward", "perturb")],
    )
    def test_is_over_after_an_error(self, name, error):
        subject = tiny()
        subject.model.projections("only")
        module = subject.model.model

        def raises(*_: Any) -> None:
            raise error("midway")

        own = module.model.layers[1].register_forward_hook(raises)
        before = state_of(module)
        with pytest.raises((error, streamlens.StreamlensError), match="midway"):
            CALLS[name](subject)
        assert state_of(module) == before
        own.remove()
        assert elsewhere(turn_is_free)

    def test_is_over_after_a_refusal(self):
        subject = tiny()
        with pytest.raises(streamlens.StreamlensError):
            replay(subject.model, PROMPT, "L9.attn")
        assert elsewhere(turn_is_free)

    def test_may_be_taken_inside_itself(self):
        """A hook of the user's that asks another model, in the middle of a call."""
        outer, inner = tiny(), tiny("gpt2")
        alone = [numbers_of(decompose(s.model, PROMPT)) for s in (outer, inner)]
        seen = []
        layer = outer.model.model.model.layers[1]
        own = layer.register_forward_hook(lambda *_: seen.append(numbers_of(decompose(inner.model, PROMPT))))
        assert elsewhere(lambda: numbers_of(decompose(outer.model, PROMPT))) == alone[0]
        own.remove()
        assert seen == [alone[1]]

    @pytest.mark.parametrize("inside", [IDS, [[21, 22, 23, 24]], [[21, 22]]])
    def test_of_the_same_model_inside_itself_gives_no_wrong_sum(self, inside):
        """Hooks of the outer call see the inner one's forward: what comes of it closes, or is refused."""
        llama = zoo.build("llama")
        handle = streamlens.load(llama)
        alone = numbers_of(decompose(handle, IDS))
        entered = []

        def again(*_: Any) -> None:
            if not entered:
                entered.append(True)
                decompose(handle, inside)

        own = llama.model.layers[1].register_forward_hook(again)
        before = state_of(llama)
        made = None
        with contextlib.suppress(Exception):  # whatever the outer call's own hooks make of the inner one's forward
            made = elsewhere(lambda: numbers_of(decompose(handle, IDS)))
        assert entered
        assert made is None or made == alone
        assert state_of(llama) == before
        own.remove()
        assert numbers_of(decompose(handle, IDS)) == alone


class TestAForwardOfTheUsersOwn:
    """`model(...)` in another thread, without streamlens, while a call of ours is under way."""

    def test_is_neither_edited_nor_recorded(self):
        llama = zoo.build("llama")
        handle = streamlens.load(llama)
        ids = torch.tensor([[21, 22, 23, 24, 25]])
        alone = llama(ids).logits
        edited = []
        made = during(llama, lambda: edited.append(replay(handle, IDS, "L0.mlp")), lambda: llama(ids).logits)
        assert torch.equal(made, alone)
        assert numbers_of(edited[0].ledger) == numbers_of(replay(handle, IDS, "L0.mlp").ledger)

    def test_would_be_if_hooks_were_everyones(self, monkeypatch):
        """A positive control."""
        monkeypatch.setattr(scope, "_of_this_thread", lambda hook: hook)
        llama = zoo.build("llama")
        handle = streamlens.load(llama)
        ids = torch.tensor([[21, 22, 23, 24]])
        alone = llama(ids).logits
        made = []

        def plain() -> None:
            with contextlib.suppress(Exception):  # the capture's last hook ends a forward
                made.append(llama(ids).logits)

        def call() -> None:
            with contextlib.suppress(Exception):  # it has recorded the other's forward
                replay(handle, IDS, "L1.mlp")

        during(llama, call, plain)
        assert not made or not torch.equal(made[0], alone)
