"""Adapters are installed while what they route is wanted, and only then."""

from __future__ import annotations

import importlib
import logging
import sys

import pytest

from flashinfer_bench.integration.installation import Installation
from flashinfer_bench.integration.slots import Board, Everything


def load(name):
    return importlib.import_module(name)


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
        world.board.push(active)
        assert world.states(installation) == {"scale": "patched", "shift": "unwanted"}
        assert lib.scale(2) == 4
        assert load(adapter).CALLS == ["scale"]
        assert lib.shift is before["shift"]
        world.board.remove(active)
        assert world.states(installation) == {"scale": "unwanted", "shift": "unwanted"}
        assert all(vars(lib)[name] is value for name, value in before.items())

    def test_another_runtime_another_target(self, world, spec, runtime):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale", "mul_*"), spec(f"{lib.__name__}.shift", "a?d"))
        installation = world.install()
        first, second = runtime("mul_1"), runtime("add")
        world.board.push(first)
        wrapper = lib.scale
        world.board.replace(first, second)
        assert world.states(installation) == {"shift": "patched", "scale": "unwanted"}
        world.board.replace(second, first)
        assert world.states(installation) == {"scale": "patched", "shift": "unwanted"}
        assert lib.scale is not wrapper
        assert lib.scale.__wrapped__ is wrapper.__wrapped__

    def test_watchers_count_and_innermost_runtimes(self, world, spec, runtime):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale", "mul"), spec(f"{lib.__name__}.shift", "add"))
        installation = world.install()
        end = world.board.observe(lambda *_: None, "add")
        assert world.states(installation) == {"shift": "patched", "scale": "unwanted"}
        world.board.push(runtime("mul"))
        assert world.states(installation) == {"shift": "patched", "scale": "patched"}
        world.board.push(runtime("none"))
        assert world.states(installation) == {"shift": "patched", "scale": "unwanted"}
        end()
        assert world.manager.patched == ()
        world.board.clear()
        assert world.manager.patched == ()

    def test_a_mapping_lists_what_it_has(self, world, spec, runtime):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale", "mul"), spec(f"{lib.__name__}.shift", "add"))
        world.install()
        mapping = runtime()
        mapping.names = lambda: Everything(["mul"])
        world.board.push(mapping)
        assert world.manager.patched == (f"{lib.__name__}.scale",)

    def test_without_patterns_anything_will_do(self, world, spec, runtime):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        world.install()
        world.board.push(runtime())
        assert world.manager.patched == ()
        world.board.push(runtime("whatever"))
        assert world.manager.patched == (f"{lib.__name__}.scale",)

    def test_the_same_again_costs_nothing(self, world, spec, runtime, monkeypatch):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale", "mul"))
        installation = world.install()
        active = runtime("mul")
        world.board.push(active)
        monkeypatch.setattr(installation, "_install", None)
        world.board.publish(active)
        world.board.push(active)
        assert world.manager.patched == (f"{lib.__name__}.scale",)
        assert world.discoveries == 1

    def test_nothing_in_our_own_program(self, world, spec, runtime, monkeypatch):
        from flashinfer_bench.cli import main

        monkeypatch.setattr(main, "running", True)
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        installation = world.install()
        world.board.push(runtime("any"))
        assert (world.discoveries, installation.statuses(), world.manager.patched) == (0, [], ())


class TestImportedLater:
    def test_it_is_patched_when_it_is_imported(self, world, spec, runtime):
        name = world.library()
        world.adapter(spec(f"{name}.scale"))
        installation = world.install()
        world.board.push(runtime("any"))
        assert name not in sys.modules
        assert world.states(installation) == {"scale": "waiting"}
        assert installation.waiting_for == {name}
        lib = load(name)
        assert world.states(installation) == {"scale": "patched"}
        assert hasattr(lib.scale, "__wrapped__")
        assert installation.waiting_for == frozenset()
        assert not any(type(each).__name__ == "ImportHook" for each in sys.meta_path)

    def test_an_adapter_is_made_only_then(self, world, spec, runtime):
        name = world.library()
        adapter = world.adapter(spec(f"{name}.scale"))
        world.install()
        world.board.push(runtime("any"))
        assert adapter not in sys.modules
        load(name)
        assert load(adapter).MADE == ["Mine"]

    def test_who_imports_by_value_gets_the_wrapper(self, world, spec, runtime):
        name = world.library()
        user = world.write("user", f"from {name} import scale\nX = scale(2)\n")
        adapter = world.adapter(spec(f"{name}.scale"))
        installation = world.install()
        world.board.push(runtime("any"))
        module = load(user)
        assert load(adapter).CALLS == ["scale"]
        assert installation.statuses()[0].rebound == ()
        world.board.clear()
        assert module.scale is load(name).scale
        assert not hasattr(module.scale, "__wrapped__")

    def test_no_more_if_it_is_not_wanted_any_more(self, world, spec, runtime):
        name = world.library()
        world.adapter(spec(f"{name}.scale"))
        installation = world.install()
        world.board.push(runtime("any"))
        world.board.clear()
        assert installation.waiting_for == frozenset()
        assert not hasattr(load(name).scale, "__wrapped__")
        assert world.states(installation) == {"scale": "unwanted"}

    def test_a_submodule_that_comes_later(self, world, spec, runtime):
        lib = load(world.library())
        world.write("lib.inner", "def deep(x):\n    return x\n")
        sys.modules.pop(lib.__name__)
        lib = load(lib.__name__)
        world.adapter(spec(f"{lib.__name__}.scale"), spec(f"{lib.__name__}.inner.deep"))
        installation = world.install()
        world.board.push(runtime("any"))
        assert world.states(installation) == {"scale": "patched", "deep": "waiting"}
        load(f"{lib.__name__}.inner")
        assert world.states(installation) == {"scale": "patched", "deep": "patched"}

    def test_a_library_that_enables_us_while_it_is_imported(self, world, spec, runtime):
        name = world.library("lib", "import p1_start\np1_start.go()\nAFTER = scale\n")
        adapter = world.adapter(spec(f"{name}.scale"))
        installation = world.install()
        seen = []

        def go():
            world.board.push(runtime("any"))
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
        world.board.push(runtime("any"))
        assert world.states(installation) == {"*": "waiting"}
        load(name)
        assert world.states(installation) == {"shift": "patched"}


