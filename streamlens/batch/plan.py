"""The plan: which prompts make which shard, decided before anything runs and the same every time.

1. Each row of the input becomes an `Item`: a prompt with its number of tokens, or a failure with its reason.
2. Items are sorted by length, so that batches need little padding, and cut into shards. Neither the number of
   processes nor the machine has a say.
3. The identity is what decides the numbers: prompts, weights, dtype, settings, readers, schema. Its hash is the key.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamlens.batch.analyses import chosen
from streamlens.batch.schemas import VERSION
from streamlens.batch.settings import Settings
from streamlens.batch.shard import Shard
from streamlens.batch.work import Item
from streamlens.errors import InputError
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import encode
from streamlens.positions import index_or_text
from streamlens.prompts import BadPrompt, Prompt
from streamlens.readouts.readers.reader import Reader

#: a shard holds at most so many tokens per prompt that it might hold: long prompts make shards of fewer
TOKENS_EACH = 64


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All shards, and what they belong to."""

    shards: tuple[Shard, ...]
    identity: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The hash of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    @property
    def prompts(self) -> int:
        """How many rows the input has, failures included."""
        return sum(len(shard.items) for shard in self.shards)


def make_plan(
    model: ModelHandle, settings: Settings, readers: Sequence[Reader], rows: Iterable[Prompt | BadPrompt]
) -> Plan:
    """Tokenises every prompt and cuts the input into shards.

    Raises:
        InputError: No prompt at all; a token column that no row has.

    Cost: one pass of the tokenizer, and one over the weights for their hash.
    """
    limit = settings.max_tokens or _limit(model)
    items = [_item(model, settings, limit, number, row) for number, row in enumerate(rows)]
    if not items:
        raise InputError("A batch has at least one prompt; got none.")
    identity = {
        "prompts": _hash([[item.text, item.token, item.reason if item.stage == "input" else ""] for item in items]),
        "number of prompts": len(items),
        "model": f"{model.name} ({model.fingerprint[:16]})",
        "dtype": str(model.dtype).removeprefix("torch."),
        **{f"setting {name}": value for name, value in settings.identity.items() if name != "dtype"},
        "readers": [_reader(reader) for reader in readers],
        "schema": VERSION,
    }
    return Plan(shards=tuple(_cut(items, shard_size(settings))), identity=identity)


def shard_size(settings: Settings) -> int:
    """How many prompts a shard holds at most."""
    return settings.shard or (16 if any(analysis.single for analysis in chosen(settings)) else 128)


def _item(model: ModelHandle, settings: Settings, limit: int | None, number: int, row: Prompt | BadPrompt) -> Item:
    if isinstance(row, BadPrompt):
        return Item(number, row.where, None, stage="input", reason=row.rule)
    token, column = None, settings.token_column
    if column is not None:
        token = row.others.get(column)
        token = index_or_text(token) if isinstance(token, str) else token
        if not isinstance(token, str | int) or isinstance(token, bool) or token == "":
            reason = f"--token-column {column} names a token in every row; here it is {token!r}."
            return Item(number, row.where, row.text, stage="input", reason=reason)
    try:
        ids = encode(model.tokenizer, row.text, prepend_bos=settings.prepend_bos).ids
    except InputError as error:
        return Item(number, row.where, row.text, token=token, stage="tokens", reason=str(error))
    length = ids.shape[1]
    if limit is not None and length > limit:
        reason = f"A prompt has at most {limit} tokens here; this one has {length}."
        return Item(number, row.where, row.text, length, token, "tokens", reason)
    return Item(number, row.where, row.text, length, token)


def _limit(model: ModelHandle) -> int | None:
    """How many tokens the model was made for."""
    stated = getattr(model.model.config, "max_position_embeddings", None)
    known = [size for size in (stated, model.learned_positions) if isinstance(size, int) and size > 0]
    return min(known) if known else None


def _cut(items: Sequence[Item], prompts: int) -> Iterable[Shard]:
    here: list[Item] = []
    number = tokens = 0
    for item in sorted(items, key=lambda item: (item.tokens, item.number)):
        if here and (len(here) == prompts or tokens + item.tokens > TOKENS_EACH * prompts):
            yield Shard(number, tuple(here))
            here, tokens, number = [], 0, number + 1
        here.append(item)
        tokens += item.tokens
    yield Shard(number, tuple(here))


def _reader(reader: Reader) -> str:
    """The reader's name, and a hash of all that decides what it reads."""
    content = hashlib.sha256(repr((reader.rows, reader.norm, reader.after)).encode())
    norm = reader.through if reader.norm == "input" else None
    for tensor in (reader.matrix, reader.bias, *((norm.gain, norm.bias) if norm else ())):
        if tensor is not None:
            content.update(tensor.cpu().contiguous().numpy().tobytes())
    return f"{reader.name} ({content.hexdigest()[:16]})"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
