"""One attention head, worked out from its scores to the vector it leaves at " bank".

1. Three tokens in two dimensions; W_Q, W_K and W_V are small matrices and W_O is the identity.
2. The keys' second coordinates are 1, 2, 1 and W_Q is chosen so that a score is that times ln 2: the softmax weights at
   " bank" are 2/8, 4/8, 2/8.
3. Values turn a vector by a quarter: (a, b) -> (-b, a). The head writes 1/4 (-1, 0) + 1/2 (-2, 3) + 1/4 (-1, 2).
4. The write is split by source token, a row each, and added to the stream.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from streamlens import plots
from streamlens.lab.book import Book
from streamlens.lab.example import Drawing, Example, closes, equal, point
from streamlens.ledger import Ledger
from streamlens.sites import Site

TOKENS = ("The", " river", " bank")
VECTORS = ((0.0, 1.0), (3.0, 2.0), (2.0, 1.0))
#: x W_Q: only the second coordinate asks, times sqrt(2) ln 2, since scores are divided by sqrt(2)
W_Q = ((0.0, 0.0), (0.0, math.sqrt(2.0) * math.log(2.0)))
W_K = ((1.0, 0.0), (0.0, 1.0))
W_V = ((0.0, 1.0), (-1.0, 0.0))


@dataclass(frozen=True, eq=False, kw_only=True)
class Head:
    """What one causal head does to a sentence. Rows of all tensors are the reading tokens.

    Attributes:
        scores: q . k / sqrt(d), [pos, source]; -inf for later tokens.
        weights: Their softmax.
        values: x W_V, [source, d_model].
        writes: Weight times value, by source, [pos, source, d_model].
    """

    scores: Float[Tensor, "pos source"]
    weights: Float[Tensor, "pos source"]
    values: Float[Tensor, "source d_model"]
    writes: Float[Tensor, "pos source d_model"]


def head(
    x: Float[Tensor, "pos d_model"],
    *,
    w_q: Sequence[Sequence[float]] = W_Q,
    w_k: Sequence[Sequence[float]] = W_K,
    w_v: Sequence[Sequence[float]] = W_V,
    hide: int | None = None,
) -> Head:
    """One causal attention head with W_O = 1 over the vectors of a sentence.

    Args:
        x: The stream it reads.
        w_q: Queries are `x @ w_q`.
        w_k: Keys are `x @ w_k`.
        w_v: Values are `x @ w_v`.
        hide: A token that no other may read; the other weights then sum to 1 without it.
    """
    q, k, v = (x @ torch.tensor(w, dtype=x.dtype) for w in (w_q, w_k, w_v))
    scores = q @ k.T / math.sqrt(x.shape[1])
    hidden = torch.ones_like(scores).triu(1).bool()
    if hide is not None:
        hidden[hide + 1 :, hide] = True
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    return Head(scores=scores, weights=weights, values=v, writes=weights[..., None] * v)


def sentence(vectors: Sequence[Sequence[float]] = VECTORS) -> tuple[Tensor, Head]:
    """The vectors of the sentence and what the head does to them."""
    x = torch.tensor(vectors, dtype=torch.float64)
    return x, head(x)


def ledger(vectors: Sequence[Sequence[float]] = VECTORS, tokens: Sequence[str] = TOKENS) -> Ledger:
    """The books of the sentence: the embedding, and a row for each source token of the head."""
    x, found = sentence(vectors)
    book = Book()
    book.add("embed", x[None])
    attention = {}
    for source in range(len(tokens)):
        attention[len(book.sites)] = found.weights[None, :, source]
        book.add(Site(kind="attn", layer=0, head=0, source=source), found.writes[None, :, source])
    return book.close((x + found.writes.sum(1))[None], name="attention_by_hand", tokens=[tokens], attention=attention)


def example() -> Example:
    """The example with its numbers."""
    x, found = sentence()
    books, last = ledger(), len(TOKENS) - 1
    write = found.writes[last].sum(0)
    silenced = x[last] + write - found.writes[last, 1]
    hidden = x[last] + head(x, hide=1).writes[last].sum(0)
    table = pd.DataFrame(
        {
            "source": [token.strip() for token in TOKENS],
            "vector": [point(row) for row in x],
            "value": [point(row) for row in found.values],
            "score": found.scores[last].tolist(),
            "weight": found.weights[last].tolist(),
            "write at bank": [point(row) for row in found.writes[last]],
        }
    )
    points = books.writes[:, 0, last].cumsum(0)
    steps = ["bank's embedding", *(f"from {token.strip()}" for token in TOKENS)]
    walk = pd.DataFrame({"series": "“ bank”", "step": steps, "x": points[:, 0], "y": points[:, 1]})
    return Example(
        name="attention_by_hand",
        title="One attention head by hand",
        teaches=(
            "“ bank” is [2, 1]. The head reads three tokens with weights 1/4, 1/2, 1/4 and writes [-1.5, 2], most of "
            "it from “ river”: the vector becomes [0.5, 3]. Taking the row from “ river” out of the sum is not hiding "
            "the word, since then the other weights grow."
        ),
        table=table,
        drawings=(
            Drawing(
                caption="“ bank” and what each source token adds to it.",
                draw=lambda dark: plots.arrows(walk, heading="From [2, 1] to [0.5, 3]", dark=dark),
            ),
        ),
        checks=(
            equal(
                "scores at “ bank”: ln 2, 2 ln 2, ln 2", found.scores[last] / math.log(2), [1.0, 2.0, 1.0], limit=1e-15
            ),
            equal("weights: 1/4, 1/2, 1/4", found.weights[last], [0.25, 0.5, 0.25], limit=1e-15),
            equal("values: (-1, 0), (-2, 3), (-1, 2)", found.values, [[-1.0, 0.0], [-2.0, 3.0], [-1.0, 2.0]]),
            equal("“ bank” receives [-1.5, 2]", write, [-1.5, 2.0], limit=1e-15),
            equal("and becomes [0.5, 3]", books.stream[0, last], [0.5, 3.0], limit=1e-15),
            equal(
                "“ river” itself: weights 1/5, 4/5, [3, 2] -> [1.2, 4.4]", books.stream[0, 1], [1.2, 4.4], limit=1e-14
            ),
            equal("without the row from “ river”: [1.5, 1.5]", silenced, [1.5, 1.5], limit=1e-15),
            equal("with “ river” hidden the others weigh 1/2: [1, 2]", hidden, [1.0, 2.0], limit=1e-15),
            closes(books),
        ),
        ledger=books,
    )
