"""A batch's numbers are those of its prompts alone, for mixed lengths, in the columns of the committed schema."""

import hashlib
import json

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import streamlens
from streamlens import Reader, batch, decompose, read
from streamlens.batch.schemas import TABLES, VERSION, schema_of
from streamlens.errors import InputError
from tiny_batch import sentences

READ = {"wanted": ["river", "water"], "against": ["money", ""]}
LENGTHS = [
    "The bank",
    "After crossing the river, she rested on the bank",
    "He paid the money into the bank",
    "When the flood came, the boats that had been tied to the old wall were carried over the bank",
    "They walked along the bank",
]


def close(found, wanted, *, relative: float = 1e-5) -> None:
    """Equal within a share of the largest value of the prompt's column, and missing at the same places."""
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    assert (np.isnan(found) == np.isnan(wanted)).all()
    found, wanted = np.nan_to_num(found), np.nan_to_num(wanted)
    assert np.abs(found - wanted).max() <= relative * np.abs(wanted).max()


@pytest.mark.parametrize("model", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.model), "minilm-l6"])
@pytest.mark.parametrize("memory", [1, 256], ids=["small batches", "one batch"])
def test_mixed_lengths_equal_single_prompts(model, memory, handle, default_model, tmp_path):
    own = {"tiny": handle, "smollm2-135m": default_model}.get(model) or streamlens.load(model)
    texts = sentences(9) if model == "tiny" else LENGTHS
    heads = own.wiring.head is not None
    wanted, against = (" river", " money") if model != "tiny" else ("river", "money")
    readers = [Reader.direction(np.cos(np.arange(own.wiring.d_model)).tolist(), norm="final" if heads else "none")]
    readers += [Reader.logit_diff(own, wanted, against)] if heads else []
    results = batch.run(texts, tmp_path / "out", model=own, readers=readers, memory=memory)
    assert results.complete
    assert len(results.failures()) == 0
    writes, readouts = results.frame("writes"), results.frame("readout")
    for number, text in enumerate(texts):
        alone = decompose(own, text)
        expected, rows = alone.to_frame(), writes[writes["prompt_id"] == number]
        assert rows["component"].astype(str).tolist() == expected["component"].astype(str).tolist()
        for name in ("position", "token_id", "token", "special", "sink"):
            assert rows[name].tolist() == expected[name].tolist()
        body = (expected["component"] != "rounding").to_numpy()
        for name in ("norm", "share", "cosine", "stream_norm"):
            close(rows[name][body], expected[name][body])
        for reader in readers:
            mine = readouts[(readouts["prompt_id"] == number) & (readouts["reader"] == reader.name)]
            expected = read(alone, reader).to_frame()
            assert mine["component"].astype(str).tolist() == expected["component"].astype(str).tolist()
            close(mine["contribution"], expected["contribution"])
    prompts = results.frame("prompts")
    assert prompts["closure"].max() < 1e-5
    assert prompts["in_order"].max() == 0
    assert prompts["readout_closure"].max() < 1e-3


@pytest.fixture(scope="module")
def results(handle, tmp_path_factory):
    """All analyses of tiny prompts at "bank" and the last token."""
    folder = tmp_path_factory.mktemp("batch") / "out"
    options = {"analysis": ["writes", "logits", "ablations"], "token": ["bank", -1], "top": 3, "shard": 4}
    return batch.run(sentences(10), folder, model=handle, **READ, **options)


