"""Adapters are installed while what they route is wanted, and only then."""

from __future__ import annotations

import logging
import os
import sys
import threading
from importlib import import_module as load

import pytest

from fib_tests.threads import forked_while_held
from flashinfer_bench.routing.installation import Installation
from flashinfer_bench.routing.patch_points import Router


class TestWhatIsWanted:
    def test_a_target_is_patched_while_it_is_wanted(self, world, spec, runtime):
        lib = load(world.library())
        adapter = world.adapter(
            spec(f"{lib.__name__}.scale", "mul_*"), spec(f"{lib.__name__}.shift", "add_*")
        )
        installation = world.install()
        before = dict(vars(lib))
        assert installation.statuses() == []
        assert world.discoveries == 0
        active = runtime("mul_1", "other")
        world.router.push(active)
        assert world.states(installation) == {"scale": "patched", "shift": "unwanted"}
        assert lib.scale(2) == 4
        assert load(adapter).CALLS == ["scale"]
        assert lib.shift is before["shift"]
        world.router.remove(active)
        assert world.states(installation) == {"scale": "unwanted", "shift": "unwanted"}
        assert all(vars(lib)[name] is value for name, value in before.items())

    def test_watchers_count_and_innermost_runtimes(self, world, spec, runtime):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale", "mul"), spec(f"{lib.__name__}.shift", "add"))
        installation = world.install()
        end = world.router.observe(lambda *_: None, "add")
        assert world.states(installation) == {"shift": "patched", "scale": "unwanted"}
        world.router.push(runtime("mul"))
        assert world.states(installation) == {"shift": "patched", "scale": "patched"}
        world.router.push(runtime("none"))
        assert world.states(installation) == {"shift": "patched", "scale": "unwanted"}
        end()
        assert world.manager.patched == ()
        world.router.clear()
        assert world.manager.patched == ()

    def test_nothing_in_our_own_program(self, world, spec, runtime, monkeypatch):
        from flashinfer_bench.cli import main

        monkeypatch.setattr(main, "running", True)
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        installation = world.install()
        world.router.push(runtime("any"))
        assert (world.discoveries, installation.statuses(), world.manager.patched) == (0, [], ())


class TestImportedLater:
    def test_it_is_patched_when_it_is_imported(self, world, spec, runtime):
        name = world.library()
        world.adapter(spec(f"{name}.scale"))
        installation = world.install()
        world.router.push(runtime("any"))
        assert name not in sys.modules
        assert world.states(installation) == {"scale": "waiting"}
        lib = load(name)
        assert world.states(installation) == {"scale": "patched"}
        assert hasattr(lib.scale, "__wrapped__")
        assert not any(type(each).__name__ == "ImportHook" for each in sys.meta_path)

    def test_who_imports_by_value_gets_the_wrapper(self, world, spec, runtime):
        name = world.library()
        user = world.write("user", f"from {name} import scale\nX = scale(2)\n")
        adapter = world.adapter(spec(f"{name}.scale"))
        installation = world.install()
        world.router.push(runtime("any"))
        module = load(user)
        assert load(adapter).CALLS == ["scale"]
        assert installation.statuses()[0].rebound == ()
        world.router.clear()
        assert module.scale is load(name).scale
        assert not hasattr(module.scale, "__wrapped__")

    def test_a_library_that_enables_us_while_it_is_imported(self, world, spec, runtime):
        name = world.library("lib", "import p1_start\np1_start.go()\nAFTER = scale\n")
        adapter = world.adapter(spec(f"{name}.scale"))
        installation = world.install()
        seen = []

        def go():
            world.router.push(runtime("any"))
            seen.append(world.states(installation))

        sys.modules["p1_start"] = type(sys)("p1_start")
        try:
            sys.modules["p1_start"].go = go
            lib = load(name)
        finally:
            del sys.modules["p1_start"]
        assert seen == [{"scale": "waiting"}]
        assert world.states(installation) == {"scale": "patched"}
        assert lib.AFTER is lib.scale
        lib.scale(1)
        assert load(adapter).CALLS == ["scale"]
        assert type(lib.__spec__).__name__ == "ModuleSpec"

    def test_late_targets(self, world, spec, runtime):
        name = world.library()
        late = f"tuple(PatchSpec(f'{name}.{{n}}', 'function', n) for n in vars(__import__('sys')"
        late += f".modules['{name}']) if n.startswith('sh'))"
        world.adapter(targets=[f"{name}.*"], late="property(lambda self: " + late + ")")
        installation = world.install()
        world.router.push(runtime("any"))
        assert world.states(installation) == {"*": "waiting"}
        load(name)
        assert world.states(installation) == {"shift": "patched"}


