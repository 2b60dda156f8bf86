"""The real FlashInfer, patched and restored.

``FIB_TEST_FLASHINFER`` names a folder to import another release from than the one installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

RELEASE = os.environ.get("FIB_TEST_FLASHINFER", "")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not RELEASE and find_spec("flashinfer") is None, reason="flashinfer is not installed"
    ),
]

SETUP = """
import functools, inspect, sys
from flashinfer_bench.routing import Adapter, PatchManager, PatchSpec
from flashinfer_bench.routing.installation import Installation
from flashinfer_bench.routing.patch_points import Router
from flashinfer_bench.plugins import AdapterSpec, Catalog

DECODE = "flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper"
GRAPH = "flashinfer.decode.CUDAGraphBatchDecodeWithPagedKVCacheWrapper"
MLA = "flashinfer.mla.BatchMLAPagedAttentionWrapper"
PATHS = ["flashinfer.norm.rmsnorm", "flashinfer.norm.fused_add_rmsnorm"]
METHODS = [f"{DECODE}.{n}" for n in ("plan", "begin_forward", "run", "run_return_lse")]
METHODS += [f"{MLA}.plan", f"{MLA}.run", f"{GRAPH}.run"]

class Everything(Adapter):
    def targets(self):
        return [PatchSpec(p, "function", p) for p in PATHS] + [
            PatchSpec(p, "method", p) for p in METHODS]
    def make_wrapper(self, spec, orig):
        @functools.wraps(orig)
        def wrapper(*args, **kwargs):
            return orig(*args, **kwargs)
        return wrapper

class Active:
    names = lambda self: ("any",)
    route = lambda self, name, point: None

def snapshot():
    import flashinfer.decode, flashinfer.mla
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer" and module is not None:
            found[name] = dict(vars(module))
    for path in (DECODE, GRAPH, MLA):
        module, _, attribute = path.rpartition(".")
        found[path] = dict(vars(getattr(sys.modules[module], attribute)))
    return found

def same(before, after):
    return [
        f"{place}.{name}" for place, names in before.items() for name, value in names.items()
        if after[place].get(name) is not value or set(names) != set(after[place])]

router, manager = Router(), PatchManager()
catalog = Catalog.of(AdapterSpec(
    name="all", targets=PATHS + METHODS, factory="__main__:Everything"))
installation = Installation(router, manager, lambda: catalog)
router.on_use(installation.update)
def states():
    return {s.path: (s.state, s.reason) for s in installation.statuses()}
"""


def run(code, tmp_path):
    path = [RELEASE] if RELEASE else []
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETUP + code],
        capture_output=True,
        text=True,
        timeout=110,
        env={
            **os.environ,
            "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_imported_before(tmp_path):
    code = """
import flashinfer
before = snapshot()
kept = [flashinfer.rmsnorm]  # a global name would be rebound
router.push(active := Active())
wrong = {p: s for p, s in states().items() if s != ("patched", "")}
assert not wrong, wrong
assert flashinfer.rmsnorm is flashinfer.norm.rmsnorm is not kept[0]
assert flashinfer.rmsnorm.__wrapped__ is kept[0]
wrapper = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper
assert wrapper.plan is not wrapper.begin_forward
assert wrapper.plan.__wrapped__ is wrapper.begin_forward.__wrapped__
assert inspect.signature(wrapper.run_return_lse)
engine = type(sys)("engine")
exec("from flashinfer import rmsnorm; from flashinfer.norm import fused_add_rmsnorm", vars(engine))
sys.modules["engine"] = engine
rebound = [s.rebound for s in installation.statuses() if s.path == "flashinfer.norm.rmsnorm"]
assert "flashinfer.rmsnorm" in rebound[0], rebound
router.remove(active)
assert engine.rmsnorm is kept[0]
print(same(before, snapshot()))
print({s.version == flashinfer.__version__ for s in installation.statuses()})
"""
    assert run(code, tmp_path) == ["[]", "{True}"]
