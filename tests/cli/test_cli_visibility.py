"""`streamlens visibility` and `streamlens read`: a saved reader and the model's own, beside a random write."""

import io
import json

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.model


@pytest.fixture
def sense(tmp_path, default_model):
    """A direction saved in the middle of the stream, with a second one beside it."""
    from streamlens import Reader

    rows = default_model.unembedding([7216, 1829]).matrix
    file = tmp_path / "sense.safetensors"
    Reader.direction(rows[0], name="sense of [red]x", unit="units", after="L20.mlp").save(file)
    np.savez(tmp_path / "two.npz", matrix=rows.numpy())
    return file


class TestRead:
    def test_it_sums_to_the_readers_own_value(self, run, loaded, default_model, bank, sense) -> None:
        from streamlens import Reader, decompose

        found = json.loads(run("read", bank, "--reader", str(sense), "--token", "bank").stdout)
        stream = decompose(default_model, bank).at("L20.mlp").stream[0, 9].double()
        wanted = float(stream @ Reader.load(sense).matrix[0])
        assert found["sum"] == pytest.approx(wanted, rel=1e-9)
        assert found["value"] == pytest.approx(wanted, rel=1e-9)
        assert sum(part["contribution"] for part in found["parts"]) == pytest.approx(wanted, rel=1e-9)
        assert [part["component"] for part in found["parts"]][-2:] == ["L20.mlp", "rounding"]
        assert found["closure"]["readout"] < 1e-9
        assert found["reader"] == {"name": "sense of [red]x", "unit": "units"}

    def test_the_table(self, run, loaded, bank, sense) -> None:
        said = run("read", bank, "--reader", str(sense), "--token", "bank", "--top", "3", "--format", "table").stdout
        assert "sense of [red]x at ·bank (position 9)" in said
        assert "other (40)" in said
        assert "Sums to the model's own value within" in said

    def test_every_token(self, run, loaded, bank, sense) -> None:
        frame = pd.read_csv(io.StringIO(run("read", bank, "--reader", str(sense), "--format", "csv").stdout))
        assert sorted(frame["position"].unique()) == list(range(10))

    def test_a_page(self, run, loaded, bank, sense, tmp_path) -> None:
        page = tmp_path / "read.html"
        said = run("read", bank, "--reader", str(sense), "--token", "bank", "--html", str(page))
        assert said.exit_code == 0, said.stderr
        text = page.read_text()
        assert "What every write gives the reader" in text
        assert "row of the unembedding" not in text

    def test_a_row_of_several(self, run, loaded, bank, sense) -> None:
        file = str(sense.with_name("two.npz"))
        said = run("read", bank, "--reader", file, "--token", "bank")
        assert (said.exit_code, said.stderr.splitlines()[-2:]) == (
            2,
            ["error: two has 2 rows; one is read at a time.", "hint: Name it: --row N."],
        )
        found = json.loads(run("read", bank, "--reader", file, "--row", "1", "--token", "bank").stdout)
        assert found["reader"]["name"] == "two[1]"


