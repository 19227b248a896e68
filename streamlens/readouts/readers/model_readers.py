"""The readers that a model carries itself: heads' queries, keys and values, MLP inputs, the unembedding.

1. The handle says which rows of which linear map a branch reads the stream with (`streamlens.models.reads`, measured).
2. A head's reader is its own rows; key and value heads that several query heads share are one reader, whose name says
   which: `L10H6-8.k`. An MLP's "in" is its gate and up together.
3. Each reads through the norm in front of it, right after the last write before it.
4. `each_reader` hands them over one at a time, in stream order, the unembedding last: a float64 copy of every matrix
   of a 135M model is 0.8 GB.
"""

from collections.abc import Iterator, Sequence

import torch

from streamlens.arguments import typed
from streamlens.display import display_token
from streamlens.errors import InputError, ModelError
from streamlens.readouts.readers.protocols import BranchReads, LinearRead, ReadsStream
from streamlens.readouts.readers.reader import Reader
from streamlens.sites import Site, find

HEADS = ("q", "k", "v")
UNITS = {"q": "query", "k": "key", "v": "value"}


@typed
def head_reader(model: ReadsStream, head: str | Site, part: str, *, stream: str | None = None) -> Reader:
    """What one query head reads the stream with: its queries, or the keys or values it attends to.

    The matrix is [d_head, d_model], in float64. Rotary turns and norms of queries and keys come after it.

    Args:
        model: The handle.
        head: `L10H8`, or `L1.cross_attn.H2`.
        part: "q", "k" or "v".
        stream: For a model with two streams, "decoder" or "encoder".

    Raises:
        InputError: No such head; no such part; or its rows could not be measured, with the reason.
    """
    site = head if isinstance(head, Site) else Site.parse(head)
    if site.head is None or site.source is not None:
        raise InputError(f"A head is written like L10H8; got {site.label!r}.")
    if part not in HEADS:
        raise InputError(f"A head reads with its q, k or v; got {part!r}.")
    branch = _branch(model, site.sublayer, stream)
    (read,) = _parts(branch, part)
    if site.head >= len(read.serves):
        raise InputError(f"{branch.site} has the heads 0 to {len(read.serves) - 1}; got {site.head}.")
    return _head(model, read, read.serves[site.head])


@typed
def mlp_reader(
    model: ReadsStream,
    site: str | Site,
    part: str = "in",
    *,
    neurons: Sequence[int] | None = None,
    stream: str | None = None,
) -> Reader:
    """What an MLP, or another branch without heads, reads the stream with.

    The matrix is [row, d_model], in float64: one row per neuron, or the gate's rows and then the up's.

    Args:
        model: The handle.
        site: `L10.mlp`, or `L3.mixer`.
        part: "in" for all rows, "gate" or "up" for one half of a gated MLP, "router" for what chooses experts.
        neurons: Only these neurons.
        stream: For a model with two streams, "decoder" or "encoder".

    Raises:
        InputError: No such branch or part, no such neuron, or rows that are not known to be neurons.
    """
    branch = _branch(model, site, stream)
    reads = _parts(branch, part)
    if part in HEADS:
        raise InputError(
            f"The {part} of {branch.site} is one head's; got no head.", hint="Reader.head(model, 'L10H8', 'q')"
        )
    if neurons is not None:
        _require_neurons(branch, reads, neurons)
    return _stacked(model, branch, part, reads, neurons)


@typed
def unembedding_reader(model: ReadsStream) -> Reader:
    """Every logit before the softcap: the whole unembedding, one row per token, through the final norm.

    Cost: a float64 copy, 226 MB for 49,152 tokens and d_model 576.

    Raises:
        ModelError: The model has no linear head.
    """
    head = model.unembedding()
    names = tuple(f"logit({display_token(text)})" for text in model.token_texts(range(len(head.matrix))))
    return Reader(
        name="unembedding",
        rows=names,
        unit="logits",
        matrix=head.matrix.cpu(),
        bias=head.bias.cpu(),
        norm="final" if model.final_norm is not None else "none",
        through=model.final_norm,
    )


def each_reader(model: ReadsStream, *, stream: str | None = None) -> Iterator[Reader]:
    """Every reader the model carries, one at a time, in stream order; see `model_readers`."""
    for branch in model.reads(stream):
        for read in branch.parts:
            if read.part in HEADS:
                yield from (_head(model, read, group) for group in range(len(read.rows)))
        whole = "in" not in dict(branch.missing)  # beside routed experts, gate and up are a shared expert's alone
        for part in dict.fromkeys("in" if whole and r.part in ("gate", "up") else r.part for r in branch.parts):
            if part not in HEADS:
                yield _stacked(model, branch, part, _parts(branch, part), None)
    if stream == "encoder":
        return
    try:
        head = unembedding_reader(model)
    except ModelError:  # no linear head; asked for by itself it says why
        return
    yield head


