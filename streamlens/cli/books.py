"""One prompt's books, as data and as a frame; `tables.py` is how they look.

1. `entry` runs the prompt and keeps the positions that are wanted.
2. `payload` is the JSON: every part in stream order, what they sum to, the model's own value, and closure.
3. `frame` is the tidy frame of the same rows.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """What was found for one prompt.

    Attributes:
        prompt: As given.
        tokens: All of the prompt's tokens.
        position: The position that was asked for; None for all.
        ledger: The ledger of the kept positions.
        readout: What the rows give the reader; None without one.
        says: The reader's name with its tokens made legible.
    """

    prompt: str
    tokens: tuple[str, ...]
    position: int | None
    ledger: Any
    readout: Any
    says: str = ""

    @property
    def kept(self) -> list[tuple[int, int]]:
        """(row in the ledger, position in the prompt) of the positions that are shown."""
        indices = self.ledger.indices[0].tolist()
        return [(row, p) for row, p in enumerate(indices) if self.position in (None, p)]


@dataclass(frozen=True)
class Split:
    """Into what writes are split: the level, which of them, and how many neurons get a row of their own."""

    level: str
    sites: tuple[str, ...] | None
    top: int


def entry(
    model: Any,
    prompt: str,
    *,
    token: str | int | None,
    reader: Any,
    bos: bool,
    whole: bool,
    logits: bool = False,
    split: Split | None = None,
) -> Entry:
    """Runs one prompt.

    Args:
        model: The handle.
        prompt: The text.
        token: The position that is asked for; None for all.
        reader: One row; None for none.
        bos: Put the BOS token in front.
        whole: Keep all positions even if one is asked for.
        logits: Keep the model's own logits even without a reader.
        split: A finer level; None for whole writes.

    Raises:
        InputError: The token is absent or ambiguous; the tokens are listed.
    """
    from streamlens.hooks.writes.capture import decompose
    from streamlens.models.tokens import encode, find_position
    from streamlens.readouts.attribution import read

    ids = encode(model.tokenizer, prompt, prepend_bos=bos).ids[0].tolist()
    tokens = model.token_texts(ids)
    position = None if token is None else find_position(tokens, token)
    ledger = decompose(
        model,
        prompt,
        prepend_bos=bos,
        positions=None if whole or position is None else [position],
        keep_logits=logits or reader is not None,
        level="sublayer" if split is None else split.level,
        sites=None if split is None else split.sites,
        top=split.top if split is not None and split.level == "neuron" else None,
        along=reader if split is not None and split.level == "neuron" else None,
    )
    return Entry(
        prompt=prompt,
        tokens=tokens,
        position=position,
        ledger=ledger,
        readout=None if reader is None else read(ledger, reader),
        says="" if reader is None else legible_name(model, reader),
    )


def legible_name(model: Any, reader: Any) -> str:
    """`logit(·river) − logit(·money)`, or a reader's own name where it is not made of tokens."""
    from streamlens.display import display_token

    if reader.vocabulary is None:
        return display_token(reader.name)
    texts = model.token_texts(reader.vocabulary.ids)
    return " − ".join(f"logit({display_token(text, width=24)})" for text in texts)


def payload(found: Entry) -> dict[str, Any]:
    """The entry as plain data; with a position its parts stand at the top, else under `positions`."""
    head: dict[str, Any] = {"prompt": found.prompt, "tokens": list(found.tokens)}
    places = [_place(found, row, position) for row, position in found.kept]
    model = {"model": dict(found.ledger.provenance)}
    if found.readout is not None:
        model["reader"] = {"name": found.readout.reader.name, "unit": found.readout.reader.unit}
    if found.position is not None:
        return head | {key: places[0].pop(key) for key in ("position", "token", "token_id")} | model | places[0]
    return head | model | {"closure": _closure(found), "positions": places}


def _place(found: Entry, row: int, position: int) -> dict[str, Any]:
    ledger, readout = found.ledger, found.readout
    place: dict[str, Any] = {
        "position": position,
        "token": found.tokens[position],
        "token_id": int(ledger.token_ids[0, row]),
        "sink": bool(ledger.sinks[0, row]),
    }
    if readout is None:
        place["norm"] = float(ledger.stream[0, row].double().norm())
        return place | {"parts": _writes(ledger, row), "closure": _closure(found, row)}
    contributions = readout.contributions[:, 0, row, 0].tolist()
    place["value"] = None if readout.observed is None else float(readout.observed[0, row, 0])
    place["sum"] = float(readout.total[0, row, 0])
    parts = [_site(site) | {"contribution": c} for site, c in zip(readout.sites, contributions, strict=True)]
    return place | {"parts": parts, "closure": _closure(found, row)}


def _closure(found: Entry, row: int | None = None) -> dict[str, Any]:
    """How well the books close: at one row, or the worst of all."""
    at = slice(None) if row is None else row
    closure = {"in_order": found.ledger.in_order, "relative": float(found.ledger.closure[0, at].max())}
    if found.ledger.split_error:
        closure["parts"] = max(found.ledger.split_error.values())
    if found.readout is not None:
        closure["readout"] = float(found.readout.closure[0, at].max())
    return closure


def _writes(ledger: Any, row: int) -> list[dict[str, Any]]:
    """Norm, share and cosine of every write at one token, in float64; the shares sum to 1."""
    import torch

    from streamlens.sites import Site

    stream = ledger.stream[0, row].double()
    updates = torch.cat([ledger.writes[:, 0, row].double(), ledger.rounding[0, row][None]])
    norms, dots = updates.norm(dim=-1), updates @ stream
    shares = dots / stream.square().sum().clamp_min(1e-300)
    cosines = dots / (norms * stream.norm()).clamp_min(1e-300)
    columns = zip(norms.tolist(), shares.tolist(), cosines.tolist(), strict=True)
    return [
        _site(site) | {"norm": norm, "share": share, "cosine": cosine}
        for site, (norm, share, cosine) in zip([*ledger.sites, Site(kind="rounding")], columns, strict=True)
    ]


def _site(site: Any) -> dict[str, Any]:
    return {"component": site.label, "layer": site.layer, "kind": site.part or site.kind}


def frame(found: Entry, number: int = 0) -> Any:
    """The tidy frame of what is shown, as prompt `number`."""
    whole = (found.ledger if found.readout is None else found.readout).to_frame()
    if found.position is not None:
        whole = whole[whole["position"] == found.position].reset_index(drop=True)
    return whole.assign(prompt_id=whole["prompt_id"] + number)
