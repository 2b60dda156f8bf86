"""The documentation is complete, names only what there is, and does what it says."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import sys
import sysconfig
import venv
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fib_testing as testing
from fib_tests import forked
from flashinfer_bench import env
from flashinfer_bench.cli.main import app
from flashinfer_bench.compile import toolkit
from flashinfer_bench.plugins import KINDS, hook_of, hookspecs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLE = ROOT / "examples" / "fib-builder-example"
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(EXAMPLE / "README.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
]
PLUGIN_PAGE = DOCS / "how-to" / "write-a-plugin.md"
PAGE_OF = {
    kind: DOCS / "how-to" / f"write-{'an' if kind[0] in 'aei' else 'a'}-{kind}.md".replace("_", "-")
    for kind in KINDS
}
# Kinds with a page of their own; the others have a section each on one page.
HOW_TO = {kind: page for kind, page in PAGE_OF.items() if page.exists()}
TUTORIAL = DOCS / "tutorials" / "your-first-builder.md"

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler on PATH"
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that it is, as its first line says; empty if it says none."""
        found = re.match(r"(?:#|//) ([\w./-]+\.\w+)\n", self.text)
        return found[1] if found else ""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks_of(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found]


def prose_of(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def ident(value: object) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


def each(language: str) -> list[pytest.ParameterSet]:
    return [
        pytest.param(block.text, id=f"{page.stem}-{index}")
        for page in PAGES
        for index, block in enumerate(blocks_of(page))
        if block.language == language
    ]


# ------------------------------------------------------------------ complete


def test_every_hook_has_a_page() -> None:
    for kind in KINDS:
        page = text_of(HOW_TO.get(kind, PLUGIN_PAGE))
        assert f"def {hook_of(kind)}" in page, f"{hook_of(kind)} is not documented"


def test_every_lifecycle_hook_is_on_the_page() -> None:
    for name in vars(hookspecs):
        if name.startswith("fib_"):
            assert f"def {name}(" in text_of(PLUGIN_PAGE)


@pytest.mark.parametrize("kind", HOW_TO)
def test_a_page_names_its_hook_and_record(kind: str) -> None:
    text = text_of(HOW_TO[kind])
    assert hook_of(kind) in text
    assert f"`{KINDS[kind].__name__}`" in text
    for title in ("A complete plugin", "The record", "The contract", "Test it", "Pitfalls"):
        assert f"\n## {title}\n" in text


@pytest.mark.parametrize("kind", HOW_TO)
def test_a_page_has_every_field_of_the_record_and_no_other(kind: str) -> None:
    section = text_of(HOW_TO[kind]).partition("\n## The record\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == sorted(field.name for field in fields(KINDS[kind]))


def test_every_suite_of_the_kit_is_used_on_a_page() -> None:
    text = "".join(map(text_of, HOW_TO.values()))
    suites = [name for name in testing.__all__ if name.endswith("Conformance")]
    assert len(suites) >= 6
    assert [name for name in suites if f"({name}):" not in text] == []


def test_what_the_toolkit_is_said_to_have_is_there() -> None:
    page = text_of(HOW_TO["builder"]).partition("The toolkit has the parts:")[2]
    named = re.findall(r"\b(\w+)(?:\(|`)", page.partition("\n\n`")[0])
    assert len(named) >= 10
    assert [name for name in named if not hasattr(toolkit, name)] == []


def test_the_index_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", text_of(DOCS / "README.md")))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages - {"README.md"} <= linked


# ------------------------------------------------------------------ names what there is


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", PAGES, ids=ident)
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?://)([^)]+)\)", prose_of(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("source", each("python"))
def test_python_compiles_and_what_it_imports_is_there(source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flashinfer_bench"):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):  # a module of a package, then
                    importlib.import_module(f"{node.module}.{name.name}")


@pytest.mark.parametrize("source", each("json"))
def test_json_parses(source: str) -> None:
    json.loads(source if source.lstrip().startswith(("{", "[")) else f"{{{source}}}")


@pytest.mark.parametrize("page", PAGES, ids=ident)
def test_environment_variables_exist(page: Path) -> None:
    known = {variable.name for variable in env.VARIABLES}
    assert set(re.findall(r"\bFIB_[A-Z_]+\b", text_of(page))) <= known


@pytest.mark.parametrize("page", PAGES, ids=ident)
def test_dotted_names_exist(page: Path) -> None:
    for name in set(re.findall(r"`(flashinfer_bench(?:\.\w+)+)(?:\([^`]*)?`", text_of(page))):
        if name == "flashinfer_bench.plugins":  # also the group of entry points
            continue
        module, _, attribute = name.rpartition(".")
        if importlib.util.find_spec(module) is None or not hasattr(
            importlib.import_module(module), attribute
        ):
            importlib.import_module(name)


def commands() -> set[str]:
    found = set()
    for page in PAGES:
        text = text_of(page)
        shell = "\n".join(b.text for b in blocks_of(page) if b.language in ("bash", "console"))
        found.update(re.findall(r"^(?:\$ )?(fib [^|#\n]*)", shell, re.MULTILINE))
        found.update(re.findall(r"`(fib [^`]*)`", " ".join(text.split("```")[::2])))
    return {command.replace("\n", " ").strip() for command in found}


@lru_cache
def help_of(words: tuple[str, ...]) -> str:
    """Return the help text of a command; empty if there is none."""
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, [*words, "--help"])
    return "" if done.exit_code else done.stdout


OF_PLUGINS = ("sizes", "acme-sizes", "NAME", "report badges")


@pytest.mark.parametrize("command", sorted(commands()))
def test_commands_and_options_exist(command: str) -> None:
    words = re.findall(r"(?<!\S)[a-z-]+(?!\S)", command.partition(" -")[0])[1:4]
    if {command.split()[1], " ".join(words[:2])} & {*OF_PLUGINS}:
        return
    text = next((text for size in (3, 2, 1) if (text := help_of(tuple(words[:size])))), "")
    assert text, command
    assert [flag for flag in re.findall(r"(?<!\S)--[a-z-]+", command) if flag not in text] == []


# ------------------------------------------------------------------ does what it says


def run(command: list[str], cwd: Path, **variables: str):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FIB_")}
    # The helper of apply takes longer to compile than all that pages do.
    given = {**inherited, "FIB_APPLY_HELPER": "0", **variables}
    done = forked.run(command, cwd=cwd, env=given, timeout=550)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done


def try_plugins(folder: Path) -> None:
    """Write the files of all pages, look at their plugins, and run their tests, all at once."""
    named = {}
    for kind, page in HOW_TO.items():
        place = folder / kind
        place.mkdir()
        for block in blocks_of(page):
            if block.language == "python" and block.file:
                (place / block.file).write_text(block.text)
        named[kind] = next(
            p.stem for p in sorted(place.iterdir()) if hook_of(kind) in p.read_text()
        )
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers = plugin(name): needs a plugin\nnorecursedirs = examples\n"
    )
    variables = {
        "PYTHONPATH": os.pathsep.join(str(folder / kind) for kind in HOW_TO),
        "FIB_PLUGINS": ",".join(named.values()),
        "FIB_PROBE_TIMEOUT_S": "120",  # a busy machine is no fault of a page
        "FIB_STRICT_PLUGINS": "1",
        "FIB_CACHE_PATH": str(folder / "cache"),
    }
    fib = [sys.executable, "-m", "flashinfer_bench"]
    listed = run([*fib, "plugins", "list", "--json"], folder, **variables)
    run([*fib, "plugins", "doctor"], folder, **variables)
    # Strict about warnings, as the tests of a plugin should be.
    options = ("-q", "-W", "error", "--import-mode=importlib", "-p", "no:cacheprovider")
    run([sys.executable, "-m", "pytest", *options, "--junitxml=tests.xml"], folder, **variables)
    passed = Counter(
        test.get("classname", "").partition(".")[0]
        for test in ElementTree.parse(folder / "tests.xml").iter("testcase")
        if test.find("skipped") is None
    )
    found = {"plugins": named, "records": json.loads(listed.stdout)["records"], "passed": passed}
    (folder / "found.json").write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", HOW_TO)
def test_the_plugin_of_a_page_is_sound_and_passes_the_kit(kind: str, once) -> None:
    found = json.loads((once("plugins-of-pages", try_plugins) / "found.json").read_text())
    plugin = found["plugins"][kind]
    assert f"FIB_PLUGINS={plugin}\n" in text_of(HOW_TO[kind])
    mine = [record for record in found["records"] if record["plugin"] == plugin]
    assert [(record["kind"], record["state"]) for record in mine] == [(kind, "ok")], mine
    assert found["passed"].get(kind, 0) > 0


QUICKLY = "--iterations 5 --warmup-runs 1 --num-trials 1"


@pytest.fixture
def sandbox(tmp_path: Path) -> dict[str, str]:
    """An environment that has what this one has, and into which pip installs without network."""
    for name in ("pip", "hatchling", "build"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    place = tmp_path / "venv"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    (site,) = place.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    pip = "-m pip install -q --no-deps --no-build-isolation --no-index -e ."
    for name, arguments in {
        "pip": pip,
        "fib": f'-m flashinfer_bench "$@" $(test "$1" != run || echo {QUICKLY})',
        "pytest": '-m pytest -p no:cacheprovider "$@"',
    }.items():
        script = place / "bin" / name
        script.write_text(f"#!/bin/sh\nexec {python} {arguments}\n")
        script.chmod(0o755)
    path = os.pathsep.join([str(place / "bin"), os.environ["PATH"]])
    return {"PATH": path, "FIB_CACHE_PATH": str(tmp_path / "cache")}


def script_of(page: Path) -> str:
    """Return a shell script that does what a page tells its reader to do."""
    parts = ["set -euo pipefail"]
    for number, block in enumerate(blocks_of(page)):
        end = f"END_OF_BLOCK_{number}"
        if block.language == "bash":
            parts.append(block.text.replace("-m build", "-m build --no-isolation"))
        elif block.language == "diff":
            parts.append(f"git apply <<'{end}'\n{block.text}{end}")
        elif block.file:
            parts.append(f"mkdir -p {Path(block.file).parent}")
            parts.append(f"cat > {block.file} <<'{end}'\n{block.text}{end}")
    return "\n".join(parts)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.plugin("python")
@needs_compiler
def test_the_tutorial_can_be_followed(sandbox: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    # That the tests pass before any change is what `test_example_plugin` is about.
    first = "\npytest -q\nfib plugins doctor"
    script = script_of(TUTORIAL)
    assert script.count(first) == 1
    done = run(["bash", "-c", script.replace(first, "\nfib plugins doctor")], folder, **sandbox)
    plugin = folder / "fib-builder-openmp"
    (traces,) = (plugin / "dataset" / "traces").rglob("*.jsonl")
    statuses = {
        (trace["solution"], trace["evaluation"]["status"])
        for trace in map(json.loads, traces.read_text().splitlines())
    }
    assert ("rmsnorm_parallel", "PASSED") in statuses
    assert ("rmsnorm_c_wrong_signature", "COMPILE_ERROR") in statuses
    assert "OpenMP 20" in done.stdout or "C functions with OpenMP" in done.stdout
    assert len(list((plugin / "dist").iterdir())) == 2
    # What the page shows of its files is what is in them.
    text = (plugin / "pyproject.toml").read_text()
    for block in blocks_of(TUTORIAL):
        assert block.language != "toml" or block.text in text
