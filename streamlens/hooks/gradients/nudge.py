"""NUDGE: the stream moved at one position right after any step, and what becomes of it later.

1. A course is one prompt, one position, and the points its stream passes there (`points.py`). The other positions are
   held at their clean values, by setting every write there, or they are free to answer.
2. Where the clean run's keys and values can be reused, only the position itself runs, upon those of the positions
   before it: nothing that comes later can reach it, so held and free are one. That it gives the clean stream is
   checked; if it does not, every position runs.
3. `run` makes a batch of copies of the prompt, adds to the stream of each at the points, and returns the stream of the
   position at every point, added up as the model does.
4. With a graph the added vectors are leaves (`derivatives.py`). Attention runs in its plain form throughout, since
   fused kernels cannot be differentiated twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from streamlens import turns
from streamlens.carries import Renorm, walk
from streamlens.errors import InputError, WiringError
from streamlens.hooks.edits.action import Action
from streamlens.hooks.edits.edit import attach_actions
from streamlens.hooks.forward import Batch
from streamlens.hooks.gradients.points import Point, points_of
from streamlens.hooks.prompts import Prompt, kept_positions
from streamlens.hooks.runs.variants import CONTROL
from streamlens.hooks.scope import HookScope, quiet_eval
from streamlens.hooks.taps import Listener, attach
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Tap
from streamlens.turns import once

#: tokens that run in one batch with a graph: 2 MB of activations each in a model of 135M parameters
AT_ONCE = 512


@dataclass(frozen=True, eq=False, kw_only=True)
class Course:
    """The stream of one position of one prompt, from point to point.

    Attributes:
        clean: The prompt's run without edits.
        position: Within the prompt.
        others: "held" or "free": what the other positions do.
    """

    clean: Clean
    position: int
    others: str

    @once
    def alone(self) -> bool:
        """Whether the position runs by itself, upon the clean keys and values before it."""
        if self.clean.prefix is None:
            return False
        tolerance = CONTROL.get(self.clean.model.dtype, 5e-2)
        wanted = self.clean.ledger.stream[0, self.position].double()
        try:
            found = _forward(self, {}, rows=1, graph=False, alone=True)[-1][0].double()
        except Exception:  # whatever a model raises that cannot go on from this cache
            return False
        return bool((found - wanted).norm() <= tolerance * wanted.norm())

    @once
    def points(self) -> tuple[Point, ...]:
        """The places between which the stream is a chain."""
        wiring = self.clean.wiring
        rows = [row for row, write in enumerate(wiring.writes) if write.tap is not None]
        leaves = {row: leaf(torch.zeros(1, wiring.d_model), self.clean.model) for row in rows}
        made: dict[int, Tensor] = {}
        with with_graph(self.clean.model, graph=True):
            _forward(self, {}, rows=1, graph=True, alone=self.alone, at_writes=leaves, made=made)

            def reads(row: int, earlier: int) -> bool:
                if not made[row].requires_grad:
                    return False
                [found] = torch.autograd.grad(made[row].sum(), leaves[earlier], retain_graph=True, allow_unused=True)
                return found is not None

            return points_of(wiring, reads)

    @property
    def rows_at_once(self) -> int:
        """How many copies of the prompt fit into one batch with a graph."""
        length = self.clean.batch.run_mask.shape[1]
        return max(1, AT_ONCE // (1 + length // 8 if self.alone else length))

    def run(self, nudges: Mapping[int, Float[Tensor, "row d_model"]], *, graph: bool = False) -> list[Tensor]:
        """The stream at every point, [row, d_model], when something is added to it at some points.

        Args:
            nudges: By number of the point: what is added to each copy of the prompt.
            graph: Whether gradients can be asked for afterwards.

        Cost: one forward of as many prompts as there are rows.
        """
        [rows] = {len(nudge) for nudge in nudges.values()}
        return _forward(self, nudges, rows=rows, graph=graph, alone=self.alone, points=self.points)


def course_of(
    model: ModelHandle, prompt: Prompt | Clean, position: int | str, *, others: str, **forward_kwargs: Any
) -> Course:
    """A course, checked.

    Raises:
        InputError: More than one prompt, or a position that is not there.
    """
    if others not in ("held", "free"):
        raise InputError(f'The other positions are "held" or "free"; got {others!r}.')
    clean = prompt if isinstance(prompt, Clean) else start_run(model, prompt, keep_logits=False, **forward_kwargs)
    if len(clean.encoded.ids) != 1:
        raise InputError(f"A stream is followed in one prompt at a time; got {len(clean.encoded.ids)}.")
    clean = clean.unpadded
    places = kept_positions(clean.context, position)
    assert places is not None
    return Course(clean=clean, position=places[0][0], others=others)


def leaf(values: Tensor, model: ModelHandle) -> Tensor:
    """A tensor that gradients can be asked for, of the model's type and in its place."""
    with torch.inference_mode(False):
        return values.to(device=model.device, dtype=model.dtype, copy=True).requires_grad_()


@contextmanager
def with_graph(model: ModelHandle, *, graph: bool) -> Iterator[None]:
    """Autograd on or off, attention in its plain form, and it is said whose fault it is when autograd refuses."""
    # kernels are chosen for the whole process, hence the turn
    with turns.TURN, torch.inference_mode(not graph), torch.set_grad_enabled(graph), sdpa_kernel(SDPBackend.MATH):
        try:
            yield
        except RuntimeError as error:
            if not graph:
                raise
            said = str(error).partition("\n")[0]
            raise WiringError(f"The forward of {model.name} cannot be differentiated: {said}") from error


