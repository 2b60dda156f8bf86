"""``fib adapters list``: each target, its state, and why."""

import json
import os

import pytest

PLUGIN = """
from flashinfer_bench.plugins import AdapterSpec, hookimpl

@hookimpl
def fib_register_adapters():
    print("talk")
    yield AdapterSpec(
        name="p1.lib", targets=["p1cli_lib.f", "p1cli_lib.odd", "p1cli_lib.gone"],
        factory="p1cli_adapter:Mine")
    yield AdapterSpec(
        name="p1.absent", targets=["p1cli_absent.f"], factory="p1cli_adapter:Mine")
    yield AdapterSpec(
        name="p1.fails", targets=["p1cli_fails.f"], factory="p1cli_adapter:Fails")
    yield AdapterSpec(name="p1.late", targets=["p1cli_lib.*"], factory="p1cli_adapter:Late")
    yield AdapterSpec(name="p1.broken", targets=["p1cli_lib.g"], factory="p1cli_adapter:Broken")
"""
ADAPTER = """
from flashinfer_bench.routing import Adapter, PatchSpec

from flashinfer_bench.routing.routes import UnroutableError

def no(original):
    return "it is odd"

def never(original):
    raise UnroutableError("it depends on the weather")

class Mine(Adapter):
    def targets(self):
        return (
            PatchSpec("p1cli_lib.f", "function", "f", definitions=("f_*", "ff_*")),
            PatchSpec("p1cli_lib.odd", "function", "odd", expects=no),
            PatchSpec("p1cli_lib.gone", "function", "gone"),
        )
    def make_wrapper(self, spec, orig):
        return lambda *args: orig(*args)

class Fails(Mine):
    def targets(self):
        return (PatchSpec("p1cli_fails.f", "function", "f"),)

class Late(Mine):
    def targets(self):
        return ()
    def late_targets(self):
        return (
            PatchSpec("p1cli_lib.late", "function", "late"),
            PatchSpec("p1cli_lib.stateful", "function", "stateful", expects=never),
        )
"""
LIB = """
__version__ = "7.8"
print("the library talks")
def f(): pass
def odd(): pass
def late(): pass
def stateful(): pass
"""


@pytest.fixture
def listed(tmp_path, fib_process):
    (tmp_path / "p1cli_plugin.py").write_text(PLUGIN)
    (tmp_path / "p1cli_adapter.py").write_text(ADAPTER)
    (tmp_path / "p1cli_lib.py").write_text(LIB)
    (tmp_path / "p1cli_fails.py").write_text("raise OSError('no GPU')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    def run(*args, **env):
        env = {"PYTHONPATH": path, "FIB_PLUGINS": "p1cli_plugin", "FIB_ADAPTERS": "p1.*"} | env
        return fib_process("adapters", "list", *args, env=env)

    return run


def by_path(done):
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    return {t["path"]: t for t in found["targets"] if t["adapter"].startswith("p1.")}, found


def test_without_looking_closer_no_library_is_imported(listed):
    done = listed("--json")
    targets, found = by_path(done)
    assert done.returncode == 0
    assert "the library talks" not in done.stderr
    assert "talk" in done.stderr
    assert {path: t["state"] for path, t in targets.items()} == {
        "p1cli_lib.f": "waiting",
        "p1cli_lib.odd": "waiting",
        "p1cli_lib.gone": "waiting",
        "p1cli_absent.f": "missing",
        "p1cli_fails.f": "waiting",
        "p1cli_lib.*": "waiting",
        "p1cli_lib.g": "failed",
    }
    assert targets["p1cli_lib.f"]["definitions"] == ["f_*", "ff_*"]
    assert targets["p1cli_absent.f"]["reason"] == "p1cli_absent is not installed"
    assert found["checked"] is False


def test_a_check_patches_and_says_what_does_not_work(listed):
    done = listed("--check", "--json")
    targets, _ = by_path(done)
    assert done.returncode == 1
    assert "the library talks" in done.stderr
    told = {path: (t["state"], t["reason"]) for path, t in targets.items()}
    assert told["p1cli_lib.f"] == ("patched", "")
    assert told["p1cli_lib.odd"] == ("mismatch", "version mismatch: it is odd")
    assert told["p1cli_lib.gone"] == ("missing", "p1cli_lib has no 'gone'")
    assert told["p1cli_lib.late"] == ("patched", "")
    assert told["p1cli_absent.f"] == ("missing", "p1cli_absent is not installed")
    assert told["p1cli_fails.f"] == ("missing", "p1cli_fails cannot be imported: OSError: no GPU")
    assert told["p1cli_lib.g"][0] == "failed"
    assert targets["p1cli_lib.f"]["version"] == "7.8"


def test_a_check_that_finds_nothing_wrong(listed):
    done = listed("--check", "--json", FIB_ADAPTERS="p1.late")
    targets, _ = by_path(done)
    assert done.returncode == 0
    assert targets["p1cli_lib.late"]["state"] == "patched"
    assert targets["p1cli_lib.stateful"]["state"] == "unroutable"
    assert targets["p1cli_lib.stateful"]["reason"] == "it depends on the weather"
    assert targets["p1cli_lib.f"]["state"] == "off"


def test_the_table_and_names_of_nothing(listed):
    done = listed(FIB_ADAPTERS="p1.late, -nobody")
    header, *rows = (line.split("\t") for line in done.stdout.splitlines())
    assert header == ["target", "adapter", "state", "version", "definitions", "reason"]
    assert all(len(row) == 6 for row in rows)
    states = {row[0]: row[2] for row in rows}
    assert states["p1cli_lib.*"] == "waiting"
    assert states["p1cli_absent.f"] == "off"
    assert "FIB_ADAPTERS names 'nobody', but there is no such adapter" in done.stderr
