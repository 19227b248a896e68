"""The answer to a state: one model, and the answers that were asked for last.

1. The prompt is tokenised and counted; one that is too long is refused before anything runs.
2. Its clean run is made once and kept. Edits run from it (`streamlens.ablate`). A tab has the turn for a whole answer,
   so that two that ask the same get it made once.
3. What is kept is frames, never a ledger: an answer is small, whatever the model's vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from streamlens import turns
from streamlens.errors import InputError
from streamlens.experiments.ablate import ablate
from streamlens.experiments.compare import compare
from streamlens.explorer.cache import Recent
from streamlens.explorer.choice import Choice, choose, saved_choices
from streamlens.explorer.code import as_python
from streamlens.explorer.state import State
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import encode
from streamlens.models.wiring import Projection
from streamlens.plots.selection import signed
from streamlens.positions import find_position
from streamlens.readouts.attribution import read
from streamlens.readouts.lens import streams

MAX_TOKENS = 200
TOP = 10
_RUNS, _ANSWERS = 4, 64  # kept; a run holds its logits


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A next token, and how likely it is before and after the edits."""

    token: str
    special: bool
    before: float
    after: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What a state shows. Signs: ablated - clean.

    Attributes:
        place: The position that is read.
        token: The text of its token.
        reader: The name of the row that is read, or "".
        effects: As `AblationLedger.effects`; None without edits.
        writes: As `AblationLedger.to_frame`, or the clean ledger's frame at this token.
        parts: What every write gives the reader in the run that is shown; None without a reader.
        growth: The norm of the stream after every write: `series` (clean, edited), `step`, `component`, `norm`.
        guesses: The likeliest next tokens, before or after; none without a linear head.
        headline: A sentence.
        code: The calls that give these numbers.
    """

    place: int
    token: str
    reader: str
    effects: pd.DataFrame | None
    writes: pd.DataFrame
    parts: pd.DataFrame | None
    growth: pd.DataFrame
    guesses: tuple[Guess, ...]
    headline: str
    code: str


class Engine:
    """One model, asked by any number of tabs, one at a time.

    Args:
        model: The model.
        name: What it was loaded as.
        readers: Files of saved readers.
        max_tokens: Longer prompts are refused.
        prepend_bos: Put the BOS token in front of every prompt.

    Raises:
        InputError: A reader file that does not fit.
    """

    def __init__(
        self,
        model: ModelHandle,
        *,
        name: str,
        readers: Sequence[Path] = (),
        max_tokens: int = MAX_TOKENS,
        prepend_bos: bool = False,
    ) -> None:
        self.model, self.name, self.max_tokens, self.prepend_bos = model, name, max_tokens, prepend_bos
        self.saved = saved_choices(readers, width=model.wiring.d_model)
        self._runs: Recent[Clean] = Recent(_RUNS)
        self._answers: Recent[Answer] = Recent(_ANSWERS)
        self._comparisons: Recent[pd.DataFrame] = Recent(_ANSWERS)

    def switches(self) -> list[tuple[str, int]]:
        """Every write that can be switched, in stream order, with how many heads it has. Cost: one probe."""
        wiring = self.model.wiring
        made = self.model.projections(wiring.stream)
        heads = {row: maker.heads for row, maker in made.items() if isinstance(maker, Projection)}
        return [(w.site.label, heads.get(row, 0)) for row, w in enumerate(wiring.writes) if w.tap is not None]

    def run(self, prompt: str) -> Clean:
        """The clean run of a prompt, prepared: it is made when its ledger is asked for.

        Raises:
            InputError: An empty prompt, or one that is too long.
        """
        if not prompt.strip():
            raise InputError("There is no prompt yet: type a sentence.")
        with turns.TURN:
            return self._runs.made(prompt, lambda: self._start(prompt))

    def _start(self, prompt: str) -> Clean:
        count = encode(self.model.tokenizer, prompt, prepend_bos=self.prepend_bos).ids.shape[1]
        if count > self.max_tokens:
            raise InputError(
                f"A prompt here has up to {self.max_tokens} tokens, to stay quick; this one has {count}.",
                hint="Shorten it, or start with --max-tokens.",
            )
        return start_run(self.model, prompt, prepend_bos=self.prepend_bos)

    def place(self, state: State) -> int:
        """The position that a state picks.

        Raises:
            InputError: The prompt has no such position.
        """
        return find_position(self.run(state.prompt).context[0], -1 if state.position is None else state.position)

    def answer(self, state: State) -> Answer:
        """The answer to a state.

        Raises:
            InputError: An edit, reader or position that does not fit.
        """
        place = self.place(state)
        reads = (state.wanted, state.against, state.reader)
        edits = tuple(sorted(state.edits(place)))
        key = (state.prompt, place, reads, edits, state.second, state.second_position)
        found = self._answers.get(key)
        if found is None:
            with turns.TURN:
                found = self._answers.made(key, lambda: self._answer(state, place))
        return found

    def _answer(self, state: State, place: int) -> Answer:
        run = self.run(state.prompt)
        clean = run.ledger.place(place)
        choice = choose(self.model, state, clean, self.saved)
        readers = () if choice is None else (choice.reader,)
        edited, effects, writes, headline = clean, None, clean.to_frame(), ""
        if state.factors:
            ablation = ablate(self.model, run, state.edits(place), readers=readers, position=place)
            edited, effects, writes = ablation.ablated, ablation.effects(), ablation.to_frame()
            if choice is not None:
                effects = effects.loc[effects["reader"] == choice.row]
                headline = _headline(effects)
        series = {"clean": clean} if edited is clean else {"clean": clean, "edited": edited}
        return Answer(
            place=place,
            token=run.context[0][place],
            reader="" if choice is None else choice.row,
            effects=effects,
            writes=writes,
            parts=None if choice is None else read(edited, choice.reader).to_frame(),
            growth=pd.concat([_growth(name, ledger) for name, ledger in series.items()], ignore_index=True),
            guesses=_guesses(self.model, clean, edited),
            headline=headline,
            code=self._code(state, place, choice),
        )

    def _code(self, state: State, place: int, choice: Choice | None) -> str:
        return as_python(
            state,
            model=self.name,
            place=place,
            choice=choice,
            other=self._other(state, place) if state.second else None,
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=str(self.model.device),
            prepend_bos=self.prepend_bos,
        )

    def _other(self, state: State, place: int) -> str | int:
        """The token of the second prompt: the one that was picked, or the first prompt's token by its text."""
        return self.run(state.prompt).context[0][place] if state.second_position is None else state.second_position

    def compared(self, state: State) -> pd.DataFrame:
        """The comparison with the second prompt, A - B, as `Comparison.to_frame`.

        Raises:
            InputError: No such token there, or several.
        """
        place = self.place(state)
        self.run(state.second)  # too long is said before anything runs
        key = (state.prompt, place, state.second, state.second_position, state.wanted, state.against, state.reader)
        found = self._comparisons.get(key)
        if found is None:
            with turns.TURN:
                found = self._comparisons.made(key, lambda: self._compared(state, place))
        return found

    def _compared(self, state: State, place: int) -> pd.DataFrame:
        choice = choose(self.model, state, self.run(state.prompt).ledger.place(place), self.saved)
        return compare(
            self.model,
            state.prompt,
            state.second,
            token=(place, self._other(state, place)),
            readers=() if choice is None else choice.reader,
            prepend_bos=self.prepend_bos,
        ).to_frame()