def _forward(
    course: Course,
    nudges: Mapping[int, Tensor],
    *,
    rows: int,
    graph: bool,
    alone: bool,
    points: Sequence[Point] = (),
    at_writes: Mapping[int, Tensor] | None = None,
    made: dict[int, Tensor] | None = None,
) -> list[Tensor]:
    """One forward; the stream of the position at every point, or after every step of the program if none is given.

    `at_writes` adds to writes, whatever the points are; `made` gets every write, [row, pos, d_model].
    """
    clean, wiring = course.clean, course.clean.wiring
    batch, place = _copies(course, rows, alone=alone)
    made = {} if made is None else made
    norms: dict[int, Tensor] = {}
    listeners = [Listener(w.tap, partial(_keep, made, n), True) for n, w in enumerate(wiring.writes) if w.tap]
    for number, step in enumerate(wiring.program):
        if isinstance(step, Renorm):
            listeners.append(Listener(wiring.norms[step.norm].tap, partial(_keep, norms, number), True))
    actions = [] if alone or course.others == "free" else list(_held(course, batch, place))
    actions += [_add(points[n].tap, nudge / points[n].factor, place) for n, nudge in nudges.items()]
    for row, nudge in (at_writes or {}).items():
        tap = wiring.writes[row].tap
        assert tap is not None
        actions.append(_add(tap, nudge, place))
    with (
        quiet_eval(clean.model.model),
        with_graph(clean.model, graph=graph),
        attach_actions(clean.model, wiring, batch, actions),
        HookScope() as scope,
    ):
        attach(scope, clean.model.modules, wiring, batch, listeners)
        clean.model.model(**batch.inputs)
        added = _rows(clean, made, place)
        ends = [after[:, 0] for *_, after in walk(wiring.program, added, {n: x[:, [place]] for n, x in norms.items()})]
    return [ends[point.last] for point in points] if points else ends


def _keep(table: dict[int, Tensor], key: int, tensor: Tensor) -> None:
    table[key] = tensor.clone()


def _rows(clean: Clean, made: Mapping[int, Tensor], place: int) -> list[Float[Tensor, "row 1 d_model"]]:
    """The writes at the position, as they were added; constants are the same in every copy."""
    like = next(iter(made.values()))[:, [place]]
    found = []
    for row, write in enumerate(clean.wiring.writes):
        if write.tap is None:
            found.append((clean.model.parameter(write.constant) * write.scale).expand_as(like))
        else:
            found.append(made[row][:, [place]] if write.scale == 1.0 else made[row][:, [place]] * write.scale)
    wide = max((x.dtype for x in found), key=lambda dtype: torch.finfo(dtype).bits)
    return [x.to(wide) for x in found]  # no stack: its gradient would pass through every row


def _add(tap: Tap, nudge: Tensor, place: int) -> Action:
    """Adds row by row to what is at a tap at one position."""
    every = torch.arange(len(nudge))
    return Action(
        row=0, tap=tap, rows=every, positions=torch.full_like(every, place), change=lambda x: x + nudge.to(x.dtype)
    )


def _held(course: Course, batch: Batch, place: int) -> Iterator[Action]:
    """Every write at every other position is what it was in the clean run."""
    rows, length = batch.run_mask.shape
    others = [position for position in range(length) if position != place]
    for row, write in enumerate(course.clean.wiring.writes):
        if write.tap is None or not others:
            continue
        value = course.clean.ledger.added[row, 0, others].clone()

        def change(before: Tensor, value: Tensor = value) -> Tensor:
            return value.to(before).repeat(rows, 1)

        yield Action(
            row=row,
            tap=write.tap,
            rows=torch.arange(rows).repeat_interleave(len(others)),
            positions=torch.tensor(others).repeat(rows),
            scale=write.scale,
            change=change,
        )


def _copies(course: Course, rows: int, *, alone: bool) -> tuple[Batch, int]:
    """The prompt `rows` times, or its one position alone; and where in the run the position is."""
    clean = course.clean
    first, stop = (course.position, course.position + 1) if alone else (0, clean.batch.run_mask.shape[1])
    own = {"input_ids", "token_type_ids", "position_ids", "decoder_input_ids"}
    own -= {"input_ids"} if clean.wiring.stream == "decoder" else {"decoder_input_ids"}
    inputs: dict[str, Any] = {}
    for name, value in clean.batch.inputs.items():
        if isinstance(value, Tensor):
            value = value.clone()  # one made in a user's inference mode cannot enter a graph
            if value.dim() > 0 and len(value) == 1:
                value = value[:, first:stop] if alone and name in own else value
                value = value.expand(rows, *value.shape[1:])
        inputs[name] = value
    if alone and first:
        assert clean.prefix is not None
        inputs |= clean.prefix.inputs(first)
    index = torch.arange(stop - first).expand(rows, -1)
    batch = Batch(
        inputs=inputs,
        index=index,
        indices=index + first,
        mask=torch.ones_like(index, dtype=torch.bool),
        ids=clean.batch.ids[:, first:stop].expand(rows, -1),
        whole=True,
        run_mask=torch.ones(rows, stop - first, dtype=torch.bool),
    )
    return batch, course.position - first
