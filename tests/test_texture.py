"""The project's own rules of size and hygiene, checked on its own files."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    [
        *ROOT.glob("core/src/**/*.py"),
        *ROOT.glob("plugins/*/src/**/*.py"),
        *ROOT.glob("examples/*/src/**/*.py"),
    ]
)
TESTS = sorted(
    [
        *ROOT.glob("core/tests/**/*.py"),
        *ROOT.glob("plugins/*/tests/**/*.py"),
        *ROOT.glob("examples/*/tests/**/*.py"),
        *ROOT.glob("tests/**/*.py"),
    ]
)


def lines_of(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def functions_of(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return [(f"{path.name}:{node.name}", node.end_lineno - node.lineno + 1) for node in found]


def body_lines(path: Path) -> list[int]:
    """Lengths of the functions without their docstrings."""
    lengths = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node):
                length -= node.body[0].end_lineno - node.body[0].lineno + 1
            lengths.append(length)
    return lengths


def test_no_source_file_is_too_long() -> None:
    assert [f"{p.name}: {lines_of(p)}" for p in SOURCES if lines_of(p) > 400] == []


def test_no_function_is_too_long() -> None:
    functions = [function for path in SOURCES for function in functions_of(path)]
    assert [name for name, length in functions if length > 60] == []


def test_functions_are_short_as_a_rule() -> None:
    lengths = sorted(length for path in SOURCES for length in body_lines(path))
    assert statistics.median(lengths) <= 10
    assert lengths[int(len(lengths) * 0.9)] <= 35


def test_there_are_at_least_as_many_lines_of_tests_as_of_source() -> None:
    assert sum(map(lines_of, TESTS)) >= sum(map(lines_of, SOURCES))


def broad_excepts(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    bare = {"Exception", "BaseException"}
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and (
            node.type is None or getattr(node.type, "id", "") in bare
        ):
            if isinstance(node.body[-1], ast.Raise):
                continue  # nothing is swallowed
            line = text.splitlines()[node.lineno - 1]
            if "BLE001" not in line and "B001" not in line:
                found.append(f"{path.name}:{node.lineno}")
    return found


def test_a_broad_except_is_marked_as_such() -> None:
    # A handler that re-raises needs no mark for the linter; one that swallows does.
    assert [place for path in SOURCES for place in broad_excepts(path)] == []


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_place_on_somebody_s_machine() -> None:
    machine = re.compile(rb"(?<![\w.])/(?:work|root|home)/[a-z]")
    hits = [
        str(p)
        for p in tracked_files()
        if p.suffix != ".safetensors" and machine.search(p.read_bytes())
    ]
    assert hits == []


def test_no_committed_file_is_large() -> None:
    assert [str(p) for p in tracked_files() if p.stat().st_size > 1_000_000] == []
