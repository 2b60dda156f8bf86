"""How large each distribution may be, and what else its size is judged by.

The budgets are in ``budgets.toml``. Binding are lines of code (neither docstrings nor comments nor
blank lines) and lines of tests; the other columns are there to be read. ``python
tests/test_budgets.py`` prints the table.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent / "support"))

from fib_tests.sources import ROOT, Module, modules

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="tomllib comes with Python 3.11")

BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text(encoding="utf-8"))
# Solutions that cheat are data of their tests.
NO_TESTS = (ROOT / "tests" / "exploits" / "solutions",)


def lines_of_tests() -> dict[str, int]:
    """Return the lines of all files of tests, blank ones too, by the distribution they are of."""
    folders = {"everything": ROOT / "tests", "core": ROOT / "core" / "tests"}
    for path in sorted([*ROOT.glob("plugins/*/tests"), *ROOT.glob("examples/*/tests")]):
        folders[path.parent.name] = path
    return {name: sum(map(_length, files(folder))) for name, folder in folders.items()}


def files(folder: Path) -> list[Path]:
    found = folder.rglob("*.py")
    return [path for path in found if not any(data in path.parents for data in NO_TESTS)]


def _length(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


class Graph:
    """Who imports whom."""

    def __init__(self, every: list[Module]) -> None:
        names = {module.name for module in every}
        self.edges: dict[str, dict[str, set[str]]] = {"run": {}, "later": {}, "typing": {}}
        self.importers = defaultdict(set)
        for module in every:
            for found in module.imports(names):
                if found.target != module.name:
                    self.edges[found.when].setdefault(module.name, set()).add(found.target)
                    self.importers[found.target].add(module.name)

    def cyclic(self, *kinds: str) -> set[str]:
        """Return the modules that import one another in a circle, by imports of these kinds."""
        graph = defaultdict(set)
        for kind in kinds:
            for source, targets in self.edges[kind].items():
                graph[source] |= targets
        return {name for name in list(graph) if name in _reached(graph, name)}


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, ())
    return seen


@cache
def rows() -> list[dict[str, object]]:
    """Return the table: one row for each distribution, the largest first."""
    every = modules()
    graph = Graph(every)
    only_typing = graph.cyclic("run", "typing") - graph.cyclic("run")
    tests = lines_of_tests()
    of = defaultdict(list)
    for module in every:
        of[module.distribution].append(module)
    made = [_row(name, of[name], graph, only_typing, tests.get(name, 0)) for name in of]
    return sorted(made, key=lambda row: -row["lines"])


def _row(
    name: str, own: list[Module], graph: Graph, only_typing: set[str], tests: int
) -> dict[str, object]:
    lines = sum(module.lines() for module in own)
    stems = Counter(module.path.stem for module in own if not module.is_package)
    return {
        "distribution": name,
        "lines": lines,
        "budget": BUDGETS["code"].get(name, 0),
        "tests": tests,
        "files": len(own),
        "classes": sum(module.classes() for module in own),
        "one importer": sum(len(graph.importers[module.name]) == 1 for module in own),
        "same name": sum(count for count in stems.values() if count > 1),
        "typing cycles": sum(module.name in only_typing for module in own),
        "imports": f"{sum(module.import_lines() for module in own) / max(lines, 1):.0%}",
    }


def table() -> str:
    """Return all numbers as text."""
    found = rows()
    total: dict[str, object] = {"distribution": "all"}
    for column in list(found[0])[1:-1]:
        total[column] = sum(row[column] for row in found)
    total["imports"] = ""
    cells = [list(found[0]), *([*map(str, row.values())] for row in [*found, total])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    tests = f"lines of tests: {sum(lines_of_tests().values())} of {BUDGETS['tests']['lines']}"
    return "\n".join([*lines, tests])


def test_no_distribution_has_more_code_than_its_budget() -> None:
    text = table()
    print(text)
    over = [row["distribution"] for row in rows() if row["lines"] > row["budget"]]
    assert not over, f"over budget: {', '.join(over)}\n{text}"


def test_there_are_no_more_tests_than_their_budget() -> None:
    assert sum(lines_of_tests().values()) <= BUDGETS["tests"]["lines"], table()


def test_every_budget_is_of_something() -> None:
    assert sorted(BUDGETS["code"]) == sorted({module.distribution for module in modules()})


if __name__ == "__main__":
    print(table())
