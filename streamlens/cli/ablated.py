"""One ablation as data, as a frame and as a table.

1. The change of what is read, split into parts that sum to it, beside the change of the model's own value.
2. Every write: edited, responding or unchanged; its change as a norm and, with `--for`, in the reader's unit.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamlens.cli import tables, terminal

#: part of a change -> what it is; in the order in which they are summed
PARTS = {
    "direct": "the edited writes' own change",
    "indirect": "how all other writes responded",
    "rescale": "the final norm's scale moving",
    "carry": "the norms along the way moving",
    "softcap": "what a softcap makes of it",
}
#: parts that are shown even where they are 0
ALWAYS = ("direct", "indirect", "rescale")


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """What an ablation did to one prompt.

    Attributes:
        prompt: As given.
        tokens: All of the prompt's tokens.
        ledger: The ablation ledger at the one position that is read.
        freeze: What was held.
        says: The reader's name with its tokens made legible; "" without a reader.
        whole: The same ledger at all positions, where it was asked for.
    """

    prompt: str
    tokens: tuple[str, ...]
    ledger: Any
    freeze: Any
    says: str = ""
    whole: Any = None


def entry(
    model: Any,
    prompt: str,
    edits: Sequence[Any],
    *,
    reader: Any,
    position: Any,
    freeze: Any,
    bos: bool,
    whole: bool = False,
) -> Entry:
    """Runs one prompt without and with the edits; `whole`: once more, to keep every position.

    Raises:
        InputError: An edit, a position or a frozen write that does not fit.
    """
    from streamlens.cli.books import legible_name
    from streamlens.experiments.ablate import ablate
    from streamlens.hooks.writes.clean import start_run

    clean = start_run(model, prompt, prepend_bos=bos, keep_logits=False)
    given: dict[str, Any] = {"readers": () if reader is None else reader, "freeze": freeze}
    return Entry(
        prompt=prompt,
        tokens=clean.context[0],
        ledger=ablate(model, clean, edits, position=position, **given),
        freeze=freeze,
        says="" if reader is None else legible_name(model, reader),
        whole=ablate(model, clean, edits, **given) if whole else None,
    )


def payload(found: Entry) -> dict[str, Any]:
    """Everything as plain data; the reader's part only where there is one."""
    ledger, clean = found.ledger, found.ledger.clean
    head = {
        "prompt": found.prompt,
        "tokens": list(found.tokens),
        "position": int(clean.indices[0, 0]),
        "token": clean.tokens[0][0],
        "token_id": int(clean.token_ids[0, 0]),
        "edits": ledger.variants[0],
        "freeze": [found.freeze] if isinstance(found.freeze, str) else list(found.freeze or ()),
        "model": dict(clean.provenance),
    }
    effect: dict[str, Any] = {}
    if ledger.readers:
        rows = ledger.effects().to_dict("records")
        kept = ("clean", *PARTS, "total", "observed", "closure", "self_repair")
        effect = {
            "reader": {"name": ledger.readers[0].name, "unit": ledger.readers[0].unit},
            "headline": ledger.headline(),
            "effect": {name: rows[0][name] for name in kept},
        }
    return head | effect | {"output": _output(ledger), "writes": _writes(ledger), "closure": _closure(ledger)}


def _output(ledger: Any) -> dict[str, Any]:
    """What became of the next token."""
    before, after = (
        None if side.logits is None else ledger.text_of(int(side.logits[0, 0].argmax()))
        for side in (ledger.clean, ledger.ablated)
    )
    return {"kl": float(ledger.divergence[0, 0]), "top_before": before, "top_after": after}


def _writes(ledger: Any) -> list[dict[str, Any]]:
    frame = ledger.to_frame()
    names = ["component", "layer", "kind", "status", "clean_norm", "ablated_norm", "delta_norm", "cosine"]
    for reader in ledger.readers:
        frame = frame.rename(columns={f"{side}: {reader.rows[0]}": side for side in ("clean", "delta")})
        names += ["clean", "delta"]
    layers = frame["layer"].astype(object).where(frame["layer"].notna(), None)
    return frame[names].assign(layer=layers).to_dict("records")


def _closure(ledger: Any) -> dict[str, Any]:
    """How well both runs' writes add up, and the parts of the change."""
    runs = (ledger.clean, ledger.ablated)
    closure = {
        "in_order": max(run.in_order for run in runs),
        "relative": max(float(run.closure.max()) for run in runs),
    }
    if ledger.readers:
        closure["effect"] = float(ledger.effect_of(ledger.readers[0]).closure[0, 0, 0])
    return closure


