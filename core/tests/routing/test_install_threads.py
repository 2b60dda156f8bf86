"""Installing amid threads, forks and in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from importlib import import_module as load

import pytest


class TestThreads:
    def test_an_import_does_not_wait_for_who_is_at_it(self, world, spec, runtime):
        """A thread that discovers plugins may need what another thread is importing."""
        name = world.library()
        slow = world.write("slow", "VALUE = 1\n")
        world.adapter(spec(f"{name}.scale"))
        world.write("outer", f"import {slow}\nimport {name}\nDONE = True\n")
        inside, go_on = threading.Event(), threading.Event()
        catalog = world.catalog

        def discover():
            inside.set()
            assert go_on.wait(60)
            return catalog()

        world.catalog = discover
        installation = world.install()
        enabling = threading.Thread(target=world.router.push, args=(runtime("any"),))
        enabling.start()
        assert inside.wait(60)
        # The other thread has the lock; an import that is told of returns nevertheless.
        installation._hook.wait_for([name])
        lib = load(name)
        assert not hasattr(lib.scale, "__wrapped__")
        go_on.set()
        enabling.join(60)
        assert hasattr(lib.scale, "__wrapped__")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_is_forked_amid_it(world, spec, runtime):
    lib = load(world.library())
    world.adapter(spec(f"{lib.__name__}.scale", "mul"), spec(f"{lib.__name__}.shift", "add"))
    installation = world.install()
    world.router.push(runtime("mul"))
    held, release = threading.Event(), threading.Event()

    def hold():
        with installation._lock, world.manager._lock, world.router._lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    if (child := os.fork()) == 0:
        signal.alarm(60)  # rather than wait for ever
        code = 1
        try:
            world.router.after_fork()
            world.manager.after_fork()
            installation.after_fork()
            world.router.push(runtime("add"))
            right = hasattr(lib.shift, "__wrapped__") and not hasattr(lib.scale, "__wrapped__")
            world.router.clear()
            code = 0 if right and not hasattr(lib.shift, "__wrapped__") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    release.set()
    thread.join()
    assert hasattr(lib.scale, "__wrapped__")


def run(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=100,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return done.stdout


def test_the_board_of_the_process_is_connected_and_stays_light(world, spec):
    name = world.library()
    plugin = world.write(
        "plugin",
        "from flashinfer_bench.plugins import AdapterSpec, hookimpl\n"
        "@hookimpl\n"
        "def fib_register_adapters():\n"
        f"    yield AdapterSpec(name='a.b', targets=['{name}.scale'],"
        f" factory='{world.prefix}_adapter_one:Mine')\n",
    )
    world.adapter(spec(f"{name}.scale", "mul"))
    code = f"""
import sys
from flashinfer_bench.routing.patch_points import router
assert "flashinfer_bench.routing.installation" not in sys.modules
assert "flashinfer_bench.plugins" not in sys.modules
class Active:
    names = lambda self: ("mul",)
    route = lambda self, name, point: None
router.push(active := Active())
assert "torch" not in sys.modules
import {name} as lib
assert hasattr(lib.scale, "__wrapped__")
from flashinfer_bench.routing import installation
assert [s.state for s in installation.default().statuses() if s.adapter == "a.b"] == ["patched"]
router.remove(active)
assert not hasattr(lib.scale, "__wrapped__")
print("done")
"""
    path = os.pathsep.join([str(world.folder), os.environ.get("PYTHONPATH", "")])
    assert run(code, PYTHONPATH=path, FIB_PLUGINS=plugin) == "done\n"


def test_the_names_of_the_first_release(world):
    code = """
from flashinfer_bench.integration.flashinfer import (
    install_flashinfer_integrations, uninstall_flashinfer_integrations)
assert install_flashinfer_integrations() == []
assert uninstall_flashinfer_integrations() == []
import sys
assert not {"torch", "flashinfer"} & set(sys.modules)
print("done")
"""
    assert run(code) == "done\n"
