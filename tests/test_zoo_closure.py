"""Every architecture of the zoo: its books close at every level, or it is refused with the reason.

Each claim is held against what the test's own hooks and the model's plain forward show, not against what the package
says about itself.
"""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
import zoo_books
from closeness import assert_close, relative
from model_state import state_of
from streamlens import Ledger, Reader
from streamlens.errors import InputError, ModelError, WiringError
from zoo_books import is_one_sentence
from zoo_expected import (
    CARRIED_ON,
    CLOSES,
    CLOSING,
    END_FACTOR,
    HEADS,
    INEXACT,
    LABELLED,
    NO_HEADS,
    SEES_PADDING,
    UNSEEN_HEAD,
)
from zoo_watch import first_tensor, hooks_on, zeroed

pytestmark = pytest.mark.usefixtures("quiet_transformers")


class Case(zoo_books.Books):
    """One stream of one model, by its label."""

    def __init__(self, label: str) -> None:
        super().__init__(*LABELLED[label])
        self.label = label

    @property
    def tokens(self) -> Tensor:
        """The tokens of this stream."""
        return self.given["decoder_input_ids"] if self.stream == "decoder" else self.ids

    def batch_first(self, tensor: Tensor) -> Tensor:
        """[pos, batch, width] turned round, and cut to the tokens: some streams are padded at their end."""
        batch, length = self.tokens.shape
        return (tensor if tensor.shape[0] == batch else tensor.transpose(0, 1))[:, :length]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


every_stream = pytest.mark.parametrize("case", CLOSING, indirect=True)


@every_stream
def test_the_writes_sum_to_the_stream(case: Case) -> None:
    assert float(case.ledger.closure.max()) < CLOSES
    assert_close(case.ledger.writes.sum(0, dtype=torch.float64), case.ledger.stream)
    assert case.wiring.exact == (case.label not in INEXACT)
    assert case.ledger.in_order == 0.0 or case.label in INEXACT
    assert (case.entry.streams, case.wiring.d_model) == (1, case.ledger.stream.shape[-1])


@every_stream
def test_the_middle_of_the_stream(case: Case) -> None:
    for label in case.ledger.labels:
        assert float(case.ledger.at(label).closure.max()) < CLOSES, label
    _, seen = _watched(case)
    assert len(seen) == case.wiring.n_layers
    # what a block receives is what the one before handed on, but for models that rescale the stream between two
    real = [stream for stream, _ in seen[1:]] + [case.ledger.stream]
    for layer, stream in enumerate(real):
        for site in [site for site in case.ledger.sites if site.layer == layer][-1:]:
            found = case.ledger.at(site).stream
            assert _same(case, found, stream) != (case.entry.name in CARRIED_ON and layer + 1 < len(real)), site
    end = seen[-1][1] * END_FACTOR.get(case.entry.name, 1.0)
    assert _same(case, case.ledger.stream, end)


def _same(case: Case, found: Tensor, wanted: Tensor) -> bool:
    """Bit for bit, or up to roundings where the model's own order of additions is not repeated exactly."""
    return torch.equal(found, wanted) if case.wiring.exact else relative(found, wanted) < CLOSES


