"""What is refused, how many architectures close, the page that says so, and that none is known by its name."""

import ast
from pathlib import Path

import pytest

import streamlens
import zoo
import zoo_books
from model_state import state_of
from streamlens.errors import WiringError
from zoo import ENTRIES
from zoo_books import is_one_sentence
from zoo_expected import CLOSING, LABELLED, REFUSED, SEVERAL, SINGLE

pytestmark = pytest.mark.usefixtures("quiet_transformers")


@pytest.mark.parametrize("label", [*REFUSED, *SEVERAL])
def test_refused(label: str) -> None:
    entry, stream = LABELLED[label]
    assert (entry.streams > 1) == (label in SEVERAL)
    model = zoo.build(entry)
    before = state_of(model)
    with pytest.raises(WiringError) as refused:
        streamlens.load(model).wiring_of(stream)
    assert {**REFUSED, **SEVERAL}[label] in refused.value.message
    assert is_one_sentence(refused.value.message)
    assert state_of(model) == before
    row = zoo_books.Row(name=entry.name, stream=stream, wiring=entry.wiring, refused=refused.value.message, figures={})
    assert row.verdicts == zoo_books.parse(zoo_books.PAGE.read_text())[label], "run scripts/zoo_table.py"


def test_how_many_close() -> None:
    closing = {LABELLED[label][0].name for label in CLOSING}
    assert {entry.name for entry in ENTRIES if entry.streams > 1} == set(SEVERAL)
    assert len({zoo.BY_NAME[name].model_type for name in closing}) >= 200
    assert len(closing) == len(SINGLE) - sum("encoder" not in label for label in REFUSED)
    assert set(REFUSED) | set(SEVERAL) <= set(LABELLED)


def test_the_page_has_no_other_lines() -> None:
    assert list(zoo_books.parse(zoo_books.PAGE.read_text())) == [
        *(label for label in LABELLED if label in CLOSING),
        *(label for label in LABELLED if label not in CLOSING),
    ]


#: quoted words of the package that are also names of architectures, and why
NAMED = {
    "registry.py": {"llama", "bert"},  # what the two named models are, for people
}


def test_no_architecture_is_known_by_name() -> None:
    types = {entry.model_type for entry in ENTRIES} | {entry.name for entry in ENTRIES}
    found: dict[str, set[str]] = {}
    for path in sorted(Path(streamlens.__file__).parent.rglob("*.py")):
        words = _quoted(ast.parse(path.read_text())) & types
        if words:
            found[path.name] = words
    assert found == NAMED


def _quoted(tree: ast.AST) -> set[str]:
    """All string literals but docstrings."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
    return {node.value for node in literals if isinstance(node.value, str)}
