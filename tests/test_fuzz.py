"""What is typed or stored may be refused, but never crashes; `scripts/fuzz.py` runs the same for longer.

1. Every target takes some hundred inputs of both kinds; its valid inputs are accepted.
2. The harness itself: a planted crash is found and made small, an input that hangs is one, a seed means one set of
   inputs, and both kinds of input are neither all refused nor all accepted.
3. What once crashed is refused in one sentence.
"""

import json
import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click import UsageError
from hypothesis import strategies as st

from fuzz import TARGETS, target
from fuzz.drive import run
from fuzz.prompts import parquet
from fuzz.readers import npz
from fuzz.stored import META, PARQUET, study
from fuzz.target import Outcome, Target, TooSlowError, outcome, place_of
from streamlens.errors import InputError
from streamlens.prompts import BadPrompt, rows_of

INPUTS = 300
HUGE = "9" * 5000


@pytest.fixture(params=TARGETS)
def fuzzed(request: pytest.FixtureRequest) -> Target:
    return target(request.param)


class TestTargets:
    def test_nothing_crashes(self, fuzzed: Target) -> None:
        tally = run(fuzzed, INPUTS, start=11)
        crashes = "\n".join(f"{crash.given!r}\n{crash.trace}" for crash in tally.crashes.values())
        assert not tally.crashes, crashes
        assert tally.inputs == INPUTS == tally.accepted + tally.refused.total()

    def test_valid_inputs_are_accepted(self, fuzzed: Target) -> None:
        for given in fuzzed.seeds:
            fuzzed.feed(given)

    @pytest.mark.parametrize("kind", ["grammar", "mutated"])
    def test_both_kinds_of_input_are_partly_accepted_and_partly_refused(self, fuzzed: Target, kind: str) -> None:
        one = replace(fuzzed, grammar=getattr(fuzzed, kind), mutated=getattr(fuzzed, kind))
        tally = run(one, 150, start=3)
        assert tally.accepted > 0
        assert tally.refused.total() > 0


class TestHarness:
    def test_a_planted_crash_is_found(self, fuzzed: Target) -> None:
        def planted(given):
            fuzzed.feed(given)
            return {}["planted"]

        tally = run(replace(fuzzed, feed=planted), 60)
        assert list(tally.crashes) == ["KeyError at outside"]
        assert "KeyError: 'planted'" in tally.crashes["KeyError at outside"].trace

    def test_a_crash_inside_the_package_is_known_by_its_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("streamlens.sites.KINDS", None)  # `in None` is a TypeError
        tally = run(target("texts"), 200)
        assert any(place.startswith("TypeError at sites.py:") for place in tally.crashes)

    def test_a_crash_is_made_small_and_the_run_goes_on(self) -> None:
        numbers = st.tuples(st.integers(0, 100_000))

        def feed(given):
            assert given[0] <= 1000

        tally = run(Target(name="small", about="", seeds=(), grammar=numbers, mutated=numbers, feed=feed), 200)
        (crash,) = tally.crashes.values()
        assert crash.given == (1001,)
        assert crash.count > 100
        assert tally.inputs == 200 == tally.accepted + crash.count

    def test_an_input_that_hangs_is_a_crash(self) -> None:
        def hang(given):
            while True:
                pass

        crash = outcome(hang, (), limit=0.05).crash
        assert isinstance(crash, TooSlowError)

    def test_our_errors_and_clicks_are_refusals(self) -> None:
        def raising(error):
            def feed(given):
                raise error

            return feed

        assert outcome(raising(InputError("a rule")), ()) == Outcome(refused="InputError")
        assert outcome(raising(UsageError("a rule")), ()) == Outcome(refused="UsageError")
        assert isinstance(outcome(raising(ValueError("none of ours")), ()).crash, ValueError)

    def test_a_seed_means_the_same_inputs(self) -> None:
        seen: list[list] = [[], [], []]
        for inputs, start in zip(seen, (5, 5, 6), strict=True):
            run(replace(target("configs"), feed=lambda given: None), 40, start=start, watch=inputs.append)
        assert seen[0] == seen[1] != seen[2]

    def test_the_place_of_a_crash_is_its_last_line_in_the_package(self) -> None:
        with pytest.raises(InputError) as caught:
            list(rows_of(["nowhere.txt"]))
        assert place_of(caught.value).startswith("InputError at prompts.py:")