def frame(found: Entry, number: int = 0) -> Any:
    """The ablation frame, as prompt `number`."""
    rows = found.ledger.to_frame()
    return rows.assign(prompt_id=rows["prompt_id"] + number)


def show(console: Any, found: Entry, *, top: int) -> None:
    """The headline, the split, the writes that responded most, and how it adds up."""
    data = payload(found)
    terminal.show_prompt(console, found.prompt)
    terminal.show_lines(console, _heading(found, data))
    if "effect" in data:
        _show_effect(console, found, data["effect"], data["reader"]["unit"])
    terminal.show_lines(console, [*_output_lines(data["output"]), ""])
    _show_writes(console, data, top)
    terminal.show_closure(console, data["closure"])
    terminal.show_lines(console, [terminal.made_by(found.ledger.clean.provenance)], style="dim")


def _heading(found: Entry, data: Mapping[str, Any]) -> list[str]:
    from streamlens.display import display_token

    where = f"{display_token(data['token'], width=24)} (position {data['position']})"
    held = f", with {', '.join(data['freeze'])} frozen" if data["freeze"] else ""
    first = minus(data["headline"]) if "headline" in data else f"{data['edits']} edited."
    return [first, f"{found.says or 'The writes'} at {where}{held}; signs: ablated − clean", ""]


def minus(text: str) -> str:
    """Numbers in a sentence with a minus sign that is as wide as the plus."""
    return re.sub(r"(?<=\s)-(?=\d)", "−", text)


def _show_effect(console: Any, found: Entry, effect: Mapping[str, float], unit: str) -> None:
    parts = [name for name in PARTS if name in ALWAYS or effect[name] != 0]
    made = terminal.table("part", (unit, "right"), "")
    for name in parts:
        made.add_row(name, terminal.signed(effect[name]), terminal.text(PARTS[name], "dim"))
    made.add_section()
    made.add_row("total", terminal.text(terminal.signed(effect["total"]), "bold"))
    if effect["observed"] == effect["observed"]:
        before, after = effect["clean"], effect["clean"] + effect["observed"]
        moved = terminal.text(f"{terminal.signed(before)} to {terminal.signed(after)}", "dim")
        own = terminal.text(terminal.signed(effect["observed"]), "bold")
        made.add_row("the model's own change", own, moved)
    console.print(made, "")
    lines = []
    if effect["closure"] == effect["closure"]:
        lines.append(f"The parts sum to the model's own change within {terminal.small(effect['closure'])} {unit}.")
    if repair := effect["self_repair"]:
        size = f"{repair:.0%} of it" if repair <= 1 else f"{repair:.1f} times as much"
        lines.append(f"Self-repair: the responses oppose the direct effect and undo {size}.")
    terminal.show_lines(console, lines)


def _output_lines(output: Mapping[str, Any]) -> list[str]:
    from streamlens.display import display_token

    if output["top_before"] is None:
        return []
    before, after = (display_token(output[side], width=24) for side in ("top_before", "top_after"))
    same = output["top_before"] == output["top_after"]
    said = f"stays “{before}”" if same else f"goes from “{before}” to “{after}”"
    return [f"The likeliest next token {said}; KL(clean, ablated) is {output['kl']:.3g} nats."]


def _show_writes(console: Any, data: Mapping[str, Any], top: int) -> None:
    """The edited writes, then the largest responses, then the rest in one row."""
    key = "delta" if "effect" in data else "delta_norm"
    unit = (data["reader"]["unit"], "right") if "effect" in data else None
    made = terminal.table(
        "component",
        "status",
        *([unit] if unit else []),
        ("norm of change", "right"),
        *tables.bar_column(console),
    )
    edited = [row for row in data["writes"] if row["status"] == "edit"]
    moved = [row for row in data["writes"] if row["status"] == "response"]
    moved.sort(key=lambda row: -abs(row[key]))
    shown = [*edited, *moved[:top]]
    largest = max((abs(row[key]) for row in shown), default=0.0)

    def add(label: str, status: str, size: float, norm: str) -> None:
        middle = [terminal.signed(size)] if unit else []
        made.add_row(terminal.text(label), status, *middle, norm, *tables.bars(console, size, largest))

    for row in shown:
        add(row["component"], row["status"], row[key], f"{row['delta_norm']:,.1f}")
    if rest := moved[top:]:
        if unit:
            add(f"other ({len(rest)})", "response", sum(row[key] for row in rest), "")
        else:
            made.add_row(f"other ({len(rest)})", "response")
    still = sum(row["status"] == "unchanged" for row in data["writes"])
    console.print(made, "")
    if still:
        terminal.show_lines(console, [f"{still} of {len(data['writes'])} writes are unchanged to the last bit."])
