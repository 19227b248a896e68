"""Readers as files: what is saved comes back, what others save can be read, and one clear sentence for what cannot."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import streamlens
import zoo
from small_ledger import ledger_of, norm_of, reader_of
from streamlens import Reader, decompose, read
from streamlens.errors import InputError, StreamlensError

KINDS = [".safetensors", ".npz", ".csv"]
MATRIX = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
class TestThereAndBack:
    def test_everything_but_tokens(self, kind, tmp_path: Path):
        reader = Reader(
            name="sense: river, or money?",
            rows=("river", 'a "quoted", name'),
            unit="log odds",
            matrix=torch.randn(2, 8, dtype=torch.float64),
            bias=torch.tensor([0.1, -1 / 3], dtype=torch.float64),
            norm="final",
            after="L3.mlp",
            tolerance=1e-7,
            meta={"accuracy": "0.97", "trained on": "bank sentences"},
        )
        reader.save(tmp_path / f"sense{kind}")
        found = Reader.load(tmp_path / f"sense{kind}")
        for name in ("name", "rows", "unit", "norm", "after", "tolerance", "meta", "through", "vocabulary"):
            assert getattr(found, name) == getattr(reader, name)
        assert torch.equal(found.matrix, reader.matrix)
        assert torch.equal(found.bias, reader.bias)
        assert list(tmp_path.iterdir()) == [tmp_path / f"sense{kind}"]

    def test_what_is_given_stands_before_what_is_saved(self, kind, tmp_path: Path):
        Reader.direction(torch.ones(4), name="saved").save(tmp_path / f"x{kind}")
        found = Reader.load(tmp_path / f"x{kind}", name="given", unit="mm", norm="final", after="L1.mlp")
        assert (found.name, found.unit, found.norm, found.after) == ("given", "mm", "final", "L1.mlp")


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("centred", [False, True])
def test_a_sublayers_norm_comes_along(kind, centred, tmp_path: Path):
    reader = reader_of(torch.randn(2, 6), norm_of(6, centred=centred, eps=0.01), after="L0.attn")
    reader.save(tmp_path / f"q{kind}")
    ledger = ledger_of(torch.randn(4, 1, 2, 6, dtype=torch.float64))
    found, wanted = read(ledger, Reader.load(tmp_path / f"q{kind}")), read(ledger, reader)
    assert torch.equal(found.contributions, wanted.contributions)
    assert torch.equal(found.total, wanted.total)


def test_a_reader_of_tokens_reads_the_same_logit_from_a_file(tmp_path: Path):
    model = streamlens.load(zoo.build("gpt2"))
    ledger = decompose(model, torch.tensor([[11, 12, 13]]))
    reader = Reader.logit_diff(model, 5, 7)
    reader.save(tmp_path / "diff.safetensors")
    found = read(ledger, Reader.load(tmp_path / "diff.safetensors"))
    torch.testing.assert_close(found.total, read(ledger, reader).total)
    assert float(found.closure.max()) < 1e-5


@pytest.mark.parametrize(
    ("arrays", "bias"),
    [
        ({"matrix": MATRIX}, 0.0),
        ({"weight": MATRIX, "bias": np.ones(3, np.float32)}, 1.0),
        ({"coef": MATRIX, "intercept": np.full(3, 2.0)}, 2.0),
        ({"coef_": MATRIX, "intercept_": np.full(3, 2.0), "classes_": np.arange(2)}, 2.0),
        ({"encoder.weight": MATRIX, "encoder.bias": np.full(3, 4.0), "decoder.weight": MATRIX}, 4.0),
        ({"W_enc": MATRIX.T.copy(), "b_enc": np.full(3, 3.0), "W_dec": MATRIX, "b_dec": np.zeros(8)}, 3.0),
    ],
    ids=["plain", "linear layer", "documented probe", "scikit-learn", "encoder", "sparse autoencoder"],
)
def test_layouts_of_other_programs(arrays, bias, tmp_path: Path):
    np.savez(tmp_path / "a.npz", **arrays)
    save_file(arrays, tmp_path / "a.safetensors")
    for kind in (".npz", ".safetensors"):
        found = Reader.load(tmp_path / f"a{kind}")
        np.testing.assert_allclose(found.matrix.numpy(), MATRIX)
        assert found.bias.tolist() == [bias] * 3
        assert (found.name, found.norm, found.after) == ("a", "none", None)
        assert found.rows == ("a[0]", "a[1]", "a[2]")


def test_one_vector_is_one_row(tmp_path: Path):
    np.savez(tmp_path / "one.npz", matrix=MATRIX[0], name=np.array("sense"), rows=np.array(["river"]))
    found = Reader.load(tmp_path / "one.npz")
    assert (found.name, found.rows, tuple(found.matrix.shape)) == ("sense", ("river",), (1, 8))


def test_a_table_with_or_without_a_header(tmp_path: Path):
    np.savetxt(tmp_path / "bare.csv", MATRIX, delimiter=",")
    np.testing.assert_allclose(Reader.load(tmp_path / "bare.csv").matrix.numpy(), MATRIX, rtol=1e-6)
    (tmp_path / "named.csv").write_text("# unit: mm\nname,x,y\nriver,1,2\nmoney,3,4.5\n")
    found = Reader.load(tmp_path / "named.csv")
    assert (found.unit, found.rows, found.matrix.tolist()) == ("mm", ("river", "money"), [[1, 2], [3, 4.5]])


def test_a_linear_layer():
    layer = nn.Linear(8, 2)
    found = Reader.of_linear(layer, name="probe", after="L3.mlp")
    x = torch.randn(5, 8)
    torch.testing.assert_close(x.double() @ found.matrix.T + found.bias, layer(x).double(), rtol=1e-5, atol=1e-6)
    assert (found.rows, found.after) == (("probe[0]", "probe[1]"), "L3.mlp")
    assert not found.matrix.requires_grad
    assert Reader.of_linear(nn.Linear(8, 1, bias=False)).bias.tolist() == [0]


BAD = {
    "missing.npz": (None, "A reader is loaded from a file; '.*missing.npz' is not there."),
    "words.txt": (b"x", r"A reader's file ends in .safetensors, .npz, .csv; got 'words.txt'."),
    "text.npz": (b"x", "'text.npz' cannot be read as a .npz file: it is no archive of arrays."),
    "text.safetensors": (b"x", "'text.safetensors' cannot be read as a .safetensors file"),
    "text.csv": (b"a,b\n1,x\n", "'text.csv' cannot be read as a .csv file: could not convert string to float: 'x'"),
    "uneven.csv": (b"a,b\n1,2\n3\n", "Row 2 of 'uneven.csv' has 1 columns of 2."),
    "empty.csv": (b"", "'empty.csv' cannot be read as a .csv file"),
    "other.npz": ({"vectors": MATRIX}, "holds an array called matrix, .*; 'other.npz' holds vectors."),
    "nan.npz": ({"matrix": MATRIX * np.nan}, "A reader has finite numbers; 24 of 24 in 'nan' are not."),
    "zero.npz": ({"matrix": MATRIX * 0}, "numbers that are not all zero; 'zero' is a matrix of zeros."),
    "cube.npz": ({"matrix": MATRIX[None]}, r"'matrix' in 'cube.npz' is a matrix or one vector; got shape \(1, 3, 8\)."),
    "none.npz": ({"matrix": MATRIX[:0]}, r"is a matrix or one vector; got shape \(0, 8\)."),
    "bias.npz": (
        {"matrix": MATRIX, "bias": MATRIX[0]},
        "'bias' in 'bias.npz' has one number for each of 3 rows; got 8.",
    ),
    "norm.npz": (
        {"matrix": MATRIX, "norm": np.array("layer")},
        "norm is one of none, final, input; 'norm.npz' says 'layer'.",
    ),
    "gain.npz": ({"matrix": MATRIX, "norm": np.array("input")}, "'gain.npz' has no array norm.gain."),
    "rows.npz": (
        {"matrix": MATRIX, "rows": np.array(["a", "b"])},
        "name each of the 3 rows of the matrix; got 2 names.",
    ),
    "pickle.npz": ({"matrix": np.array([{}], dtype=object)}, "'pickle.npz' cannot be read as a .npz file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_loaded(name, tmp_path: Path):
    content, text = BAD[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        np.savez(tmp_path / name, **content)
    with pytest.raises(StreamlensError, match=text) as caught:
        Reader.load(tmp_path / name)
    assert "\n" not in caught.value.message


def test_a_folder_is_no_file(tmp_path: Path):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        Reader.load(tmp_path / "folder.npz")


@pytest.mark.parametrize(
    ("reader", "name", "text"),
    [
        (Reader.direction(torch.ones(3)), "x.pt", "ends in .safetensors, .npz, .csv; got 'x.pt'."),
        (Reader.direction(torch.ones(3)), "no/x.npz", "saved into a folder that exists"),
        (
            reader_of(torch.ones(1, 3), norm_of(3, centred=False)),
            "x.csv",
            "A .csv holds a matrix and a bias, not norm.gain.",
        ),
    ],
)
def test_what_cannot_be_saved(reader, name, text, tmp_path: Path):
    with pytest.raises(InputError, match=text):
        reader.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_of_another_width_is_refused_where_it_reads(tmp_path: Path):
    np.savez(tmp_path / "wide.npz", matrix=MATRIX)
    with pytest.raises(InputError, match="A reader is as wide as the stream, 6; 'wide' is 8 wide"):
        read(ledger_of(torch.randn(2, 1, 1, 6)), Reader.load(tmp_path / "wide.npz"))


@pytest.mark.parametrize(("fill", "text"), [(float("nan"), "finite numbers; 6 of 6"), (0.0, "a matrix of zeros")])
def test_a_linear_layer_that_reads_nothing(fill, text):
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, fill)
    with pytest.raises(InputError, match=text):
        Reader.of_linear(layer)


def test_the_words_are_plain(tmp_path: Path):
    """Rows are a JSON list in every kind of file, so that any program can write one."""
    reader_of(torch.ones(2, 3)).save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        assert json.loads(str(file["rows"])) == ["row 0", "row 1"]