def _watched(case: Case) -> tuple[Ledger, list[tuple[Tensor, Tensor]]]:
    """A ledger; and what each block was called with and handed on meanwhile, in the order of the calls."""
    seen: list[tuple[Tensor, Tensor]] = []
    entered: list[list[Tensor]] = []

    def before(_module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        tensors = [t for t in [*args, *kwargs.values()] if isinstance(t, Tensor) and t.is_floating_point()]
        entered.append([t.clone() for t in tensors])

    def after(_module: nn.Module, _args: tuple, _kwargs: dict[str, Any], output: Any) -> None:
        made = first_tensor(output).clone()
        stream = next(t for t in entered.pop() if t.shape == made.shape)
        seen.append((case.batch_first(stream), case.batch_first(made)))

    with hooks_on(*case.model.get_submodule(case.wiring.blocks), before=before, after=after):
        return case.decompose(), seen


@every_stream
def test_a_token_stands_at_its_own_position(case: Case) -> None:
    """The embedding's row changes where the token changed, and nowhere else."""
    changed = case.tokens.clone()
    changed[:, -1] = (changed[:, -1] + 7) % 60 + 5
    if case.stream == "decoder":
        other = case.decompose(decoder_input_ids=changed)
    else:
        other = case.decompose(changed)
    moved = (other.added[0] != case.ledger.added[0]).any(-1)
    assert moved[:, -1].all()
    assert not moved[:, :-1].any()


@every_stream
def test_the_logits_in_parts(case: Case) -> None:
    if case.wiring.head is not None:
        readout, wanted = case.readout, case.logits[..., zoo_books.TOKENS]
        assert relative(readout.total, wanted) < zoo_books.REBUILDS
        assert relative(readout.observed, wanted) < zoo_books.REBUILDS
        rows = {site.label for site in readout.sites} - set(case.ledger.labels)
        config = case.model.config.get_text_config()
        caps = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
        assert ("softcap" in rows) == any(getattr(config, name, None) for name in caps)
        return
    assert is_one_sentence(case.wiring.no_head)
    if case.stream == "encoder":  # the handle's head is the decoder's
        return
    with pytest.raises(ModelError) as refused:
        Reader.logits(case.handle, zoo_books.TOKENS)
    assert refused.value.message == f"{case.handle.name} has no linear head. {case.wiring.no_head}"
    assert "Reader.direction(vector)" in refused.value.hint
    assert ("no logits" in case.wiring.no_head) == (case.logits is None)
    if case.logits is not None:
        assert _is_nonlinear(case) != (case.entry.name in UNSEEN_HEAD)


def _is_nonlinear(case: Case) -> bool:
    """Whether least squares finds no matrix and bias from the normed final stream to the logits."""
    given = zoo.inputs(case.entry, batch=6, length=15, seed=9)
    with torch.no_grad():
        logits = case.model(**given, **zoo_books.no_cache(case.entry)).logits
    ledger = case.decompose(given.pop("input_ids"), **given)
    hidden = ledger.stream if ledger.normed is None else ledger.normed
    columns = torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1).flatten(0, 1).double()
    wanted = logits.flatten(0, 1).double()
    return relative(columns @ torch.linalg.lstsq(columns, wanted).solution, wanted) > 1e-3


@every_stream
def test_heads_sum_to_their_write(case: Case) -> None:
    attention = [site for site in case.ledger.sites if site.kind in ("attn", "cross_attn") and not site.part]
    ledger = case.at_level("head")
    if case.label in NO_HEADS or not attention:
        assert isinstance(ledger, InputError | WiringError)
        reason = "neither of one linear module nor of routed experts" if attention else "and this model has none"
        assert reason in ledger.message
        return
    assert isinstance(ledger, Ledger)
    _require_parts(case, ledger)
    assert set(ledger.split_error) == {site.label for site in attention}
    counts: set[int] = set()
    for site in attention:
        heads = [s.head for s in ledger.sites if s.sublayer == site and s.head is not None]
        assert heads == list(range(len(heads)))
        counts.add(len(heads))
    assert counts == HEADS.get(case.entry.name, {4})


@every_stream
@pytest.mark.parametrize("level", ["source", "neuron"])
def test_finer_parts_sum_to_their_write(case: Case, level: str) -> None:
    ledger = case.at_level(level)
    if not isinstance(ledger, Ledger):  # which ones, and with which words, is held by the page
        assert isinstance(ledger, InputError | WiringError)
        return
    _require_parts(case, ledger)
    if level == "source":
        _require_attention(ledger)


def _require_parts(case: Case, ledger: Ledger) -> None:
    """The parts of every write that was split sum to it, and the other rows are as they were."""
    assert float(ledger.closure.max()) < CLOSES
    assert max(ledger.split_error.values()) < CLOSES
    for site in dict.fromkeys(s.sublayer for s in case.ledger.sites):
        parts = [row for row, s in enumerate(ledger.sites) if s.sublayer == site]
        whole = [row for row, s in enumerate(case.ledger.sites) if s.sublayer == site]
        wanted = case.ledger.added[whole].sum(0, dtype=torch.float64)
        found = ledger.added[parts].sum(0, dtype=torch.float64)
        assert float((found - wanted).norm()) <= CLOSES * float(wanted.norm()), site
        assert len(parts) == len(whole) or site.label in ledger.split_error


def _require_attention(ledger: Ledger) -> None:
    """Probabilities: none is negative, and no head gives more than 1 away."""
    given: dict[tuple, Tensor] = {}
    for row, site in enumerate(ledger.sites):
        if site.source is not None:
            assert (ledger.attention[row] >= 0).all()
            key = site.sublayer, site.head
            given[key] = given.get(key, 0) + ledger.attention[row]
        else:
            assert ledger.attention[row].isnan().all()
    assert all((total <= 1 + 1e-5).all() for total in given.values())


