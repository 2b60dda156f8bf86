"""Good and bad distributions, really installed side by side, seen from processes of their own."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(300)

BROKEN_REASONS = {
    "mojo": "failed to load: ModuleNotFoundError: No module named 'mojo_runtime'",
    "raises": "raised in fib_register_timers: ValueError: no clock to be found",
    "twin-a": "registers builder 'twin', as does fib-fixture-twin-b 1.0; both are refused",
    "twin-b": "registers builder 'twin', as does fib-fixture-twin-a 1.0; both are refused",
    "missing": "failed to load: ModuleNotFoundError: No module named 'fixture_missing'",
}
WITH_SLOW = {"FIB_DISABLE_PLUGINS": "unwanted,chatty", "FIB_PROBE_TIMEOUT_S": ""}


@pytest.fixture(scope="module")
def listing(environment):
    return environment.fib_json("plugins", "list")


@pytest.fixture(scope="module")
def plugins(listing):
    return {plugin["name"]: plugin for plugin in listing["plugins"]}


@pytest.fixture(scope="module")
def records(listing):
    return {record["name"]: record for record in listing["records"] if record["kind"] == "builder"}


def test_what_is_broken_says_so_and_loses_only_itself(plugins, records):
    ours = {n: one for n, one in plugins.items() if "fixture" in one["distribution"]}
    broken = {n: one["reason"] for n, one in ours.items() if one["state"] == "broken"}
    assert broken == BROKEN_REASONS
    assert (plugins["good"]["state"], plugins["good"]["reason"]) == ("ok", "")
    assert records["good"]["provided_by"] == "fib-fixture-good 1.0"
    assert all(records[name]["state"] == "ok" for name in ("good", "survivor", "twin-a-own"))
    assert records["twin"]["reason"] == (
        "Builder 'twin' is registered by fib-fixture-twin-a 1.0 and fib-fixture-twin-b 1.0; "
        "both are refused."
    )
    assert (plugins["unwanted"]["state"], plugins["unwanted"]["reason"]) == (
        *("blocked", "is disabled by FIB_DISABLE_PLUGINS"),
    )


def test_each_is_warned_about_once_and_nothing_heavy_is_imported(environment):
    done = environment.python(
        """
        import sys
        import flashinfer_bench.plugins
        first = set(sys.modules)
        for _ in range(3):
            catalog = flashinfer_bench.plugins.default_catalog()
        heavy = {"torch", "numpy", "pydantic", "rich", "typer", "triton", "safetensors"}
        print(sorted(heavy & set(sys.modules)), "importlib.metadata" in first)
        print("fixture_unwanted" in sys.modules)
        catalog.select_builder("mojolang", solution="x")
        """
    )
    assert done.stdout.splitlines() == [
        *("chatter at import", "chatter in a hook", "[] False", "False", "chatter in a probe"),
    ]
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Plugin fib-fixture")]
    for name, reason in BROKEN_REASONS.items():
        about = [line for line in warnings if line.startswith(f"Plugin fib-fixture-{name} 1.0 ")]
        assert about == [
            f"Plugin fib-fixture-{name} 1.0 {reason}. Run `fib plugins doctor {name}`."
        ]
    last = done.stderr[done.stderr.index("CapabilityError:") :]
    assert "'mojolang' (solution 'x'). No installed plugin builds mojolang. Available" in last
    assert "goodlang" in last
    assert "chattylang" not in last  # it cannot be used here


def test_slow_probes_are_cut_off_and_do_not_keep_the_process(environment):
    done = environment.python(
        """
        import sys, threading
        from flashinfer_bench.plugins import default_catalog
        catalog = default_catalog()
        print("asked" if "fixture_slow_impl" in sys.modules else "not asked")
        print(threading.active_count())
        catalog.check_all()
        for name in ("slow", "stuck", "good"):
            answer = catalog.find("builder", name).availability()
            print(answer.ok, answer.reason, answer.remedy)
        """,
        **WITH_SLOW,
    )
    # That it returned at all: a probe sleeps for longer than the time limit of the run.
    late = "did not answer within 1 s increase FIB_PROBE_TIMEOUT_S"
    assert done.stdout.splitlines()[-5:] == [
        *("not asked", "1"),
        f"False the probe fixture_slow_impl:two_seconds {late}",
        f"False the probe fixture_slow_impl:forever {late}",
        "True  ",
    ]


def test_what_the_variables_leave(environment):
    listed = environment.fib_json("plugins", "list", FIB_DISABLE_PLUGINS="twin-b,slow")
    (twin,) = [record for record in listed["records"] if record["name"] == "twin"]
    assert (twin["state"], twin["provided_by"]) == ("ok", "fib-fixture-twin-a 1.0")
    only = {"FIB_NO_PLUGINS": "1", "FIB_PLUGINS": "fixture_unwanted", "FIB_DISABLE_PLUGINS": ""}
    listed = environment.fib_json("plugins", "list", **only)
    states = {plugin["target"]: plugin["state"] for plugin in listed["plugins"]}
    assert states.pop("flashinfer_bench.plugins.builtin") == "ok"
    assert [target for target, state in states.items() if state == "ok"] == ["fixture_unwanted"]
    good = next(plugin for plugin in listed["plugins"] if plugin["name"] == "good")
    assert good["reason"] == "is not loaded because FIB_NO_PLUGINS is set"
    strict = environment.fib("plugins", "list", FIB_STRICT_PLUGINS="1")
    assert strict.returncode == 4
    assert "failed to load: ModuleNotFoundError" in strict.stderr


def test_the_table_is_tab_separated_and_holds_the_missing_plugins(environment):
    done = environment.fib("plugins", "list")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert rows[0] == ["name", "kind", "provided_by", "state", "detail"]
    assert ["good", "builder", "fib-fixture-good 1.0", "ok", "Builds good"] in rows
    assert ["mojo", "plugin", "fib-fixture-mojo 1.0", "broken", BROKEN_REASONS["mojo"]] in rows
    assert "no CUDA device (install the driver)" in [row[4] for row in rows]


def test_the_doctor_finds_what_discovery_cannot(environment):
    # Also where strictness would raise, and it points at names that disable nothing.
    told = environment.fib_json(
        "plugins", "doctor", FIB_STRICT_PLUGINS="1", FIB_DISABLE_PLUGINS="mojjo,slow"
    )
    assert told["unknown_in_disable_plugins"] == ["mojjo"]
    assert told["environment"]["variables"]["FIB_DISABLE_PLUGINS"] == "mojjo,slow"
    doctor = {plugin["name"]: plugin for plugin in told["plugins"]}
    assert doctor["good"]["problems"] == []  # what an extra requires is none of it
    assert (doctor["chatty"]["state"], doctor["chatty"]["problems"]) == ("unavailable", [])
    (note,) = doctor["chatty"]["notes"]
    assert note == "builder 'chatty' cannot be used here: no CUDA device (install the driver)"
    (unread,) = doctor["unread"]["problems"]
    assert unread["message"].startswith("has an invalid requirement: 'flashinfer-bench")
    (typo,) = doctor["typo"]["problems"]
    assert typo["message"] == (
        "provides builder 'typo', which cannot be imported: AttributeError: "
        "module 'fixture_typo_impl' has no attribute 'Misnamed'"
    )
    (future,) = doctor["future"]["problems"]
    assert future["message"].startswith("requires flashinfer-bench-core~=99.0, but ")
    assert doctor["typo"]["state"] == doctor["future"]["state"] == "broken"


def test_the_doctor_on_one_plugin(environment):
    done = environment.fib("plugins", "doctor", "FIB_FIXTURE_MOJO")
    assert done.returncode == 1
    assert "import mojo_runtime" in done.stdout
    assert "fixture_good" not in done.stdout
    done = environment.fib("plugins", "doctor", "goood")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no plugin, distribution or record 'goood'. Did you mean 'good'" in done.stderr
