"""The example plugin is a plugin as anybody could ship it, and so is every copy of it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from fib_tests import forked

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="tomllib comes with Python 3.11")

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "fib-builder-example"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8"))["project"]

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler on PATH"
)


def run(*command: str | Path, env: dict[str, str], cwd: Path):
    command = [sys.executable, *map(str, command)]
    done = forked.run(command, cwd=cwd, env={**os.environ, **env}, timeout=500)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def install(project: Path, site: Path) -> dict[str, str]:
    """Install a plugin into a folder of its own; return the environment that sees it."""
    for name in ("pip", "hatchling"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # From a copy, because building leaves folders behind.
    source = site.parent / "source"
    shutil.copytree(project, source, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run("-m", "pip", "install", "-q", *offline, "--target", site, source, env={}, cwd=site.parent)
    return {
        "PYTHONPATH": str(site),
        "FIB_STRICT_PLUGINS": "1",
        "FIB_CACHE_PATH": str(site.parent / "cache"),
        "FIB_PROBE_TIMEOUT_S": "60",  # a busy machine is no fault of the plugin
    }


# ------------------------------------------------------------------ the distribution


def test_it_needs_core_of_its_own_minor_version() -> None:
    major, minor, _ = CORE["version"].split(".")
    pin = f"~={major}.{minor}.0"
    assert PROJECT["dependencies"] == [f"flashinfer-bench-core{pin}", f"fib-native-toolkit{pin}"]
    assert PROJECT["optional-dependencies"]["test"] == [
        f"flashinfer-bench-core[torch,testing]{pin}"
    ]


def test_it_supports_the_same_pythons_under_the_same_licence() -> None:
    assert PROJECT["requires-python"] == CORE["requires-python"]
    assert PROJECT["license"] == CORE["license"]
    assert (EXAMPLE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    pythons = [line for line in CORE["classifiers"] if "Python :: 3" in line]
    assert [line for line in PROJECT["classifiers"] if "Python :: 3" in line] == pythons
    workflow = (EXAMPLE / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for python in pythons:
        assert f'"{python.split()[-1]}"' in workflow


def test_it_is_typed_and_has_an_entry_point() -> None:
    assert PROJECT["entry-points"] == {
        "flashinfer_bench.plugins": {"example": "fib_builder_example"}
    }
    assert (EXAMPLE / "src" / "fib_builder_example" / "py.typed").exists()


def test_it_imports_nothing_private() -> None:
    for path in EXAMPLE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        modules = re.findall(r"(?:from|import) (flashinfer_bench[\w.]*)", text)
        assert {name for name in modules if "._" in name} == set(), path.name
        # Where things are inside of the toolkit and the kit may change.
        assert {name for name in modules if re.search(r"\.(toolkit|testing)\.", name)} == set()


# ------------------------------------------------------------------ installed


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return install(EXAMPLE, tmp_path_factory.mktemp("example") / "site")


@needs_compiler
def test_it_is_found(example: dict[str, str], tmp_path: Path) -> None:
    listed = run("-m", "flashinfer_bench", "plugins", "list", "--json", env=example, cwd=tmp_path)
    records = {record["name"]: record for record in json.loads(listed.stdout)["records"]}
    assert records["example"]["provided_by"] == f"fib-builder-example {PROJECT['version']}"
    assert records["example"]["state"] == "ok"
    run("-m", "flashinfer_bench", "plugins", "doctor", "example", env=example, cwd=tmp_path)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    new = ("plugins", "new", "my-lang", "--author", "Ada <ada@lovelace.org>")
    run("-m", "flashinfer_bench", *new, env={}, cwd=folder)
    return folder / "fib-builder-my-lang"


@pytest.fixture(scope="module")
def copy_installed(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return install(copied, tmp_path_factory.mktemp("copied") / "site")


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_compiler
def test_the_tests_of_a_copy_pass_at_once(copied: Path, copy_installed: dict[str, str]) -> None:
    """So do the example's, which are copied, and without any other plugin."""
    only = {"FIB_NO_PLUGINS": "1", "FIB_PLUGINS": "fib_builder_my_lang"}
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--color=no")
    done = run("-m", "pytest", *options, env={**copy_installed, **only}, cwd=copied)
    assert " passed" in done.stdout


@pytest.mark.slow
@needs_compiler
def test_the_dataset_of_a_copy_runs(copied: Path, copy_installed: dict[str, str]) -> None:
    quick = ("--device", "cpu", "--iterations", "3", "--warmup-runs", "1", "--num-trials", "1")
    command = ("-m", "flashinfer_bench", "run", "--local", "dataset", "--json", *quick)
    done = run(*command, env=copy_installed, cwd=copied)
    traces = [
        json.loads(line)
        for path in (copied / "dataset" / "traces").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    found = {trace["solution"]: set() for trace in traces}
    for trace in traces:
        found[trace["solution"]].add(trace["evaluation"]["status"])
    assert found == {
        "rmsnorm_c": {"PASSED"},
        "rmsnorm_c_vectorised": {"PASSED"},
        "rmsnorm_c_wrong_signature": {"COMPILE_ERROR"},
    }, done.stderr
