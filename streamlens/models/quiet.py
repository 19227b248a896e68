"""Keep transformers from talking while it loads: standard error belongs to the command line."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging

from streamlens import turns


@contextmanager
def quiet() -> Iterator[None]:
    """Errors only and no progress bars inside, the user's own settings again afterwards.

    The settings are transformers' own and count for the whole process, as does the default type that it sets while
    it loads; so this takes the turn.
    """
    with turns.TURN:
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        hub_verbosity = hub_logging.get_verbosity()
        logging.set_verbosity_error()
        hub_logging.set_verbosity_error()  # a hub that cannot be reached is said once, by the error
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            hub_logging.set_verbosity(hub_verbosity)
            if bars:
                logging.enable_progress_bar()
