"""Prose is tested: the pages' Python runs and prints what the pages say, examples run, results in docstrings are right.

A page in docs/ is one program: its ```python blocks in order, in one process. What a statement prints is compared with the
`# → …` comments on its last line and under it, line by line; `...` in such a comment stands for anything.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest

from headstart import Options

ROOT = Path(__file__).parents[1]
DOCS, PACKAGE = ROOT / "docs", ROOT / "src" / "headstart"
MODEL_PAGES = {"python.md": "smollm2"}  # pages that load a real model
FENCE = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
SAYS = re.compile(r"# → (.*)$")
RESULT = re.compile(r"^ {4}(\w+\(.*?\)) {2,}(\([^)]*\)|[-+.\w]+)(?:\s|$)", re.M)  # `call(…)   result   what it is`

pages = sorted(page for page in DOCS.glob("*.md") if FENCE.search(page.read_text(encoding="utf-8")))
examples = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "demo.py")  # `make demo` runs that one


def program(page: Path) -> str:
    """The blocks of a page, each at its own line numbers, so that an error names the line of the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in FENCE.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def run_page(source: str, name: str) -> list[str]:
    """Run a program statement by statement; returns what was printed otherwise than the page says."""
    lines, wrong = source.splitlines(), []
    body = ast.parse(source, name).body
    names: dict[str, object] = {"__name__": "__main__"}
    for place, statement in enumerate(body):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), name, "exec"), names)
        until = body[place + 1].lineno - 1 if place + 1 < len(body) else len(lines)
        said = [match[1] for line in lines[(statement.end_lineno or 1) - 1 : until] if (match := SAYS.search(line))]
        got = printed.getvalue().splitlines()
        if said and not (len(said) == len(got) and all(map(_agrees, got, said))):
            wrong.append(f"{name}:{statement.lineno} says {said}, prints {got}")
    return wrong


def _agrees(got: str, said: str) -> bool:
    literal = re.sub(r"([\[*?])", r"[\1]", said.strip())
    return fnmatchcase(got.strip(), literal.replace("...", "*"))


@pytest.mark.parametrize("page", pages, ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: Path, request: pytest.FixtureRequest) -> None:
    """Every block runs, later ones with the names of earlier ones, and prints what stands beside it."""
    if page.name in MODEL_PAGES:
        request.getfixturevalue(f"{MODEL_PAGES[page.name]}_path")
    done = subprocess.run([sys.executable, __file__, str(page)], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "fails"),
    [
        ("print(1 + 1)  # → 2", False),
        ("print(1 + 1)  # → 3", True),
        ("print([1, 2], 0.123)\n# → [1, 2] 0.1...", False),
        ("for i in range(2):\n    print(i)  # → 0\n# → 1", False),
        ("print('a')\nprint('b')  # → a", True),
        ("x = 1  # → 1", True),
    ],
)
def test_a_wrong_page_is_caught(code: str, fails: bool) -> None:
    """The comparison can fail: another number, another line, nothing printed."""
    assert bool(run_page(code, "page")) is fails


@pytest.mark.parametrize("path", examples, ids=lambda path: path.name)
def test_an_example_runs(path: Path) -> None:
    """Each program in examples/ ends well; what it claims, it asserts."""
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_option_is_explained() -> None:
    """docs/python.md names each option of `generate` in its tables."""
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    missing = [name for name in Options.names() if not re.search(rf"^\|[^|]*`{name}`", text, re.M)]
    assert not missing


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_what_a_page_points_at_exists(page: Path) -> None:
    """Relative links, and files and tests named in backticks."""
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / link).exists(), link
    for path, test in re.findall(r"`((?:tests|examples|src|benches)/[\w/.]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / path).is_file(), path
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8") or not test, f"{path}::{test}"


def documented_results() -> list[tuple[str, str, str]]:
    """(module, call, result) for each line of a module docstring that shows a call and what comes back."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        found += [(module, call, result) for call, result in RESULT.findall(doc) if result[0] in "(-+.0123456789"]
    return found


def test_results_in_docstrings() -> None:
    """Calls shown with their results in module docstrings give them, to the digits printed."""
    shown = documented_results()
    assert {"headstart.theory"} <= {module for module, _, _ in shown}
    for module, call, result in shown:
        digits = max(len(number.partition(".")[2]) for number in re.findall(r"[\d.]+", result))
        got = eval(call, dict(vars(import_module(module))))
        assert got == pytest.approx(ast.literal_eval(result), abs=0.5 * 10.0**-digits), f"{module}: {call}"


if __name__ == "__main__":
    here = Path(sys.argv[1])
    sys.exit("\n".join(run_page(program(here), here.name)) or 0)