@typed
def model_readers(model: ReadsStream, *, stream: str | None = None) -> tuple[Reader, ...]:
    """Every reader the model carries: the query of each query head, the key and value of each key and value head, the
    input of each MLP, and last the unembedding, if it is linear. In stream order.

    Cost: a float64 copy of each matrix, 0.8 GB for the default model; `each_reader` makes one at a time.
    """
    return tuple(each_reader(model, stream=stream))


def _branch(model: ReadsStream, site: str | Site, stream: str | None) -> BranchReads:
    branches = {branch.site: branch for branch in model.reads(stream)}
    return branches[find(site, branches)]


def _parts(branch: BranchReads, part: str) -> list[LinearRead]:
    """The reads that a part names; "in" is gate and up where there are two."""
    if reason := dict(branch.missing).get(part):
        raise InputError(reason)
    wanted = ("gate", "up", "in") if part == "in" else (part,)
    reads = [read for read in branch.parts if read.part in wanted]
    if reads:
        return reads
    known = dict.fromkeys(read.part for read in branch.parts)
    known |= {"in": None} if "gate" in known else {}
    raise InputError(f"{branch.site} reads the stream with the parts {', '.join(known) or 'none'}; got {part!r}.")


def _require_neurons(branch: BranchReads, reads: Sequence[LinearRead], neurons: Sequence[int]) -> None:
    if not all(read.neurons for read in reads):
        raise InputError(f"The rows that {branch.site} reads the stream with are not known to be its neurons.")
    count = len(reads[0].rows[0])
    if not neurons:
        raise InputError(f"Neurons come as a list of at least one, between 0 and {count - 1}.")
    if wrong := [n for n in neurons if not 0 <= n < count]:
        raise InputError(f"{branch.site} has the neurons 0 to {count - 1}; got {wrong[0]}.")


def _head(model: ReadsStream, read: LinearRead, group: int) -> Reader:
    heads = [head for head, own in enumerate(read.serves) if own == group]
    stem = read.site.part_of("head", heads[0]).label if heads else f"{read.site}.{group}"
    name = f"{stem}{_others(heads)}.{read.part}"
    rows = [f"{name}[{row}]" for row in range(len(read.rows[group]))]
    return _reader(model, [(read, read.rows[group])], name, UNITS[read.part], rows)


def _others(heads: Sequence[int]) -> str:
    """What follows the first head's number: nothing, `-8` for a run, `,4,7` otherwise."""
    if len(heads) < 2:
        return ""
    run = list(heads) == list(range(heads[0], heads[-1] + 1))
    return f"-{heads[-1]}" if run else "".join(f",{head}" for head in heads[1:])


def _stacked(
    model: ReadsStream, branch: BranchReads, part: str, reads: Sequence[LinearRead], neurons: Sequence[int] | None
) -> Reader:
    if len({(read.norm, read.after) for read in reads}) > 1:
        raise InputError(f"{branch.site} reads the stream through several norms; name one part of it.")
    pieces, names = [], []
    stem = branch.site.part_of("neuron", 0).label.removesuffix("0")
    for read in reads:
        chosen = range(len(read.rows[0])) if neurons is None else neurons
        pieces.append((read, [read.rows[0][n] for n in chosen]))
        names += [f"{stem}{n}.{read.part}" if read.neurons else f"{branch.site}.{read.part}[{n}]" for n in chosen]
    return _reader(model, pieces, f"{branch.site}.{part}", "pre-activation", names)


def _reader(
    model: ReadsStream,
    pieces: Sequence[tuple[LinearRead, Sequence[int]]],
    name: str,
    unit: str,
    rows: Sequence[str],
) -> Reader:
    made = [model.read_rows(read, chosen) for read, chosen in pieces]
    first = pieces[0][0]
    return Reader(
        name=name,
        rows=tuple(rows),
        unit=unit,
        matrix=torch.cat([matrix for matrix, _ in made]).cpu(),
        bias=torch.cat([bias for _, bias in made]).cpu(),
        norm="none" if first.norm is None else "input",
        through=None if first.norm is None else model.stream_norm(first.norm),
        after=first.after.label,
    )
