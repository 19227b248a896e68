"""What is typed: sites, edits, positions, tokens, readers' names, addresses of the explorer, command lines, prompts.

A tiny model with a tokenizer of words stands behind the texts, so that they are followed up to where a forward would
begin: sites and heads are looked up, positions found, tokens encoded, edits planned.
"""

import contextlib
import io
import os
import re
from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzz import files
from fuzz.mutate import TELLING_TEXT, as_bytes, mutated_text
from fuzz.target import Input, Target

TOKENS = ("the", " bank", " of", " river", "9", " bank")
SITES = [
    "embed",
    "L0.attn",
    "L2.mlp",
    "L1H3",
    "L1N104",
    "L0.attn.bias",
    "L1H2<3",
    "1_attn_out",
    "blocks.2.hook_mlp_out",
]
EDITS = ["L0.attn", "L1H2@river", "L2.mlp=0.5", "L1H2<river@2", "L0.attn@-1=zero", "embed", "L1H0<0=-1e-3"]
PLACES = ["0", "-1", "river", " of", "3"]
HEADS = ["L1H2.q", "L0H3.k", "L2.mlp.in", "L2.mlp.gate"]
SEARCHES = [
    "?prompt=the+bank&pos=1&for=+river&edits=L0.attn,L2.mlp%3D0.5&where=all&pin=L0.attn",
    "?pos=-1&pos2=3&second=x",
]
LINES = [
    "ablate|the bank|-e|L0.attn@bank|--for| river|--against| money|--top|3|--format|json",
    "decompose|the bank|--token|bank|--level|head|--site|L0.attn|-o|out.parquet|--dtype|float64",
    "run|a.jsonl|-o|results|--token|bank|--mean|role|--shard|4|--workers|2|--retry-failed",
    "read|x|--reader|a.npz|--row|0",
    "plot|heatmap|a.parquet|-o|a.png|--position|-1|--palette|PuOr|--dark",
    "sweep|x|--token|a|--for|a|-q",
]
_COMMAND = [
    "ablate", "backward", "check", "compare", "decompose", "doctor", "explore", "jacobian", "lab", "lens", "lesion",
    "models",
    "paths", "plot", "probe", "read", "report", "run", "sources", "steps", "sweep", "trajectory", "visibility",
]  # fmt: skip
_SEEDS = {
    "site": SITES,
    "edit": EDITS,
    "position": PLACES,
    "freeze": ["L0.attn", "all", "patterns"],
    "head": HEADS,
    "token": ["river", "bank"],
    "prompt": ["the river bank", "w1 w2"],
    "search": SEARCHES,
    "line": LINES,
}

_LETTERS = "LHNE.<@=_- 0123456789abemdtnplriv"
_NUMBER = st.one_of(st.integers(0, 5).map(str), st.sampled_from(["-1", "007", "9" * 5000, "٣", "²", "1_0", "", " 1"]))
_KIND = st.sampled_from(["attn", "mlp", "embed", "mixer", "cross_attn", "attn_2", "rounding", "", "bias", "norm.bias"])
_SITE = st.one_of(
    st.sampled_from(SITES),
    st.builds("L{}.{}".format, _NUMBER, _KIND),
    st.builds("L{}{}{}".format, _NUMBER, st.sampled_from("HNEX"), _NUMBER),
    st.builds("L{}.{}.{}{}<{}".format, _NUMBER, _KIND, st.sampled_from("HNE"), _NUMBER, _NUMBER),
    st.text(_LETTERS, max_size=9),
    st.text(max_size=5),
)
_PLACE = st.one_of(_NUMBER, st.sampled_from(PLACES), st.sampled_from(TELLING_TEXT), st.text(max_size=4))
_HOW = st.one_of(
    st.sampled_from(["zero", "mean", "resample", "replace", "project_out", "scale", "1e999", "-.5", "1.", "nan"]),
    _PLACE,
)
_EDIT = st.builds(
    lambda site, source, place, how: site + source + place + how,
    _SITE,
    st.one_of(st.just(""), _PLACE.map("<{}".format)),
    st.one_of(st.just(""), _PLACE.map("@{}".format)),
    st.one_of(st.just(""), _HOW.map("={}".format)),
)
_KEY = st.sampled_from(
    ["prompt", "pos", "for", "against", "reader", "edits", "where", "second", "pos2", "pin", "x", ""]
)
_SEARCH = st.lists(st.builds("{}={}".format, _KEY, st.one_of(_PLACE, _EDIT)), max_size=5).map(
    lambda all: "?" + "&".join(all)
)
_FLAG = st.sampled_from(
    ["-e", "--edit", "--token", "--for", "--against", "--top", "--format", "-o", "--dtype", "--level", "--site",
     "--row", "--mean",
     "--reader", "--head", "--html", "-m", "--memory", "--shard", "--position", "--prompt", "-q", "--debug", "--", "-",
     "--top=-1"]
)  # fmt: skip
_LINE = st.builds(
    lambda command, words: "|".join([command, *words]),
    st.sampled_from([*_COMMAND, "ablat", "", "-x"]),
    st.lists(st.one_of(_FLAG, _PLACE, st.sampled_from(["json", "float64", "head", "a.csv"])), max_size=8),
)
_RULES: dict[str, SearchStrategy[str]] = {
    "site": _SITE,
    "edit": _EDIT,
    "position": _PLACE,
    "freeze": st.one_of(_SITE, st.sampled_from(["all", "patterns"])),
    "head": st.builds(
        "{}.{}".format, _SITE, st.one_of(st.sampled_from(["q", "k", "v", "in", "gate", "router", ""]), _PLACE)
    ),
    "token": _PLACE,
    "prompt": st.one_of(_PLACE, st.lists(_PLACE, max_size=4).map(" ".join)),
    "search": _SEARCH,
    "line": _LINE,
}


