"""Each suite finds each defect, by the test that is named for it, and no other."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

CACHING = {
    "test_a_damaged_library_is_noticed",
    "test_a_killed_build_is_not_taken_for_a_result",
    "test_another_signature_is_another_build",
    "test_other_options_are_another_build",
    "test_what_is_in_the_cache_needs_no_compiler",
}

# Class of suites -> tests that fail.
GOOD = {
    "builders": "Good DestinationPassing Unavailable Compiled RefusesOptions LeavesNoLibrary",
    "others": "TimerGood TimerFactory TimerRepeats EvaluatorGood EvaluatorSampling "
    "EvaluatorFallback KeysGood KeysDeclares KeysLoud AdapterGood AdapterNoLibrary "
    "AdapterArguments RouteGood",
    "plugins": "_good",
}
BROKEN = {
    "builders": {
        "NoSummary": "the_record_says_what_it_is",
        "NoFactory": "the_factory_is_of_the_right_type",
        "WantsArguments": "the_factory_takes_what_it_is_given",
        "BrokenPlugin": "importing_the_plugin_is_light",
        "ProbeSlow": "the_probe_answers",
        "ProbeSetsVariable": "the_probe_answers the_probe_is_pure",
        "HandlesOthers": "the_record_handles_the_solution",
        "Refuses": "the_solution_builds",
        "Declared": "the_declared_convention_is_kept",
        "ReturnsDestination": "every_call_gives_what_the_reference_does",
        "WorksOnce": "every_call_gives_what_the_reference_does",
        "SwapsArguments": "a_process_of_its_own every_call_gives_what_the_reference_does "
        "processes_build_at_the_same_time threads_build_at_the_same_time",
        "OneConvention": "the_other_convention",
        "IgnoresSymbol": "a_missing_entry_symbol_is_a_build_error",
        "RaisesSyntaxError": "garbage_is_a_build_error",
        "Careless": "a_build_error_tells_what_is_needed a_build_leaves_all_as_it_was "
        "can_build_refuses_foreign_languages cleaning_up its_names_in_the_cache_are_safe "
        "paths_that_leave_the_folder_are_refused the_metadata_are_complete",
        "Trusting": "a_damaged_library_is_noticed another_signature_is_another_build "
        "other_options_are_another_build",
        "BearsGrudges": "a_failed_build_spoils_nothing",
        "Unmet": "the_author_s_failing_solutions",
        "CleansShared": "cleaning_one_build_leaves_others_alone",
        "KeepsRunnables": "cleaning_up",
        "KeepsByName": "other_content_is_another_build two_solutions_do_not_share_results",
        "NeedsTests": "a_process_of_its_own",
        "NoLock": "processes_build_at_the_same_time threads_build_at_the_same_time",
        "CompilesInBuild": "what_is_in_the_cache_needs_no_compiler",
        "CompilesTwice": "processes_build_at_the_same_time",
        "FillsInPlace": "a_killed_build_is_not_taken_for_a_result",
    },
    "others": {
        "TimerWantsDevice": "the_factory_takes_what_it_is_given",
        "TimerHeavyProbe": "the_probe_is_pure",
        "TimerForOthers": "the_record_names_the_device",
        "TimerRefuses": "one_call_gives_a_latency_and_its_result",
        "TimerSeconds": "one_call_is_in_milliseconds",
        "TimerCareless": "it_has_name_and_version notes_are_short_and_told_once "
        "one_call_is_one_call one_call_leaves_the_garbage_collector_as_it_was "
        "the_clock_of_one_call_was_looked_up_before the_record_says_what_the_timer_is_like "
        "what_one_call_raises_goes_on",
        "TimerInverse": "more_work_takes_longer",
        "TimerDoesNotWait": "one_call_is_over_when_it_returns",
        "TimerRepeatsWithOthers": "one_call_is_one_call",
        "TimerRepeatsUntold": "the_record_says_what_the_timer_is_like",
        "EvaluatorWantsConfig": "the_factory_takes_what_it_is_given",
        "EvaluatorForOthers": "the_record_accepts_the_definition",
        "EvaluatorBlind": "every_call_is_looked_at what_the_case_calls_wrong_fails "
        "wrong_outputs_fail",
        "EvaluatorCareless": "a_timed_call_is_judged it_changes_nothing it_has_name_and_version "
        "it_is_deterministic its_settings_are_checked trials_are_combined",
        "EvaluatorUnstorable": "correct_outputs_pass",
        "KeysWantsNothing": "the_factory_takes_what_it_is_given",
        "KeysForOthers": "the_record_names_the_op_type",
        "KeysForgetsFeature": "a_call_has_the_key_of_its_workload",
        "KeysByIdentity": "a_call_has_the_key_of_its_workload equal_calls_have_equal_keys",
        "KeysTuples": "equal_calls_have_equal_keys",
        "KeysPretends": "what_it_says_of_axes_only_is_so",
        "KeysOneAxis": "other_workloads_have_other_keys",
        "KeysReadsTensor": "it_reads_no_data_unless_it_says_so",
        "KeysByPosition": "equal_calls_have_equal_keys",
        "AdapterWantsLibrary": "the_factory_takes_what_it_is_given",
        "AdapterImportsTorch": "making_it_does_not_import_the_library",
        "AdapterProbeImports": "the_probe_is_pure",
        "AdapterTargetsRaise": "its_targets_are_the_record_s",
        "AdapterMissing": "its_targets_exist",
        "AdapterDropsNames": "a_wrapper_passes_calls_through",
        "AdapterLooksAtArguments": "a_wrapper_passes_calls_through",
        "AdapterCareless": "a_wrapper_looks_like_the_original "
        "making_it_does_not_import_the_library what_the_original_raises_goes_on "
        "wrappers_do_not_share_originals",
        "AdapterCannotWrap": "it_wraps_each_target",
        "AdapterPatches": "making_it_does_not_import_the_library patching_is_undone",
    },
    "plugins": {
        "_absent": "the_entry_point_is_installed",
        "_twice": "it_loads names_are_unique the_entry_point_is_installed",
        "_outdated": "the_distribution_requires_a_core_that_fits",
        "_loud": "importing_the_plugin_is_light it_loads_in_strict_mode",
        "_raises": "importing_the_plugin_is_light it_loads",
        "_nothing": "it_registers_something",
        "_once": "the_hooks_return_the_same_again",
        "_careless": "every_command_runs every_factory_is_of_the_right_type "
        "every_factory_takes_what_it_is_given every_probe_answers every_probe_is_pure "
        "every_record_says_what_it_is names_are_unique",
        "_shadow": "it_loads names_are_unique",
    },
}
ROUTES = (
    "AnswersAll ForgetsBuffer InputsChanged Never None OtherBuffer Returns TakesAnything Tuple "
    "WrongArgument"
)
SUBSTITUTED = " ".join(
    f"substituted_calls_are_like_the_original[{mode}]" for mode in ("dataset", "mapping")
)
BROKEN["others"] |= {f"Route{name}": SUBSTITUTED for name in ROUTES.split()}
SUITES = list(BROKEN)


@pytest.fixture
def outcomes(outcomes_of, request):
    return outcomes_of(f"run_{request.param}")


def outcomes_from(*suites):
    return pytest.mark.parametrize("outcomes", suites, indirect=True)


@pytest.mark.parametrize("suite", SUITES)
def test_each_defect_is_found_by_the_test_that_is_named_for_it(outcomes_of, suite):
    found = {name: sorted(each.failed) for name, each in outcomes_of(f"run_{suite}").items()}
    found = {name: tests for name, tests in found.items() if name not in ("NoCase", "_no_case")}
    expected = {name: [] for name in GOOD[suite].split()}
    for name, tests in BROKEN[suite].items():
        expected[name] = [f"test_{test}" for test in tests.split()]
    assert found == expected


@outcomes_from("builders", "others", "plugins")
def test_a_failure_says_what_is_wrong_why_it_matters_and_what_to_do(outcomes):
    messages = [text for each in outcomes.values() for text in each.failed.values()]
    assert len(messages) > 15
    for message in messages:
        what, _, rest = message.partition("\n  why it matters: ")
        why, _, fix = rest.partition("\n  to do: ")
        assert min(map(len, (what, why, fix))) >= 12, message
        assert "Traceback" not in why + fix


@outcomes_from("builders", "others", "plugins")
def test_a_test_that_cannot_say_anything_is_skipped_with_a_reason(outcomes):
    reasons = {reason for each in outcomes.values() for reason in each.skipped.values()}
    assert reasons
    assert all(len(reason) > 20 for reason in reasons)


@outcomes_from("others", "plugins")
def test_a_full_case_skips_nothing(outcomes):
    full = ("TimerGood", "EvaluatorSampling", "KeysGood", "RouteGood", "_good")
    ran = {name: each for name, each in outcomes.items() if name in full}
    assert ran
    assert {name: each.skipped for name, each in ran.items()} == {name: {} for name in ran}
    least = {"TimerGood": 18, "EvaluatorSampling": 17, "KeysGood": 12, "RouteGood": 17}
    assert {name: len(each.passed) for name, each in ran.items()} == {
        name: least.get(name, 14) for name in ran
    }


@outcomes_from("builders")
def test_a_full_case_of_a_builder_skips_what_is_for_compilers_alone(outcomes):
    assert set(outcomes["Good"].skipped) == CACHING
    assert len(outcomes["Good"].passed) >= 29
    assert set(outcomes["Compiled"].passed) >= CACHING
    assert "`libraries`" in outcomes["LeavesNoLibrary"].skipped["test_a_damaged_library_is_noticed"]


@outcomes_from("builders")
def test_an_unavailable_builder_skips_what_needs_it_and_checks_the_rest(outcomes):
    outcome = outcomes["Unavailable"]
    assert {"test_the_record_says_what_it_is", "test_the_probe_answers"} <= set(outcome.passed)
    reasons = set(outcome.skipped.values())
    assert "builder 'toy' is unavailable here: toycc is not installed" in reasons


@outcomes_from("builders")
def test_a_class_without_a_case_is_told_how_to_give_one(outcomes):
    outcome = outcomes["NoCase"]
    assert not outcome.passed
    assert not outcome.skipped
    for message in outcome.failed.values():
        assert "TestNoCase needs a fixture 'case' that returns a BuilderCase; found none" in message


TOLD = {
    "builders": [
        ("Careless", "solutions in python, triton, cuda, cpp, tilelang"),
        ("Careless", "env:TOY_ARCH_LIST: not set -> 9.0"),
        ("Careless", "home: .toy_history"),
        ("RaisesSyntaxError", "raised SyntaxError: "),
        ("CompilesInBuild", "toycc -c "),
        ("Trusting", '"cflags":["-DFIB_CONFORMANCE_OTHER=1"]'),
        ("Trusting", "built again after damage to helper.py, main.py: "),
    ],
    "others": [
        ("TimerSeconds", "one call of 40 ms was measured as 0.0"),
        ("EvaluatorBlind", "no outputs in call 0: PASSED, not INCORRECT_SHAPE"),
        ("KeysReadsTensor", "aten"),
        ("KeysOneAxis", "{'rows': 3, 'columns': 5} and {'rows': 3, 'columns': 80}"),
        ("AdapterDropsNames", "broken_library.scale, first call: the original was called with"),
        ("AdapterImportsTorch", "creating the adapter imported torch; import it inside methods"),
        ("AdapterPatches", "not restored after patching and unpatching: broken_library.scale"),
    ],
    "plugins": [
        ("_outdated", "requires flashinfer-bench-core~=0.1.0; this is 0.2"),
        ("_once", "registered timer 'toy_once', and then nothing"),
        ("_loud", "importing toy_loud imports numpy"),
        ("_careless", "toy_factories:Lost cannot be imported: AttributeError"),
    ],
}


@pytest.mark.parametrize("suite", SUITES)
def test_a_failure_names_what_was_found(outcomes_of, suite):
    outcomes = outcomes_of(f"run_{suite}")
    for name, text in TOLD[suite]:
        assert text in "\n".join(outcomes[name].failed.values()), name