class TestTables:
    def test_every_file_has_the_committed_schema(self, results):
        assert results.tables == ("writes", "readout", "logits", "effects", "prompts")
        for table in results.tables:
            assert len(results.files(table)) == 3
            for path in results.files(table):
                schema = pq.read_schema(path)
                assert schema.remove_metadata().equals(schema_of(table).remove_metadata())
                assert {field.name: field.metadata[b"meaning"].decode() for field in schema} == {
                    name: meaning for name, (_, meaning) in TABLES[table].items()
                }
                about = json.loads(schema.metadata[b"streamlens"])
                assert (about["table"], about["version"], about["key"]) == (table, VERSION, results.manifest["key"])
                assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"

    def test_a_column_that_changes_raises_the_version(self):
        text = json.dumps({t: {c: k for c, (k, _) in columns.items()} for t, columns in TABLES.items()}, sort_keys=True)
        assert (VERSION, hashlib.sha256(text.encode()).hexdigest()[:12]) == (1, "5941a40b2012")

    def test_nothing_is_doubled_and_nothing_missing(self, results):
        frame = results.frame("readout")
        keys = frame.groupby(["prompt_id", "role", "reader"], observed=True).size()
        assert len(keys) == 10 * 2 * 2
        assert keys.unique().tolist() == [8]  # embed, six sublayers, rounding
        assert len(results.frame("writes")) == 10 * 2 * 8
        assert len(results.frame("effects")) == 10 * 2 * 2 * 6
        assert len(results.frame("logits")) == 10 * 2 * 3

    def test_the_writes_and_the_rounding_sum_to_the_stream(self, results):
        frame = results.frame("writes").groupby(["prompt_id", "role"], observed=True)
        assert frame["share"].sum().to_numpy() == pytest.approx(1, abs=1e-5)

    def test_effects_are_those_of_a_sweep(self, results, handle):
        text, frame = sentences(10)[7], results.frame("effects")
        reader = Reader.logits(handle, ["water"])
        expected = streamlens.sweep(handle, text, position="bank", readers=reader).effects()
        rows = frame[(frame["prompt_id"] == 7) & (frame["role"] == "bank") & (frame["reader"] == reader.rows[0])]
        assert rows["component"].tolist() == ["L0.attn", "L0.mlp", "L1.attn", "L1.mlp", "L2.attn", "L2.mlp"]
        for name in ("direct", "indirect", "rescale", "total", "observed", "clean", "kl"):
            assert rows[name].to_numpy() == pytest.approx(expected[name].to_numpy(), abs=1e-9)
        assert results.frame("effects")["closure"].max() < 1e-4

    def test_logits_are_the_models_own(self, results, handle):
        ledger = decompose(handle, sentences(10)[3], positions=-1)
        rows = results.frame("logits", where=(pc.field("prompt_id") == 3) & (pc.field("role") == "-1"))
        best = ledger.logits[0, 0].topk(3)
        assert rows["top_token_id"].tolist() == best.indices.tolist()
        assert rows["top_token"].tolist() == list(handle.token_texts(best.indices.tolist()))
        close(rows["logit"], best.values)
        close(rows["probability"], ledger.logits[0, 0].softmax(-1)[best.indices])

    def test_frames_are_read_in_part(self, results):
        frame = results.frame(
            "readout", columns=["component", "contribution"], where=pc.field("component") == "L1.attn"
        )
        assert list(frame.columns) == ["component", "contribution"]
        assert set(frame["component"]) == {"L1.attn"}
        assert str(results.frame("writes")["layer"].dtype) == "Int16"
        assert results.frame("writes")["component"].cat.categories.tolist()[:3] == ["embed", "L0.attn", "L0.mlp"]
        with pytest.raises(InputError, match=r"has the tables writes, .*; got 'paths'\."):
            results.frame("paths")

    def test_duckdb_reads_the_same_files(self, results):
        import duckdb

        found = duckdb.sql(
            f"select component, avg(contribution) as mean from '{results.path}/*/readout.parquet' "
            "where role = 'bank' group by component"
        ).df()
        frame = results.frame("readout")
        wanted = frame[frame["role"] == "bank"].groupby("component", observed=True)["contribution"].mean()
        assert len(found) == 8
        for component, mean in zip(found["component"], found["mean"], strict=True):
            assert mean == pytest.approx(wanted[component], rel=1e-5, abs=1e-7)


class TestMeans:
    @pytest.mark.parametrize("by", ["role", "layer"])
    def test_they_are_the_means_of_the_rows(self, handle, tmp_path, by, results):
        options = {"analysis": ["writes", "logits", "ablations"], "token": ["bank", -1], "top": 3, "shard": 4}
        found = batch.run(sentences(10), tmp_path / "out", model=handle, mean=by, **READ, **options)
        assert found.tables == ("means", "prompts")
        means = found.frame("means")
        rows = results.frame("readout").assign(layer=lambda frame: frame["layer"].fillna(-1))
        means["layer"] = means["layer"].fillna(-1)
        keys = ["role", "reader", "component" if by == "role" else "kind", "layer"]
        wanted = rows.groupby(keys, observed=True, dropna=False)["contribution"].agg(["count", "mean", "std"])
        mine = means[means["table"] == "readout"].set_index(keys)
        assert len(mine) == len(wanted)
        mine = mine.loc[wanted.index]
        assert mine["n"].tolist() == wanted["count"].tolist()
        assert mine["mean"].to_numpy() == pytest.approx(wanted["mean"].to_numpy(), rel=1e-5, abs=1e-7)
        assert mine["std"].to_numpy() == pytest.approx(wanted["std"].to_numpy(), rel=1e-3)
        totals = means[(means["table"] == "effects") & (means["measure"] == "total")]
        assert totals["n"].sum() == len(results.frame("effects"))

    def test_sinks_are_averaged_by_themselves(self, default_model, bank, tmp_path):
        means = batch.run([bank, "The bank was closed"], tmp_path / "out", model=default_model, mean="role")
        frame = means.frame("means", where=pc.field("measure") == "stream_norm")
        last = frame[frame["component"] == "L29.mlp"].set_index("role")
        assert last.loc["first", "sink"]
        assert last.loc["first", "mean"] > 4 * last.loc["last", "mean"]
        assert not last.loc[["between", "last"], "sink"].any()


