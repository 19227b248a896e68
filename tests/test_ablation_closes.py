"""Every sublayer and every head of the default model, switched off: the parts close, fast equals slow."""

import random

import pytest
import torch

from streamlens import Edit, Reader, ablate, clean_run, replay, sweep
from streamlens.sites import Site

pytestmark = pytest.mark.model

#: of the effects, in logits: 1e-3 of logits of size 20; 5e-6 measured
CLOSES = 1e-3
#: largest difference of a logit between two ways to run the same thing; 6e-5 measured
SAME_RUN = 1e-3
#: where the edits act: the last token, and one in the middle whose change reaches it through attention alone
PLACES = (" bank", 3)
OVER = ("sublayers", "heads")


@pytest.fixture(scope="module")
def reader(default_model):
    return Reader.logit_diff(default_model, " river", " money")


@pytest.fixture(scope="module")
def clean(default_model, bank):
    return clean_run(default_model, bank)


@pytest.fixture(scope="module", params=PLACES)
def place(request):
    return request.param


@pytest.fixture(scope="module")
def swept(default_model, clean, reader, place):
    """Both sweeps at one place, read at the last token, without and with everything else frozen."""
    return {
        (over, freeze): sweep(
            default_model, clean, over=over, position=place, readers=reader, read_at=-1, freeze=freeze
        )
        for over in OVER
        for freeze in (None, "all")
    }


def runs(made):
    """Every variant of a sweep: its text, the ledger of its batch, and its number there."""
    for part in made.parts:
        for number, variant in enumerate(part.variants):
            yield variant, part, number


@pytest.mark.parametrize(("over", "count"), [("sublayers", 60), ("heads", 270)])
class TestEveryOne:
    def test_the_parts_sum_to_the_observed_change(self, swept, over, count):
        frame = swept[over, None].effects()
        assert len(frame) == count
        assert frame["closure"].max() < CLOSES
        sums = frame[["direct", "indirect", "rescale", "carry", "softcap"]].sum(axis=1)
        assert (sums - frame["observed"]).abs().max() < CLOSES
        assert (frame["observed"].abs() > 0.01).sum() > count // 4  # a positive control: something happens
        assert not frame["carry"].any()

    def test_what_was_written_before_is_the_same_to_the_last_bit(self, swept, over, count):
        for variant, part, number in runs(swept[over, None]):
            row = part.clean.sites.index(Site.parse(variant.partition("@")[0]).sublayer)
            assert torch.equal(part.ablated.added[:row, number], part.clean.added[:row, 0]), variant
            reaches = part.clean.sites[row].layer < 29 or variant.endswith("@bank")  # attention alone moves tokens
            assert torch.equal(part.ablated.added[row:, number], part.clean.added[row:, 0]) != reaches, variant

    def test_with_all_later_writes_frozen_nothing_responds(self, swept, over, count):
        frame = swept[over, "all"].effects()
        assert len(frame) == count
        assert (frame["indirect"] == 0.0).all()
        assert (frame["total"] == frame["direct"] + frame["rescale"]).all()
        assert frame["closure"].max() < CLOSES
        exact = swept[over, None].effects()
        assert (frame["direct"] - exact["direct"]).abs().max() < CLOSES

    def test_the_matrix_of_responses_is_strictly_upper_triangular_in_time(self, swept, reader, over, count):
        matrix = swept[over, None].responses(reader)
        assert matrix.shape == (count, 61)
        columns = list(matrix.columns)
        for variant in matrix.index:
            before = columns[: columns.index(Site.parse(variant.partition("@")[0]).sublayer.label)]
            assert (matrix.loc[variant, before] == 0.0).all(), variant
        effects = swept[over, None].effects().set_index("variant")
        assert (matrix.sum(axis=1) - effects["direct"] - effects["indirect"]).abs().max() < 1e-9

    def test_it_went_on_from_the_clean_keys_and_values(self, swept, over, count):
        assert swept[over, None].effects().attrs["reused"]
        assert len(swept[over, None].parts) == 1