@cache
def model() -> Any:
    """A tiny llama with a tokenizer of words."""
    import streamlens
    from streamlens.models.quiet import quiet
    from tiny_batch import save_tiny

    with quiet():
        folder = save_tiny(files.folder() / "tiny-llama")
    return streamlens.load(folder)


def feed(given: Input) -> None:
    """Hands (what it is, the text) to what reads it."""
    kind, text = given
    _FEEDS[kind](text)


def _site(text: str) -> None:
    from streamlens.sites import Site, find

    site = Site.parse(text)
    assert Site.parse(site.label).label == site.label, "a label does not read back"
    find(text, model().wiring.sites)


def _edit(text: str) -> None:
    import streamlens

    edit = streamlens.Edit.parse(text)
    assert edit.label
    _planned(edit)


def _planned(edit: Any) -> None:
    from streamlens.hooks.edits.reference import References
    from streamlens.hooks.edits.resolve import plan

    handle = model()
    plan(handle, handle.wiring, [TOKENS], [edit], References(handle, handle.wiring))


def _position(text: str) -> None:
    from streamlens.cli.decompose import position_of
    from streamlens.positions import find_position

    place = position_of(text)
    assert place is not None
    find_position(TOKENS, place)


def _freeze(text: str) -> None:
    from streamlens.hooks.edits.freeze import frozen_rows

    frozen_rows(model().wiring, text)


def _head(text: str) -> None:
    from streamlens.cli.readers import ReaderChoice, reader_for

    reader_for(model(), ReaderChoice(reader=None, head=text, wanted=None, against=None, row=0), None)


def _token(text: str) -> None:
    from streamlens.cli.decompose import reader_of

    reader_of(model(), text, None)
    reader_of(model(), "water", text)


def _prompt(text: str) -> None:
    from streamlens.models.tokens import encode, token_texts

    encoded = encode(model().tokenizer, text)
    token_texts(model().tokenizer, encoded.ids[0].tolist())


def _search(text: str) -> None:
    from streamlens.explorer.state import State

    state = State.from_search(text)
    assert State.from_search(state.search).search == state.search, "an address does not read back"
    for label in state.edits(1):
        _edit(label)


def _line(text: str) -> None:
    """Reads a command line up to where the command would begin."""
    from streamlens.cli import main

    words = [os.fsdecode(word) for word in as_bytes(text.replace("\0", "")).split(b"|")]  # as a shell can pass them
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        context = main.make_context("streamlens", words, obj={})
        name, command, rest = main.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        command.make_context(name, rest, parent=context)


_FEEDS = {
    "site": _site,
    "edit": _edit,
    "position": _position,
    "freeze": _freeze,
    "head": _head,
    "token": _token,
    "prompt": _prompt,
    "search": _search,
    "line": _line,
}
#: seeds that this tiny model has no part for
_ELSEWHERE = re.compile(r"L1N104|\.bias$|L1H[23](<3)?$|@river|<river@|^patterns$")


def _inputs(texts: Any) -> SearchStrategy[Input]:
    return st.one_of(*(st.tuples(st.just(kind), texts(kind)) for kind in _SEEDS))


TARGET = Target(
    name="texts",
    about="sites, edits, positions, frozen writes, heads, tokens, prompts, explorer addresses, command lines",
    seeds=tuple((kind, text) for kind, texts in _SEEDS.items() for text in texts if not _ELSEWHERE.search(text)),
    grammar=_inputs(lambda kind: _RULES[kind]),
    mutated=_inputs(lambda kind: mutated_text(st.sampled_from(_SEEDS[kind]))),
    feed=feed,
)
