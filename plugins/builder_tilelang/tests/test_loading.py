"""What is left of the changes that ``import tilelang`` makes to a process."""

import json

import pytest

from fib_tests.scaled_add import run_in_child

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
    cache = str(tmp_path_factory.mktemp("of_tilelang"))
    variables = {"PYTHONWARNINGS": "error", "PYTHONPATH": "/a:/b", "TILELANG_CACHE_DIR": cache}
    done = run_in_child(code, **variables)
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


def test_an_installation_that_is_broken(tmp_path):
    (tmp_path / "tilelang.py").write_text("raise ValueError('registered twice')\n")
    code = (
        "import sys\n"
        "from fib_builder_tilelang.loading import load_tilelang\n"
        "for _ in range(2):\n"
        "    try:\n        load_tilelang()\n"
        "    except Exception as error:\n        print(type(error).__name__, error)\n"
    )
    printed = run_in_child(code, PYTHONPATH=str(tmp_path)).stdout
    assert printed.count("cannot be imported: ValueError: registered twice") == 2
    assert printed.count("CapabilityError tilelang ") == 2
    assert "hint: python -c 'import tilelang' shows the full error" in printed
