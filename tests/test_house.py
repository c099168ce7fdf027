"""The house keeps its promises: rooms import one way, the base import is light, names and commands are documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headstart
from headstart.cli.main import VERBS
from headstart.cli.reference import reference

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headstart"

# A room imports only from rooms on lines above its own; rooms on one line never import each other.
HOUSE = [
    ["errors"],
    ["rows", "tensor_files"],
    ["checkpoints"],
    ["drafts", "shapes"],
    ["records"],
    ["interfaces"],
    ["pairs", "probs"],
    ["draws"],
    ["theory"],
    ["plots"],
    ["verify", "drafters", "models", "schedule"],
    ["target_rows"],
    ["decode"],
    ["costs"],
    ["text"],
    ["generation"],
    ["prompts"],
    ["comparison", "plan"],
    ["bench"],
    ["shipped"],
    ["fetch", "drafting", "train"],
    ["references"],
    ["loading"],
    ["cli"],
]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of this package that a file imports anywhere in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "headstart":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headstart."):
            rooms.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("headstart.")}
    return rooms - {"__version__", "_core"}  # the C++ core is above every room


def test_every_room_has_a_place() -> None:
    """Each folder and file of the package is in the plan, and nothing in the plan is missing."""
    found = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert found == {room for line in HOUSE for room in line}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_only_from_above(path: Path) -> None:
    """The import direction is the plan's."""
    if room_of(path) == "__init__":
        return
    level = next(i for i, line in enumerate(HOUSE) if room_of(path) in line)
    above = {room for line in HOUSE[:level] for room in line} | {room_of(path)}
    assert imported_rooms(path) <= above


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


@pytest.mark.parametrize("module", ["headstart", "headstart.cli.main", "headstart.theory", "headstart.generation"])
def test_import_is_light(module: str) -> None:
    """None of these loads torch, transformers, starlette or matplotlib."""
    heavy = "{'torch', 'transformers', 'starlette', 'matplotlib', 'scipy', 'gguf'}"
    assert run_python(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))").strip() == "[]"


def test_public_names() -> None:
    """What users may import is exactly this; adding a name is a decision."""
    assert sorted(headstart.__all__) == [
        "CombinedDrafter", "Decoder", "Draft", "HeadstartError", "KeyedDraws", "LLM", "ModelDrafter", "NGramDrafter", "NoDrafter",
        "Options", "Output", "RULES", "Request", "Row", "Sampling", "StreamDraws", "SuffixDrafter", "TableModel", "__version__",
        "compare", "decide", "errors", "load", "overlap", "process", "residual", "softmax", "theory", "total_variation",
    ]  # fmt: skip
    for name in headstart.__all__:
        assert getattr(headstart, name) is not None


def test_public_names_survive_imports() -> None:
    """No submodule shadows a public name, whatever is imported first."""
    code = "import headstart, headstart.loading, headstart.cli.generate as g; assert callable(headstart.load); print('ok')"
    assert run_python(code).strip() == "ok"


def test_every_module_says_what_it_exports() -> None:
    """Each module has a docstring and `__all__`, and each name in it exists."""
    for path in PACKAGE.rglob("*.py"):
        if path.name == "__init__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{path.name} has no docstring"
        names = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        assert "__all__" in names, f"{path} has no __all__"


def test_commands_page_is_current() -> None:
    """docs/commands.md is the commands' own help (`make docs` writes it)."""
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == reference()


def test_every_verb_is_in_the_readme() -> None:
    """A user finds each command in the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"headstart {verb}" in text


def test_readme_commands_exist() -> None:
    """Every `headstart …` line of the README parses: the verbs and options it names exist."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    page = reference()
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines() if line.strip().startswith("headstart ")]
    assert lines
    for line in lines:
        words = line.split("#")[0].split()
        assert words[1] in VERBS, line
        for option in re.findall(r"(?<=\s)--[a-z-]+", line.split("#")[0]):
            assert option in page, f"{option} in: {line}"


def test_readme_python_runs() -> None:
    """The Python blocks of the README run as they stand."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert done.returncode == 0, done.stderr


def test_files_can_be_read_in_one_sitting() -> None:
    """No source file is over 400 lines."""
    long = {p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long
