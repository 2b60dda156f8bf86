"""The reference of languages: a table of what is installed, and sources that build and compute."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from fib_tests import forked
from flashinfer_bench.plugins import discover

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "solution-languages.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "fib-builder-example" / "src"

# Folder on the page: language, binding, entry point, device, and variables that it needs here.
SOLUTIONS = {
    "python": ("python", None, "main.py", "cpu", {}),
    "triton": ("triton", None, "main.py", "cpu", {"TRITON_INTERPRET": "1"}),
    "tilelang": ("tilelang", None, "main.py", "cpu", {}),
    "cpp-tvm-ffi": ("cpp", "tvm-ffi", "main.cpp", "cpu", {}),
    "cuda-tvm-ffi": ("cuda", "tvm-ffi", "main.cu", "cuda", {"FIB_CUDA_ARCH_LIST": "9.0a"}),
    "cpp-torch": ("cpp", "torch", "main.cpp", "cpu", {}),
    "cuda-torch": ("cuda", "torch", "main.cpp", "cuda", {"FIB_CUDA_ARCH_LIST": "9.0a"}),
    "c": ("c", None, "main.c", "cpu", {"FIB_PLUGINS": "fib_builder_example"}),
}

# What a process of its own does, because some of the variables are read once.
BUILD = """
import json, sys
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import Solution
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import default_catalog
from fib_testing import make_solution, sample_definition

request = json.load(sys.stdin)
definition = sample_definition()
solution = make_solution(definition, request["sources"], request["entry"], **request["spec"])
device = request["device"]
try:
    spec = solution.spec
    default_catalog().select_builder(spec.language, spec.binding, solution="it", device=device)
except CapabilityError as error:
    sys.exit(f"cannot be used here: {error}")
registry = BuilderRegistry.from_catalog(device=device)
import torch
if device == "cuda" and not torch.cuda.is_available():
    registry.compile(definition, solution)
    print("compiled")
else:
    run = registry.build(definition, solution)
    x, y = torch.randn(2, 5, 8, device=device)
    torch.testing.assert_close(run.call_value_returning(x, y, 0.5), (x + y) * 0.5)
    print("computed")
"""


def sources() -> dict[str, dict[str, str]]:
    """Return the files of each folder on the page."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for text in re.findall(r"^```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        folder, _, name = re.match(r"(?:#|//) (\S+)\n", text)[1].partition("/")
        found[folder][name] = text
    return found


def rows() -> dict[str, dict[str, str]]:
    """Return the table of languages, by record."""
    lines = [line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line] for line in lines]
    names = ("language", "binding", "record", "plugin", "device", "entry")
    wide = [dict(zip(names, row, strict=True)) for row in cells if len(row) == len(names)]
    return {row["record"].strip("`"): row for row in wide}


def test_every_source_is_tried() -> None:
    assert set(sources()) == set(SOLUTIONS)


def test_the_table_has_every_builder_of_the_installed_plugins() -> None:
    registered = [entry for entry in discover().builders if entry.distribution.startswith("fib-")]
    for entry in registered:
        row = rows()[entry.name]
        handles = dict.fromkeys(language for language, _ in entry.spec.handles)
        assert row["plugin"] == entry.distribution
        assert f"`{row['language'].strip('`')}`" == f"`{next(iter(handles))}`"
        assert row["device"].partition(",")[0] == (" ".join(entry.spec.devices) or "any")
        bindings = {binding or "none" for _, binding in entry.spec.handles}
        named = set(row["binding"].replace("`", "").replace("any", "*").split(", "))
        # A binding of torch's builders is also guessed where none is named; the prose says when.
        assert named <= bindings


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("folder", SOLUTIONS)
def test_the_source_of_a_language_computes(folder: str, tmp_path: Path) -> None:
    language, binding, entry, device, variables = SOLUTIONS[folder]
    request = {
        "sources": sources()[folder],
        "entry": f"{entry}::run",
        "device": device,
        "spec": {"language": language, "binding": binding},
    }
    path = os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")])
    private = {"FIB_CACHE_PATH": str(tmp_path / "cache"), "PYTHONPATH": path}
    caches = {"TRITON_CACHE_DIR": str(tmp_path / "t"), "TILELANG_CACHE_DIR": str(tmp_path / "l")}
    environment = {**os.environ, **private, **caches, **variables}
    done = forked.run([sys.executable, "-c", BUILD], input=json.dumps(request), env=environment)
    if "cannot be used here: " in done.stderr:
        pytest.skip(done.stderr.partition("cannot be used here: ")[2].strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] in ("computed", "compiled")
