"""The layout holds; and each rule is shown a small tree that breaks it, so that a blind rule fails here."""

from pathlib import Path

import pytest

from layout_rules import MAX_LINES, PACKAGE, complaints, parse, write_tree

ROOT = Path(__file__).parents[1]


def test_the_package_keeps_every_rule() -> None:
    assert len(parse(ROOT / PACKAGE)) > 5  # the files were found
    assert complaints(ROOT / PACKAGE) == []


LAWFUL = {
    "__init__.py": "from streamlens.hooks.writes.capture import decompose\n",
    "errors.py": "",
    "ledger.py": "class Ledger:\n    def to_frame(self):\n        from streamlens.frames import x\n",
    "hooks/__init__.py": "",
    "hooks/record.py": "from . import scope\n\ndef f(m):\n    m.register_forward_hook(print)\n",
    "hooks/scope.py": "from streamlens.errors import x\n",
    "hooks/writes/capture.py": "from ..models.load import load\n",
    "models/__init__.py": "",
    "models/load.py": "from streamlens.hooks import record\n\ndef bridge():\n    import transformer_lens\n",
    "frames.py": "from streamlens.readouts import x\n",
    "readouts/__init__.py": "",
    "plots.py": "import plotly.graph_objects as go\nfrom .frames import x\n",
    "cli.py": "import os\nimport click\n\ndef main():\n    from streamlens import hooks\n    import torch\n",
}


def test_a_lawful_tree_passes(tmp_path: Path) -> None:
    assert complaints(write_tree(tmp_path, LAWFUL)) == []


@pytest.mark.parametrize(
    ("name", "source", "complaint"),
    [
        ("stray.py", "", "stray: not in BELOW"),
        (
            "readouts/a.py",
            "from streamlens.models.load import x",
            "readouts may not import streamlens.models",
        ),
        ("readouts/a.py", "from ..hooks import scope", "readouts may not import streamlens.hooks.scope"),
        ("readouts/a.py", "def f():\n    import streamlens.models", "a:2: readouts may not import"),
        ("readouts/a.py", "from streamlens import models", "readouts may not import streamlens.models"),
        ("readouts/a.py", "from .. import load", "readouts may not import streamlens.load"),
        ("readouts/a.py", "import streamlens", "readouts may not import streamlens"),
        ("readouts/a.py", "import_module('streamlens.hooks')", "readouts may not import streamlens.hooks"),
        ("models/a.py", "from streamlens.readouts import x", "models may not import streamlens.readouts"),
        ("models/a.py", "if TYPE_CHECKING:\n    from ..frames import x", "models may not import"),
        ("models/a.py", "from ..hooks.taps import x", "models may not import streamlens.hooks.taps"),
        ("hooks/writes/a.py", "from ..edits.resolve import x", "hooks.writes may not import streamlens.hooks.edits"),
        ("readouts/readers/a.py", "from .. import lens", "readouts.readers may not import streamlens.readouts"),
        ("hooks/scope.py", "from ..ledger import x", "hooks.scope may not import streamlens.ledger"),
        ("hooks/__init__.py", "from .capture import x", "hooks.__init__ may not import"),
        ("ledger.py", "from .frames import x", "ledger:1: ledger may not import streamlens.frames"),
        ("ledger.py", "def other():\n    from .frames import x", "ledger:2: ledger may not import"),
        ("frames.py", "from .plots import x", "frames may not import streamlens.plots"),
        ("frames.py", "import plotly", "import plotly"),
        ("batch/a.py", "def f():\n    import plotly.io", "import plotly"),
        ("plots.py", "from torch import Tensor", "plots is made without torch"),
        ("models/a.py", "import transformer_lens", "transformer_lens takes seconds to load"),
        ("cli.py", "import pandas", "import pandas inside the command"),
        ("cli.py", "from streamlens import plots", "import streamlens.plots inside the command"),
        ("models/a.py", "m.register_forward_pre_hook(f)", "only hooks/ calls register_forward_pre_hook"),
        ("readouts/a.py", "m.register_full_backward_hook(f)", "only hooks/ calls register_full_backward"),
        ("ledger.py", "pass\n" * (MAX_LINES + 1), f"ledger: {MAX_LINES + 1} lines"),
        ("sites.py", "from __future__ import annotations", "no `from __future__ import annotations`"),
    ],
)
def test_each_rule_can_fail(tmp_path: Path, name: str, source: str, complaint: str) -> None:
    found = complaints(write_tree(tmp_path, {**LAWFUL, name: source}))
    assert any(complaint in text for text in found), found
