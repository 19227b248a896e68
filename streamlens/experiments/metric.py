"""The numbers that can be differentiated: a reader's row at a position, or the loss of the next token.

1. Positions and tokens are checked before anything runs.
2. A metric then makes one number per prompt from the ends of a run's graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from streamlens.display import display_token
from streamlens.errors import InputError, ModelError
from streamlens.hooks.gradients.graph import Graph
from streamlens.hooks.prompts import kept_positions
from streamlens.hooks.writes.clean import Clean
from streamlens.readouts.readers.reader import Reader

#: a reader, or "loss": the cross entropy of the next token
Asked = Reader | str


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric:
    """One number per prompt.

    Attributes:
        name: For titles.
        unit: Its unit.
        places: Where it is read, within each prompt's own tokens.
        reader: What reads; None for the loss.
        row: Which of the reader's rows.
        targets: For the loss, the token that should follow each place.
    """

    name: str
    unit: str
    places: tuple[tuple[int, ...], ...]
    reader: Reader | None = None
    row: int = 0
    targets: tuple[tuple[int, ...], ...] = ()

    def of(self, graph: Graph) -> Float[Tensor, " batch"]:
        """The number, with its graph; up to the reader's constant."""
        if self.reader is None:
            return graph.loss(self.places, self.targets)
        return graph.metric(self.reader, [place[0] for place in self.places])[:, self.row]

    def value(self, graph: Graph) -> Float[Tensor, " batch"]:
        """The number itself, the constant included."""
        if self.reader is None:
            return graph.loss(self.places, self.targets).detach().cpu()
        return graph.value(self.reader, [place[0] for place in self.places])[:, self.row]


def metric_of(
    clean: Clean, asked: Asked, position: str | int | None, *, row: int = 0, target: str | int | None = None
) -> Metric:
    """Checks what is asked against the tokens.

    Args:
        clean: The run, which need not have been made.
        asked: A reader, or "loss": the cross entropy of the next token, in nats.
        position: Where it is read in each prompt; None, for the loss, for the mean over every token with a next one.
        row: Which of the reader's rows.
        target: For the loss, the token that should follow; None for the prompt's own.

    Raises:
        InputError: A position, row, width or target that does not fit.
        ModelError: The loss of a model without a linear head.
    """
    if asked == "loss":
        return _loss(clean, position, target)
    if not isinstance(asked, Reader):
        raise InputError(f'A metric is a reader or "loss"; got {asked!r}.')
    if target is not None or position is None:
        said = "no target" if target is not None else "one position"
        raise InputError(f'A reader has {said}; only the "loss" takes {"one" if target is not None else "None"}.')
    if not 0 <= row < len(asked.matrix):
        raise InputError(f"{asked.name!r} has {len(asked.matrix)} rows, numbered from 0; got row {row}.")
    if asked.matrix.shape[-1] != clean.wiring.d_model:
        raise InputError(
            f"A reader is as wide as the stream, {clean.wiring.d_model}; {asked.name!r} is "
            f"{asked.matrix.shape[-1]} wide."
        )
    if asked.norm == "input" or asked.after is not None:
        raise InputError(
            f"A gradient starts from what the model ends in; {asked.name!r} reads in the middle.",
            hint="Take a reader of the final stream: a logit, a difference, a direction.",
        )
    kept = kept_positions(clean.context, position)
    assert kept is not None
    places = tuple((row_places[0],) for row_places in kept)
    return Metric(name=asked.rows[row], unit=asked.unit, places=places, reader=asked, row=row)


def _loss(clean: Clean, position: str | int | None, target: str | int | None) -> Metric:
    if clean.wiring.head is None:
        raise ModelError(f"{clean.model.name} has no linear head. {clean.wiring.no_head}", hint="Take a reader.")
    ids = clean.batch.inputs["decoder_input_ids" if clean.wiring.stream == "decoder" else "input_ids"].cpu()
    lengths = [len(tokens) for tokens in clean.context]
    if position is None:
        if target is not None or min(lengths) < 2:
            raise InputError("The mean loss is of the prompt's own next tokens, and takes prompts of at least two.")
        places: Sequence[Sequence[int]] = [list(range(length - 1)) for length in lengths]
    else:
        places = kept_positions(clean.context, position) or []
    if target is not None:
        wanted = target if isinstance(target, int) else clean.model.token_id(target)
        text = display_token(clean.model.token_texts([wanted])[0])
        return Metric(name=f"loss({text})", unit="nats", places=_tuples(places), targets=((wanted,),) * len(ids))
    for each, length in zip(places, lengths, strict=True):
        if max(each) + 1 >= length:
            raise InputError(
                f"The loss at a token is of the one that follows; position {max(each)} is the last of {length}.",
                hint="Name the token that should follow (target=), or take the mean over all: position=None.",
            )
    targets = [[int(row[place + 1]) for place in each] for row, each in zip(ids, places, strict=True)]
    return Metric(name="loss", unit="nats", places=_tuples(places), targets=_tuples(targets))


def _tuples(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows)
