"""What is left of the changes that ``import tilelang`` makes to a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

STATE = """
import json, os, sys, threading, warnings
import torch

def state():
    return {
        "path": list(sys.path),
        "environment": dict(os.environ),
        "hook": id(sys.excepthook),
        "filters": str(warnings.filters),
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
    }
"""


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """The state of a process before the import and after, by the builder."""
    code = (
        STATE
        + "before = state()\n"
        + "from fib_builder_tilelang.loading import load_tilelang\n"
        + "load_tilelang()\nload_tilelang()\n"
        + "assert 'tilelang' in sys.modules\n"
        + "print(json.dumps([before, state()]))\n"
    )
    variables = {
        "PYTHONPATH": "/a:/b",
        "TILELANG_CACHE_DIR": str(tmp_path_factory.mktemp("of_tilelang")),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | variables,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_process_is_as_before_but_for_variables_of_its_own(states):
    before, after = states
    path = before.pop("path")
    assert after["path"][: len(path)] == path
    assert all("tilelang" in folder for folder in after.pop("path")[len(path) :])
    new = set(after["environment"]) - set(before["environment"])
    assert new <= {"TL_CUTLASS_PATH", "TL_TEMPLATE_PATH", "TVM_LIBRARY_PATH"}
    for name in new:
        del after["environment"][name]
    assert after == before


def test_an_installation_that_is_broken(tmp_path, in_child):
    (tmp_path / "tilelang.py").write_text("raise ValueError('registered twice')\n")
    code = (
        "import sys\n"
        "from fib_builder_tilelang.loading import load_tilelang\n"
        "for _ in range(2):\n"
        "    try:\n        load_tilelang()\n"
        "    except Exception as error:\n        print(type(error).__name__, error)\n"
    )
    printed = in_child(code, PYTHONPATH=str(tmp_path))
    assert printed.count("cannot be imported: ValueError: registered twice") == 2
    assert printed.count("CapabilityError tilelang ") == 2
    assert "hint: python -c 'import tilelang' shows the whole error" in printed


FILES_WHILE_AND_AFTER = """
import os, pathlib, sys, tempfile
import torch
from fib_builder_tilelang.builder import TileLangBuilder
from flashinfer_bench.data import Definition, Solution

definition = Definition.model_validate_json(sys.argv[1])
solution = Solution.model_validate_json(sys.argv[2])
runnable = TileLangBuilder().build(definition, solution)
x = torch.ones(3, 8)
try:
    print(runnable(x, x, 0.5).sum().item())
except Exception as error:
    print(type(error).__name__)
cache = pathlib.Path(os.environ["FIB_CACHE_PATH"])
print(sorted({path.suffix for path in (cache / "scratch").rglob("tmp*")}))
print(tempfile.NamedTemporaryFile is sys.modules["tempfile"].NamedTemporaryFile)
"""


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("(x[i]", ["24.0", "['.cpp', '.so']", "True"]),
        ('(T.call_extern("float32", "no_such", x[i])', ["BuildError", "['.cpp', '.so']", "True"]),
    ],
)
def test_temporary_files_go_with_the_process(
    tmp_path, definition, make_solution, sources, expression, printed
):
    solution = make_solution(sources["returns"].replace("(x[i]", expression))
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    variables = {
        "TMPDIR": str(temporary),
        "FIB_CACHE_PATH": str(cache),
        "TILELANG_CACHE_DIR": str(tmp_path / "of_tilelang"),
    }
    done = subprocess.run(
        [
            *(sys.executable, "-c", FILES_WHILE_AND_AFTER),
            *(definition.model_dump_json(), solution.model_dump_json()),
        ],
        capture_output=True,
        text=True,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == printed
    assert list(temporary.iterdir()) == []
    assert list((cache / "scratch").glob("*/*")) == []
