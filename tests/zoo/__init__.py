"""The zoo: a tiny random model of every text architecture that can be built, off its defaults."""

import torch
from transformers import PreTrainedModel

from .build import Entry, build_entry, inputs, off_default
from .decoders import DECODERS
from .encoders import ENCODERS
from .mixers import MIXERS
from .moe import MOE
from .seq2seq import PAIRS
from .skipped import SKIPPED
from .streams import STREAMS

ENTRIES = [*DECODERS, *MOE, *MIXERS, *STREAMS, *ENCODERS, *PAIRS]

BY_NAME = {entry.name: entry for entry in ENTRIES}


def build(what: str | Entry, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of an entry, or of an entry's name, in eval mode: the same bits at every call."""
    return build_entry(BY_NAME[what] if isinstance(what, str) else what, dtype)


__all__ = ["ENTRIES", "BY_NAME", "SKIPPED", "Entry", "build", "inputs", "off_default"]
