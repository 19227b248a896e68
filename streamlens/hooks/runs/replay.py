"""REPLAY: a run again, with some writes changed.

1. Edits are checked and turned into actions before anything runs (`resolve.py`).
2. The edited run is captured like any other and closes like any other.
3. A Replay can be edited further: its edits and the new ones together, on the same prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from streamlens.arguments import typed
from streamlens.edits import Edit, as_edits
from streamlens.hooks.edits.edit import attach_actions
from streamlens.hooks.edits.resolve import resolve
from streamlens.hooks.prompts import Prompt
from streamlens.hooks.writes.capture import capture
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.ledger import Ledger
from streamlens.models.handle import ModelHandle


@dataclass(frozen=True, eq=False, kw_only=True)
class Replay:
    """An edited run.

    Attributes:
        ledger: Its ledger, which closes like any other.
        edits: What was changed.
        clean: The run without edits it started from.
    """

    ledger: Ledger
    edits: tuple[Edit, ...]
    clean: Clean

    @property
    def logits(self) -> Tensor | None:
        """The edited run's logits, [batch, pos, vocab]; None if the model has no linear head."""
        return self.ledger.logits


@typed
def replay(
    model: ModelHandle,
    prompt: "Prompt | Clean | Replay",
    edits: str | Edit | Sequence[str | Edit],
    **forward_kwargs: Any,
) -> Replay:
    """Runs a prompt with some writes changed.

    Args:
        model: From `streamlens.load`.
        prompt: A string, several strings, or token ids; or an earlier `Replay`, whose edits are kept and added to.
        edits: Edits, or their text form: `L9.attn`, `L9H2@bank`, `L12.mlp=0.5`.
        **forward_kwargs: As for `decompose`.

    Raises:
        InputError: An edit that does not fit the model or the prompt.

    Cost: one edited forward; the clean one is made when `Replay.clean.ledger` is asked for.
    """
    wanted = as_edits(edits)
    if isinstance(prompt, Replay):
        wanted = [*prompt.edits, *wanted]
        clean = prompt.clean
    else:
        clean = prompt if isinstance(prompt, Clean) else start_run(model, prompt, **forward_kwargs)
    actions = resolve(model, clean.wiring, clean.context, wanted, encoder_context=clean.encoder_context)
    with attach_actions(model, clean.wiring, clean.batch, actions):
        ledger = capture(
            model,
            clean.wiring,
            clean.batch,
            prompts=clean.encoded.prompts,
            keep_logits=True,
            provenance={
                **model.provenance,
                "bos": clean.encoded.bos,
                "edits": [edit.label for edit in wanted],
            },
        )
    return Replay(ledger=ledger, edits=tuple(wanted), clean=clean)
