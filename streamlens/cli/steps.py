"""A wiring in words, as a table in a terminal."""

from typing import Any


def show_wiring(console: Any, wiring: dict[str, Any]) -> None:
    """The steps as a table, layers of equal steps once, then the way to the logits."""
    from streamlens.cli import terminal
    from streamlens.models.words import in_words

    said = f"{wiring['layers']} layers, d_model {wiring['d_model']}, blocks in {wiring['blocks']}"
    terminal.show_lines(console, [f"Wiring found by measurement: {said}", ""])
    made = terminal.table("layers", "step", "from module")
    for layers, step, module in in_words(wiring):
        made.add_row(layers, terminal.text(step), terminal.text(module))
    console.print(made, "")
    if wiring["head"] is None:
        terminal.show_lines(console, [f"No linear head: {wiring['no_head']}", ""])
