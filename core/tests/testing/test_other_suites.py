"""The suites for timers, evaluators, key builders and adapters find each defect, and no other."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

GOOD = (
    "TimerGood",
    "TimerFactory",
    "TimerRepeats",
    "EvaluatorGood",
    "EvaluatorSampling",
    "EvaluatorFallback",
    "KeysGood",
    "KeysDeclares",
    "KeysLoud",
    "AdapterGood",
    "AdapterNoLibrary",
    "AdapterArguments",
)

TIMERS = {
    "Plain": [
        "its_clock_was_looked_up_before",
        "one_call_gives_a_latency_and_its_result",
        "the_factory_is_of_the_right_type",
    ],
    "WantsDevice": ["the_factory_takes_what_it_is_given"],
    "HeavyProbe": ["the_probe_is_pure"],
    "ForOthers": ["the_record_names_the_device"],
    "Nameless": ["it_has_name_and_version"],
    "Versionless": ["it_has_name_and_version"],
    "OtherName": ["it_has_name_and_version"],
    "Average": ["there_is_one_sample_for_each_call"],
    "Tuple": ["there_is_one_sample_for_each_call"],
    "Negative": ["there_is_one_sample_for_each_call"],
    "Text": ["there_is_one_sample_for_each_call"],
    "Refuses": ["there_is_one_sample_for_each_call"],
    "Seconds": ["samples_are_milliseconds"],
    "Microseconds": ["samples_are_milliseconds"],
    "Inverse": [
        "making_the_arguments_is_not_timed",
        "more_work_takes_longer",
        "warm_up_calls_are_not_counted",
    ],
    "CountsWarmup": ["warm_up_calls_are_not_counted"],
    "CountsFromOne": ["each_call_gets_its_own_arguments"],
    "SameArguments": ["each_call_gets_its_own_arguments"],
    "PassesTuple": ["each_call_gets_its_own_arguments"],
    "TimesArguments": ["making_the_arguments_is_not_timed"],
    "Wraps": ["what_the_function_raises_goes_on"],
    "Swallows": ["what_the_function_raises_goes_on"],
    "LeavesCollectorOff": ["it_leaves_the_garbage_collector_as_it_was"],
    "TurnsCollectorOn": ["it_leaves_the_garbage_collector_as_it_was"],
    "Accumulates": ["it_can_measure_again"],
    "LooksUpLate": ["its_clock_was_looked_up_before"],
    "OnlyLatency": ["one_call_gives_a_latency_and_its_result"],
    "OtherResult": ["one_call_gives_a_latency_and_its_result"],
    "CallRefuses": ["one_call_gives_a_latency_and_its_result"],
    "CallInSeconds": ["one_call_is_in_milliseconds"],
    "CallWarmsUp": ["one_call_is_one_call"],
    "CallDoesNotWait": ["one_call_is_over_when_it_returns"],
    "CallWraps": ["what_one_call_raises_goes_on"],
    "CallTurnsCollectorOff": ["one_call_leaves_the_garbage_collector_as_it_was"],
    "CallLooksUpLate": ["the_clock_of_one_call_was_looked_up_before"],
    "KeepsNotes": ["notes_are_short_and_told_once"],
    "RepeatsWithOthers": ["each_call_gets_its_own_arguments", "one_call_is_one_call"],
    "RepeatsUntold": ["the_record_says_what_the_timer_is_like"],
    "OnlyCold": ["the_record_says_what_the_timer_is_like"],
    "Coarse": ["the_record_says_what_the_timer_is_like"],
    "LongNotes": ["notes_are_short_and_told_once"],
}

EVALUATORS = {
    "WantsConfig": ["the_factory_takes_what_it_is_given"],
    "Nameless": ["it_has_name_and_version"],
    "OtherName": ["it_has_name_and_version"],
    "ForOthers": ["the_record_accepts_the_definition"],
    "Strict": ["correct_outputs_pass"],
    "NoCorrectness": ["correct_outputs_pass"],
    "Unstorable": ["correct_outputs_pass"],
    "ReturnsBool": ["correct_outputs_pass"],
    "IgnoresZeros": ["zeros_fail"],
    "SilentAboutZeros": ["zeros_fail"],
    "IgnoresNan": ["nan_fails"],
    "Reshapes": ["a_wrong_shape_fails"],
    "IgnoresDtype": ["a_wrong_dtype_fails"],
    "Truncates": ["a_missing_output_fails"],
    "NeedsTensors": ["what_is_no_output_fails"],
    "LooksAtLast": ["every_call_is_looked_at"],
    "Moody": ["it_is_deterministic"],
    "WritesOutputs": ["it_changes_nothing"],
    "WritesInputs": ["it_changes_nothing"],
    "CombineRaises": ["trials_are_combined"],
    "Lenient": ["what_the_case_calls_wrong_fails"],
    "TimedPasses": ["a_timed_call_is_judged"],
    "TimedNeedsMany": ["a_timed_call_is_judged"],
    "OnlyMySettings": ["its_settings_are_checked"],
}

KEYS = {
    "WantsNothing": ["the_factory_takes_what_it_is_given"],
    "ForOthers": ["the_record_names_the_op_type"],
    "ForgetsFeature": ["a_call_has_the_key_of_its_workload"],
    "OtherOrder": ["a_call_has_the_key_of_its_workload"],
    "ReturnsTuple": ["a_call_has_the_key_of_its_workload"],
    "Raises": ["a_call_has_the_key_of_its_workload"],
    "ByIdentity": ["a_call_has_the_key_of_its_workload", "equal_calls_have_equal_keys"],
    "Lists": ["a_key_survives_json", "equal_calls_have_equal_keys"],
    "Tuples": ["a_key_survives_json"],
    "Pretends": ["what_it_says_of_axes_only_is_so"],
    "OneAxis": ["other_workloads_have_other_keys"],
    "ReadsTensor": ["it_reads_no_data_unless_it_says_so"],
    "Computes": ["it_reads_no_data_unless_it_says_so"],
    "Counts": ["it_takes_the_same_work_whatever_the_size"],
    "ByPosition": ["by_name_as_by_position"],
}

ADAPTERS = {
    "Plain": ["the_factory_is_of_the_right_type"],
    "WantsLibrary": ["the_factory_takes_what_it_is_given"],
    "ProbeImports": ["the_probe_is_pure"],
    "Imports": ["making_it_does_not_import_the_library"],
    "SetsVariable": ["making_it_does_not_import_the_library"],
    "OtherTargets": ["its_targets_are_the_record_s"],
    "TargetsRaise": ["its_targets_are_the_record_s"],
    "Paths": ["its_targets_are_the_record_s"],
    "TwiceTheSame": ["its_targets_are_the_record_s"],
    "Iterator": ["its_targets_are_the_record_s"],
    "WrongKind": ["its_targets_exist"],
    "Missing": ["its_targets_exist"],
    "CannotWrap": ["it_wraps_each_target"],
    "CallsAtOnce": ["it_wraps_each_target"],
    "ReturnsOriginal": ["it_wraps_each_target"],
    "NoWraps": ["a_wrapper_looks_like_the_original"],
    "NoSignature": ["a_wrapper_looks_like_the_original"],
    "CallsTwice": ["a_wrapper_passes_calls_through"],
    "NeverCalls": ["a_wrapper_passes_calls_through"],
    "DropsNames": ["a_wrapper_passes_calls_through"],
    "Copies": ["a_wrapper_passes_calls_through"],
    "LooksAtArguments": ["a_wrapper_passes_calls_through"],
    "Swallows": ["what_the_original_raises_goes_on"],
    "Retries": ["what_the_original_raises_goes_on"],
    "KeepsOriginals": ["wrappers_do_not_share_originals"],
    "Patches": ["making_it_does_not_import_the_library", "patching_is_undone"],
}

KINDS = {"Timer": TIMERS, "Evaluator": EVALUATORS, "Keys": KEYS, "Adapter": ADAPTERS}
BROKEN = {
    f"{kind}{name}": expected for kind, each in KINDS.items() for name, expected in each.items()
}


@pytest.fixture
def outcomes(outcomes_of):
    return outcomes_of("run_others")


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_with_a_good_one(outcomes, name):
    assert outcomes[name].failed == {}


@pytest.mark.parametrize(
    ("name", "tests"),
    [("TimerGood", 27), ("EvaluatorSampling", 22), ("KeysGood", 15), ("AdapterGood", 15)],
)
def test_a_full_case_skips_nothing(outcomes, name, tests):
    assert outcomes[name].skipped == {}
    assert len(outcomes[name].passed) == tests


@pytest.mark.parametrize("name", BROKEN)
def test_a_defect_is_found_by_the_test_that_is_named_for_it(outcomes, name):
    assert sorted(outcomes[name].failed) == [f"test_{test}" for test in BROKEN[name]]


def test_every_suite_that_ran_is_expected(outcomes):
    assert set(outcomes) == {*GOOD, *BROKEN}


@pytest.mark.parametrize("name", BROKEN)
def test_a_failure_says_why_it_matters_and_what_to_do(outcomes, name):
    for message in outcomes[name].failed.values():
        what, _, rest = message.partition("\n  why it matters: ")
        why, _, fix = rest.partition("\n  to do: ")
        assert min(len(what), len(why), len(fix)) >= 12, message


def test_a_test_that_cannot_say_anything_is_skipped_with_a_reason(outcomes):
    reasons = {reason for each in outcomes.values() for reason in each.skipped.values()}
    assert all(len(reason) > 20 for reason in reasons)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("TimerSeconds", "40 ms of work were measured as 0.0"),
        ("TimerCountsFromOne", "was asked with i = [1, 2, 3, 4, 5]"),
        ("TimerForOthers", "the record is for cuda, and the case measures on 'cpu'"),
        ("EvaluatorIgnoresNan", "outputs of NaN: PASSED, not INCORRECT_NUMERICAL"),
        ("EvaluatorLooksAtLast", "no outputs in call 0: PASSED, not INCORRECT_SHAPE"),
        ("EvaluatorWritesInputs", "check changed the inputs"),
        ("EvaluatorLenient", "a constant: PASSED, not INCORRECT_NUMERICAL"),
        ("EvaluatorTimedPasses", "timed call: no outputs: PASSED, not INCORRECT_SHAPE"),
        ("EvaluatorTimedNeedsMany", "check_timed raised IndexError"),
        ("KeysReadsTensor", "aten"),
        ("KeysOneAxis", "{'rows': 3, 'columns': 5} and {'rows': 3, 'columns': 80}"),
        ("KeysPretends", "build_from_args gives"),
        ("KeysCounts", "for {'rows': 48, 'columns': 5}"),
        ("AdapterWrongKind", "broken_library.scale is a function"),
        ("AdapterDropsNames", "broken_library.scale, first call: the original was called with"),
        ("AdapterPatches", "these are not what they were: broken_library.scale"),
        ("AdapterProbeImports", "imports broken_library"),
    ],
)
def test_a_failure_names_what_was_found(outcomes, name, told):
    assert told in "\n".join(outcomes[name].failed.values())
