"""From a prompt to token ids and text that people can read.

1. The tokenizer decides which tokens there are. Nothing is added unless `prepend_bos=True` is said.
2. Prompts of different length are padded on the right; the padding is masked and never shown.
3. A token's text is what it stands for: `Ġbank` and `▁bank` are " bank". Bytes that are no whole character
   are written `⟨F0⟩`, so that the text can go into any file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from streamlens.errors import InputError
from streamlens.positions import find_position as find_position
from streamlens.turns import in_turn


@dataclass(frozen=True, eq=False, kw_only=True)
class Encoded:
    """Prompts as the model gets them.

    Attributes:
        ids: Token ids, [batch, pos].
        mask: False at padding, [batch, pos].
        prompts: The prompts as given, or as decoded from the ids.
        bos: "tokenizer", "prepended" or "none": where a BOS token at the start came from.
    """

    ids: Tensor
    mask: Tensor
    prompts: tuple[str, ...]
    bos: str


@in_turn
def encode(
    tokenizer: Any,
    prompt: str | Sequence[str] | Tensor | Sequence[Sequence[int]],
    *,
    attention_mask: Tensor | None = None,
    prepend_bos: bool = False,
) -> Encoded:
    """Token ids for a string, several strings, or ids [batch, pos].

    Raises:
        InputError: No tokenizer for a string; an empty prompt; a BOS where there is none, or twice; a mask
            of another shape than the ids.
    """
    if isinstance(prompt, str) or (not isinstance(prompt, Tensor) and prompt and isinstance(prompt[0], str)):
        texts = [prompt] if isinstance(prompt, str) else [str(p) for p in prompt]
        if attention_mask is not None:
            raise InputError("attention_mask goes with token ids; padding of strings is masked by itself.")
        rows = [_tokenise(tokenizer, text) for text in texts]
    else:
        if not isinstance(prompt, Tensor) and len({len(row) for row in prompt}) > 1:
            raise InputError("Rows of token ids have one length; pad them and give attention_mask.")
        ids = prompt if isinstance(prompt, Tensor) else torch.tensor([list(row) for row in prompt])
        ids = ids[None] if ids.dim() == 1 else ids
        if ids.dim() != 2 or not ids.numel() or ids.is_floating_point():
            raise InputError(f"Token ids are integers [batch, pos]; got {tuple(ids.shape)} {ids.dtype}.")
        if attention_mask is not None:
            if attention_mask.shape != ids.shape:
                raise InputError(
                    f"attention_mask has the shape of the ids, {tuple(ids.shape)}; got {tuple(attention_mask.shape)}."
                )
            if not attention_mask.bool().any(-1).all():
                raise InputError("Every prompt has at least one token; attention_mask hides a whole row.")
        texts, rows = None, ids.tolist()
    # padding may stand in front of a prompt's first token
    starts = [0] * len(rows) if attention_mask is None else attention_mask.bool().long().argmax(-1).tolist()
    if prepend_bos:
        rows = [_with_bos(tokenizer, row, start) for row, start in zip(rows, starts, strict=True)]
    width = max(map(len, rows))
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    if attention_mask is not None:
        given = attention_mask.bool().cpu()
        mask = torch.cat([torch.ones_like(given[:, :1]), given], -1) if prepend_bos else given
    if texts is None:
        texts = ["" if tokenizer is None else tokenizer.decode(i[m]) for i, m in zip(ids, mask, strict=True)]
    return Encoded(ids=ids, mask=mask, prompts=tuple(texts), bos=_bos(tokenizer, rows, starts, prepend_bos))


@in_turn
def token_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text of each token, with its spaces; without a tokenizer the ids as `⟨5461⟩`."""
    if tokenizer is None:
        return tuple(f"⟨{i}⟩" for i in ids)
    pieces = tokenizer.convert_ids_to_tokens(list(ids))
    special = set(tokenizer.all_special_tokens)
    byte_level = _is_byte_level(tokenizer)
    return tuple(
        f"⟨{i}⟩" if p is None else p if p in special else _piece_text(p, byte_level)
        for i, p in zip(ids, pieces, strict=True)
    )


@in_turn
def token_id(tokenizer: Any, text: str) -> int:
    """The id of the one token that `text` is.

    Raises:
        InputError: The text is several tokens, which are listed.
    """
    if tokenizer is None:
        raise InputError("A token given as text needs a tokenizer, and this model was loaded without one.")
    _require_unicode(text)
    known = tokenizer.get_vocab().get(text) if text in tokenizer.all_special_tokens else None
    if known is not None:
        return known
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) == 1:
        return ids[0]
    pieces = ", ".join(f"{t!r}" for t in token_texts(tokenizer, ids)) or "none"
    hint = None
    if not text.startswith(" ") and len(tokenizer.encode(f" {text}", add_special_tokens=False)) == 1:
        hint = f"With a leading space, {' ' + text!r} is one token."
    raise InputError(f"A reader's token is one token; {text!r} is {len(ids)}: {pieces}.", hint=hint)


def numbers_as_words(count: int) -> Any:
    """A tokenizer whose words are the ids themselves, for libraries that insist on having one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = WordLevel({str(i): i for i in range(count)}, unk_token="0")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="0", pad_token="0")


def _tokenise(tokenizer: Any, text: str) -> list[int]:
    if tokenizer is None:
        raise InputError("A prompt given as text needs a tokenizer, and this model was loaded without one.")
    _require_unicode(text)
    ids = list(tokenizer(text, verbose=False)["input_ids"])
    if not ids:
        raise InputError(f"A prompt has at least one token; {text!r} has none.")
    return ids


def _require_unicode(text: str) -> None:
    """Half of a surrogate pair, as a byte that is no UTF-8 becomes on the command line, is no text to a tokenizer."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"A text is Unicode; character {error.start + 1} of {text!r} is none.", hint="Give it as UTF-8."
        ) from None


def _with_bos(tokenizer: Any, row: list[int], start: int) -> list[int]:
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        raise InputError("prepend_bos needs a BOS token, and this tokenizer has none.")
    if row[start] == bos:
        raise InputError("The prompt already starts with the BOS token.", hint="Leave prepend_bos out.")
    return [bos, *row]


def _bos(tokenizer: Any, rows: Sequence[Sequence[int]], starts: Sequence[int], prepended: bool) -> str:
    if prepended:
        return "prepended"
    bos = getattr(tokenizer, "bos_token_id", None)
    found = any(row[start] == bos for row, start in zip(rows, starts, strict=True))
    return "tokenizer" if bos is not None and found else "none"


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return "ByteLevel" in str(backend.decoder) or "ByteLevel" in str(backend.pre_tokenizer)
    return hasattr(tokenizer, "byte_decoder")


def _piece_text(piece: str, byte_level: bool) -> str:
    if byte_level and all(c in _bytes_of_characters() for c in piece):
        return _decode(bytes(_bytes_of_characters()[c] for c in piece))
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return _decode(bytes([int(piece[3:5], 16)]))
    return piece.replace("▁", " ")


def _decode(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    return "".join(f"⟨{ord(c) - 0xDC00:02X}⟩" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


@lru_cache(maxsize=1)
def _bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: itself, or one counted up from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(hidden)}
