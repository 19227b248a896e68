"""The same word at the same position in two sentences: one position vector, two attention writes.

1. A token's vector is its embedding plus the vector of its position; the head is that of `attention_by_hand`.
2. " bank" stands at position 2 in both sentences, so both have the rows `embed` and `pos_embed` in common.
3. The word before it differs, so the head hands over another value: (-2, 3) from " river", (-2, -1) from " savings".
"""

from collections.abc import Sequence

import pandas as pd
import torch

from streamlens import plots
from streamlens.lab.attention_by_hand import head
from streamlens.lab.book import Book
from streamlens.lab.example import Drawing, Example, closes, equal, point
from streamlens.ledger import Ledger

EMBEDDINGS = {"The": (0.0, 1.0), " river": (2.0, 2.0), " savings": (-2.0, 2.0), " bank": (1.0, 2.0)}
POSITIONS = ((0.0, 0.0), (1.0, 0.0), (1.0, -1.0))
SENTENCES = (("The", " river", " bank"), ("The", " savings", " bank"))


def ledger(sentences: Sequence[Sequence[str]] = SENTENCES) -> Ledger:
    """The books of the sentences: embedding, position, attention.

    Args:
        sentences: Of the words in `EMBEDDINGS`, all of one length, at most three tokens.
    """
    words = torch.tensor([[EMBEDDINGS[word] for word in words] for words in sentences], dtype=torch.float64)
    places = torch.tensor(POSITIONS, dtype=torch.float64)[: words.shape[1]].expand_as(words)
    x = words + places
    attention = torch.stack([head(row).writes.sum(1) for row in x])
    book = Book()
    book.add("embed", words)
    book.add("pos_embed", places)
    book.add("L0.attn", attention)
    return book.close(x + attention, name="position_context", tokens=sentences)


def example() -> Example:
    """The example with its numbers."""
    books = ledger()
    at_bank = books.writes[:, :, -1]  # [write, sentence, d_model]
    words, places, attention = at_bank
    table = pd.DataFrame(
        [
            {
                "sentence": prompt,
                "embed": point(words[row]),
                "pos_embed": point(places[row]),
                "L0.attn": point(attention[row]),
                "stream": point(books.stream[row, -1]),
            }
            for row, prompt in enumerate(books.prompts)
        ]
    )
    steps = ["the word", "its position", "attention"]
    walks = pd.concat(
        [
            pd.DataFrame({"series": prompt, "step": steps, "x": points[:, 0], "y": points[:, 1]})
            for prompt, points in zip(books.prompts, at_bank.cumsum(0).transpose(0, 1), strict=True)
        ]
    )
    return Example(
        name="position_context",
        title="Position says where, attention says among what",
        teaches=(
            "“ bank” at position 2 brings the same two rows into both sentences. Only the attention row differs: it "
            "is what the context wrote, [-1.5, 2] after “ river” and [-1.5, 0] after “ savings”."
        ),
        table=table,
        drawings=(
            Drawing(
                caption="“ bank” in both sentences: the first two arrows are shared, the last is the context's.",
                draw=lambda dark: plots.arrows(walks, heading="One word, one position, two sentences", dark=dark),
            ),
        ),
        checks=(
            equal("the word's row is the same in both", words[0], words[1]),
            equal("the position's row is (1, -1) in both", places, [[1.0, -1.0], [1.0, -1.0]]),
            equal("before attention “ bank” is (2, 1) in both", words + places, [[2.0, 1.0], [2.0, 1.0]]),
            equal("after “ river” attention writes [-1.5, 2]", attention[0], [-1.5, 2.0], limit=1e-15),
            equal("after “ savings” it writes [-1.5, 0]", attention[1], [-1.5, 0.0], limit=1e-15),
            equal("the streams end at (0.5, 3) and (0.5, 1)", books.stream[:, -1], [[0.5, 3], [0.5, 1]], limit=1e-15),
            closes(books),
        ),
        ledger=books,
    )
