"""The layout as rules that a machine can hold: which module may import which, and where hooks may be.

1. `BELOW` is the import order as data: each module or folder, and what stands right below it.
2. Every file of the package is parsed once; each import becomes one `Import`, wherever it stands.
3. Each rule is a function from a parsed file to complaints.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "streamlens"
MAX_LINES = 300

# Each unit and the units right below it: it may import those, itself, and all that they may import. A file
# belongs to the longest name that fits it: `hooks.scope` is itself, `hooks.forward` belongs to `hooks`.
BELOW: dict[str, tuple[str, ...]] = {
    "errors": (),
    "axes": ("errors",),
    "display": ("errors",),
    "prompts": ("errors",),
    "sentences": ("prompts",),
    "sites": ("axes", "display", "arguments"),
    "turns": (),
    "arguments": ("errors",),
    "subspaces": ("errors", "turns"),
    "carries": ("sites", "subspaces"),
    "edits": ("sites", "positions"),
    "positions": ("errors",),
    "notebook": ("display",),
    "ledger": ("carries", "positions", "notebook"),
    # The three primitives of hooks/ stand below `models`, since the wiring is found by watching a forward.
    # The folder's __init__ runs whenever they are imported, so it may not reach higher.
    "hooks.__init__": ("sites",),
    "hooks.scope": ("hooks.__init__", "turns"),
    "hooks.record": ("hooks.scope",),
    "hooks.products": ("hooks.__init__",),
    "models": ("ledger", "hooks.record", "hooks.products"),
    "hooks": ("models",),
    "hooks.writes": ("hooks",),
    "hooks.edits": ("hooks.writes", "edits"),
    "hooks.runs": ("hooks.edits",),
    "hooks.gradients": ("hooks.runs",),
    # From here on pure: no model in reach.
    "readouts.readers": ("ledger",),
    "readouts": ("readouts.readers",),
    "readouts.visible": ("readouts.readers",),
    "readouts.depth": ("ledger",),
    "frames": ("readouts", "readouts.visible", "readouts.depth"),
    "theme": ("display",),
    "plots": ("frames", "theme"),
    "studies": ("arguments",),
    "report": ("plots", "studies"),
    # What joins the two branches.
    "experiments": ("hooks.gradients", "frames", "sentences", "studies"),
    "lab": ("experiments", "report"),
    "batch": ("experiments", "report", "prompts"),
    "explorer": ("lab",),
    "cli": ("lab", "batch", "explorer"),
    "__main__": ("cli",),
    "__init__": ("cli",),
}
PLOTLY = {"plots", "report", "theme", "explorer"}
TORCHLESS = {"errors", "display", "theme", "plots", "studies", "report"}  # figures and pages are made of frames
# methods that hand an object over as a frame, and so import `frames` inside the function
FRAME_METHODS = (("to_frame",), ("effects",), ("responses",), ("summary",))
HEAVY = ("torch", "transformers", "transformer_lens", "pandas", "plotly")
HOOKING = re.compile(r"register_(module_)?(forward|full_backward|backward)_")


@dataclass(frozen=True)
class Import:
    """One imported module."""

    target: str  # dotted
    line: int
    inside: tuple[str, ...]  # the functions it stands in
    typing: bool  # under TYPE_CHECKING, so never executed


@dataclass(frozen=True)
class File:
    name: str  # dotted, without the package: "models.load"; a folder's own file is "models.__init__"
    source: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def unit(self) -> str:
        return unit_of(self.name)


def unit_of(name: str) -> str:
    """The longest entry of `BELOW` that `name` is or lies in; `name` itself if there is none."""
    parts = name.split(".")
    stems = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((stem for stem in stems if stem in BELOW), name)


def reachable(unit: str) -> set[str]:
    below = {unit}
    for other in BELOW[unit]:
        below |= reachable(other)
    return below


def parse(package: Path) -> list[File]:
    sources = {}
    for path in sorted(package.rglob("*.py")):
        sources[".".join(path.relative_to(package).with_suffix("").parts)] = path.read_text(encoding="utf-8")
    modules = {name.removesuffix(".__init__") for name in sources}
    files = []
    for name, source in sources.items():
        tree = ast.parse(source)
        files.append(File(name, source, tree, tuple(_imports(tree, name, modules))))
    return files


def _imports(tree: ast.Module, name: str, modules: set[str]) -> Iterator[Import]:
    def visit(node: ast.AST, inside: tuple[str, ...], typing: bool) -> Iterator[Import]:
        for target in dict.fromkeys(_targets(node, name, modules)):
            yield Import(target, node.lineno, inside, typing)  # type: ignore[attr-defined]
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                yield from visit(child, inside, True)
            for child in node.orelse:
                yield from visit(child, inside, typing)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = (*inside, getattr(node, "name", "lambda"))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside, typing)

    yield from visit(tree, (), False)


def _targets(node: ast.AST, name: str, modules: set[str]) -> Iterator[str]:
    """What one statement imports. `from . import x` names the module x if there is one, else the folder."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        folder = [PACKAGE, *name.split(".")][: -node.level] if node.level else []
        base = ".".join([*folder, *([node.module] if node.module else [])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            is_module = full.removeprefix(f"{PACKAGE}.") in modules
            yield full if is_module or base == PACKAGE else base
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        yield from (str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def _within(target: str) -> str | None:
    """The unit of a module of this package that `target` names; None for any other library."""
    if target == PACKAGE:
        return "__init__"
    return unit_of(target.removeprefix(f"{PACKAGE}.")) if target.startswith(f"{PACKAGE}.") else None


def has_a_place(file: File) -> Iterator[str]:
    if file.unit not in BELOW:
        yield f"{file.name}: not in BELOW; say there what it may import"


def imports_run_one_way(file: File) -> Iterator[str]:
    if file.unit not in BELOW or file.unit == "__init__":  # the public surface names everything, lazily
        return
    allowed = reachable(file.unit)
    for found in file.imports:
        unit = _within(found.target)
        frames_of_itself = unit == "frames" and found.inside[-1:] in FRAME_METHODS  # the one exception
        version = found.target == f"{PACKAGE}.__version__"
        if unit is not None and unit not in allowed and not frames_of_itself and not version:
            yield f"{file.name}:{found.line}: {file.unit} may not import {found.target}"


def libraries_stay_in_their_place(file: File) -> Iterator[str]:
    for found in file.imports:
        library = found.target.partition(".")[0]
        if library == "plotly" and file.unit not in PLOTLY:
            yield f"{file.name}:{found.line}: only {', '.join(sorted(PLOTLY))} import plotly"
        if library in ("dash", "flask", "werkzeug") and file.unit != "explorer":
            yield f"{file.name}:{found.line}: only explorer imports {library}, which is an extra"
        if library in HEAVY[:3] and file.unit in TORCHLESS:
            yield f"{file.name}:{found.line}: {file.unit} is made without {library}"
        if library == "transformer_lens" and not found.inside and not found.typing:
            yield f"{file.name}:{found.line}: transformer_lens takes seconds to load; import it in a function"


def the_command_line_loads_late(file: File) -> Iterator[str]:
    light = {"click", f"{PACKAGE}.errors", f"{PACKAGE}.models.registry", f"{PACKAGE}.prompts", f"{PACKAGE}.__version__"}
    for found in file.imports:
        is_light = found.target in light or found.target.partition(".")[0] in sys.stdlib_module_names
        is_light |= _within(found.target) == "cli"  # held to this rule itself
        if file.unit == "cli" and not is_light and not found.inside and not found.typing:
            yield f"{file.name}:{found.line}: import {found.target} inside the command that needs it"


def only_hooks_register_hooks(file: File) -> Iterator[str]:
    for node in ast.walk(file.tree):
        called = node.attr if isinstance(node, ast.Attribute) else None
        if called and HOOKING.match(called) and file.name.partition(".")[0] != "hooks":
            yield f"{file.name}:{node.lineno}: only hooks/ calls {called}"  # type: ignore[attr-defined]


def files_are_short(file: File) -> Iterator[str]:
    lines = file.source.count("\n")
    if lines > MAX_LINES:
        yield f"{file.name}: {lines} lines; over {MAX_LINES} it holds more than one idea"


def annotations_are_real(file: File) -> Iterator[str]:
    """jaxtyping's checks read annotations at run time; as strings they would be skipped."""
    for found in file.imports:
        if found.target == "__future__":
            yield f"{file.name}:{found.line}: no `from __future__ import annotations`"


RULES = (
    has_a_place,
    imports_run_one_way,
    libraries_stay_in_their_place,
    the_command_line_loads_late,
    only_hooks_register_hooks,
    files_are_short,
    annotations_are_real,
)


def complaints(package: Path) -> list[str]:
    return [text for file in parse(package) for rule in RULES for text in rule(file)]


def write_tree(package: Path, files: dict[str, str]) -> Path:
    """A small package to try the rules on."""
    for name, source in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return package
