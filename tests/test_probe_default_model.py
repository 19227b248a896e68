"""The sense of " bank" on the default model: read off after a few layers, at chance before, and not by leaks."""

import pandas as pd
import pytest
import torch

import streamlens
from streamlens import ProbeFitter, before_after, decompose, probe
from streamlens.errors import InputError
from streamlens.experiments.activations import activations
from streamlens.experiments.probe import probe_depths
from streamlens.experiments.score import score
from streamlens.frames import SCHEMAS
from streamlens.readouts.readers.probes import values_of
from streamlens.sentences import Sentence, bank_senses, split

pytestmark = pytest.mark.model

MONEY = "After depositing the money, she waited at the bank"


@pytest.fixture(scope="module")
def found(default_model):
    return probe(default_model)


@pytest.fixture(scope="module")
def logistic(found):
    """The other method on the same vectors."""
    return probe_depths(found.activations, method="logistic", shuffles=2)


@pytest.mark.slow
class TestTheSense:
    def test_it_is_read_off_held_out_sentences(self, found) -> None:
        assert float(found.accuracy.max()) >= 0.95
        assert found.best == "L6.mlp"
        assert len(found.held_out) == 80

    def test_the_logistic_probe_too(self, found, logistic) -> None:
        assert logistic.best == "L5.mlp"
        assert float(logistic.accuracy.max()) == 1.0
        assert float(logistic.accuracy[0]) == 0.5
        assert logistic.context == found.context

    def test_the_embedding_is_at_chance_exactly(self, found) -> None:
        embedded = found.activations.after("embed")
        assert (embedded == embedded[0]).all()
        assert float(found.accuracy[0]) == float(found.train_accuracy[0]) == found.chance == 0.5

    def test_shuffled_labels_stay_at_chance(self, found) -> None:
        low, high = found.interval
        assert (low, high) == (31 / 80, 49 / 80)  # of the binomial with 80 trials
        means = found.shuffled.mean(-1)
        assert ((means >= low) & (means <= high)).all()
        inside = (found.shuffled >= low) & (found.shuffled <= high)
        assert float(inside.double().mean()) > 0.85  # ten permutations, one of them the same tail at many depths

    def test_the_stream_knows_more_than_the_words(self, found) -> None:
        assert 0.8 < found.context < float(found.accuracy.max())

    def test_the_split_is_by_template(self, found) -> None:
        sentences = found.activations.sentences
        train = {sentences[n].template for n in found.train}
        assert not train & {sentences[n].template for n in found.held_out}
        assert len(found.train) + len(found.held_out) == 240

    def test_the_frame(self, found) -> None:
        frame = found.to_frame()
        assert {column: str(kind) for column, kind in frame.dtypes.items()} == {
            column: kind for column, (kind, _) in SCHEMAS["probe"].items()
        }
        assert len(frame) == 61
        assert frame["component"].tolist()[:3] == ["embed", "L0.attn", "L0.mlp"]
        assert frame.loc[14, "accuracy"] == float(found.accuracy[14])
        assert frame.attrs["token"] == " bank"

    def test_the_table_before_update_after(self, found, default_model, bank: str) -> None:
        """The numbers of the README."""
        reader = found.reader()
        for text, wanted in ((bank, {"L5.mlp": 0.565, "L6.mlp": 0.717}), (MONEY, {"L5.mlp": -0.096, "L6.mlp": -0.526})):
            steps = before_after(decompose(default_model, text, positions="bank"), reader)
            frame = steps.to_frame().set_index("component")
            assert frame.index[-2:].tolist() == ["L6.mlp", "rounding"]
            for write, update in wanted.items():
                assert frame.loc[write, "update"] == pytest.approx(update, abs=2e-3)
            assert float(steps.closure.max()) < 1e-12
            stream = decompose(default_model, text, positions="bank").at("L6.mlp").stream[0]
            assert frame["after"].iloc[-1] == pytest.approx(float(values_of(reader, stream)), abs=1e-9)
        river, money = (
            before_after(decompose(default_model, text, positions="bank"), reader).after[-1] for text in (bank, MONEY)
        )
        assert float(river) == pytest.approx(1.967, abs=2e-3)
        assert float(money) == pytest.approx(-1.178, abs=2e-3)

    def test_scoring_counts_the_same(self, found, default_model) -> None:
        held = list(found.held_out)[-16:]
        reader, sentences = found.reader("L6.mlp"), [found.activations.sentences[n] for n in held]
        scores = score(default_model, reader, sentences)
        wanted = values_of(reader, found.activations.after("L6.mlp")[held])
        torch.testing.assert_close(scores.values, wanted, rtol=1e-4, atol=1e-4)
        assert scores.accuracy["test"] == scores.accuracy["all"] == 15 / 16  # the dividend that was so high
        frame = scores.to_frame()
        assert list(frame.columns) == list(SCHEMAS["probe_scores"])
        assert (frame["predicted"] == frame["label"]).mean() == scores.accuracy["all"]
        assert ((frame["value"] > 0) == (frame["predicted"] == "river")).all()

    def test_a_probe_says_what_it_is(self, found) -> None:
        reader = found.reader("L12.mlp")
        assert (reader.name, reader.after) == ("river - money", "L12.mlp")
        assert reader.meta["token"] == " bank"
        assert float(reader.meta["accuracy"]) == pytest.approx(float(found.accuracy[26]))
        with pytest.raises(InputError, match=r"The class means are equal"):
            found.reader("embed")
        with pytest.raises(InputError, match=r"L99.mlp"):
            found.reader("L99.mlp")