@every_stream
def test_zeroing_a_write_is_removing_it(case: Case) -> None:
    """The test's own hook zeroes what a module hands on; the books of that run have no such write."""
    for row in _sample(case):
        write = case.wiring.writes[row]
        with zeroed(case.model.get_submodule(write.tap.module), write.tap.call):
            ledger, seen = _watched(case)
        label = f"{write.site} at {write.tap}"
        assert ledger.sites == case.ledger.sites
        assert not ledger.added[row].any(), label
        assert case.ledger.added[row].any(-1).all() or case.entry.name == "mra"
        assert torch.equal(ledger.added[:row], case.ledger.added[:row]), label
        assert float(ledger.closure.max()) < CLOSES, label
        assert_close(ledger.writes.sum(0, dtype=torch.float64), ledger.stream)
        assert _same(case, ledger.stream, seen[-1][1] * END_FACTOR.get(case.entry.name, 1.0)), label
        if row == max(r for r, w in enumerate(case.wiring.writes) if w.tap is not None) and not case.wiring.norms:
            assert_close(ledger.stream, case.ledger.stream - case.ledger.writes[row])


def _sample(case: Case) -> list[int]:
    """The first write of each kind from block 1 on, and the last of all."""
    first: dict[str, int] = {}
    last = 0
    for row, write in enumerate(case.wiring.writes):
        if write.tap is not None and write.site.layer is not None:
            last = row
            if write.site.layer > 0:
                first.setdefault(write.site.kind, row)
    return sorted({*first.values(), last})


LENGTHS, TARGETS = (7, 5, 3), (5, 3, 2)


@every_stream
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_invisible(case: Case, side: str) -> None:
    given = zoo.inputs(case.entry, batch=3, length=max(LENGTHS), seed=8)
    ids, target = given["input_ids"], given.get("decoder_input_ids")
    padded, mask = _padded(ids, LENGTHS, side)
    options: dict[str, Any] = {"attention_mask": mask}
    if target is not None:
        rows, seen = _padded(target, TARGETS, side)
        options |= {"decoder_input_ids": rows, "decoder_attention_mask": seen}
    if case.entry.name in SEES_PADDING:
        assert _leaks(case, ids, padded, mask)
        with pytest.raises(InputError, match="sees the padding of a batch") as refused:
            case.decompose(padded, **options)
        assert is_one_sentence(refused.value.message)
        assert refused.value.hint == "Run the prompts one by one."
        return
    together = case.decompose(padded, **options)
    for prompt, length in enumerate(LENGTHS):
        alone_options: dict[str, Any] = {}
        if target is not None:
            alone_options["decoder_input_ids"] = target[prompt : prompt + 1, : TARGETS[prompt]]
        alone = case.decompose(ids[prompt : prompt + 1, :length], **alone_options)
        own = together.mask[prompt]
        assert int(own.sum()) == alone.stream.shape[1]
        for what in ("stream", "added", "writes", "normed", "logits"):
            wanted, found = getattr(alone, what), getattr(together, what)
            if wanted is not None:
                rows = found[:, prompt][:, own] if found.dim() == 4 else found[prompt][own]
                wanted = wanted[:, 0] if wanted.dim() == 4 else wanted[0]
                assert relative(rows, wanted) < 1e-4, f"{what} of prompt {prompt}"
        assert together.indices[prompt][own].tolist() == list(range(alone.stream.shape[1]))


def _padded(ids: Tensor, lengths: tuple[int, ...], side: str) -> tuple[Tensor, Tensor]:
    """Each prompt's first tokens, and zeros on one side of them; the mask."""
    padded, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        place = slice(0, length) if side == "right" else slice(ids.shape[1] - length, ids.shape[1])
        padded[row, place], mask[row, place] = ids[row, :length], 1
    return padded, mask


def _leaks(case: Case, ids: Tensor, padded: Tensor, mask: Tensor) -> bool:
    """Whether the model's own logits change with the padding beside a prompt."""
    takes = "attention_mask" in inspect.signature(case.model.forward).parameters
    with torch.no_grad():
        together = case.model(input_ids=padded, **({"attention_mask": mask} if takes else {})).logits
        alone = case.model(input_ids=ids[1:2, : LENGTHS[1]]).logits
    return relative(together[1][mask[1].bool()], alone[0]) > 1e-2


@every_stream
def test_nothing_is_left_behind(case: Case) -> None:
    for level in zoo_books.LEVELS:
        ledger = case.at_level(level)
        assert isinstance(ledger, Ledger) or is_one_sentence(ledger.message)
    after = state_of(case.model)
    assert [what for what in after if after[what] != case.before[what]] == []


@every_stream
def test_its_line_on_the_page(case: Case) -> None:
    """docs/zoo.md says what the package does: written by scripts/zoo_table.py."""
    lines = zoo_books.parse(zoo_books.PAGE.read_text())
    assert case.row.verdicts == lines[case.label], "run scripts/zoo_table.py"
