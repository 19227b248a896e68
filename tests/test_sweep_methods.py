"""A sweep by mean or by resampling is one ablation each; without a reader it still says what became of the output."""

from functools import cache

import pytest

import streamlens
import zoo
from streamlens import Edit, Reader, ablate, decompose, sweep
from streamlens.errors import InputError
from streamlens.frames import SCHEMAS
from streamlens.hooks.gradients.gradient import gradients
from tiny_tokenizers import wordpiece

TEXT, OTHER = "after crossing the river bank", "the bank crossing after river"
REFERENCE = (TEXT, OTHER, "crossing the river, the river, after the river banks")
POSITION = 4


@cache
def handle(name: str):
    return streamlens.load(zoo.build(name), tokenizer=wordpiece())


def reader_of(model) -> Reader:
    return Reader.logit_diff(model, 5, 7)


@pytest.mark.parametrize("name", ["llama", "gemma2", "opt:post-norm", "jamba"])
@pytest.mark.parametrize("method", ["mean", "resample"])
@pytest.mark.parametrize("over", ["sublayers", "heads"])
def test_it_is_one_ablation_each(name: str, method: str, over: str) -> None:
    model = handle(name)
    reader = reader_of(model)
    prompts = REFERENCE if method == "mean" else OTHER
    made = sweep(model, TEXT, over=over, position=POSITION, method=method, prompts=prompts, readers=reader)
    frame = made.effects().set_index("variant")
    assert frame["closure"].max() < 1e-4
    assert frame["total"].abs().max() > 1e-4
    for variant in made.variants:
        site = variant.partition("@")[0]
        assert variant == f"{site}@{POSITION}={method}"
        edit = Edit(site, method, position=POSITION, prompts=prompts)
        one = ablate(model, TEXT, edit, readers=reader, position=POSITION).effects()
        assert frame.loc[variant, "total"] == pytest.approx(one["total"].item(), abs=1e-5)


def test_the_references_also_serve_edits_given_as_text() -> None:
    model = handle("llama")
    given = {"position": POSITION, "readers": reader_of(model), "prompts": OTHER}
    text = sweep(model, TEXT, over=["L1.attn=mean", "L1H2=resample", ["L0.mlp", "L1.mlp=mean"]], **given).effects()
    edits = [Edit(label, "mean", position=POSITION, prompts=OTHER) for label in ("L1.attn", "L1.mlp")]
    resampled = Edit("L1H2", "resample", position=POSITION, prompts=OTHER)
    zeroed = Edit("L0.mlp", position=POSITION)
    data = sweep(model, TEXT, over=[edits[0], resampled, [zeroed, edits[1]]], **given).effects()
    assert text["total"].tolist() == data["total"].tolist()


@pytest.mark.parametrize("estimate", [None, "gradient"])
def test_a_reference_runs_once_for_all_variants(estimate: str | None) -> None:
    model = handle("llama")
    calls = []
    hook = model.model.register_forward_pre_hook(lambda *_: calls.append(1))
    sweep(model, TEXT, method="mean", prompts=REFERENCE, readers=reader_of(model), estimate=estimate)
    hook.remove()
    assert len(calls) == 3  # the clean run; the reference; the variants, or the run with a graph


def test_an_estimate_of_a_mean_is_gradient_times_its_change() -> None:
    model = handle("gemma2")
    reader = reader_of(model)
    given = {"position": POSITION, "readers": reader, "method": "mean", "prompts": REFERENCE}
    guess = sweep(model, TEXT, estimate="gradient", **given).effects().set_index("variant")["estimate"]
    gradient, clean, reference = (
        gradients(model, TEXT, reader, POSITION),
        decompose(model, TEXT),
        decompose(model, REFERENCE),
    )
    for label in ("L0.attn", "L1.mlp"):
        row = clean.labels.index(label)
        mean = reference.added[row][reference.mask & ~reference.sinks].double().mean(0)
        change = mean - clean.added[row, 0, POSITION].double()
        by_hand = float(gradient[row][0, POSITION] @ change)
        assert guess[f"{label}@{POSITION}=mean"] == pytest.approx(by_hand, rel=1e-4, abs=1e-6)


def test_several_positions_at_once() -> None:
    model = handle("llama")
    made = sweep(model, TEXT, position=[2, 4], read_at=POSITION, readers=reader_of(model))
    assert made.variants[0] == "L0.attn@2,4"
    one = ablate(model, TEXT, Edit("L0.attn", position=[2, 4]), readers=reader_of(model), position=POSITION)
    assert made.effects()["total"][0] == pytest.approx(one.effects()["total"].item(), abs=1e-5)


class TestWithoutAReader:
    MISSING = ("clean", "direct", "indirect", "rescale", "carry", "softcap", "total", "observed", "closure")

    def test_the_output_is_what_changes(self):
        model = handle("llama")
        frame = sweep(model, TEXT, position=POSITION).effects()
        assert {c: str(t) for c, t in frame.dtypes.items()} == {c: t for c, (t, _) in SCHEMAS["effects"].items()}
        assert len(frame) == 6
        assert frame["reader"].unique().tolist() == [""]
        assert frame[[*self.MISSING, "self_repair"]].isna().all(axis=None)
        read = sweep(model, TEXT, position=POSITION, readers=reader_of(model)).effects()
        for column in ("variant", "position", "token", "kl", "top_before", "top_after"):
            assert frame[column].tolist() == read[column].tolist()
        assert frame["kl"].min() > 0

    def test_one_row_for_each_position(self):
        model = handle("llama")
        frame = ablate(model, TEXT, "L1.attn@3", position=[2, 3, 4]).effects()
        assert frame["position"].tolist() == [2, 3, 4]
        assert frame["kl"][0] == 0
        assert frame["kl"][1:].min() > 0

    def test_a_model_without_logits_has_no_divergence(self):
        frame = sweep(handle("bert"), TEXT, position=POSITION).effects()
        assert frame["kl"].isna().all()
        assert set(frame["top_after"]) == {""}

    def test_there_is_no_matrix_of_responses(self):
        with pytest.raises(InputError, match="this sweep has no reader"):
            sweep(handle("llama"), TEXT).responses()


def test_responses_say_what_was_read_and_where() -> None:
    model = handle("llama")
    several = Reader.logits(model, [5, 7])
    attrs = sweep(model, TEXT, position=POSITION, readers=several).responses().attrs
    assert attrs["reader"] == several.rows[0]
    assert (attrs["unit"], attrs["position"], attrs["token"]) == ("logits", POSITION, "the")


def test_what_a_method_needs_is_said() -> None:
    model = handle("llama")
    with pytest.raises(InputError, match=r"The method 'mean' of L0.attn needs prompts="):
        sweep(model, TEXT, method="mean")
    with pytest.raises(InputError, match="'resample' takes one other prompt"):
        sweep(model, TEXT, method="resample", prompts=REFERENCE)
    with pytest.raises(InputError, match="do not align position by position"):
        sweep(model, TEXT, method="resample", prompts="the bank")
