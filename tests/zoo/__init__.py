"""The zoo: a tiny random model of every text architecture that can be built, off its defaults."""

from .build import Entry, build, inputs, off_default
from .decoders import DECODERS
from .encoders import ENCODERS
from .mixers import MIXERS
from .moe import MOE
from .seq2seq import PAIRS
from .streams import STREAMS

ENTRIES = [*DECODERS, *MOE, *MIXERS, *STREAMS, *ENCODERS, *PAIRS]

__all__ = ["ENTRIES", "Entry", "build", "inputs", "off_default"]
