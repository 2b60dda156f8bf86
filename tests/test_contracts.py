"""Plugins stand on core's public modules, and on nothing else of core.

The list is `docs/reference/public-modules.md`; ``python tests/test_contracts.py`` writes its tables
anew, from what plugins import: look at what has become public by that, and whether it should.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent / "support"))

from fib_tests.sources import ROOT, Import, Module, modules

PAGE = ROOT / "docs" / "reference" / "public-modules.md"
CORE = "flashinfer_bench"
PRIVATE = re.compile(r"(^|\.)_")
# The page's sections, and the parts of core that are in them.
GROUPS = {
    "Registering": "plugins errors env",
    "Records and datasets": "data tensors tracing validate stats",
    "Building": "compile",
    "Benchmarking": "bench",
    "Calls of libraries": "apply integration routing",
    "Commands and reports": "cli report",
    "Others": "testing",
}
# Beyond the page, each until the reason is gone: (who, what, why).
EXCEPTIONS: dict[tuple[str, str], str] = {}


def listed() -> set[str]:
    """Return the modules that the page calls public."""
    found = re.findall(rf"^\| `({CORE}[\w.]*)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == len(set(found)), "a module is listed twice"
    return set(found)


def imported() -> dict[str, dict[str, list[str]]]:
    """Return module of core → distribution → places where it is imported."""
    every = modules()
    of_core = {module.name for module in every if module.distribution == "core"}
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for module in every:
        if module.distribution != "core":
            for one in [*module.imports(of_core), *_named_in_text(module, of_core)]:
                place = f"{module.path.relative_to(ROOT)}:{one.line}"
                found[one.target][module.distribution].append(place)
    return found


def _named_in_text(module: Module, of_core: set[str]) -> list[Import]:
    """Return what records name as ``"module:attribute"``."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, colon, _ = node.value.partition(":")
            if colon and name in of_core:
                found.append(Import(name, node.lineno, "later"))
    return found


def test_plugins_import_public_modules_alone() -> None:
    public = listed()
    wrong = [
        f"{place} imports {module}"
        for module, users in sorted(imported().items())
        for distribution, places in users.items()
        for place in places
        if module not in public and (distribution, module) not in EXCEPTIONS
    ]
    assert not wrong, "not in docs/reference/public-modules.md:\n" + "\n".join(wrong)


def test_no_private_module_is_public() -> None:
    assert [name for name in listed() if PRIVATE.search(name)] == []


def test_exceptions_are_needed() -> None:
    found = imported()
    public = listed()
    for (distribution, module), why in EXCEPTIONS.items():
        assert why
        assert distribution in found[module], f"{distribution} no longer imports {module}"
        assert module not in public


def test_what_is_listed_is_there() -> None:
    there = {module.name for module in modules() if module.distribution == "core"}
    assert listed() - there == set()


def tables() -> str:
    """Return the tables of the page, from what plugins import."""
    summary = {
        module.name: (ast.get_docstring(module.tree) or "").partition("\n")[0].replace("``", "`")
        for module in modules()
        if module.distribution == "core"
    }
    users = {module: sorted(by) for module, by in imported().items() if not PRIVATE.search(module)}
    users[f"{CORE}.testing"] = ["the example"]
    rows: dict[str, list[str]] = {title: [] for title in GROUPS}
    for module, by in sorted(users.items()):
        part = module.partition(".")[2].partition(".")[0]
        title = next((one for one, parts in GROUPS.items() if part in parts.split()), "Others")
        named = ", ".join("the example" if name.startswith("fib-") else name for name in by)
        rows[title].append(f"| `{module}` | {summary[module].replace('|', '/')} | {named} |")
    head = "| module | what it has | used by |\n|---|---|---|\n"
    return "\n".join(
        f"## {title}\n\n{head}" + "".join(f"{row}\n" for row in found)
        for title, found in rows.items()
        if found
    )


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition("## ")[0] + tables(), encoding="utf-8")
