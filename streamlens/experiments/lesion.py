"""Lesions on text: how much worse a model predicts when layers are missing, or stand in another order.

After Veit, Wilber and Belongie 2016, "Residual Networks Behave Like Ensembles of Relatively Shallow Networks": in a
residual network a block can be left out, or swapped with another, and most of the paths through it remain.

1. The loss of the model as it is: cross entropy of the next token, nats per token, over all texts.
2. Drop: one layer or sublayer after another; a named set at once; or random sets of k at once.
3. Shuffle: the order of blocks after k random swaps, with its Kendall tau distance.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from streamlens.arguments import typed
from streamlens.errors import InputError
from streamlens.hooks.prompts import Prompt
from streamlens.hooks.runs.lesions import Lesion, corpus_of, losses, require_causal_head, require_interchangeable
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Wiring
from streamlens.sites import find

if TYPE_CHECKING:
    import pandas as pd

#: a layer by its number or as "L3", a sublayer by its label
Member = int | str


@dataclass(frozen=True, eq=False, kw_only=True)
class Lesions:
    """Losses under lesions, beside the loss of the model as it is.

    Attributes:
        names: What was done; "none" first.
        lesions: The same as data.
        dropped: How many layers or sublayers each drops.
        losses: Nats per token.
        tokens: How many tokens were predicted.
        provenance: Model, versions, arguments.
    """

    names: tuple[str, ...]
    lesions: tuple[Lesion, ...]
    dropped: tuple[int, ...]
    losses: tuple[float, ...]
    tokens: int
    provenance: Mapping[str, Any]

    def to_frame(self) -> "pd.DataFrame":
        """One row per lesion; see `streamlens.frames.SCHEMAS["lesion"]`."""
        from streamlens.frames import lesion_frame

        rows = [
            {
                "lesion": name,
                "n_dropped": dropped,
                "kendall_tau": kendall_tau(lesion.order),
                "loss": loss,
                "delta": loss - self.losses[0],
                "tokens": self.tokens,
                "perplexity": float(torch.tensor(loss, dtype=torch.float64).exp()),
            }
            for name, lesion, dropped, loss in zip(self.names, self.lesions, self.dropped, self.losses, strict=True)
        ]
        return lesion_frame(rows, self.provenance)

    def __repr__(self) -> str:
        return f"Lesions({len(self.names) - 1} lesions, {self.tokens} tokens; {self.losses[0]:.3f} nats as it is)"


@typed
def lesion(
    model: ModelHandle,
    texts: Prompt,
    *,
    over: str = "layers",
    drop: int | Sequence[Member] | None = None,
    shuffle: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    batch_size: int = 8,
    attention_mask: Tensor | None = None,
    prepend_bos: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Lesions:
    """The next-token loss on texts with layers dropped or permuted. Signs: lesioned - as it is.

    A dropped layer writes nothing at any position: in a pre-norm model it is skipped; in a post-norm model its norms
    still act on what passes.

    Args:
        model: From `streamlens.load`: causal, with a linear head.
        texts: The texts, or token ids [batch, pos].
        over: "layers" or "sublayers": what is dropped.
        drop: None for one after another; a set of them (`["L3", "L4.mlp"]`, `[3, 4]`) for all of these at once; a
            number for random sets of that size, `repeats` of them.
        shuffle: Instead of dropping: the number of random swaps of two blocks, `repeats` times. 0 changes nothing.
        repeats: How many random sets or orders.
        seed: For both.
        batch_size: Texts per forward.
        attention_mask: For token ids: 0 at padding, on any side.
        prepend_bos: Put the tokenizer's BOS token in front of each text.
        progress: Called with (done, total) forwards.

    Returns:
        Losses in nats per token, the model as it is first.

    Raises:
        ModelError: A model without next-token loss.
        WiringError: Blocks that cannot stand in each other's place.
        InputError: Texts, names or numbers that do not fit.

    Cost: one forward over all texts per lesion, and one for the model as it is.
    """
    require_causal_head(model)
    units = _units(model.wiring, over)
    if drop is not None and shuffle is not None:
        raise InputError("A lesion drops or shuffles; got both drop= and shuffle=.")
    if repeats < 1:
        raise InputError(f"repeats is at least 1; got {repeats}.")
    draw = torch.Generator().manual_seed(seed)
    if shuffle is not None:
        planned = list(_shuffled(require_interchangeable(model, model.wiring), shuffle, repeats, draw))
    elif isinstance(drop, int):
        planned = list(_drawn(units, drop, repeats, draw))
    elif drop is not None:
        planned = [_named(model.wiring, units, drop)]
    else:
        planned = [(name, Lesion(dropped=rows), 1) for name, rows in units.items()]
    planned = [("none", Lesion(), 0), *planned]
    corpus = corpus_of(model, texts, batch_size=batch_size, attention_mask=attention_mask, prepend_bos=prepend_bos)
    done = losses(model, corpus, [made for _, made, _ in planned], progress=progress)
    return Lesions(
        names=tuple(name for name, _, _ in planned),
        lesions=tuple(made for _, made, _ in planned),
        dropped=tuple(count for _, _, count in planned),
        losses=tuple(done),
        tokens=corpus.tokens,
        provenance={**model.provenance, "over": over, "seed": seed, "texts": sum(len(b.ids) for b in corpus.batches)},
    )


def kendall_tau(order: Sequence[int]) -> float:
    """Kendall's tau distance of an order: the share of pairs that stand the other way round.

    0 for the own order, 1 for the reversed one. Veit et al. plot the coefficient, 1 - 2 times this.
    """
    pairs = len(order) * (len(order) - 1) // 2
    return sum(a > b for a, b in itertools.combinations(order, 2)) / pairs if pairs else 0.0


def _units(wiring: Wiring, over: str) -> dict[str, frozenset[int]]:
    """What can be dropped, by name: its rows in the wiring."""
    rows = {n: w.site for n, w in enumerate(wiring.writes) if w.tap is not None and w.site.layer is not None}
    if over == "sublayers":
        return {site.label: frozenset([n]) for n, site in rows.items()}
    if over != "layers":
        raise InputError(f'A lesion runs over "layers" or "sublayers"; got {over!r}.')
    layers = dict.fromkeys(site.layer for site in rows.values())
    return {f"L{layer}": frozenset(n for n, site in rows.items() if site.layer == layer) for layer in layers}


def _named(wiring: Wiring, units: Mapping[str, frozenset[int]], names: Sequence[Member]) -> tuple[str, Lesion, int]:
    """One set, given by layers or labels, whatever is swept over otherwise."""
    if isinstance(names, str) or not names:
        raise InputError(f"A set to drop is a list of layers or sublayers; got {names!r}.")
    known = {**_units(wiring, "layers"), **_units(wiring, "sublayers")}
    labels = [f"L{name}" if isinstance(name, int) else name for name in names]
    for label in labels:
        if label not in known and label.removeprefix("L").isdigit():
            raise InputError(f"The layers are {', '.join(n for n in known if '.' not in n)}; got {label}.")
        if label not in known:
            find(label, [wiring.writes[n].site for rows in known.values() for n in rows])
    if len(set(labels)) < len(labels):
        raise InputError(f"A set names each member once; got {', '.join(labels)}.")
    return " + ".join(labels), Lesion(dropped=frozenset().union(*(known[label] for label in labels))), len(labels)


def _drawn(
    units: Mapping[str, frozenset[int]], size: int, repeats: int, draw: torch.Generator
) -> Iterator[tuple[str, Lesion, int]]:
    """Random sets of one size, each member at most once."""
    if not 1 <= size <= len(units):
        raise InputError(f"There are {len(units)} to drop; a random set has between 1 and that many, got {size}.")
    names = list(units)
    for number in range(repeats):
        chosen = sorted(torch.randperm(len(names), generator=draw)[:size].tolist())
        rows = frozenset().union(*(units[names[n]] for n in chosen))
        yield f"{number + 1}: " + " + ".join(names[n] for n in chosen), Lesion(dropped=rows), size


def _shuffled(count: int, swaps: int, repeats: int, draw: torch.Generator) -> Iterator[tuple[str, Lesion, int]]:
    """The order after random swaps of two different blocks."""
    if swaps < 0 or count < 2:
        raise InputError(f"A shuffle makes a number of swaps among at least two blocks; got {swaps} among {count}.")
    for number in range(repeats):
        order = list(range(count))
        for _ in range(swaps):
            a, b = torch.randperm(count, generator=draw)[:2].tolist()
            order[a], order[b] = order[b], order[a]
        yield f"{number + 1}: {swaps} swap{'' if swaps == 1 else 's'}", Lesion(order=tuple(order)), 0