class TestTokens:
    def test_a_column_names_each_prompts_token(self, handle, tmp_path):
        rows = [{"text": "w1 river w2", "at": "river"}, {"text": "money w3", "at": -1}, {"text": "w1 w2", "at": "0"}]
        found = batch.run(rows, tmp_path / "out", model=handle, token_column="at").frame("writes")
        tokens = found.drop_duplicates("prompt_id")
        assert tokens["token"].tolist() == ["river", "w3", "w1"]
        assert set(tokens["role"]) == {"own"}

    def test_without_a_selector_every_token_has_a_role(self, handle, tmp_path):
        found = batch.run(["w1 w2 w3", "w4"], tmp_path / "out", model=handle).frame("writes")
        tokens = found.drop_duplicates(["prompt_id", "position"])
        assert tokens["role"].tolist() == ["first", "between", "last", "last"]


def test_a_model_that_sees_padding_gets_prompts_of_one_length(tmp_path):
    import zoo
    from streamlens.batch.settings import Settings
    from streamlens.batch.shard import Runner
    from streamlens.batch.work import Item

    own = streamlens.load(zoo.build("llama"))
    items = [Item(n, "", "x", tokens) for n, tokens in enumerate([3, 5, 3, 4, 4, 3])]
    lengths = {}
    for equal in (True, False):
        runner = Runner(model=own, settings=Settings(), readers=(), equal=equal, key="")
        lengths[equal] = [[item.tokens for item in batch] for batch in runner.batches(items)]
    assert lengths[True] == [[3, 3, 3], [4, 4], [5]]
    assert lengths[False] == [[3, 3, 3, 4, 4, 5]]


def test_a_frame_of_nothing_stored_is_empty(handle, tmp_path):
    results = batch.run(["[PAD]"], tmp_path / "out", model=handle, token="bank")
    assert isinstance(results.frame("writes"), pd.DataFrame)
    assert len(results.frame("writes")) == 0
    assert results.failures()["reason"].tolist() == [
        "A token names one position; 'bank' is not among the tokens. Tokens: 0:'[PAD]'"
    ]


@pytest.fixture(scope="module")
def others(handle, tmp_path_factory):
    options = {"analysis": ["visibility", "backward"], "token": "bank", "mode": "finite"}
    return batch.run(sentences(5), tmp_path_factory.mktemp("others") / "out", model=handle, **READ, **options)


class TestOtherAnalyses:
    """`visibility` and `backward` are those of the prompt alone."""

    def test_visibility(self, others, handle):
        assert len(others.failures()) == 0
        frame = others.frame("visibility")
        assert len(frame) == 5 * 2 * 7
        reader = Reader.logit_diff(handle, "river", "money")
        for number, text in enumerate(sentences(5)):
            expected = streamlens.visibility(decompose(handle, text, positions="bank"), reader, "finite").to_frame()
            rows = frame[(frame["prompt_id"] == number) & (frame["reader"] == reader.name)]
            assert rows["mode"].unique().tolist() == ["finite"]
            for name in ("norm", "row_norm", "visible_share", "chance", "gain", "change", "rescale"):
                close(rows[name], expected[name])

    def test_backward(self, others, handle):
        frame = others.frame("backward")
        assert frame["closure"].max() < 1e-5
        reader, text = Reader.logits(handle, ["water"]), sentences(5)[2]
        expected = streamlens.backward(handle, text, reader, "bank").to_frame()
        rows = frame[(frame["prompt_id"] == 2) & (frame["reader"] == reader.rows[0])]
        assert rows["position"].tolist() == expected["position"].tolist()
        assert rows["read_at"].unique().tolist() == [text.split().index("bank")]
        for name in ("gradient", "contribution", "share", "effect"):
            close(rows[name], expected[name])


def test_a_reader_from_a_file(handle, tmp_path):
    reader = Reader.direction(np.cos(np.arange(32.0)).tolist(), name="cosine")
    reader.save(tmp_path / "cosine.safetensors")
    options = {"reader": str(tmp_path / "cosine.safetensors"), "token": "bank"}
    found = batch.run(sentences(3), tmp_path / "out", model=handle, **options).frame("readout")
    expected = read(decompose(handle, sentences(3)[1], positions="bank"), reader).to_frame()
    rows = found[found["prompt_id"] == 1]
    assert rows["reader"].unique().tolist() == ["cosine"]
    close(rows["contribution"], expected["contribution"])
    Reader.direction(np.sin(np.arange(32.0)).tolist(), name="cosine").save(tmp_path / "cosine.safetensors")
    with pytest.raises(InputError, match=r"another batch; readers: \['cosine \(.{16}\)'\] there, \['cosine"):
        batch.run(sentences(3), tmp_path / "out", model=handle, **options)