def tokens(run: Clean) -> list[Mapping[str, Any]]:
    """The tokens of a run's stream; known without running it."""
    special = set(run.model.special_ids.tolist())
    ids = run.batch.ids[0][run.batch.mask[0]].tolist()
    return [{"text": text, "special": number in special} for text, number in zip(run.context[0], ids, strict=True)]


def _headline(effects: pd.DataFrame) -> str:
    """What subtracting says, and what rerunning gives."""
    row = effects.iloc[-1]
    return (
        f"By themselves the edited writes account for {signed(row['direct'])} {row['unit']}; rerunning the model, with "
        f"every later write responding, gives {signed(row['total'])}."
    )


def _growth(name: str, ledger: Ledger) -> pd.DataFrame:
    norms = [float(stream[0, -1].double().norm()) for stream in streams(ledger)]
    return pd.DataFrame({"series": name, "step": range(len(norms)), "component": ledger.labels, "norm": norms})


def _guesses(model: ModelHandle, clean: Ledger, edited: Ledger) -> tuple[Guess, ...]:
    """The next tokens that are likely before or after."""
    if clean.logits is None or edited.logits is None:
        return ()
    before, after = (ledger.logits[0, -1].double().softmax(-1) for ledger in (clean, edited))  # type: ignore[index]
    best = before.maximum(after).topk(min(TOP, len(before))).indices.tolist()
    special = set(model.special_ids.tolist())
    return tuple(
        Guess(token=text, special=i in special, before=float(before[i]), after=float(after[i]))
        for i, text in zip(best, model.token_texts(best), strict=True)
    )