class TestFailures:
    def states(self, world, runtime, caplog):
        installation = world.install()
        with caplog.at_level(logging.WARNING):
            world.board.push(runtime("any"))
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

    @pytest.mark.parametrize("what", ["class Mine: pass", "def Mine():\n    raise SystemExit(3)"])
    def test_what_is_no_adapter(self, world, spec, runtime, caplog, what):
        lib = load(world.library())
        bad = world.adapter(spec(f"{lib.__name__}.shift"))
        (world.folder / f"{bad}.py").write_text(what + "\n")
        _, states = self.states(world, runtime, caplog)
        assert states[f"{lib.__name__}.shift"][0] == "failed"
        assert "it cannot be made" in states[f"{lib.__name__}.shift"][1]

    @pytest.mark.parametrize("late", ["[3]", "property(lambda self: 1 / 0)"])
    def test_targets_that_are_none(self, world, spec, runtime, caplog, late):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.shift"), late=late)
        _, states = self.states(world, runtime, caplog)
        assert states[f"{lib.__name__}.shift"][0] == "failed"

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
                "version mismatch: its signature cannot be judged: ZeroDivisionError: "
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
        world.board.push(active)
        assert [status.state for status in installation.statuses()] == ["patched"]
        assert lib.scale is not original
        world.board.remove(active)
        assert lib.scale is original

    def test_a_catalog_that_cannot_be_had(self, world, runtime, caplog):
        def broken():
            raise RuntimeError("strict")

        board = Board()
        installation = Installation(board, world.manager, broken)
        board.on_use(installation.update)
        with caplog.at_level(logging.WARNING):
            board.push(runtime("any"))
        assert "RuntimeError: strict" in installation.problem
        assert installation.statuses() == []

    def test_two_adapters_of_one_target(self, world, spec, runtime, caplog):
        lib = load(world.library())
        one = world.adapter(spec(f"{lib.__name__}.scale", "mul"), priority=99)
        two = world.adapter(spec(f"{lib.__name__}.scale", "add"), name="two")
        installation = world.install()
        both = runtime("mul", "add")
        world.board.push(both)
        found = {s.adapter: (s.state, s.reason) for s in installation.statuses()}
        assert found == {
            "test.one": ("patched", ""),
            "test.two": ("unwanted", "the adapter 'test.one' has it"),
        }
        world.board.replace(both, runtime("add"))
        lib.scale(1)
        assert (load(one).CALLS, load(two).CALLS) == ([], ["scale"])
        world.board.clear()
        assert not hasattr(lib.scale, "__wrapped__")

    def test_somebody_else_has_replaced_it(self, world, spec, runtime, caplog):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        installation, _ = self.states(world, runtime, caplog)
        original = lib.scale.__wrapped__
        lib.scale = mine = lambda x: x
        (status,) = installation.statuses()
        assert "something else has been put" in status.reason
        world.board.clear()
        assert lib.scale is mine
        (status,) = installation.statuses()
        assert (status.state, "left as it is" in status.reason) == ("unwanted", True)
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
        world.selection = type(world.selection).from_env()
        installation = world.install()
        world.board.push(runtime("any"))
        states = world.states(installation)
        assert {name for name, state in states.items() if state == "patched"} == patched
        assert set(states.values()) <= {"patched", "off"}
        assert all("FIB_ADAPTERS" in s.reason for s in installation.statuses() if s.state == "off")

    def test_names_of_nothing_are_told(self, world):
        chosen = type(world.selection)(("a*", "b"), ("c",))
        assert chosen.idle(["abc", "b"]) == ["c"]

    def test_a_library_is_left_alone_on_request(self, world, spec, runtime):
        lib = load(world.library())
        world.adapter(spec(f"{lib.__name__}.scale"))
        installation = world.install()
        world.board.push(runtime("any"))
        (status,) = installation.suspend(lib.__name__)
        assert (status.state, status.reason) == ("off", f"{lib.__name__} is left alone on request")
        assert not hasattr(lib.scale, "__wrapped__")
        (status,) = installation.resume(lib.__name__)
        assert status.state == "patched"


def test_an_adapter_that_fails_again_and_again_is_told_of_once(world, spec, runtime, caplog):
    """Its targets are asked for whenever something is enabled; it may work by then."""
    lib = load(world.library())
    module = load(world.adapter(spec(f"{lib.__name__}.scale")))
    works = module.Mine.late_targets
    module.Mine.late_targets = lambda self: 1 // 0
    installation = world.install()
    for name in ("one", "two", "three"):
        world.board.push(runtime(name))
    assert world.states(installation) == {"scale": "failed"}
    assert [each.levelname for each in caplog.records if "is not used" in each.message] == [
        "WARNING"
    ]
    module.Mine.late_targets = works
    world.board.push(runtime("four"))
    assert world.states(installation) == {"scale": "patched"}
