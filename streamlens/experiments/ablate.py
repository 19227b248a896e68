"""Ablation: switch branches off and account for everything that follows.

1. `ablate` makes one set of edits and returns its ledger.
2. `sweep` makes one edit after another, in batches that reuse the clean run, and returns all effects and the matrix of
   which write responded to which edit.
3. With `estimate="gradient"` the sweep is not run: its effects are estimated from one backward (`estimates.py`).
4. `freeze` holds later writes, or attention patterns, at their clean values: path patching. With every later write
   frozen the indirect part is 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from streamlens.arguments import typed
from streamlens.edits import Edit, as_edits
from streamlens.errors import InputError
from streamlens.experiments.estimates import Estimates, estimate_effects
from streamlens.hooks.prompts import Positions, Prompt
from streamlens.hooks.runs.variants import run_variants
from streamlens.hooks.writes.clean import Clean, start_run
from streamlens.models.handle import ModelHandle
from streamlens.models.wiring import Projection
from streamlens.readouts.ablation import AblationLedger
from streamlens.readouts.readers.reader import Reader

if TYPE_CHECKING:
    import pandas as pd

Freeze = str | Sequence[str] | None
Over = str | Sequence[str | Edit | Sequence[str | Edit]]


@typed
def ablate(
    model: ModelHandle,
    prompt: Prompt | Clean,
    edits: str | Edit | Sequence[str | Edit],
    *,
    readers: Reader | Sequence[Reader] = (),
    position: Positions = None,
    freeze: Freeze = None,
    **forward_kwargs: Any,
) -> AblationLedger:
    """Makes a set of edits and keeps books on what they did. Signs: ablated - clean.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt, or an earlier clean run of it (`streamlens.clean_run`).
        edits: Edits, or their text form: `L9.attn`, `L9H2@bank`, `L12.mlp=0.5`, `L9H2<river@bank`.
        readers: What to read.
        position: Where to read; None for every position.
        freeze: Writes that keep their clean values wherever they are not edited: their labels, "all", or "patterns"
            for attention patterns while values move.
        **forward_kwargs: As for `decompose`.

    Raises:
        InputError: An edit, reader or position that does not fit.

    Cost: one clean forward, and one over the positions from the first edited one on.
    """
    wanted = as_edits(edits)
    clean = prompt if isinstance(prompt, Clean) else start_run(model, prompt, keep_logits=False, **forward_kwargs)
    asked = _readers(readers, clean)
    (batch,) = run_variants(clean, [wanted], positions=position, freeze=freeze)
    return AblationLedger(
        clean=batch.clean,
        ablated=batch.edited,
        changed=batch.changed,
        variants=(" + ".join(edit.label for edit in wanted),),
        readers=asked,
        reused=batch.reused,
        vocabulary=model.token_texts,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Sweep:
    """One edit after another.

    Attributes:
        parts: The ablation ledgers of its batches, the variants in their order.
        variants: What was edited in each variant, as text.
    """

    parts: tuple[AblationLedger, ...]
    variants: tuple[str, ...]

    def effects(self) -> "pd.DataFrame":
        """One row per (variant, reader, position), without readers per (variant, position).

        See `streamlens.frames.SCHEMAS["effects"]`.
        """
        from streamlens.frames import effects_frame

        return effects_frame(self.parts)

    def responses(self, reader: Reader | str | None = None) -> "pd.DataFrame":
        """The edited x responding matrix of one reader at the last kept position, in its unit.

        Rows are variants, columns writes in stream order: what each write's change gives the reader (its first row).
        The edited writes' own cells are the direct effects; earlier ones are 0. `attrs` name the reader, its unit and
        the token.

        Raises:
            InputError: No such reader, or a sweep without readers.
        """
        from streamlens.frames import responses_frame

        return responses_frame(self.parts, reader)

    def __repr__(self) -> str:
        return f"Sweep({len(self.variants)} variants, {len(self.parts)} batches)"


@overload
def sweep(
    model: ModelHandle, prompt: Prompt | Clean, *, estimate: Literal["gradient"], **options: Any
) -> Estimates: ...
@overload
def sweep(
    model: ModelHandle,
    prompt: Prompt | Clean,
    *,
    over: Over = "sublayers",
    position: Positions = None,
    method: str = "zero",
    prompts: str | Sequence[str] | None = None,
    readers: Reader | Sequence[Reader] = (),
    read_at: Positions = None,
    freeze: Freeze = None,
    estimate: None = None,
    progress: Callable[[int, int], None] | None = None,
    **forward_kwargs: Any,
) -> Sweep: ...
@typed
def sweep(
    model: ModelHandle,
    prompt: Prompt | Clean,
    *,
    over: Over = "sublayers",
    position: Positions = None,
    method: str = "zero",
    prompts: str | Sequence[str] | None = None,
    readers: Reader | Sequence[Reader] = (),
    read_at: Positions = None,
    freeze: Freeze = None,
    estimate: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **forward_kwargs: Any,
) -> Sweep | Estimates:
    """Edits one thing at a time. Signs: ablated - clean.

    Args:
        model: From `streamlens.load`.
        prompt: One prompt, or an earlier clean run of it.
        over: "sublayers", "heads", or a list of edits (each an edit, its text, or several at once).
        position: Where the edits act that name no position themselves; None for every position at once.
        method: What "sublayers" and "heads" are edited by: "zero", a factor such as "0.5", "mean" or "resample".
        prompts: The reference of "mean" (its mean over these prompts and their positions, sinks left out) or of
            "resample" (one other prompt, aligned by token); also of edits given as text.
        readers: What to read; without one, effects hold only what became of the output.
        read_at: Where to read; by default where the edits act, or the last position if they act everywhere.
        freeze: As for `ablate`.
        estimate: "gradient" for first-order estimates of the effects instead of the runs: attribution patching.
        progress: Called with (done, total) after each batch.
        **forward_kwargs: As for `decompose`.

    Raises:
        InputError: Nothing to sweep over, or an edit, reader or position that does not fit.

    Cost: one clean forward, and the variants' positions from the first edited one on, batched: 60 sublayers of the
    default model at the last of 10 tokens cost about 3 bare forwards (`scripts/bench.py sweep`). Estimates cost one
    forward that keeps its activations, and one backward per reader row and position.
    """
    if estimate not in (None, "gradient"):
        raise InputError(f'An estimate is "gradient", or None for the exact sweep; got {estimate!r}.')
    if estimate and freeze is not None:
        raise InputError("An estimate holds nothing at its clean value.", hint="Leave freeze= out, or sweep exactly.")
    logits = estimate is not None
    clean = prompt if isinstance(prompt, Clean) else start_run(model, prompt, keep_logits=logits, **forward_kwargs)
    asked = _readers(readers, clean)
    variants = _variants(model, clean, over, position, method, prompts)
    where = read_at if read_at is not None else position if position is not None else -1
    if estimate:
        return estimate_effects(clean, variants, readers=asked, positions=where)
    names = tuple(" + ".join(edit.label for edit in edits) for edits in variants)
    parts: list[AblationLedger] = []
    for batch in run_variants(clean, variants, positions=where, freeze=freeze):
        done = sum(len(part.variants) for part in parts)
        parts.append(
            AblationLedger(
                clean=batch.clean,
                ablated=batch.edited,
                changed=batch.changed,
                variants=names[done : done + batch.changed.shape[1]],
                readers=asked,
                reused=batch.reused,
                vocabulary=model.token_texts,
            )
        )
        if progress is not None:
            progress(done + len(parts[-1].variants), len(names))
    return Sweep(parts=tuple(parts), variants=names)


def _variants(
    model: ModelHandle,
    clean: Clean,
    over: Over,
    position: Positions,
    method: str,
    prompts: str | Sequence[str] | None,
) -> list[list[Edit]]:
    where: Any = position
    how = "" if method == "zero" else f"={method}"
    if over == "sublayers":
        labels = [w.site.label for w in clean.wiring.writes if w.tap is not None and w.site.layer is not None]
    elif over == "heads":
        labels = []
        for row, maker in model.projections(clean.wiring.stream).items():
            site = clean.wiring.writes[row].site
            if isinstance(maker, Projection) and maker.heads:
                labels += [site.part_of("head", h).label for h in range(maker.heads)]
        if not labels:
            raise InputError("This model has no attention heads to sweep over.", hint='over="sublayers" works.')
    elif isinstance(over, str):
        raise InputError(f'A sweep runs over "sublayers", "heads" or a list of edits; got {over!r}.')
    else:
        if not over:
            raise InputError("A sweep needs at least one edit; got an empty list.")
        entries = [[entry] if isinstance(entry, str | Edit) else list(entry) for entry in over]
        given = {"position": where, "prompts": prompts}
        placed = [[Edit.parse(e, **given) if isinstance(e, str) else e for e in entry] for entry in entries]
        return [as_edits(entry) for entry in placed]
    return [[Edit.parse(label + how, position=where, prompts=prompts)] for label in labels]


def _readers(readers: Reader | Sequence[Reader], clean: Clean) -> tuple[Reader, ...]:
    asked = (readers,) if isinstance(readers, Reader) else tuple(readers)
    width = clean.wiring.d_model
    for reader in asked:
        if reader.matrix.shape[-1] != width:
            raise InputError(
                f"A reader is as wide as the stream, {width}; {reader.name!r} is {reader.matrix.shape[-1]} wide."
            )
    return asked