class TestVisibility:
    def test_one_reader(self, run, loaded, default_model, bank) -> None:
        from streamlens import Reader, decompose, visibility

        found = json.loads(run("visibility", bank, "--token", "bank", "--head", "L10H8.q", "--mode", "finite").stdout)
        wanted = visibility(decompose(default_model, bank), Reader.head(default_model, "L10H8", "q"), "finite")
        assert [part["component"] for part in found["parts"]] == list(wanted.ledger.labels)
        for name, column in (("visible_share", wanted.share), ("change", wanted.change), ("gain", wanted.gain)):
            values = [part[name] for part in found["parts"]]
            assert values == pytest.approx(column[:, 0, 9].tolist(), rel=1e-6)
        assert all(part["direct"] + part["rescale"] == pytest.approx(part["change"]) for part in found["parts"])
        assert found["parts"][0]["chance"] == pytest.approx(64 / 576)
        assert (found["mode"], found["exact"], found["reader"]["rows"]) == ("finite", True, 64)
        assert found["closure"]["in_order"] == 0.0

    def test_the_table_names_chance(self, run, loaded, bank, sense) -> None:
        said = run(
            "visibility", bank, "--token", "bank", "--reader", str(sense), "--top", "4", "--format", "table"
        ).stdout
        assert "What sense of [red]x sees of the writes at ·bank (position 9), with the norm's scale held" in said
        row = next(line for line in said.splitlines() if line.startswith("a random write"))
        assert row.split()[3:] == ["0.0017", "1.00", "1.00"]
        assert "The 4 largest by lift of 43." in said
        assert "sense of [red]x reads the stream right after L20.mlp. Row space: exact." in said
        assert "A share says what a reader could see, not that it uses it." in said

    def test_an_effective_row_space_is_named(self, run, loaded, bank) -> None:
        line = ("visibility", bank, "--head", "L10.mlp.in", "--energy", "0.9")
        assert json.loads(run(*line).stdout)["exact"] is False
        assert "Row space: effective, 90." in run(*line, "--format", "table").stdout

    def test_the_map(self, run, loaded, bank, tmp_path) -> None:
        page = tmp_path / "map.html"
        said = run("visibility", bank, "--token", "bank", "--map", "--html", str(page))
        found = json.loads(said.stdout)
        assert (len(found["writes"]), len(found["readers"])) == (61, 481)
        lift = np.array(found["lift"], dtype=float)
        assert lift.shape == (61, 481)
        names = [reader["name"] for reader in found["readers"]]
        assert lift[found["writes"].index("L0.attn"), names.index("L4H0-2.k")] == pytest.approx(4.81, abs=0.01)
        assert lift[found["writes"].index("L9.attn"), names.index("L4H0-2.k")] != lift[0, 0]  # null is NaN
        assert found["lift"][found["writes"].index("L9.attn")][names.index("L4H0-2.k")] is None
        assert "The table has the 500 largest by lift" in page.read_text()
        table = run("visibility", bank, "--token", "bank", "--map", "--top", "2", "--format", "table").stdout
        assert "61 writes, 481 readers, 14,491 pairs" in table
        assert "L4H0-2.k" in table


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["visibility"], "One of --reader, --head and --for says what reads."),
        (["read", "--head", "L1H1.q", "--for", " river"], "One of --reader, --head and --for says what reads."),
        (["read", "--reader", "missing.npz"], "'missing.npz' is not there."),
        (["read", "--reader", "x.pt"], "ends in .safetensors, .npz, .csv; got 'x.pt'."),
        (["visibility", "--against", " money"], "--against is the other side of --for"),
        (["visibility", "--map", "--mode", "local"], "--map takes all readers"),
        (["visibility", "--map", "--head", "L1H1.q"], "--map takes all readers"),
        (["visibility", "--head", "L1H1.q", "--html", "no/x.html"], "--html names a file in an existing folder"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(run, unloaded, args, text) -> None:
    said = run(args[0], "A text", *args[1:])
    assert said.exit_code == 2
    assert text in said.stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--head", "foo"], "--head is written like L10H8.q or L10.mlp.in; got 'foo'."),
        (["--head", "L10H8.z"], "A head reads with its q, k or v; got 'z'."),
        (["--head", "L10H99.q"], "L10.attn has the heads 0 to 8; got 99."),
        (["--head", "L10H8.q", "--row", "64"], "--row is between 0 and 63 for L10H8.q; got 64."),
        (["--for", " two words"], "two words"),
        (["--head", "L10H8.q", "--token", "stone"], "'stone' is not among the tokens"),
    ],
)
def test_what_the_model_refuses(run, loaded, bank, args, text) -> None:
    said = run("visibility", bank, *args)
    assert said.exit_code == 2
    assert text in said.stderr
    assert said.stdout == ""


def test_a_reader_of_another_width(run, loaded, bank, tmp_path) -> None:
    np.savez(tmp_path / "narrow.npz", matrix=np.ones((1, 8)))
    for name in ("read", "visibility"):
        said = run(name, bank, "--reader", str(tmp_path / "narrow.npz"))
        assert "A reader is as wide as the stream, 576; 'narrow' is 8 wide." in said.stderr