def largest_difference(model, clean, made, variants) -> float:
    differences = []
    for variant, part, number in runs(made):
        if variant in variants:
            alone = replay(model, clean, Edit.parse(variant))
            differences.append(float((alone.logits[0, -1] - part.ablated.logits[number, -1]).abs().max()))
    assert len(differences) == len(variants)
    return max(differences)


@pytest.mark.slow
def test_every_sublayer_alone_gives_the_same(default_model, clean, swept):
    made = swept["sublayers", None]
    assert largest_difference(default_model, clean, made, made.variants) < SAME_RUN


@pytest.mark.slow
def test_forty_heads_and_the_extreme_ones_alone_give_the_same(default_model, clean, swept):
    """A seeded sample of 40, the 5 with the largest effect either way, and the first and last head."""
    made = swept["heads", None]
    order = made.effects().sort_values("observed")["variant"].tolist()
    chosen = {*random.Random(0).sample(made.variants, 40), *order[:5], *order[-5:], made.variants[0], made.variants[-1]}
    assert largest_difference(default_model, clean, made, chosen) < SAME_RUN


@pytest.mark.slow
def test_a_long_prompt_at_every_position(default_model, reader):
    """128 tokens, more variants than one batch takes; some of them beside their own full run."""
    ids = torch.randint(1000, 20000, (1, 128), generator=torch.Generator().manual_seed(0))
    labels = [f"L{layer}.{kind}" for layer in range(29, 12, -1) for kind in ("mlp", "attn")]
    clean = clean_run(default_model, ids)
    made = sweep(default_model, clean, over=labels, readers=reader)
    assert len(made.parts) > 1
    assert made.variants == tuple(labels)
    assert made.effects()["closure"].max() < CLOSES
    assert largest_difference(default_model, clean, made, labels[::8]) < SAME_RUN


class TestKnownValues:
    """Measured by one-at-a-time reruns that share no code with this package."""

    @pytest.mark.parametrize(
        ("label", "direct", "indirect", "rescale", "total"),
        [
            ("L1.attn", 0.42, -4.29, -0.02, -3.89),
            ("L0.mlp", -0.53, 2.70, -0.18, 2.00),
            ("L27.mlp", 1.51, 0.71, -0.22, 2.00),
            ("L27.attn", -0.97, -0.99, 0.32, -1.63),
            ("L24.attn", -0.96, 1.53, 0.48, 1.05),
        ],
    )
    def test_the_table(self, default_model, clean, reader, label, direct, indirect, rescale, total):
        frame = ablate(default_model, clean, f"{label}@bank", readers=reader, position=-1).effects()
        (row,) = frame.to_dict("records")
        found = [row[name] for name in ("direct", "indirect", "rescale", "total")]
        assert found == pytest.approx([direct, indirect, rescale, total], abs=0.01)
        assert row["clean"] == pytest.approx(3.742, abs=1e-3)
        assert row["closure"] < 1e-4

    def test_the_product_in_one_line(self, default_model, bank, reader):
        ablation = ablate(default_model, bank, "L1.attn@bank", readers=reader, position=" bank")
        assert ablation.headline() == (
            "Subtracting L1.attn@bank predicts +0.42 logits; rerunning the model gives -3.89."
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_transformer_lens_gives_the_same_logits(default_model, clean):
    """Its own hooks, on a bridge over the same weights; eager attention there, hence 1e-3."""
    bridge = default_model.bridge()

    def zero(value, hook, head=None):
        value[(slice(None), -1) if head is None else (slice(None), -1, head)] = 0.0
        return value

    theirs = {
        "L1.attn": ("blocks.1.hook_attn_out", zero),
        "L0.mlp": ("blocks.0.hook_mlp_out", zero),
        "L27.mlp": ("blocks.27.hook_mlp_out", zero),
        "L9H2": ("blocks.9.attn.hook_z", lambda value, hook: zero(value, hook, head=2)),
    }
    made = sweep(default_model, clean, over=list(theirs), position=-1)
    for (name, hook), logits in zip(theirs.values(), made.parts[0].ablated.logits, strict=True):
        with torch.inference_mode():
            found = bridge.run_with_hooks(clean.ledger.token_ids, fwd_hooks=[(name, hook)])
        assert float((found[0, -1] - logits[-1]).abs().max()) < SAME_RUN, name
