"""Core's own records: registered like those of any plugin, and naming code that exists."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from flashinfer_bench._version import __version__
from flashinfer_bench.plugins import Availability, Settings, builtin, discover
from flashinfer_bench.plugins.loader import gather, hooks_of

CORE = discover(Settings(no_plugins=True))


def test_core_goes_through_the_same_checks_as_any_plugin():
    found = hooks_of(builtin)
    assert set(found) == {
        "fib_register_timers",
        "fib_register_key_builders",
        "fib_register_evaluators",
        "fib_register_executors",
    }
    records = {record.name for hook, function in found.items() for record in gather(hook, function)}
    assert records == {entry.name for entry in CORE}


def test_core_says_which_distribution_it_is():
    assert {entry.origin for entry in CORE} == {f"flashinfer-bench-core {__version__}"}
    assert {entry.plugin for entry in CORE} == {"core"}


@pytest.mark.parametrize("entry", CORE.entries(), ids=lambda entry: entry.label)
def test_each_record_names_modules_that_exist_and_has_a_summary(entry):
    for path in filter(None, (entry.spec.factory, entry.spec.probe)):
        assert find_spec(path.partition(":")[0]) is not None
    assert entry.spec.summary


@pytest.mark.parametrize("entry", CORE.entries(), ids=lambda entry: entry.label)
def test_no_probe_of_core_fails(entry):
    answer = entry.availability()
    assert isinstance(answer, Availability)
    assert entry.check is None or entry.check.failure is None


def test_the_fork_server_goes_before_plain_processes():
    assert [entry.name for entry in CORE.executors] == ["fork", "spawn"]
    assert CORE.select_executor("cpu", "spawn").name == "spawn"


def test_there_is_always_a_timer_and_an_executor_for_the_cpu():
    assert CORE.select_timer("cpu").name == "cpu"
    assert CORE.select_executor("cpu").name in ("fork", "spawn")


def test_core_judges_what_nobody_else_is_meant_for():
    (default,) = [entry for entry in CORE.evaluators if entry.spec.is_fallback]
    assert (default.name, default.spec.priority) == ("default", 0)


def test_core_s_special_evaluators_leave_room_for_those_of_plugins():
    special = {entry.name: entry.spec.priority for entry in CORE.evaluators}
    del special["default"]
    assert set(special) == {"lowbit", "sampling", "dsa_sparse_attention", "dsa_topk_indexer"}
    assert max(special.values()) < 50
    assert special["lowbit"] < special["dsa_topk_indexer"]


def test_core_s_key_builders_leave_room_for_those_of_plugins():
    assert [entry.name for entry in CORE.key_builders] == ["gemm", "gqa", "mla"]
    assert {entry.spec.priority for entry in CORE.key_builders} == {0}
