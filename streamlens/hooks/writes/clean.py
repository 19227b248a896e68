"""CLEAN: the run without edits, which everything is compared with.

1. It is prepared first and made when its ledger is asked for, so that edits can be checked before anything runs.
2. It is made with the model's own cache switched on, if the model takes one that can be cut and repeated
   (`prefix.py`), so that edited runs can go on from it.
"""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from streamlens.arguments import typed
from streamlens.hooks.forward import Batch
from streamlens.hooks.prompts import Prompt, batch_for
from streamlens.hooks.writes.capture import capture, context_of
from streamlens.hooks.writes.prefix import Prefix, prefix_of
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle
from streamlens.models.tokens import Encoded, encode
from streamlens.models.wiring import Wiring
from streamlens.turns import once


@dataclass(frozen=True, eq=False, kw_only=True)
class Clean:
    """A prompt's run without edits, kept so that variants can start from it. It is made when first asked for.

    Attributes:
        model: The model.
        wiring: The stream's wiring.
        encoded: The prompts.
        batch: The run.
        extra: Further arguments of the forward.
        keep_logits: Whether its ledger has logits.
    """

    model: ModelHandle
    wiring: Wiring
    encoded: Encoded
    batch: Batch
    extra: dict[str, Any]
    keep_logits: bool = True

    @once
    def context(self) -> tuple[tuple[str, ...], ...]:
        """The text of each prompt's own tokens in this stream; known without a run."""
        rows = zip(self.batch.ids, self.batch.mask, strict=True)
        return tuple(self.model.token_texts(ids[mask].tolist()) for ids, mask in rows)

    @once
    def encoder_context(self) -> tuple[tuple[str, ...], ...]:
        """For a decoder, the text of its encoder's tokens, which cross-attention reads; else empty."""
        return context_of(self.model, self.batch, "input_ids") if self.wiring.stream == "decoder" else ()

    @property
    def ledger(self) -> Ledger:
        """Its ledger at all positions."""
        return self._run[0]

    @property
    def prefix(self) -> Prefix | None:
        """Its keys and values; None if they cannot be reused."""
        return self._run[1]

    @once
    def _run(self) -> tuple[Ledger, Prefix | None]:
        keeper = prefix_of(self.model, self.wiring, self.batch)
        if keeper is not None:
            try:
                return self._captured(keeper.batch), keeper.prefix()
            except Exception:  # whatever a model raises that cannot use this cache; other errors come again below
                keeper = None
        return self._captured(self.batch), None

    def _captured(self, batch: Batch) -> Ledger:
        return capture(
            self.model,
            self.wiring,
            batch,
            prompts=self.encoded.prompts,
            keep_logits=self.keep_logits,
            provenance={**self.model.provenance, "bos": self.encoded.bos},
        )

    @once
    def unpadded(self) -> "Clean":
        """One prompt without the padding it was given with; this run itself where there is none."""
        if self.encoded.mask.all():
            return self
        real = self.encoded.mask[0]
        encoded = replace(self.encoded, ids=self.encoded.ids[:, real], mask=self.encoded.mask[:, real])
        extra = {k: v[:, real] if k == "token_type_ids" else v for k, v in self.extra.items()}
        batch = batch_for(self.model, self.wiring, encoded, None, extra)
        return replace(self, encoded=encoded, batch=batch, extra=extra)


@typed
def clean_run(
    model: ModelHandle,
    prompt: Prompt,
    *,
    attention_mask: Tensor | None = None,
    prepend_bos: bool = False,
    stream: str | None = None,
    **forward_kwargs: Any,
) -> Clean:
    """One run without edits, kept for variants. Arguments as for `decompose`. Cost: one forward."""
    clean = start_run(
        model, prompt, attention_mask=attention_mask, prepend_bos=prepend_bos, stream=stream, **forward_kwargs
    )
    assert clean.ledger is not None
    return clean


def start_run(
    model: ModelHandle,
    prompt: Prompt,
    *,
    attention_mask: Tensor | None = None,
    prepend_bos: bool = False,
    stream: str | None = None,
    keep_logits: bool = True,
    **forward_kwargs: Any,
) -> Clean:
    """The same run, prepared: it is made when its ledger is asked for, so that edits can be checked before."""
    encoded = encode(model.tokenizer, prompt, attention_mask=attention_mask, prepend_bos=prepend_bos)
    wiring = model.wiring_of(stream)
    batch = batch_for(model, wiring, encoded, None, forward_kwargs)
    return Clean(
        model=model, wiring=wiring, encoded=encoded, batch=batch, extra=forward_kwargs, keep_logits=keep_logits
    )
