"""Discovery in this process: strictness, warnings, conflicts, and the catalog of the process."""

from __future__ import annotations

import logging
import threading

import pytest

from flashinfer_bench.errors import ConfigError, PluginConflictError, PluginError, PluginLoadError
from flashinfer_bench.plugins import (
    Catalog,
    Settings,
    TimerSpec,
    default_catalog,
    discover,
    reset_default_catalog,
)

TIMER = "TimerSpec(name={name!r}, devices=('cpu',), factory='m:T'{more})"
HOOK = """
from flashinfer_bench.plugins import TimerSpec, hookimpl

@hookimpl
def fib_register_timers():
    yield {timer}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Write modules where they can be imported; returns settings that load them and no others."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(settings=None, **modules):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        return Settings(no_plugins=True, modules=tuple(modules), **(settings or {}))

    return write


def timer(name, more=""):
    return HOOK.format(timer=TIMER.format(name=name, more=more))


def states(catalog):
    return {plugin.name: plugin.state for plugin in catalog.plugins if plugin.state != "blocked"}


def test_core_alone():
    catalog = discover(Settings(no_plugins=True))
    assert states(catalog) == {"core": "ok"}
    timers = ["cpu", "cuda_event", "cuda_graph", "do_bench"]
    assert [entry.name for entry in catalog.timers] == timers
    assert [entry.name for entry in catalog.executors] == ["fork", "spawn"]
    special = ["dsa_sparse_attention", "dsa_topk_indexer", "sampling", "lowbit"]
    assert [entry.name for entry in catalog.evaluators] == [*special, "default"]


def test_core_cannot_be_disabled():
    catalog = discover(Settings(no_plugins=True, disabled=("core", "flashinfer-bench-core")))
    assert catalog.find("timer", "cpu").distribution == "flashinfer-bench-core"


def test_a_module_can_be_loaded_without_being_installed(place):
    catalog = discover(place(fib_test_alone=timer("mine")))
    found = catalog.find("timer", "mine")
    assert (found.plugin, found.origin) == ("fib_test_alone", "fib_test_alone")
    assert (found.distribution, found.version) == ("", "")


def test_a_module_that_is_not_there_is_broken(place):
    catalog = discover(Settings(no_plugins=True, modules=("fib_test_not_there",)))
    assert states(catalog) == {"core": "ok", "fib_test_not_there": "broken"}


def test_a_broken_plugin_is_warned_about_in_one_line(place, caplog):
    settings = place(fib_test_bad="raise ValueError('first\\nsecond')", fib_test_fine=timer("t"))
    with caplog.at_level(logging.DEBUG, "flashinfer_bench.plugins"):
        catalog = discover(settings)
    assert [record.getMessage() for record in caplog.records] == [
        "Plugin fib_test_bad failed to load: ValueError: first second. "
        "Run `fib plugins doctor fib_test_bad`."
    ]
    assert states(catalog)["fib_test_fine"] == "ok"


def test_strictness_raises_the_cause(place):
    settings = place({"strict": True}, fib_test_strict="raise ValueError('why')")
    with pytest.raises(PluginLoadError, match="fib_test_strict failed to load") as raised:
        discover(settings)
    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.hint == "Run `fib plugins doctor fib_test_strict`."


def test_strictness_raises_for_hooks_and_records_too(place):
    settings = place({"strict": True}, fib_test_hook=timer("bad name"))
    with pytest.raises(PluginLoadError, match="name may hold letters"):
        discover(settings)


def test_strictness_does_not_mind_what_the_user_blocks(place):
    settings = place(
        {"strict": True, "disabled": ("fib_test_off",)}, fib_test_off="raise ValueError('why')"
    )
    blocked = [plugin.name for plugin in discover(settings).plugins if plugin.state == "blocked"]
    assert "fib_test_off" in blocked


def test_an_interrupt_while_loading_reaches_the_user(place):
    with pytest.raises(KeyboardInterrupt):
        discover(place(fib_test_interrupt="raise KeyboardInterrupt"))


# ------------------------------------------------------------------ conflicts


def test_a_name_that_is_claimed_twice_is_given_to_nobody(place):
    catalog = discover(place(fib_test_one=timer("same"), fib_test_two=timer("SAME")))
    assert "same" not in [entry.name for entry in catalog.timers]
    (conflict,) = catalog.conflicts
    assert conflict.sentence() == (
        "Timer 'same' is registered by fib_test_one and fib_test_two; both are refused."
    )
    reasons = {plugin.name: plugin.reason for plugin in catalog.plugins}
    assert reasons["fib_test_one"] == (
        "registers timer 'same', as does fib_test_two; both are refused"
    )
    assert reasons["fib_test_two"] == (
        "registers timer 'same', as does fib_test_one; both are refused"
    )


def test_a_name_that_is_claimed_three_times(place):
    modules = {f"fib_test_claim_{letter}": timer("same") for letter in "cab"}
    (conflict,) = discover(place(**modules)).conflicts
    assert conflict.sentence() == (
        "Timer 'same' is registered by fib_test_claim_a, fib_test_claim_b and fib_test_claim_c; "
        "all of them are refused."
    )


def test_a_plugin_can_be_in_conflict_with_itself(place):
    source = timer("same") + "    yield " + TIMER.format(name="same", more=", priority=1") + "\n"
    catalog = discover(place(fib_test_self=source))
    status = next(plugin for plugin in catalog.plugins if plugin.name == "fib_test_self")
    assert status.state == "broken"
    assert status.reason == "registers timer 'same' more than once; all of them are refused"
    assert status.records == ()


def test_a_name_of_core_is_no_exception(place):
    catalog = discover(place(fib_test_cpu=timer("cpu")))
    assert states(catalog) == {"core": "broken", "fib_test_cpu": "broken"}
    assert [entry.name for entry in catalog.timers] == ["cuda_event", "cuda_graph", "do_bench"]
    core = catalog.plugins[0]
    assert ("timer", "cpu") not in core.records
    assert ("executor", "fork") in core.records


def test_one_name_in_two_kinds_is_no_conflict(place):
    source = timer("fork")
    catalog = discover(place(fib_test_kinds=source))
    assert catalog.conflicts == ()
    assert catalog.find("timer", "fork").plugin == "fib_test_kinds"
    assert catalog.find("executor", "fork").plugin == "core"


def test_strictness_raises_for_a_conflict(place):
    settings = place({"strict": True}, fib_test_one=timer("same"), fib_test_two=timer("same"))
    with pytest.raises(PluginConflictError, match="'same' is registered by fib_test_one and"):
        discover(settings)


# ------------------------------------------------------------------ probes


def test_records_that_name_one_probe_share_its_answer(place):
    more = ", probe='fib_test_shared:check'"
    source = (
        timer("one", more)
        + f"    yield {TIMER.format(name='two', more=more)}\n"
        + "calls = []\n"
        + "def check():\n"
        + "    from flashinfer_bench.plugins import Availability\n"
        + "    calls.append(1)\n"
        + "    return Availability(False, f'call {len(calls)}')\n"
    )
    catalog = discover(place(fib_test_shared=source))
    for name in ("one", "two", "one"):
        assert catalog.find("timer", name).availability().reason == "call 1"


def test_the_limit_of_a_probe_is_set_by_the_user(place):
    settings = place(
        {"probe_timeout_s": 0.02},
        fib_test_limit=timer("slow", ", probe='time:sleep_for_ever'"),
        fib_test_sleepy=timer("sleepy", ", probe='fib_test_sleepy:check'")
        + "import threading\ndef check():\n    threading.Event().wait(100)\n",
    )
    answer = discover(settings).find("timer", "sleepy").availability()
    assert "did not answer within 0.02 s" in answer.reason


# ------------------------------------------------------------------ the catalog of the process


def test_the_default_catalog_is_made_once(monkeypatch):
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    assert default_catalog() is default_catalog()


def test_resetting_reads_the_environment_anew(place, monkeypatch):
    place(fib_test_reset=timer("late"))
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    first = default_catalog()
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_reset")
    assert default_catalog() is first
    reset_default_catalog()
    assert default_catalog().find("timer", "late")


def test_a_catalog_can_be_put_in_place():
    mine = Catalog.of(TimerSpec(name="only", devices=("cpu",), factory="m:T"))
    reset_default_catalog(mine)
    assert default_catalog() is mine


def test_threads_get_the_same_catalog(monkeypatch):
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    start, found = threading.Barrier(6), []

    def get():
        start.wait()
        found.append(default_catalog())

    threads = [threading.Thread(target=get) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(catalog) for catalog in found}) == 1


def test_a_plugin_that_asks_for_the_catalog_while_being_loaded_is_broken(place, monkeypatch):
    place(
        fib_test_early="from flashinfer_bench.plugins import default_catalog\ndefault_catalog()\n"
    )
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_early")
    catalog = default_catalog()
    status = next(plugin for plugin in catalog.plugins if plugin.name == "fib_test_early")
    assert "default_catalog() was called by a plugin that is just being loaded" in status.reason
    assert default_catalog() is catalog


def test_a_failed_discovery_is_tried_again(place, monkeypatch):
    place(fib_test_retry="raise ValueError")
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_retry")
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "1")
    for _ in range(2):
        with pytest.raises(PluginError):
            default_catalog()
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "0")
    assert default_catalog().find("timer", "cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FIB_NO_PLUGINS", "perhaps"),
        ("FIB_STRICT_PLUGINS", "2"),
        ("FIB_PROBE_TIMEOUT_S", "soon"),
        ("FIB_PROBE_TIMEOUT_S", "0"),
        ("FIB_PROBE_TIMEOUT_S", "-1"),
        ("FIB_PROBE_TIMEOUT_S", "nan"),
    ],
)
def test_a_variable_that_makes_no_sense_is_an_error_and_no_default(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        default_catalog()
