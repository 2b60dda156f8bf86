"""Good and bad distributions, really installed side by side, seen from processes of their own."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.timeout(300)

BROKEN_REASONS = {
    "mojo": "failed to load: ModuleNotFoundError: No module named 'mojo_runtime'",
    "raises": "raised in fib_register_timers: ValueError: no clock to be found",
    "midway": "raised in fib_register_builders: KeyError: 'second'",
    "misspelled": "was refused: there is no hook fib_register_bulders; "
    "did you mean fib_register_builders?",
    "wrongtype": "fib_register_builders returned a value of type TimerSpec "
    "where a BuilderSpec belongs",
    "twin-a": "registers builder 'twin', as does fib-fixture-twin-b 1.0; both are refused",
    "twin-b": "registers builder 'twin', as does fib-fixture-twin-a 1.0; both are refused",
    "exits": "failed to load: SystemExit: it called sys.exit(7)",
    "missing": "failed to load: ModuleNotFoundError: No module named 'fixture_not_in_the_wheel'",
}


@pytest.fixture(scope="module")
def listing(environment):
    done = environment.fib("plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


WITH_SLOW = {"FIB_DISABLE_PLUGINS": "unwanted", "FIB_PROBE_TIMEOUT_S": ""}


@pytest.fixture(scope="module")
def plugins(listing):
    return {plugin["name"]: plugin for plugin in listing["plugins"]}


@pytest.fixture(scope="module")
def records(listing):
    return {(record["kind"], record["name"]): record for record in listing["records"]}


@pytest.fixture(scope="module")
def doctor(environment):
    done = environment.fib("plugins", "doctor", "--json")
    assert done.returncode == 1, done.stderr
    return {plugin["name"]: plugin for plugin in json.loads(done.stdout)["plugins"]}


# ------------------------------------------------------------------ what is good stays


def test_every_record_of_a_good_plugin_is_there(plugins, records):
    assert plugins["good"]["state"] == "ok"
    assert plugins["good"]["reason"] == ""
    mine = {key for key, record in records.items() if record["plugin"] == "good"}
    assert mine == {
        ("builder", "good"),
        ("timer", "good-timer"),
        ("key_builder", "good-keys"),
        ("adapter", "good.adapter"),
        ("evaluator", "good-eval"),
        ("executor", "good-exec"),
        ("command", "greet"),
    }
    assert {records[key]["state"] for key in mine} == {"ok"}
    assert records["builder", "good"]["provided_by"] == "fib-fixture-good 1.0"


# ------------------------------------------------------------------ what is broken says so


@pytest.mark.parametrize("name", sorted(BROKEN_REASONS))
def test_a_broken_plugin_has_its_state_and_reason(plugins, name):
    assert plugins[name]["state"] == "broken"
    assert plugins[name]["reason"] == BROKEN_REASONS[name]


def test_nothing_else_is_broken(plugins):
    ours = {name for name, plugin in plugins.items() if "fixture" in plugin["distribution"]}
    broken = {name for name in ours if plugins[name]["state"] == "broken"}
    assert broken == set(BROKEN_REASONS) - {"mojo"}


def test_of_a_duplicate_name_both_are_refused_and_both_named(listing, records):
    claims = [record for record in listing["records"] if record["name"] == "twin"]
    assert [claim["state"] for claim in claims] == ["broken", "broken"]
    for claim in claims:
        assert claim["reason"] == (
            "Builder 'twin' is registered by fib-fixture-twin-a 1.0 and fib-fixture-twin-b 1.0; "
            "both are refused."
        )
    assert records["builder", "twin-a-own"]["state"] == "ok"
    assert records["builder", "twin-b-own"]["state"] == "ok"


def test_each_broken_plugin_is_warned_about_once_on_stderr(environment):
    done = environment.python(
        """
        from flashinfer_bench.plugins import default_catalog
        for _ in range(3):
            default_catalog()
        """
    )
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Plugin fib-")]
    assert done.stdout == "chatter at import\nchatter in a hook\n"
    for name in set(BROKEN_REASONS) - {"mojo"}:
        about = [line for line in warnings if line.startswith(f"Plugin fib-fixture-{name} 1.0 ")]
        assert len(about) == 1
        assert about[0].endswith(f"Run `fib plugins doctor {name}`.")
    assert (
        "Plugin fib-builder-mojo 0.1 failed to load: ModuleNotFoundError: "
        "No module named 'mojo_runtime'. Run `fib plugins doctor mojo`." in warnings
    )


def test_a_missing_language_names_the_plugin_that_failed(environment):
    done = environment.python(
        """
        from flashinfer_bench.plugins import default_catalog
        default_catalog().select_builder("mojo", solution="x")
        """
    )
    last = done.stderr[done.stderr.index("CapabilityError:") :]
    assert "No builder for language 'mojo' (solution 'x'). Available: " in last
    assert "goodlang" in last
    assert "probe-refuseslang" not in last  # it cannot be used here
    assert (
        "Plugin fib-builder-mojo 0.1 failed to load: ModuleNotFoundError: "
        "No module named 'mojo_runtime'.\n  hint: Run `fib plugins doctor mojo`." in last
    )


# ------------------------------------------------------------------ probes


def test_probes_that_fail_make_the_record_unavailable(records, plugins):
    reasons = {
        "raises": "failed: OSError: libcuda.so.1: cannot open",
        "exits": "failed: SystemExit: it called sys.exit(goodbye)",
        "wrong": "failed: TypeError: it returned bool, not Availability",
        "missing": "failed: AttributeError: module 'fixture_probes_impl' "
        "has no attribute 'missing'",
    }
    for name, reason in reasons.items():
        record = records["builder", f"probe-{name}"]
        assert record["state"] == "unavailable"
        assert record["reason"] == f"the probe fixture_probes_impl:{name} {reason}"
    refused = records["builder", "probe-refuses"]
    assert (refused["reason"], refused["remedy"]) == ("no CUDA device", "install the driver")
    assert plugins["probes"]["state"] == "unavailable"
    assert plugins["probes"]["reason"].startswith("cannot be used here: ")


def test_a_slow_probe_is_cut_off_and_says_how_to_wait_longer(environment):
    listed = environment.fib_json("plugins", "list", **WITH_SLOW)
    records = {(record["kind"], record["name"]): record for record in listed["records"]}
    plugins = {plugin["name"]: plugin for plugin in listed["plugins"]}
    for name, probe in (("slow", "two_seconds"), ("stuck", "forever")):
        record = records["builder", name]
        assert record["state"] == "unavailable"
        assert record["reason"] == f"the probe fixture_slow_impl:{probe} did not answer within 1 s"
        assert record["remedy"] == "FIB_PROBE_TIMEOUT_S sets the limit"
    assert plugins["slow"]["state"] == "unavailable"
    assert plugins["good"]["state"] == records["builder", "good"]["state"] == "ok"


def test_discovery_asks_no_probe_and_a_stuck_one_does_not_keep_the_process(environment):
    done = environment.python(
        """
        import sys, threading
        from flashinfer_bench.plugins import default_catalog
        catalog = default_catalog()
        print("asked" if "fixture_slow_impl" in sys.modules else "not asked")
        print(threading.active_count())
        print(catalog.find("builder", "stuck").availability().ok)
        """,
        **WITH_SLOW,
    )
    # That it returned at all: the probe sleeps for longer than the time limit of the run.
    assert done.returncode == 0
    assert done.stdout.splitlines()[-3:] == ["not asked", "1", "False"]


# ------------------------------------------------------------------ environment controls


def test_a_disabled_plugin_is_blocked_and_not_imported(plugins, records, environment):
    assert plugins["unwanted"]["state"] == "blocked"
    assert plugins["unwanted"]["reason"] == "is disabled by FIB_DISABLE_PLUGINS"
    assert ("builder", "unwanted") not in records
    done = environment.python(
        """
        import sys
        from flashinfer_bench.plugins import default_catalog
        default_catalog()
        print("fixture_unwanted" in sys.modules)
        """
    )
    assert done.stdout.endswith("False\n")


def test_disabling_one_of_two_claimants_gives_the_name_to_the_other(environment):
    listed = environment.fib_json("plugins", "list", FIB_DISABLE_PLUGINS="twin-b,slow")
    (twin,) = [record for record in listed["records"] if record["name"] == "twin"]
    assert (twin["state"], twin["provided_by"]) == ("ok", "fib-fixture-twin-a 1.0")


def test_no_plugins_leaves_core_and_what_is_named(environment):
    listed = environment.fib_json(
        "plugins",
        "list",
        FIB_NO_PLUGINS="1",
        FIB_PLUGINS="fixture_unwanted",
        FIB_DISABLE_PLUGINS="",
    )
    states = {plugin["target"]: plugin["state"] for plugin in listed["plugins"]}
    assert states.pop("flashinfer_bench.plugins.builtin") == "ok"
    assert [target for target, state in states.items() if state == "ok"] == ["fixture_unwanted"]
    assert {record["plugin"] for record in listed["records"]} == {"core", "unwanted"}
    good = next(plugin for plugin in listed["plugins"] if plugin["name"] == "good")
    assert good["reason"] == "is not loaded because FIB_NO_PLUGINS is set"


def test_strictness_raises_what_is_otherwise_set_aside(environment):
    done = environment.python(
        "from flashinfer_bench.plugins import default_catalog; default_catalog()",
        FIB_STRICT_PLUGINS="1",
        FIB_DISABLE_PLUGINS="python",
    )
    assert done.returncode == 1
    assert "PluginLoadError: Plugin fib-builder-mojo 0.1 failed to load: " in done.stderr
    assert "import mojo_runtime" in done.stderr  # the cause is shown with it


# ------------------------------------------------------------------ the command line


def test_the_table_is_tab_separated_and_holds_the_missing_plugins(environment):
    done = environment.fib("plugins", "list")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert rows[0] == ["name", "kind", "provided_by", "state", "detail"]
    assert ["good", "builder", "fib-fixture-good 1.0", "ok", "Builds good code"] in rows
    assert ["mojo", "plugin", "fib-builder-mojo 0.1", "broken", BROKEN_REASONS["mojo"]] in rows
    assert "no CUDA device (install the driver)" in [row[4] for row in rows]


def test_the_doctor_finds_what_discovery_cannot(doctor):
    assert doctor["good"]["problems"] == []
    (typo,) = doctor["typo"]["problems"]
    assert typo["message"] == (
        "provides builder 'typo', which cannot be imported: AttributeError: "
        "module 'fixture_typo_impl' has no attribute 'Misnamed'"
    )
    (future,) = doctor["future"]["problems"]
    assert future["message"].startswith("requires flashinfer-bench-core~=99.0, and this is ")
    assert doctor["typo"]["state"] == doctor["future"]["state"] == "broken"
    assert len(doctor["probes"]["problems"]) == 4


@pytest.mark.parametrize("name", ["mojo", "FIB_BUILDER_MOJO"])
def test_the_doctor_on_one_broken_plugin(environment, name):
    done = environment.fib("plugins", "doctor", name)
    assert done.returncode == 1
    assert "import mojo_runtime" in done.stdout
    assert "fixture_good" not in done.stdout


def test_the_doctor_works_where_strictness_would_raise(environment):
    done = environment.fib("plugins", "doctor", "exits", FIB_STRICT_PLUGINS="1")
    assert done.returncode == 1
    assert "sys.exit(7)" in done.stdout
    assert environment.fib("plugins", "list", FIB_STRICT_PLUGINS="1").returncode == 4


def test_the_doctor_points_at_names_that_disable_nothing(environment):
    told = environment.fib_json("plugins", "doctor", "good", FIB_DISABLE_PLUGINS="mojjo,exits")
    assert told["unknown_in_disable_plugins"] == ["mojjo"]
    assert told["environment"]["variables"]["FIB_DISABLE_PLUGINS"] == "mojjo,exits"


def test_an_unknown_name_is_a_usage_error_with_near_matches(environment):
    done = environment.fib("plugins", "doctor", "goood")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no plugin, distribution or record 'goood'. Did you mean 'good'" in done.stderr


# ------------------------------------------------------------------ weight


def test_loading_all_plugins_imports_nothing_heavy(environment):
    done = environment.python(
        """
        import sys
        import flashinfer_bench.plugins
        first = set(sys.modules)
        flashinfer_bench.plugins.default_catalog()
        heavy = {"torch", "numpy", "pydantic", "rich", "typer", "triton", "safetensors"}
        print(sorted(heavy & first), sorted(heavy & set(sys.modules)))
        print("importlib.metadata" in first)
        """
    )
    assert done.stdout.splitlines()[-2:] == ["[] []", "False"]
