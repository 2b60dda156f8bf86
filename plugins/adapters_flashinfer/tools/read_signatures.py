"""Reads from unpacked FlashInfer releases the signatures that adapters rely on.

Nothing is imported: sources are parsed. For each path it finds out what each release has there, and
writes them down by groups of releases that agree:

    python tools/read_signatures.py RELEASES > tests/signatures.json

RELEASES is a folder with one folder per release, named after it, which has ``flashinfer/`` in it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path
from typing import Any, Optional

DECODE = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper"
GRAPH = "flashinfer.decode.CUDAGraphBatchDecodeWithPagedKVCacheWrapper"
PREFILL = "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper"
RAGGED = "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper"
MLA = "flashinfer.mla.BatchMLAPagedAttentionWrapper"
METHODS = (
    *("__init__", "plan", "begin_forward", "run", "run_return_lse"),
    *("forward", "forward_return_lse", "end_forward"),
)
PATHS = (
    *(f"flashinfer.norm.{each}" for each in ("rmsnorm", "fused_add_rmsnorm")),
    *(f"flashinfer.norm.{each}" for each in ("gemma_rmsnorm", "gemma_fused_add_rmsnorm")),
    *("flashinfer.rmsnorm", "flashinfer.fused_add_rmsnorm", "flashinfer.gemm.mm_bf16"),
    *("flashinfer.decode.fast_decode_plan", "flashinfer.fast_decode_plan"),
    *(f"{owner}.{each}" for owner in (DECODE, PREFILL, RAGGED) for each in METHODS),
    *(f"{GRAPH}.__init__", *(f"{MLA}.{each}" for each in ("__init__", "plan", "run"))),
)
ABSENT = "absent"


class Release:
    """The sources of one release, parsed as they are needed.

    Parameters
    ----------
    root : Path
        The folder that has ``flashinfer/`` in it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parsed: dict[str, Optional[ast.Module]] = {}

    def describe(self, path: str) -> str:
        """Return the parameters of what a path names, or what else there is to say of it.

        ``"= name"`` for another name of a method of the class, ``"= call(...)"`` for what a call
        makes, ``"absent"``.
        """
        parts = path.split(".")
        module = ".".join(parts[:-1])
        if self._module(module) is not None:
            found = self._find(module, parts[-1])
            return _described(found, parts[-1])
        owner = self._find(".".join(parts[:-2]), parts[-2])
        if not isinstance(owner, ast.ClassDef):
            return ABSENT
        return _described(_in(owner.body, parts[-1]), parts[-1])

    def _module(self, name: str) -> Optional[ast.Module]:
        if name not in self._parsed:
            place = self._root.joinpath(*name.split("."))
            files = (place / "__init__.py", place.with_suffix(".py"))
            file = next((each for each in files if each.is_file()), None)
            self._parsed[name] = ast.parse(file.read_text(encoding="utf-8")) if file else None
        return self._parsed[name]

    def _is_package(self, name: str) -> bool:
        return self._root.joinpath(*name.split("."), "__init__.py").is_file()

    def _find(self, module: str, name: str) -> Optional[ast.stmt]:
        """Return the statement that defines a name, in the module that it is imported from."""
        tree = self._module(module)
        found = _in(tree.body, name) if tree else None
        if not isinstance(found, ast.ImportFrom):
            return found
        if found.names[0].name == "*":
            return self._find(self._source(module, found), name)
        alias = next(each for each in found.names if (each.asname or each.name) == name)
        return self._find(self._source(module, found), alias.name)

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        up = node.level - 1 if self._is_package(module) else node.level
        parts = module.split(".")
        base = parts[: len(parts) - up]
        return ".".join([*base, *([node.module] if node.module else [])])


def _in(body: list[ast.stmt], name: str) -> Optional[ast.stmt]:
    """Return the last statement that gives a name its value, overloads aside."""
    flat = _flat(body)
    named = [each for each in flat if name in _names(each)]
    return named[-1] if named else next((each for each in flat if "*" in _names(each)), None)


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements with those of conditions and guarded blocks in their places."""
    found: list[ast.stmt] = []
    for each in body:
        found.append(each)
        if isinstance(each, (ast.If, ast.Try)):
            found += _flat(each.body)
    return found


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        overload = any(ast.unparse(each).endswith("overload") for each in node.decorator_list)
        return [] if overload else [node.name]
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)]
    if isinstance(node, ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    return []


def _described(node: Optional[ast.stmt], name: str) -> str:
    if isinstance(node, ast.FunctionDef):
        return parameters(node.args)
    if isinstance(node, ast.Assign):
        return f"= {ast.unparse(node.value)}"
    return ABSENT if node is None else f"= {type(node).__name__} {name}"


def parameters(arguments: ast.arguments) -> str:
    """Return parameters as source code, without annotations, and defaults as `repr` has them."""
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg):
            each.annotation = None
    return ast.unparse(arguments)


def snapshot(folder: Path) -> dict[str, Any]:
    """Return what each release has: ``{path: {description: "release release ..."}}``."""
    releases = sorted(
        (each.name for each in folder.iterdir() if (each / "flashinfer").is_dir()), key=_order
    )
    parsed = {name: Release(folder / name) for name in releases}
    functions: dict[str, dict[str, str]] = {}
    for path in PATHS:
        groups: dict[str, list[str]] = {}
        for name in releases:
            groups.setdefault(parsed[name].describe(path), []).append(name)
        functions[path] = {found: " ".join(names) for found, names in groups.items()}
    return {"releases": releases, "functions": functions}


def _order(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def main() -> None:
    """Write the snapshot of a folder of releases to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("releases", type=Path, help="a folder with one folder per release")
    json.dump(snapshot(parser.parse_args().releases), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