class TestFailures:
    def states(self, world, runtime, caplog):
        installation = world.install()
        with caplog.at_level(logging.WARNING):
            world.router.push(runtime("any"))
        return installation, {s.path: (s.state, s.reason) for s in installation.statuses()}

    def test_a_broken_adapter_costs_itself(self, world, spec, runtime, caplog):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        bad = world.adapter(spec(f"{lib.__name__}.shift"), name="two")
        (world.folder / f"{bad}.py").write_text("raise OSError('no disk')\n")
        installation, states = self.states(world, runtime, caplog)
        assert states[f"{lib.__name__}.scale"] == ("patched", "")
        state, reason = states[f"{lib.__name__}.shift"]
        assert state == "failed"
        assert "no disk" in reason
        told = len(caplog.records)
        installation.update(imported=True)
        assert len(caplog.records) == told

    def test_a_version_that_is_not_known(self, world, spec, runtime, caplog):
        lib = load(world.library("lib", "def odd(y):\n    return y\n"))
        world.adapter(
            spec(f"{lib.__name__}.odd", more=", expects=known"),
            spec(f"{lib.__name__}.scale", more=", expects=known"),
            spec(f"{lib.__name__}.gone", more=", expects=known"),
            spec(f"{lib.__name__}.shift", more=", expects=lambda original: 1 / 0"),
        )
        _, states = self.states(world, runtime, caplog)
        name = lib.__name__
        assert states == {
            f"{name}.odd": ("mismatch", "version mismatch: its first parameter is y"),
            f"{name}.scale": ("patched", ""),
            f"{name}.gone": ("missing", f"{name} has no 'gone'"),
            f"{name}.shift": (
                "mismatch",
                "version mismatch: its signature cannot be checked: ZeroDivisionError: "
                "division by zero",
            ),
        }
        assert not hasattr(lib.odd, "__wrapped__")
        assert "its first parameter is y" in caplog.text
        assert {s.version for s in world._made[0].statuses()} == {"1.2.3"}

    def test_a_probe_that_says_no(self, world, spec, runtime, caplog):
        lib = load(world.library())
        probe = world.write(
            "probe",
            "from flashinfer_bench.plugins import Availability\n"
            "def ask():\n    return Availability(ok=False, reason='too old', remedy='upgrade')\n",
        )
        world.adapter(spec(f"{lib.__name__}.scale"), probe=f"{probe}:ask")
        _, states = self.states(world, runtime, caplog)
        assert states == {f"{lib.__name__}.scale": ("mismatch", "too old (upgrade)")}

    def test_a_probe_that_does_not_get_round_to_answering(self, world, spec, runtime, monkeypatch):
        """A busy program keeps it from that; the library itself is there."""
        monkeypatch.setenv("FIB_PROBE_TIMEOUT_S", "0.05")
        lib = load(world.library())
        probe = world.write("probe", "import time\ndef ask():\n    time.sleep(2)\n")
        world.adapter(spec(f"{lib.__name__}.scale"), probe=f"{probe}:ask")
        original = lib.scale
        installation, active = world.install(), runtime("any")
        world.router.push(active)
        assert [status.state for status in installation.statuses()] == ["patched"]
        assert lib.scale is not original
        world.router.remove(active)
        assert lib.scale is original

    def test_a_catalog_that_cannot_be_had(self, world, runtime, caplog):
        def broken():
            raise RuntimeError("strict")

        router = Router()
        installation = Installation(router, world.manager, broken)
        router.on_use(installation.update)
        with caplog.at_level(logging.WARNING):
            router.push(runtime("any"))
        assert "RuntimeError: strict" in caplog.text
        assert installation.statuses() == []

    def test_two_adapters_of_one_target(self, world, spec, runtime, caplog):
        lib = load(world.library())
        one = world.adapter(spec(f"{lib.__name__}.scale", "mul"), priority=99)
        two = world.adapter(spec(f"{lib.__name__}.scale", "add"), name="two")
        installation = world.install()
        both = runtime("mul", "add")
        world.router.push(both)
        found = {s.adapter: (s.state, s.reason) for s in installation.statuses()}
        assert found == {
            "test.one": ("patched", ""),
            "test.two": ("unwanted", "adapter 'test.one' already patches it"),
        }
        world.router.push(runtime("add"))
        lib.scale(1)
        assert (load(one).CALLS, load(two).CALLS) == ([], ["scale"])
        world.router.clear()
        assert not hasattr(lib.scale, "__wrapped__")

    def test_somebody_else_has_replaced_it(self, world, spec, runtime, caplog):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        installation, _ = self.states(world, runtime, caplog)
        original = lib.scale.__wrapped__
        lib.scale = mine = lambda x: x
        (status,) = installation.statuses()
        assert "something else has since replaced" in status.reason
        world.router.clear()
        assert lib.scale is mine
        (status,) = installation.statuses()
        assert (status.state, "left unchanged" in status.reason) == ("unwanted", True)
        lib.scale = original


