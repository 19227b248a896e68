"""Prompts that fail are rows with the reason; the others finish; a shard with failures can be run again."""

import pytest

import streamlens
import zoo
from streamlens import batch
from streamlens.errors import InputError, ModelError
from tiny_batch import assert_same_rows, sentences

REASONS = {
    1: ("input", "a prompt has some text; this one is empty."),
    2: ("input", "prompts are UTF-8; this line holds the byte 0xE9."),
    4: ("tokens", "A prompt has at most 64 tokens here; this one has 70."),
    5: ("tokens", "A token names one position; 'bank' is not among the tokens."),
    6: ("tokens", "A token names one position; 'bank' stands at positions 0, 2."),
}
LINES = [b"w1 bank", b"", b"caf\xe9 bank", b"river bank w3", b"bank" + b" w1" * 69, b"w1 w2", b"bank w1 bank", b"bank"]


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\n".join(LINES))
    return path


def test_each_is_a_row_with_its_reason(handle, lines, tmp_path):
    results = batch.run(lines, tmp_path / "out", model=handle, token="bank")
    prompts = results.frame("prompts")
    assert prompts["prompt_id"].tolist() == list(range(8))
    assert prompts["where"].tolist() == [f"{lines}:{n}" for n in range(1, 9)]
    failed = prompts[prompts["status"] == "failed"]
    assert failed["prompt_id"].tolist() == list(REASONS)
    for row in failed.to_dict("records"):
        stage, reason = REASONS[row["prompt_id"]]
        assert row["stage"] == stage
        assert row["reason"].startswith(reason)
    assert results.frame("writes")["prompt_id"].unique().tolist() == [0, 3, 7]
    assert results.complete


@pytest.fixture
def raising(tiny):
    """A model that raises on every batch that holds the word w7, until it is mended."""
    own = streamlens.load(tiny)
    embedding = own.model.get_input_embeddings()
    state = {"mended": False}

    def refuse(_module, args):
        if not state["mended"] and (args[0] == own.token_id("w7")).any():
            raise RuntimeError("out of\nmemory")

    handle = embedding.register_forward_pre_hook(refuse)
    yield own, state
    handle.remove()


def test_a_model_that_raises_fails_the_prompt_and_not_its_batch(raising, handle, tmp_path):
    own, state = raising
    texts = ["w1 bank", "w7 bank", "w2 bank", "bank w7 w3"]
    results = batch.run(texts, tmp_path / "out", model=own, shard=2)
    failed = results.failures()
    assert failed["prompt_id"].tolist() == [1, 3]
    assert failed["stage"].tolist() == ["model", "model"]
    assert failed["reason"].tolist() == ["RuntimeError: out of memory"] * 2
    assert results.frame("writes")["prompt_id"].unique().tolist() == [0, 2]

    state["mended"] = True
    counts = []
    again = batch.run(texts, tmp_path / "out", model=own, shard=2, progress=lambda t: counts.append(t.to_dict()))
    assert len(again.failures()) == 2  # what is stored is not computed again
    assert [(count["done"], count["failed"]) for count in counts] == [(4, 2)]
    retried = batch.run(texts, tmp_path / "out", model=own, shard=2, start="retry-failed")
    assert len(retried.failures()) == 0
    clean = batch.run(texts, tmp_path / "clean", model=handle, shard=2)
    assert_same_rows(retried.path, clean.path)


def test_retrying_leaves_shards_without_failures_alone(raising, tmp_path):
    own, state = raising
    texts = ["w1", "w2", "w7 w3", "w4 w5"]
    results = batch.run(texts, tmp_path / "out", model=own, shard=2)
    before = {path: path.stat().st_ino for path in results.files("writes")}
    state["mended"] = True
    after = batch.run(texts, tmp_path / "out", model=own, shard=2, start="retry-failed").files("writes")
    assert [path.stat().st_ino == before[path] for path in after] == [True, False]
    assert list((tmp_path / "out" / ".partial").iterdir()) == []


class TestRefused:
    """What can not work for any prompt is an error before anything is stored."""

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"analysis": "paths"}, r"An analysis is one of writes, logits, .*; got 'paths'\."),
            ({"analysis": "ablations", "token": "bank"}, "ablations asks a reader; name a token to be read: --for."),
            (
                {"analysis": "ablations", "wanted": "river"},
                "runs every named token by itself; name them: --token.",
            ),
            ({"wanted": ["river", "water"], "against": "money"}, "once for each --for, or not at all; got 2 and 1."),
            ({"wanted": "two words"}, "A reader's token is one token; 'two words' is 2"),
            (
                {"token": "bank", "token_column": "at"},
                "one token for all prompts, --token-column one for each; got both.",
            ),
            ({"workers": 0}, "with at least one worker"),
            ({"workers": 2, "model": "object"}, "this one was handed over as an object."),
            ({"mean": "tokens"}, "A mean is taken by role or layer; got 'tokens'."),
            ({"shard": 0}, "--shard is at least 1; got 0."),
            ({"stream": "encoder"}, "has the stream .*; got 'encoder'"),
        ],
    )
    def test_settings_that_do_not_fit(self, handle, tmp_path, options, error):
        model = streamlens.load(zoo.build("llama")) if options.pop("model", None) else handle
        with pytest.raises(streamlens.StreamlensError, match=error):
            batch.run(["bank"], tmp_path / "out", model=model, **options)
        assert not list(tmp_path.glob("out/shard-*"))

    def test_no_prompt(self, handle, tmp_path):
        with pytest.raises(InputError, match="at least one prompt; got none"):
            batch.run([], tmp_path / "out", model=handle)

    def test_a_model_without_logits(self, tmp_path):
        encoder = streamlens.load("minilm-l6")
        for options in ({"analysis": "logits"}, {"wanted": " river"}):
            with pytest.raises(ModelError, match=r"reads .*logit"):
                batch.run(["bank"], tmp_path / "out", model=encoder, **options)

    def test_an_encoder_decoders_decoder(self, tmp_path):
        from tiny_batch import save_tiny

        own = streamlens.load(save_tiny(tmp_path / "t5", "t5"))
        with pytest.raises(InputError, match="its decoder's stream holds none of their tokens"):
            batch.run(["bank"], tmp_path / "out", model=own)
        results = batch.run(sentences(3), tmp_path / "out", model=own, stream="encoder")
        assert results.frame("prompts")["closure"].max() < 1e-5
