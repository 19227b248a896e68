"""What the branches of every zoo model read their stream with, held against real runs.

1. A reader's rows times the stream that the ledger has there, through the reader's norm, are what the module computed.
2. The rows of one head, turned round in the weights, change what that head (or those that share it) hands its
   projection, and nothing of any other head. The rows of one neuron change that neuron.
3. Two tables say which architectures lack a head's rows, or an MLP's, and why; all others have them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo_books
from closeness import relative
from streamlens.models.wiring import Experts, Projection, Read, Reads
from zoo_expected import CLOSES, CLOSING, LABELLED

pytestmark = pytest.mark.usefixtures("quiet_transformers")

LATENT = "a norm and a second matrix stand between (latent attention)"
#: attention without one linear map behind its queries, keys or values: what is missing, and why
NO_HEADS = {
    **dict.fromkeys(
        ["youtu", "minicpm3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "axk1", "axk2"], ("qkv", LATENT)
    ),
    **dict.fromkeys(["glm4_moe_lite", "glm_moe_dsa", "dots3_note_text", "mistral4", "longcat_flash"], ("qkv", LATENT)),
    **dict.fromkeys(["kimi_linear", "bailing_hybrid"], ("qkv", LATENT)),
    "mistral_large4_text": ("kv", LATENT),
    **dict.fromkeys(["olmo", "olmoe", "dbrx"], ("qkv", "queries, keys and values are clipped, some of them here")),
    "diffllama": ("v", "two attentions with one pattern, each with half of the values"),
    "jetmoe": ("q", "each token's queries are an expert's"),
    "inkling_text": ("k", "a convolution over the tokens comes after the keys' map"),
    "minimax": ("qkv", "linear attention in two of three blocks, called attention: no softmax"),
    "deberta": ("qv", "a parameter of the attention is added to queries and values"),
    "neomme": ("v", "the last block mixes in the first block's values"),
    "yoso": ("qkv", "no softmax"),
    "mra": ("qkv", "no softmax over all tokens: attention at several resolutions"),
    "xlnet": ("qkv", "its matrices are tensors in einsum"),
    **dict.fromkeys(["prophetnet, decoder", "prophetnet, encoder"], ("qkv", "the products are einsums")),
    **dict.fromkeys(
        ["longformer", "led, encoder", "longt5, encoder"], ("qkv", "the products are cut into blocks of tokens")
    ),
}
#: branches other than attention that no linear module reads the stream for
NO_INPUT = {
    **dict.fromkeys(["rwkv", "rwkv:rescaled"], "reads a mixture of this token's and the last one's stream"),
    **dict.fromkeys(["zamba", "zamba2"], "a mixer reads the stream plus what a shared block made of it"),
    "longcat_flash": "the second half's experts read the stream at the first half's place, through their router alone",
    "inkling_text": "a convolution over the tokens comes first",
    "fnet": "a Fourier transform of the stream",
}
#: turning one head round shows in others as well, and why
MIXED = {
    "bitnet": "a norm over all heads before the projection",
    "esmc": "queries and keys are centred over all heads",
    "diffllama": "heads attend in pairs",
    "albert": "all blocks share their matrices",
    "convbert": "half of what the projection reads are heads, half a convolution",
}


class Case(zoo_books.Books):
    """One stream of one model, and what its branches read."""

    def __init__(self, label: str) -> None:
        super().__init__(*LABELLED[label])
        self.label = label
        self.reads = self.handle.reads(self.stream)

    def branches(self) -> Iterator[tuple[Reads, Any]]:
        """Each branch, and what makes its write."""
        makers = self.handle.projections(self.stream)
        for reads in self.reads:
            yield reads, makers.get(self.wiring.sites.index(reads.site))

    def run(self, read_or_maker: Read | Projection, *, side: str) -> Tensor:
        """What one call of a module gets or makes in a plain run of the model."""
        seen: list[Tensor] = []

        def hook(_module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
            value = output if side == "output" else next(iter([*args, *kwargs.values()]))
            seen.append((value[0] if isinstance(value, tuple) else value).clone())

        tap = read_or_maker.tap
        handle = self.model.get_submodule(tap.module).register_forward_hook(hook, with_kwargs=True)
        with torch.no_grad():
            self.model(input_ids=self.ids, **self.given, **zoo_books.no_cache(self.entry))
        handle.remove()
        return seen[tap.call]

    @contextmanager
    def turned(self, read: Read, rows: tuple[int, ...]) -> Iterator[None]:
        """The model with the sign of some outputs of a linear module changed."""
        module: Any = self.model.get_submodule(read.tap.module)
        parameters = [module.weight.T if type(module).__name__ == "Conv1D" else module.weight]
        parameters += [] if getattr(module, "bias", None) is None else [module.bias]

        def turn() -> None:
            with torch.no_grad():
                for parameter in parameters:
                    parameter[list(rows)] *= -1

        turn()
        try:
            yield
        finally:
            turn()

    def changed(self, maker: Projection, before: Tensor, read: Read, rows: tuple[int, ...], parts: int) -> list[int]:
        """Which parts of what a projection was handed before change when these rows are turned."""
        with self.turned(read, rows):
            after = self.run(maker, side="input")
        moved = (after - before).reshape(-1, parts, maker.width // parts).abs().amax((0, 2))
        return [n for n in range(parts) if moved[n] > CLOSES * before.abs().max()]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


every_stream = pytest.mark.parametrize("case", CLOSING, indirect=True)


@every_stream
def test_rows_times_the_ledgers_stream_are_what_the_module_computed(case: Case) -> None:
    for read in (read for branch in case.reads for read in branch.parts):
        stream = case.ledger.at(read.after).stream.double()
        if read.norm is not None:
            norm = case.handle.stream_norm(read.norm).at(stream)
            stream = norm.linear(stream) if norm.bias is None else norm.linear(stream) + norm.bias
        rows = [row for group in read.rows for row in group]
        matrix, bias = case.handle.read_rows(read, rows)
        wanted = case.run(read, side="output")
        if wanted.dim() == 3:
            wanted = wanted if len(wanted) == len(stream) else wanted.transpose(0, 1)
            wanted = wanted[:, : stream.shape[1]]  # some streams are padded at their end
        assert relative(stream @ matrix.T + bias, wanted[..., rows].reshape(*stream.shape[:2], -1)) < CLOSES, read


@every_stream
def test_the_rows_of_a_head_or_a_neuron_are_its_own(case: Case) -> None:
    if case.entry.name in MIXED:
        pytest.skip(MIXED[case.entry.name])
    for branch, maker in case.branches():
        if not isinstance(maker, Projection):
            continue
        before = case.run(maker, side="input")
        for read in branch.parts:
            if read.part in ("q", "k", "v"):
                assert len(read.serves) == maker.heads
                group = len(read.rows) - 1
                served = [head for head, own in enumerate(read.serves) if own == group]
                assert case.changed(maker, before, read, read.rows[group], maker.heads) == served, (
                    branch.site,
                    read.part,
                )
            elif read.neurons:
                assert case.changed(maker, before, read, (read.rows[0][3],), maker.width) == [3], branch.site


@every_stream
def test_every_attention_has_queries_keys_and_values(case: Case) -> None:
    missing: list[tuple[str, str]] = []
    for branch in case.reads:
        if branch.site.kind in ("attn", "cross_attn"):
            missing += branch.missing
            assert {part for part, _ in branch.missing} == set("qkv") - {read.part for read in branch.parts}
    others = {part for part, why in missing if "are read off the encoder's stream" not in why}
    assert others == set(NO_HEADS.get(case.label, ("", ""))[0])
    assert all(re.fullmatch(r"[A-Z][^.]*(?:\.\S[^.]*)*\.", why) for _, why in missing)


@every_stream
def test_every_other_branch_has_an_input(case: Case) -> None:
    others = [both for both in case.branches() if both[0].site.kind not in ("attn", "cross_attn")]
    assert any(not branch.parts for branch, _ in others) == (case.entry.name in NO_INPUT)
    for branch, maker in others:
        if not branch.parts:
            why = f"No linear map in front of {branch.site} reads the stream or a norm of it."
            assert branch.missing == (("in", why),)
        elif isinstance(maker, Experts):
            assert dict(branch.missing)["in"].startswith(f"The experts of {branch.site} read only")
        elif isinstance(maker, str) and branch.site.kind == "mlp":
            assert dict(branch.missing)["in"].startswith(f"{branch.site} is made by more than one linear map")
        else:
            assert branch.missing == ()
            assert {read.part for read in branch.parts} & {"in", "gate"}
