"""The wiring: plain frozen data that says what a model adds to its residual stream, and where.

It is found by measurement (`discover.py`) and read by everything that touches the model. Nothing in it holds
a module or a tensor: modules are dotted names, so a wiring can be printed, compared and stored.
"""

from dataclasses import dataclass
from functools import cached_property

from streamlens.carries import Add, Step
from streamlens.sites import Site


@dataclass(frozen=True, kw_only=True)
class Tap:
    """A place where a tensor can be read: the output (or first input) of one call of one module."""

    module: str
    call: int = 0
    side: str = "output"

    def __str__(self) -> str:
        return self.module + (f"#{self.call}" if self.call else "") + (":in" if self.side == "input" else "")


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A norm module, as measured.

    Attributes:
        tap: The call.
        centred: LayerNorm subtracts the mean; RMSNorm does not.
        gain: How the gain is made: the name of a parameter, "1 + " and a name, or "" for none.
        bias: The name of the parameter added at the end, or "".
        eps: What is added under the square root.
    """

    tap: Tap
    centred: bool
    gain: str
    bias: str
    eps: float


@dataclass(frozen=True, kw_only=True)
class Write:
    """One addition to the stream: `scale` times what `tap` gives, or a parameter that is the same everywhere.

    Attributes:
        site: Its label.
        tap: Where it is read; None for a constant.
        scale: The residual multiplier, 1.0 for most models.
        constant: The dotted name of the parameter that is added (a post-norm's bias); "" for a tapped write.
    """

    site: Site
    tap: Tap | None
    scale: float = 1.0
    constant: str = ""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The linear module that makes a write: `write = scale * norm(W z + b)`; z is what heads or neurons hand it.

    Attributes:
        tap: The call of the linear module.
        norm: The norm between its output and the write (Gemma 2, OLMo 2); None if there is none.
        width: How many numbers it reads.
        heads: Into how many query heads these fall, 0 for an MLP.
        kv_heads: How many key and value heads they share; query head h reads kv head `h // (heads // kv_heads)`.
    """

    tap: Tap
    norm: Norm | None
    width: int
    heads: int = 0
    kv_heads: int = 0


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts inside a write: `write = scale * norm(coefficient * experts(h, index, weights) + rest)`.

    Attributes:
        tap: The call of the experts module with hidden states, chosen experts and their weights.
        norm: The norm between it and the write; None if there is none.
        coefficient: What its output is multiplied by.
    """

    tap: Tap
    norm: Norm | None
    coefficient: float


@dataclass(frozen=True, kw_only=True)
class Read:
    """A linear map off the stream: `W (scale * norm(x)) + b`, some rows of one linear module.

    Attributes:
        site: The write whose branch it serves.
        part: "q", "k" or "v"; "in" for what a branch takes in otherwise, "gate" and "up" where one of two is multiplied
            with a nonlinear function of the other; "router" for what chooses experts; "read" for what is left.
        after: The last write in the stream that it reads.
        tap: The call of the linear module.
        norm: The norm in front of it; None if it reads the stream itself.
        scale: What the (normed) stream is multiplied by before it (Falcon-H1), 1.0 for most models.
        rows: Which outputs of the module, one tuple per head for "q", per key and value head for "k" and "v", else one.
        serves: For "q", "k" and "v": which of `rows` each query head uses.
        between: The module between these rows and the heads' queries or keys (their norm in Qwen 3); "" for none.
        neurons: Row n belongs to neuron n of the branch.
    """

    site: Site
    part: str
    after: Site
    tap: Tap
    norm: Norm | None
    scale: float = 1.0
    rows: tuple[tuple[int, ...], ...]
    serves: tuple[int, ...] = ()
    between: str = ""
    neurons: bool = False


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What one branch reads off the stream.

    Attributes:
        site: Its write.
        parts: What was found, in the order q, k, v, router, gate, up, in, read.
        missing: For each part that one would expect and that was not found: the part, and one sentence why.
    """

    site: Site
    parts: tuple[Read, ...]
    missing: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Head:
    """From the normed final stream h to the logits: `softcap(scale * (W P (input_scale * h) + b) + bias)`.

    Attributes:
        module: The unembedding, W and b.
        projections: Plain linear modules before it, P (OPT-350m's `project_out`).
        input_scale: What the unembedding's input was multiplied by (tied T5: d_model ** -0.5).
        scale: What its output is multiplied by (Cohere, Granite).
        softcap: `cap * tanh(logits / cap)` at the end (Gemma 2); None for none.
        bias: The dotted name of a bias added at the end (`final_logits_bias`), or "".
    """

    module: str
    projections: tuple[str, ...] = ()
    input_scale: float = 1.0
    scale: float = 1.0
    softcap: float | None = None
    bias: str = ""


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What a model adds to its stream, in its own order, with the proof's figures.

    Attributes:
        stream: "only" for a model with one stack; "decoder" or "encoder" for one with two.
        blocks: The module list whose items are called with the stream.
        n_layers: How many block calls there are.
        d_model: Width of the stream.
        writes: Every row, in stream order.
        program: The steps over these rows; see `streamlens.carries`.
        norms: The norms the stream itself goes through (post-norm models), numbered.
        final: The last block's output, where the final stream is read.
        final_norm: The norm between the final stream and the head; None if there is none.
        head: The unembedding; None if the model has none that is linear.
        no_head: Why `head` is None, in one sentence.
        time_major: The stream is [pos, batch, d_model] inside the model (XLNet).
        exact: Re-adding the writes gave the stream bit for bit on the probe.
        residual: The largest relative error of any step on the probe.
    """

    stream: str
    blocks: str
    n_layers: int
    d_model: int
    writes: tuple[Write, ...]
    program: tuple[Step, ...]
    norms: tuple[Norm, ...] = ()
    final: Tap
    final_norm: Norm | None = None
    head: Head | None = None
    no_head: str = ""
    time_major: bool = False
    exact: bool = True
    residual: float = 0.0

    def factor_of(self, row: int) -> float:
        """What the sum that a write belongs to is multiplied by before it is added."""
        return next((s.factor for s in self.program if isinstance(s, Add) and row in s.writes), 1.0)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The sites of all rows, in stream order."""
        return tuple(write.site for write in self.writes)