@pytest.mark.slow
def test_two_coordinates_on_held_out_sentences(default_model, found, bank: str) -> None:
    """From neutral sentences, either sense has an axis of its own: the means of held-out sentences lie near them."""
    neutral = [sentence for sentence in bank_senses(neutral=True) if sentence.label == "neutral"]
    more = activations(default_model, neutral, token="bank", only="L14.mlp")
    vectors = torch.cat([found.activations.after("L14.mlp"), more.after("L14.mlp")])
    sentences = [*found.activations.sentences, *neutral]
    train, held = split(sentences)
    labels = [sentence.label for sentence in sentences]
    reader = ProbeFitter().update(vectors[train], [labels[n] for n in train]).coordinates("neutral", after="L14.mlp")
    assert reader.rows == ("money", "river")
    values = values_of(reader, vectors[held])
    for label, wanted in {"money": (1, 0), "river": (0, 1), "neutral": (0, 0)}.items():
        mean = values[[labels[n] == label for n in held]].mean(0)
        assert mean.tolist() == pytest.approx(wanted, abs=0.2)
    for text, wanted in ((bank, (0.15, 2.08)), (MONEY, (1.37, -0.03))):  # the README's
        steps = before_after(decompose(default_model, text, positions="bank"), reader)
        assert steps.after[-1, 0, 0].tolist() == pytest.approx(wanted, abs=0.01)


def few(*texts: str) -> list[Sentence]:
    return [
        Sentence(text=text, label="ab"[n % 2], where=f"few.jsonl:{n + 1}", split=("train", "test")[n > 1])
        for n, text in enumerate(texts)
    ]


TEXTS = ("They sat on the bank", "We owed it to the bank, all of it", "The bank", "She went to the old bank at noon")


def test_batches_and_lengths_do_not_matter(default_model) -> None:
    found = activations(default_model, few(*TEXTS), token="bank", batch_size=3)
    assert found.token == " bank"
    assert found.vectors.shape == (61, 4, 576)
    for n, text in enumerate(TEXTS):
        ledger = decompose(default_model, text, positions="bank")
        for write in ("embed", "L7.attn", "L29.mlp"):
            wanted = ledger.at(write).stream[0, 0]
            torch.testing.assert_close(found.after(write)[n], wanted, rtol=1e-4, atol=1e-3)
    only = activations(default_model, few(*TEXTS), token="bank", only="L7.attn")
    torch.testing.assert_close(only.vectors[0], found.after("L7.attn"), rtol=1e-4, atol=1e-3)


def test_a_causal_models_context_ends_at_the_token(default_model) -> None:
    found = activations(default_model, few(*TEXTS), token="bank")
    assert found.contexts[3] == ("She", " went", " to", " the", " old")


def test_an_encoders_context_goes_on() -> None:
    minilm = streamlens.load("minilm-l6")
    found = activations(minilm, few(*TEXTS), token="bank")
    assert {"went", "noon"} <= {text.strip() for text in found.contexts[3]}


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (("They sat on the bank", "They sat on the shore"), r"few.jsonl:2: A token names one position; 'bank' is not"),
        (("They sat on the bank", "The bank or the bank"), r"few.jsonl:2: .*'bank' stands at positions 1, 4"),
        ((), r"A probe is made of sentences; got none"),
    ],
    ids=["no token", "twice", "none"],
)
def test_a_sentence_without_one_such_token_is_named(default_model, texts, error: str) -> None:
    with pytest.raises(InputError, match=error):
        activations(default_model, few(*texts), token="bank")


def test_one_label_is_no_probe(default_model) -> None:
    alike = [sentence for sentence in few(*TEXTS) if sentence.label == "a"]
    with pytest.raises(InputError, match=r"at least two labels apart; all 2 sentences, from few.jsonl:1 on"):
        probe(default_model, alike, token="bank")
    with pytest.raises(InputError, match=r"A probe is made of sentences; got none"):
        probe(default_model, [], token="bank")


def test_a_probe_on_other_labels_and_other_numbers_of_shuffles(default_model) -> None:
    found = probe(default_model, few(*TEXTS), token="bank", shuffles=2)
    assert found.shuffled.shape == (61, 2)
    assert found.classes == ("a", "b")
    with pytest.raises(InputError, match=r"shuffles is at least 1; got 0"):
        probe(default_model, few(*TEXTS), token="bank", shuffles=0)
    with pytest.raises(InputError, match=r"method is mean_difference or logistic; got 'svm'"):
        probe(default_model, few(*TEXTS), token="bank", method="svm")


def test_scores_refuse_what_the_probe_does_not_know(default_model) -> None:
    reader = ProbeFitter().update(torch.eye(2, 576), ["a", "c"]).fit(after="L0.mlp")
    with pytest.raises(InputError, match=r"few.jsonl:2: the probe tells a, c apart; this label is 'b'"):
        score(default_model, reader, few(*TEXTS), token="bank")
    with pytest.raises(InputError, match=r"does not say which classes"):
        score(default_model, streamlens.Reader.direction(torch.ones(576)), few(*TEXTS), token="bank")


def test_the_frames_survive_parquet(default_model, tmp_path, bank: str) -> None:
    reader = ProbeFitter().update(torch.eye(2, 576), ["a", "b"]).fit(after="L0.mlp")
    frame = before_after(decompose(default_model, bank), reader).to_frame()
    frame.to_parquet(tmp_path / "x.parquet")
    back = pd.read_parquet(tmp_path / "x.parquet")
    assert list(back.columns) == list(SCHEMAS["steps"])
    assert len(back) == 4 * 10
