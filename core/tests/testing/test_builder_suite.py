"""The suite for builders finds each defect, by the test that is named for it, and no other."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

GOOD = (
    "Good",
    "FactoryOnly",
    "DestinationPassing",
    "Unavailable",
    "Compiled",
    "RefusesOptions",
    "LeavesNoLibrary",
)
CACHING = {
    "test_a_damaged_library_is_noticed",
    "test_a_killed_build_is_not_taken_for_a_result",
    "test_another_signature_is_another_build",
    "test_other_options_are_another_build",
    "test_what_is_in_the_cache_needs_no_compiler",
}

BROKEN = {
    "NoSummary": ["the_record_says_what_it_is"],
    "NoFactory": ["the_factory_is_of_the_right_type"],
    "FactoryRaises": ["the_factory_is_of_the_right_type"],
    "Plain": ["the_factory_is_of_the_right_type"],
    "WantsArguments": ["the_factory_takes_what_it_is_given"],
    "HeavyPlugin": ["importing_the_plugin_is_light"],
    "NoisyPlugin": ["importing_the_plugin_is_light"],
    "BrokenPlugin": ["importing_the_plugin_is_light"],
    "ProbeRaises": ["the_probe_answers"],
    "ProbeSlow": ["the_probe_answers"],
    "ProbeNoRemedy": ["the_probe_answers"],
    "ProbeMoody": ["the_probe_is_pure"],
    "ProbeHeavy": ["the_probe_is_pure"],
    "ProbeSetsVariable": ["the_probe_is_pure"],
    "UnsafePrefix": ["its_names_in_the_cache_are_safe"],
    "UnsafeFolder": ["its_names_in_the_cache_are_safe"],
    "HandlesOthers": ["the_record_handles_the_solution"],
    "TakesNothing": ["can_build_accepts_its_own_language"],
    "TakesAll": ["can_build_refuses_foreign_languages"],
    "ReturnsFunction": ["the_solution_builds"],
    "Refuses": ["the_solution_builds"],
    "WrongMetadata": ["the_metadata_are_complete"],
    "Declared": ["the_declared_convention_is_kept"],
    "ReturnsDestination": ["a_call_by_position"],
    "SwapsNames": ["a_call_by_name"],
    "WorksOnce": ["a_second_call"],
    "SwapsArguments": [
        "a_call_by_name",
        "a_call_by_position",
        "a_destination_passing_call",
        "a_process_of_its_own",
        "a_second_call",
        "a_value_returning_call",
        "processes_build_at_the_same_time",
        "threads_build_at_the_same_time",
    ],
    "OneConvention": ["the_other_convention"],
    "IgnoresSymbol": ["a_missing_entry_symbol_is_a_build_error"],
    "RaisesAttributeError": ["a_missing_entry_symbol_is_a_build_error"],
    "HidesSymbol": ["a_missing_entry_symbol_is_a_build_error"],
    "RaisesSyntaxError": ["garbage_is_a_build_error"],
    "LongMessage": ["a_build_error_names_the_solution_in_one_line"],
    "NamelessMessage": ["a_build_error_names_the_solution_in_one_line"],
    "NoLog": ["a_build_error_carries_the_log"],
    "Unpicklable": ["a_build_error_can_be_pickled"],
    "ForgetsLog": ["a_build_error_can_be_pickled"],
    "WritesAnywhere": ["paths_that_leave_the_folder_are_refused"],
    "DropsUnsafe": ["paths_that_leave_the_folder_are_refused"],
    "BearsGrudges": ["a_failed_build_spoils_nothing"],
    "Unmet": ["the_author_s_failing_solutions"],
    "CleanerRaises": ["cleaning_up"],
    "CleansShared": ["cleaning_one_build_leaves_others_alone"],
    "KeepsRunnables": ["building_again_after_cleaning_up"],
    "KeepsByName": ["other_content_is_another_build", "two_solutions_do_not_share_results"],
    "SharesModules": ["two_solutions_do_not_share_results"],
    "Prints": ["building_prints_nothing"],
    "CompilerPrints": ["building_prints_nothing"],
    "SetsVariable": ["the_process_is_left_as_it_was"],
    "ExtendsPath": ["the_process_is_left_as_it_was"],
    "TakesSignal": ["the_process_is_left_as_it_was"],
    "SetsSeed": ["the_process_is_left_as_it_was"],
    "WritesToTemp": ["sources_are_written_to_the_cache_only"],
    "LeavesLog": ["nothing_is_left_outside_of_the_cache"],
    "NeedsTests": ["a_process_of_its_own"],
    "OneAtATime": ["threads_build_at_the_same_time"],
    "NoLock": ["processes_build_at_the_same_time", "threads_build_at_the_same_time"],
    "CompilesInBuild": ["what_is_in_the_cache_needs_no_compiler"],
    "CompilesTwice": ["processes_build_at_the_same_time"],
    "CompilesAlways": [
        "processes_build_at_the_same_time",
        "what_is_in_the_cache_needs_no_compiler",
    ],
    "IgnoresOptions": ["other_options_are_another_build"],
    "ChokesOnOptions": ["other_options_are_another_build"],
    "IgnoresDefinition": ["another_signature_is_another_build"],
    "HashesSources": ["another_signature_is_another_build", "other_options_are_another_build"],
    "TrustsTheDisk": ["a_damaged_library_is_noticed"],
    "TrustsSizes": ["a_damaged_library_is_noticed"],
    "FillsInPlace": ["a_killed_build_is_not_taken_for_a_result"],
}


@pytest.fixture
def outcomes(outcomes_of):
    return outcomes_of("run_builders")


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_with_a_good_builder(outcomes, name):
    assert outcomes[name].failed == {}


def test_a_full_case_skips_nothing_but_what_is_not_for_it(outcomes):
    assert set(outcomes["Good"].skipped) == CACHING
    assert len(outcomes["Good"].passed) >= 39
    assert set(outcomes["Compiled"].passed) >= CACHING
    assert "`libraries`" in outcomes["LeavesNoLibrary"].skipped["test_a_damaged_library_is_noticed"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_defect_is_found_by_the_test_that_is_named_for_it(outcomes, name):
    assert sorted(outcomes[name].failed) == [f"test_{test}" for test in BROKEN[name]]


def test_every_suite_that_ran_is_expected(outcomes):
    assert set(outcomes) == {*GOOD, *BROKEN, "Tolerates", "NoCase"}


def test_a_change_that_the_case_tolerates_is_no_defect(outcomes):
    assert outcomes["Tolerates"].failed == {}


@pytest.mark.parametrize("name", BROKEN)
def test_a_failure_says_why_it_matters_and_what_to_do(outcomes, name):
    for message in outcomes[name].failed.values():
        what, _, rest = message.partition("\n  why it matters: ")
        why, _, fix = rest.partition("\n  to do: ")
        assert min(map(len, (what, why, fix))) > 20, message
        assert "Traceback" not in why + fix


def test_a_test_that_cannot_say_anything_is_skipped_with_a_reason(outcomes):
    reasons = {reason for each in outcomes.values() for reason in each.skipped.values()}
    assert all(len(reason) > 20 for reason in reasons)
    assert {r for r in outcomes["Refuses"].skipped.values() if "test_the_solution_builds" in r}


def test_an_unavailable_builder_skips_what_needs_it_and_checks_the_rest(outcomes):
    outcome = outcomes["Unavailable"]
    assert {"test_the_record_says_what_it_is", "test_the_probe_answers"} <= set(outcome.passed)
    reasons = set(outcome.skipped.values())
    assert "builder 'toy' cannot be used here: toycc is not installed" in reasons


def test_a_class_without_a_case_is_told_how_to_give_one(outcomes):
    outcome = outcomes["NoCase"]
    assert not outcome.passed
    assert not outcome.skipped
    for message in outcome.failed.values():
        assert "TestNoCase has no fixture 'case' that returns a BuilderCase" in message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("HeavyPlugin", "importing broken_heavy imports numpy"),
        ("NoisyPlugin", "env:TOY_HOME: not set -> ."),
        ("ProbeSlow", "did not answer within 0.5 s"),
        ("TakesAll", "solutions in python, triton, cuda, cpp, tilelang"),
        ("RaisesSyntaxError", "raised SyntaxError: "),
        ("WritesAnywhere", "it was written to"),
        ("SetsVariable", "env:TOY_ARCH_LIST: not set -> 9.0"),
        ("TakesSignal", "signal:SIGUSR1: "),
        ("CompilerPrints", "'1 warning\\n'"),
        ("LeavesLog", "home: .toy_history"),
        ("CompilesInBuild", "toycc -c "),
        ("IgnoresOptions", '"cflags":["-DFIB_CONFORMANCE_OTHER=1"]'),
        ("ChokesOnOptions", "building raised StorageError: -D"),
        ("IgnoresDefinition", "no compiler ran, the build for the other one was taken"),
        ("TrustsTheDisk", "built again after damage to helper.py, main.py: "),
        ("Unmet", "'nvcc' is not in: solution 'one'"),
        ("NeedsTests", "nobody called setup()"),
    ],
)
def test_a_failure_names_what_was_found(outcomes, name, told):
    assert told in "\n".join(outcomes[name].failed.values())
