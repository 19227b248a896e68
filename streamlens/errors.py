"""What streamlens raises.

1. Whatever a user can cause is a `StreamlensError`, so one `except` catches them all. What only we can cause
   is an `AssertionError`.
2. The message states the rule and what was given. The hint states the next step, and may be absent.
3. Each child answers one question of a caller: is the model there (`ModelError`), is it understood
   (`WiringError`), was the question well put (`InputError`), do the books balance (`ClosureError`).
"""


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line; its class where it says nothing."""
    said = str(error).strip()
    return said.splitlines()[0] if said else type(error).__name__


class StreamlensError(Exception):
    """The base of every error a user can cause.

    Args:
        message: One sentence: the rule, and what was given instead.
        hint: One sentence naming the next step. The command line prints it on a line of its own.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Only the message goes into `args`, so that the error survives pickling between processes.
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class ModelError(StreamlensError):
    """A model cannot be fetched, converted or loaded."""


class WiringError(StreamlensError):
    """A model's residual stream could not be explained: names the first step that does not close."""


class InputError(StreamlensError, ValueError):
    """A site, position, token or reader does not exist or does not fit this model and prompt."""


class ClosureError(StreamlensError):
    """A sum that has to close does not."""
