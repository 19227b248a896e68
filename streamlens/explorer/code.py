"""Copy as Python: the exact calls that give the numbers on the page."""

from streamlens.explorer.choice import Choice
from streamlens.explorer.state import State

_OPTIONS = {"dtype": "float32", "device": "cpu"}


def as_python(
    state: State,
    *,
    model: str,
    place: int,
    choice: Choice | None,
    other: str | int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    prepend_bos: bool = False,
) -> str:
    """The calls, as a text that runs by itself.

    Args:
        state: The state.
        model: What the model was loaded as.
        place: The position that is read.
        choice: What reads, or None.
        other: The token of the second prompt that is compared, where there is one.
        dtype: As given to `load`.
        device: As given to `load`.
        prepend_bos: As given to `clean_run`.
    """
    given = {"dtype": dtype, "device": device}
    options = "".join(f", {name}={value!r}" for name, value in given.items() if value != _OPTIONS[name])
    bos = ", prepend_bos=True" if prepend_bos else ""
    lines = ["import streamlens", "", f"model = streamlens.load({model!r}{options})"]
    lines.append(f"prompt = {state.prompt!r}")
    if choice is not None:
        lines.append(f"reader = {choice.code}")
    lines += ["", f"clean = streamlens.clean_run(model, prompt{bos})"]
    if state.factors:
        edits = ", ".join(repr(edit) for edit in state.edits(place))
        reads = "" if choice is None else ", readers=reader"
        lines.append(f"ablation = streamlens.ablate(model, clean, [{edits}]{reads}, position={place})")
        lines += ["effects = ablation.effects()  # ablated - clean: direct, indirect, rescale and their total"]
        lines += ["writes = ablation.to_frame()  # every write: edit, response or unchanged"]
    else:
        lines.append(f"ledger = clean.ledger.place({place})")
        lines.append("writes = ledger.to_frame()")
        if choice is not None:
            lines.append("parts = streamlens.read(ledger, reader).to_frame()  # they sum to the model's own value")
    if other is not None:
        second = f"({place}, {other!r})"
        reads = "" if choice is None else ", readers=reader"
        other = f"prompt, {state.second!r}, token={second}{reads}{bos}"
        lines.append(f"comparison = streamlens.compare(model, {other}).to_frame()  # A - B")
    return "\n".join(lines) + "\n"
