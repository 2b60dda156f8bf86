"""The project's source code as trees: its distributions, its modules, and who imports whom."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Import:
    """One module that a file imports."""

    target: str
    line: int
    when: str  # "run": with the file; "later": inside of a function; "typing": never


@dataclass(frozen=True)
class Module:
    """A file of source code."""

    distribution: str
    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def lines(self) -> int:
        """Count lines that are no docstring, no comment, and not blank."""
        documentation = _lines_of_docstrings(self.tree)
        return sum(
            number not in documentation and bool(line.strip()) and not line.strip().startswith("#")
            for number, line in enumerate(self.text.splitlines(), 1)
        )

    def import_lines(self) -> int:
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)

    def classes(self) -> int:
        return sum(isinstance(node, ast.ClassDef) for node in ast.walk(self.tree))

    def imports(self, known: Iterable[str]) -> list[Import]:
        """Return the modules among `known` that it imports."""
        known = set(known)
        found = []
        for node, when in _imports_in(self.tree, "run"):
            for dotted in self._names(node):
                while dotted and dotted not in known:
                    dotted = dotted.rpartition(".")[0]
                if dotted:
                    found.append(Import(dotted, node.lineno, when))
        return found

    def _names(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        base = node.module or ""
        if node.level:
            parts = self.name.split(".") + ["__init__"] * self.is_package
            base = ".".join([*parts[: -node.level], *filter(None, [node.module])])
        return [f"{base}.{alias.name}" for alias in node.names]


def _lines_of_docstrings(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def _imports_in(node: ast.AST, when: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node, when
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and when == "run":
        when = "later"
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.body:
            yield from _imports_in(child, "typing")
        for child in node.orelse:
            yield from _imports_in(child, when)
        return
    for child in ast.iter_child_nodes(node):
        yield from _imports_in(child, when)


def modules() -> list[Module]:
    """Return the modules of core, of all plugins, and of the example plugin."""
    folders = [ROOT / "core", *ROOT.glob("plugins/*"), *ROOT.glob("examples/*")]
    return [
        Module(folder.name, _name_of(path.relative_to(folder / "src")), path)
        for folder in sorted(folders)
        for path in sorted((folder / "src").rglob("*.py"))
    ]


def _name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")