class TestSelection:
    @pytest.mark.parametrize(
        ("words", "patched"),
        [
            ("", {"scale", "shift"}),
            ("test.one", {"scale"}),
            ("test.*", {"scale", "shift"}),
            ("-test.one", {"shift"}),
            ("test.*, -test.two", {"scale"}),
            ("-*", set()),
        ],
    )
    def test_adapters_to_use_and_to_leave_out(
        self, world, spec, runtime, monkeypatch, words, patched
    ):
        monkeypatch.setenv("FIB_ADAPTERS", words)
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        world.adapter(spec(f"{lib.__name__}.shift"), name="two")
        installation = world.install()
        world.router.push(runtime("any"))
        states = world.states(installation)
        assert {name for name, state in states.items() if state == "patched"} == patched
        assert set(states.values()) <= {"patched", "off"}
        assert all("FIB_ADAPTERS" in s.reason for s in installation.statuses() if s.state == "off")

    def test_a_library_is_left_alone_on_request(self, world, spec, runtime):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        installation = world.install()
        world.router.push(runtime("any"))
        (status,) = installation.suspend(lib.__name__)
        assert (status.state, status.reason) == ("off", f"{lib.__name__} is left alone on request")
        assert not hasattr(lib.scale, "__wrapped__")
        (status,) = installation.suspend(lib.__name__, False)
        assert status.state == "patched"


# ----------------------------------------------------------------------- threads, forks, processes


def test_an_import_does_not_wait_for_who_is_at_it(world, spec, runtime):
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

    def works():
        for each in (world.router, world.manager, installation):
            each.after_fork()
        world.router.push(runtime("add"))
        right = hasattr(lib.shift, "__wrapped__") and not hasattr(lib.scale, "__wrapped__")
        world.router.clear()
        return right and not hasattr(lib.shift, "__wrapped__")

    locks = [installation._lock, world.manager._lock, world.router._lock]
    assert forked_while_held(locks, works)
    assert hasattr(lib.scale, "__wrapped__")
