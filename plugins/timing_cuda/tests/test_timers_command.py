"""``fib timers``: what is listed and what is told of a check; the measuring has its own tests."""

import json
import sys
import types
from dataclasses import replace

import pytest

from fib_tests.cli import rows
from fib_timing_cuda.check import (
    CheckReport,
    Disagreement,
    KnownLength,
    Noise,
    TimerReport,
)
from flashinfer_bench.bench.timing import Timer
from flashinfer_bench.plugins import Availability, Catalog, TimerSpec

pytestmark = pytest.mark.torch

GOOD = TimerReport(
    "cpu",
    "3",
    overhead_us=0.05,
    removed_us=0.04,
    resolution_us=0.001,
    lengths=tuple(KnownLength(u, 1.01 * u) for u in (10.0, 100.0, 1000.0)),
    noise=Noise(0.01, 0.002, 0.03),
    notes=("tired",),
)


class Mine(Timer):
    name = "mine"

    def time_call(self, function, arguments, *, device):
        return 0.5, function(*arguments)


@pytest.fixture
def catalog(monkeypatch):
    """Two timers that can be used, and one that cannot."""
    module = types.ModuleType("fib_test_timers")
    module.Mine, module.no = Mine, lambda: Availability(False, "no cable", "buy one")
    monkeypatch.setitem(sys.modules, "fib_test_timers", module)
    common = {"devices": ("cpu",), "factory": "fib_test_timers:Mine", "summary": "A clock"}
    made = Catalog.of(
        TimerSpec(name="mine", resolution_ms=1e-3, **common),
        TimerSpec(name="again", repeats=True, caches=("cold",), priority=1, **common),
        TimerSpec(name="broken", probe="fib_test_timers:no", priority=90, **common),
        TimerSpec(
            name="wrong", devices=("cuda",), factory="fib_test_timers:no", summary="No clock"
        ),
    )
    monkeypatch.setattr("flashinfer_bench.plugins.default_catalog", lambda: made)
    return made


@pytest.fixture
def checked(monkeypatch, catalog):
    """What the next check finds, and what it is asked."""
    found = {"report": CheckReport("cpu", (GOOD,))}

    def check_timers(timers, device, work, **options):
        found["timers"] = [timer.name for timer in timers]
        found["device"] = device
        options["on_progress"]("mine")
        print("chatter of a plugin")
        if isinstance(found["report"], Exception):
            raise found["report"]
        return replace(found["report"], device=device)

    monkeypatch.setattr("fib_timing_cuda.check.check_timers", check_timers)
    return found


class TestList:
    def test_in_the_order_in_which_they_are_taken(self, fib, catalog):
        result = fib("timers", "list")
        assert result.exit_code == 0, result.output
        found = rows(result.stdout)
        assert [row["name"] for row in found] == ["broken", "mine", "wrong", "again"]
        assert [row["state"] for row in found] == ["unavailable", "ok", "ok", "ok"]
        assert found[0]["detail"] == "no cable (buy one)"
        assert [row["trust"] for row in found] == ["any", "any", "any", "off only"]
        assert [row["caches"] for row in found] == ["cold warm"] * 3 + ["cold"]
        assert [row["resolution_us"] for row in found] == ["", "1", "", ""]

    def test_core_s_own(self, fib):
        found = {row["name"]: row for row in rows(fib("timers", "list").stdout)}
        assert {"cpu", "cuda_event", "cuda_graph", "do_bench"} <= set(found)
        assert found["cpu"]["state"] == "ok"
        trust = {name: found[name]["trust"] for name in ("cuda_event", "cuda_graph", "do_bench")}
        assert trust == {"cuda_event": "any", "cuda_graph": "off only", "do_bench": "off only"}


class TestCheck:
    def test_all_that_can_be_used(self, fib, checked):
        result = fib("timers", "check", "--device", "cpu")
        assert result.exit_code == 0, result.output
        assert checked["timers"] == ["mine", "mine"]  # the class of "again" is the same
        (row,) = rows(result.stdout)
        assert row == {
            "device": "cpu",
            "timer": "cpu",
            "version": "3",
            "resolution_us": "0.001",
            "overhead_us": "0.05",
            "10_us": "10.1",
            "100_us": "101",
            "1000_us": "1010",
            "spread_%": "1",
            "a_a_typical_%": "0.2",
            "a_a_worst_%": "3",
        }
        assert "checking mine on cpu" in result.stderr
        assert "cpu: broken cannot be used: no cable (buy one)" in result.stderr
        assert "cpu: cpu notes: tired" in result.stderr
        assert "cpu: the timers agree" in result.stderr
        assert "chatter" not in result.stdout

    def test_disagreement_is_a_finding(self, fib, checked):
        off = Disagreement("device clock", "cpu", 100.0, 0.071)
        checked["report"] = CheckReport("cpu", (GOOD,), (off,))
        result = fib("timers", "check", "--device", "cpu")
        assert result.exit_code == 1
        assert "device clock and cpu differ by 7.1 % on work of 100 us" in result.stderr
        assert "agree" not in result.stderr
        document = json.loads(fib("timers", "check", "--device", "cpu", "--json").stdout)
        assert document["passed"] is False
        assert document["devices"][0]["disagreements"][0]["share"] == 0.071

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("broken", "no cable"),
            ("wrong", "'wrong' is for cuda, not for 'cpu'"),
        ],
    )
    def test_a_timer_that_is_asked_for_and_cannot_be_had(self, fib, checked, name, text):
        result = fib("timers", "check", "--device", "cpu", "--timer", name)
        assert result.exit_code == 4
        assert text in result.stderr
        assert "timers" not in checked


def test_for_real_and_in_a_process_of_its_own(fib_process):
    done = fib_process("timers", "check", "--device", "cpu", "--timer", "cpu", "--json")
    document = json.loads(done.stdout)
    (one,) = document["devices"][0]["timers"]
    assert one["error"] is None
    assert done.returncode == (0 if document["passed"] else 1)
    assert "checking cpu on cpu" in done.stderr


def test_listing_does_not_import_torch(fib_process):
    done = fib_process("timers", "list", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not [name for name in imported if name.partition(".")[0] == "torch"]
