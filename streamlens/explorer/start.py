"""What the page opens with."""

from streamlens.errors import InputError
from streamlens.explorer.state import State
from streamlens.models.handle import ModelHandle

PROMPT = "After crossing the river, she rested on the bank"
READ = (" river", " money")


def starting_state(
    model: ModelHandle, *, prompt: str | None, wanted: str | None = None, against: str | None = None
) -> State:
    """What was asked for; otherwise the bank sentence, read by river against money where both are tokens."""
    if prompt is None and wanted is None and _knows(model, *READ):
        wanted, against = READ
    return State(prompt=PROMPT if prompt is None else prompt, wanted=wanted or "", against=against or "")


def _knows(model: ModelHandle, *texts: str) -> bool:
    if model.wiring.head is None:
        return False
    try:
        return all(model.token_id(text) >= 0 for text in texts)
    except InputError:
        return False
