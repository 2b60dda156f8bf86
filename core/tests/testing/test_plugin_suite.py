"""The suite for plugins finds each defect, by the test that is named for it, and no other."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

GOOD = ("good", "module", "command")

BROKEN = {
    "absent": ["the_entry_point_is_installed"],
    "twice": ["it_loads", "names_are_unique", "the_entry_point_is_installed"],
    "carefree": ["the_distribution_requires_a_core_that_fits"],
    "outdated": ["the_distribution_requires_a_core_that_fits"],
    "heavy": ["importing_the_plugin_is_light"],
    "raises": ["importing_the_plugin_is_light", "it_loads"],
    "unmarked": ["it_loads"],
    "wrong_record": ["it_loads"],
    "nothing": ["it_registers_something"],
    "once": ["the_hooks_return_the_same_again"],
    "in_tests": ["it_loads_in_strict_mode"],
    "prints": ["it_loads_in_strict_mode"],
    "sulks": ["importing_the_plugin_is_light", "it_loads_in_strict_mode"],
    "rival": ["names_are_unique"],
    "like_core": ["it_loads", "names_are_unique"],
    "silent": ["every_record_says_what_it_is"],
    "lost": ["every_factory_is_of_the_right_type"],
    "other_class": ["every_factory_is_of_the_right_type"],
    "arguments": ["every_factory_takes_what_it_is_given"],
    "probe_raises": ["every_probe_answers"],
    "probe_moody": ["every_probe_is_pure"],
    "weird": ["every_command_runs"],
    "number": ["every_command_runs", "every_factory_is_of_the_right_type"],
    "shadow": ["every_command_runs"],
}


@pytest.fixture
def outcomes(outcomes_of):
    found = outcomes_of("run_plugins")
    return {name.removeprefix("_"): outcome for name, outcome in found.items()}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_with_a_good_plugin(outcomes, name):
    assert outcomes[name].failed == {}


def test_an_installed_plugin_with_all_kinds_of_records_skips_nothing(outcomes):
    assert outcomes["good"].skipped == {}
    assert len(outcomes["good"].passed) == 14


@pytest.mark.parametrize("name", BROKEN)
def test_a_defect_is_found_by_the_test_that_is_named_for_it(outcomes, name):
    assert sorted(outcomes[name].failed) == [f"test_{test}" for test in BROKEN[name]]


def test_every_suite_that_ran_is_expected(outcomes):
    assert set(outcomes) == {*GOOD, *BROKEN, "no_case"}


@pytest.mark.parametrize("name", BROKEN)
def test_a_failure_says_why_it_matters_and_what_to_do(outcomes, name):
    for message in outcomes[name].failed.values():
        what, _, rest = message.partition("\n  why it matters: ")
        why, _, fix = rest.partition("\n  to do: ")
        assert min(map(len, (what, why, fix))) > 20, message


def test_a_test_that_cannot_say_anything_is_skipped_with_a_reason(outcomes):
    reasons = {reason for each in outcomes.values() for reason in each.skipped.values()}
    assert "toy_raises cannot be loaded: see test_it_loads" in reasons
    assert "the case says that the plugin is not installed" in reasons
    assert all(len(reason) > 20 for reason in reasons)


def test_a_class_without_a_case_is_told_how_to_give_one(outcomes):
    outcome = outcomes["no_case"]
    assert not outcome.passed
    for message in outcome.failed.values():
        assert "has no fixture 'case' that returns a PluginCase, but none" in message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("twice", "2 entry points of the group 'flashinfer_bench.plugins'"),
        ("outdated", "requires flashinfer-bench-core~=0.1.0, and this is 0.2"),
        ("unmarked", "fib_register_timers is not marked with @hookimpl"),
        ("once", "registered timer 'toy_once', and then nothing"),
        ("in_tests", "without timer 'toy_in_tests'"),
        ("rival", "toy_clock"),
        ("shadow", "`fib report` is there without the plugin"),
        ("lost", "toy_factories:Lost cannot be imported: AttributeError"),
        ("arguments", "missing 1 required positional argument: 'device'"),
    ],
)
def test_a_failure_names_what_was_found(outcomes, name, told):
    assert told in "\n".join(outcomes[name].failed.values())