def _safetensors(words: dict[str, str], **arrays: np.ndarray) -> bytes:
    header: dict = {"__metadata__": words}
    body = b""
    for name, array in arrays.items():
        content = array.astype("float64").tobytes()
        header[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": [len(body), len(body + content)]}
        body += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


ONE = np.ones((1, 4))
#: (target, input, what is said): each of these raised something else once
CRASHED = [
    ("texts", ("site", f"L{HUGE}.attn"), "A site is written like"),
    ("texts", ("site", f"L0H{HUGE}"), "A site is written like"),
    ("texts", ("site", f"L0.attn.H0<{HUGE}"), "A site is written like"),
    ("texts", ("edit", f"L0.attn@{HUGE}"), "is not among the tokens"),
    ("texts", ("position", HUGE), "is not among the tokens"),
    ("texts", ("token", "\ud800"), "A text is Unicode; character 1"),
    ("texts", ("prompt", "bank \ud800"), "A text is Unicode; character 6"),
    ("prompts", ("argument", "\0.txt", None), "cannot be read: embedded null byte"),
    ("prompts", ("argument", "\ud800.jsonl", None), "cannot be read: 'utf-8' codec can't encode"),
    (
        "prompts",
        (".parquet", parquet(pa.table({"text": ["a"], "n": pa.array([-(2**31)], pa.date32())})), None),
        "days=",
    ),
    (
        "prompts",
        (".parquet", parquet(pa.Table.from_arrays([["a"]] * 2, ["text"] * 2)), None),
        "2 columns are called 'text'",
    ),
    (
        "prompts",
        (".parquet", parquet(pa.table({"text": pa.array([b"\xff"]).view(pa.string())})), None),
        "holds a value that cannot be read",
    ),
    ("readers", (".safetensors", _safetensors({"rows": "none"}, matrix=ONE)), "are a JSON list of names; got 'none'"),
    ("readers", (".safetensors", _safetensors({"rows": "5"}, matrix=ONE)), "are a JSON list of names; got '5'"),
    ("readers", (".safetensors", _safetensors({"tolerance": "x"}, matrix=ONE)), "tolerance is below 1.* got 'x'"),
    ("readers", (".csv", b"# tolerance: nan\n1"), "tolerance is below 1.* got 'nan'"),
    (
        "readers",
        (".npz", npz({"matrix": ONE, "norm.gain": np.ones(4), "norm": "final", "norm.eps": "x"})),
        "norm.eps is a fin",
    ),
    (
        "readers",
        (".npz", npz({"matrix": ONE, "norm.gain": np.ones(4), "norm.bias": np.ones(3), "norm": "final"})),
        "as wide as",
    ),
    ("readers", (".npz", npz({"matrix": ONE, "bias": np.array([np.nan])})), "'bias' in .* is not finite"),
    ("configs", (".yaml", b"top: !!int ''"), "not YAML: a value that its tag does not fit"),
    ("configs", (".yaml", b"top: !!bool maybe"), "not YAML: a value that its tag does not fit"),
    ("configs", (".yaml", b"top: !!timestamp x"), "not YAML: a value that its tag does not fit"),
    ("configs", (".yaml", b"top: " + b"[" * 2000), "nested too deeply"),
    ("configs", (".toml", b"top = " + b"[" * 2000), "nested too deeply"),
    ("configs", (".yaml", b"top: &a [*a]"), "top is a whole number; got a list"),
    ("configs", (".yaml", b"for: [&a {2001-01-01: *a}]"), "for is a text or a list of texts; got a mapping"),
    ("results", (".json", b"[" * 100_000), "cannot be read as a frame: maximum recursion depth"),
    ("results", (".csv", b'a\n"' + b"x" * 200_000), "cannot be read as a frame: field larger than field limit"),
    ("results", ("study", study(None, PARQUET)), "no study"),
    ("results", ("study", study({**META, "frames": None}, PARQUET)), "whose 'frames' is missing or of another kind"),
    ("results", ("study", study({**META, "frames": ["writes", "x"]}, PARQUET)), "no item named 'x.parquet'"),
    ("results", ("study", study({**META, "facts": {}}, PARQUET)), "whose 'prompt' is missing"),
    ("results", ("study", study(META, b"PAR1")), "a study that cannot be read"),
    ("results", ("study", study(META, PARQUET).replace(b"PK\3\4", b"QK\3\4")), "a study that cannot be read"),
]


@pytest.mark.parametrize(("name", "given", "says"), CRASHED)
def test_what_once_crashed_is_refused(name: str, given: tuple, says: str) -> None:
    with pytest.raises(InputError, match=says):
        target(name).feed(given)


def test_a_row_nested_as_deep_as_python_reads_is_a_row(tmp_path: Path) -> None:
    """At a few depths JSON can just be read, and no longer be written into the error."""
    path = tmp_path / "deep.jsonl"
    path.write_text("\n".join(f'{{"prompt": {"[" * deep}{"]" * deep}}}' for deep in range(700, 1000)))
    found = list(rows_of([str(path)]))
    assert len(found) == 300
    assert all(isinstance(row, BadPrompt) for row in found)


@pytest.mark.parametrize("odd", ["\x85", "\u2028", "\u2029", "\ufeff", "\u202e", "\0", "😀", "\n", "'\""])
def test_stored_settings_read_back(odd: str) -> None:
    text = json.dumps(f"{odd} river", ensure_ascii=False)
    target("configs").feed((".toml", f"for = [{text}]\ncolumn = {text}".encode()))


def test_an_address_of_half_a_character_is_an_address() -> None:
    target("texts").feed(("search", "?prompt=\ud800&for=x"))


def test_a_long_text_that_ends_like_a_file_is_a_prompt() -> None:
    text = "He opened it. " * 50 + "It was notes.txt"
    assert [row.text for row in rows_of([text])] == [text]


@pytest.mark.parametrize("key", ["identity", "model", "settings", "tables", "prompts", "shards"])
def test_a_manifest_of_a_batch_without_a_part_is_refused(key: str) -> None:
    batch = target("results").seeds[-2]
    manifest = json.loads(batch[1])
    for wrong in ({**manifest, key: None}, {name: value for name, value in manifest.items() if name != key}):
        with pytest.raises(InputError, match=f"a manifest whose '{key}' is missing or of another kind"):
            target("results").feed(("batch", json.dumps(wrong).encode(), batch[2]))


def test_a_damaged_shard_is_named_with_its_table() -> None:
    kind, manifest, tables = target("results").seeds[-2]
    for number, name in enumerate(("prompts", "writes", "readout")):
        broken = random.Random(0).randbytes(200)
        spoilt = tuple(broken if n == number else content for n, content in enumerate(tables))
        with pytest.raises(InputError, match=f"the table {name} cannot be read"):
            target("results").feed((kind, manifest, spoilt))


@pytest.mark.parametrize(
    "manifest", [{"source": None}, {"files": None}, {"files": {"x": 5}}, {"files": {"\0": {}}}, {}]
)
def test_a_model_whose_manifest_is_broken_counts_as_absent(manifest: dict) -> None:
    whole = json.loads(target("results").seeds[-1][1])
    target("results").feed(("model", json.dumps({**whole, **manifest}).encode()))
