"""Settings of a batch: `.yaml` and `.toml` files, up to the settings that a run would start with."""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz import files
from fuzz.mutate import TELLING_TEXT, VALUES, as_bytes, mutated_bytes, mutated_json, mutated_text
from fuzz.target import Input, Target

#: settings by the names of the flags
SETTINGS: dict[str, Any] = {
    "model": "smollm2-135m",
    "dtype": "float32",
    "prepend-bos": False,
    "column": "prompt",
    "analysis": ["writes", "ablations"],
    "for": [" river", " water"],
    "against": [" money", ""],
    "token": ["bank", -1],
    "mean": None,
    "mode": "frozen",
    "top": 5,
    "max-tokens": 512,
    "memory": 64,
}
YAML = """# one reader
model: smollm2-135m
analysis: [writes, ablations]
for:
  - " river"
against: " money"
token: bank
prepend-bos: false
top: 3
"""
TOML = """model = "smollm2-135m"
analysis = ["writes"]
for = [" river"]
token = ["bank", 3]
top = 3
"""
FILES = {".yaml": (YAML, json.dumps(SETTINGS)), ".yml": ("top: 3\n", ""), ".toml": (TOML, "top = 3\n")}

_NAME = st.one_of(
    st.sampled_from(
        [*SETTINGS, "reader", "stream", "shard", "device", "token-column", "wanted", "--top", "max_tokens"]
    ),
    st.sampled_from(["topp", "", "1", "null", "? ", "[a]", "{a: b}", "<<", "!!str", '"a b"', "2001-01-01"]),
    st.sampled_from(TELLING_TEXT),
)
_YAML_VALUE = st.one_of(
    VALUES.map(lambda value: json.dumps(value)),
    st.sampled_from(
        ["!!int", "!!int ''", "!!float ''", "!!float x", "!!bool maybe", "!!timestamp x", "!!binary '*'", "!!set {a}",
         "!!omap [a]",
         "!!pairs [[a]]", "!!null x", "!!map [a]", "!!seq {}", "!!str [a]", "2001-99-99", "2001-01-01T99:99:99Z",
         "1:99:99", "0x", "0b",
         "0o9", "08", "1_", "._", ".inf", "-.nan", "&a [*a]", "&a {b: *a}", "*b", "!x y", "!!python/name:os.system",
         "<<: *a", "|", ">-",
         "|99", "'", '"\\ud800"', '"\\x"', "[" * 1100, "{" * 1100, "%TAG", "---", "...", "? [a]", "- - -", "a: b: c",
         "1e999", "@x", "`",
         "2001-01-01 00:00:00 +99:99", "[1, [2, {3: 4}]]", "~", "yes", "{1: 2}", "{[1]: 2}", "{{}: 1}", "{a, b}"]
    ),
)  # fmt: skip
_TOML_VALUE = st.one_of(
    VALUES.map(lambda value: json.dumps(value)),
    st.sampled_from(
        ["1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "9999-99-99", "nan", "inf", "0x", "1_0", "1__0", "'''",
         '"""', "{a = 1}", "{",
         "[" * 1100, "[1, 'a']", "[[1]]", '"\\ud800"', '"\\U0010FFFF"', '"\\UFFFFFFFF"', "9" * 5000, "1e400", "true",
         "''"]
    ),
)  # fmt: skip
_YAML_LINE = st.one_of(
    st.builds("{}: {}".format, _NAME, _YAML_VALUE),
    _YAML_VALUE,
    st.builds("  - {}".format, _YAML_VALUE),
    st.text(max_size=6),
)
_TOML_LINE = st.one_of(
    st.builds("{} = {}".format, _NAME, _TOML_VALUE), st.builds("[{}]".format, _NAME), st.builds("[[{}]]".format, _NAME)
)
_GRAMMAR: list[SearchStrategy[Input]] = [
    st.tuples(st.just(".yaml"), st.lists(_YAML_LINE, max_size=4).map("\n".join).map(as_bytes)),
    st.tuples(st.just(".toml"), st.lists(_TOML_LINE, max_size=4).map("\n".join).map(as_bytes)),
    st.tuples(st.just(".yaml"), st.dictionaries(_NAME, VALUES, max_size=4).map(json.dumps).map(as_bytes)),
    st.tuples(st.sampled_from([".json", "", ".YAML", ".toml"]), st.binary(max_size=20)),
]
_MUTATED: list[SearchStrategy[Input]] = [
    *(
        st.tuples(st.just(kind), mutated_text(st.sampled_from([text for text in texts if text])).map(as_bytes))
        for kind, texts in FILES.items()
    ),
    *(
        st.tuples(st.just(kind), mutated_bytes(st.sampled_from([text.encode() for text in texts if text])))
        for kind, texts in FILES.items()
    ),
    st.tuples(st.just(".yaml"), mutated_json(st.just(SETTINGS)).map(json.dumps).map(as_bytes)),
]


def feed(given: Input) -> None:
    """Reads (suffix, content) as `streamlens run --config` does, and stores what was resolved."""
    from streamlens.batch.analyses import chosen
    from streamlens.batch.settings import Settings, read_settings
    from streamlens.batch.store import settings_yaml

    kind, content = given
    found = read_settings(files.written(f"settings{kind}", content))
    settings = Settings().changed(found, where="settings")
    chosen(settings)
    json.dumps(settings.identity)
    stored = files.written("stored.yaml", settings_yaml(settings).encode())
    assert Settings.of(read_settings(stored)) == settings, "stored settings do not read back"


TARGET = Target(
    name="configs",
    about="settings of a batch in .yaml and .toml files",
    seeds=tuple((kind, text.encode()) for kind, texts in FILES.items() for text in texts),
    grammar=st.one_of(*_GRAMMAR),
    mutated=st.one_of(*_MUTATED),
    feed=feed,
)
