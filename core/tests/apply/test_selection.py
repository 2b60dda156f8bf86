"""Which runs count, and who wins."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_tests import table_dataset as make
from flashinfer_bench.apply.config import ApplyConfig
from flashinfer_bench.apply.table import (
    Limits,
    Standing,
    best_of_all,
    integrity_problem,
    limits_for,
    run_problem,
)
from flashinfer_bench.data import Definition, Trace, Workload
from flashinfer_bench.data.run_source import RowMaker

BF16 = Limits(0.01, 0.01, coarse=True)
FP32 = Limits(1e-3, 1e-3)


def passed(absolute=0.0, relative=0.0, latency=1.0, extra=None, **changes):
    """Return a run that passed, read from its line; errors may be words."""
    correctness = make.errors(absolute, relative)
    if extra is not None:
        correctness["extra"] = extra
    record = make.trace(latency=latency, correctness=correctness, **changes)
    maker = RowMaker(None)
    maker.add(Trace.model_validate_json(json.dumps(record)))
    return maker.rows[0]


def refused(run, limits):
    found = run_problem(run, limits)
    return None if found is None else found.kind


class TestLimits:
    def definition(self, dtype="bfloat16", **changes):
        return Definition.model_validate(make.definition(dtype=dtype, **changes))

    @pytest.mark.parametrize(
        ("dtype", "allowed", "coarse"),
        [
            ("float32", 2.0**-10, False),
            ("float16", 0.01, True),
            ("bfloat16", 0.01, True),
            ("float8_e4m3fn", 0.125, True),
            ("int32", 0.0, False),
        ],
    )
    def test_they_follow_the_dtypes(self, dtype, allowed, coarse):
        limits = limits_for(self.definition(dtype), ApplyConfig())
        assert limits == Limits(allowed, allowed, both=False, coarse=coarse)

    def test_the_definition_knows_better(self):
        tolerance = {"atol": 0.5, "required_matched_ratio": 0.9}
        limits = limits_for(self.definition(tolerance=tolerance), ApplyConfig())
        assert limits == Limits(0.5, 0.01, coarse=True, matched_ratio=0.9)

    def test_the_workload_knows_best(self):
        definition = self.definition(tolerance={"atol": 0.5, "rtol": 0.5})
        workload = Workload.model_validate(make.workload(tolerance={"atol": 0.25}))
        limits = limits_for(definition, ApplyConfig(), workload)
        assert (limits.atol, limits.rtol) == (0.25, 0.5)

    def test_the_widest_output_counts(self):
        outputs = {
            "ids": {"shape": ["rows"], "dtype": "int32"},
            "out": {"shape": ["rows", "depth"], "dtype": "bfloat16"},
        }
        assert limits_for(self.definition(outputs=outputs), ApplyConfig()) == BF16

    def test_a_user_has_the_last_word(self):
        definition = self.definition(tolerance={"atol": 0.5})
        config = ApplyConfig(max_atol=1e-2, max_rtol=1e-5)
        assert limits_for(definition, config) == Limits(1e-2, 1e-5, both=True)


class TestErrors:
    @pytest.mark.parametrize(
        ("absolute", "relative"),
        [(0.0, 0.0), (0.03125, 0.0078), (0.0078, 13.5), (0.01, 0.01), (0.0, "Infinity")],
    )
    def test_one_error_within_the_tolerance_is_enough(self, absolute, relative):
        assert run_problem(passed(absolute, relative), BF16) is None

    @pytest.mark.parametrize(
        ("absolute", "relative"),
        [(0.5, 0.5), (0.041, 0.011), ("NaN", "NaN"), ("Infinity", "Infinity"), ("NaN", 0.5)],
    )
    def test_both_errors_beyond_are_too_much(self, absolute, relative):
        assert run_problem(passed(absolute, relative), BF16).kind == "error"

    def test_elements_that_all_matched_say_more_than_two_maxima(self):
        assert run_problem(passed(2.0, 70.0, extra={"matched_ratio": 1.0}), BF16) is None
        assert run_problem(passed(2.0, 70.0, extra={"matched_ratio": 0.99}), BF16) is not None
        assert run_problem(passed(2.0, 70.0, extra={"matched_ratio": 1.0}), FP32) is not None

    def test_our_own_judge_has_looked_at_each_element(self):
        judged = {"provenance": {"evaluator": "default 1"}}
        assert run_problem(passed(0.5, 70.0, **judged), FP32) is None
        assert run_problem(passed("NaN", 70.0, **judged), FP32) is not None
        assert run_problem(passed(0.5, 70.0, provenance={"evaluator": ""}), FP32) is not None

    def test_bounds_of_a_user_are_bounds(self):
        bounds = Limits(0.01, 0.001, both=True)
        everything = {"provenance": {"evaluator": "x"}, "extra": {"matched_ratio": 1.0}}
        assert run_problem(passed(0.01, 0.001, **everything), bounds) is None
        assert run_problem(passed(0.01, 0.002, **everything), bounds) is not None
        assert run_problem(passed(0.02, 0.001, **everything), bounds) is not None

    def test_nan_is_within_no_bounds(self):
        endless = Limits(math.inf, math.inf, both=True)
        assert run_problem(passed("NaN", 0.0), endless) is not None
        assert run_problem(passed(0.0, "NaN"), BF16) is not None
        assert run_problem(passed("NaN", 0.0), BF16) is not None
        assert run_problem(passed("Infinity", "Infinity"), endless) is None


class TestIntegrity:
    @pytest.mark.parametrize(
        "note",
        [
            None,
            True,
            {},
            {"trust": "full", "timed_calls": 50, "checked_calls": 3, "fresh": ["x"]},
            {"trust": "off"},
            {"floor_ms": None},
            {"floor_ms": 1.005},
            {"violations": []},
        ],
    )
    def test_clean(self, note):
        assert integrity_problem(note, 1.0) is None

    @pytest.mark.parametrize(
        "note",
        [
            False,
            "violated",
            ["hidden time"],
            5,
            {"rule": "outputs", "timed_call": 3},
            {"disputed": "hidden time", "unseen_ms": 3.0},
            {"violation": "floor"},
            {"violations": ["timer"]},
            {"floor_ms": 2.0},
            {"floor_ms": 10**400},
            {"floor_ms": math.nan},
        ],
    )
    def test_not_clean(self, note):
        assert integrity_problem(note, 1.0).kind == "integrity"

    def test_a_run_with_a_note_against_it_does_not_count(self):
        assert refused(passed(extra={"integrity": {"rule": "outputs"}}), BF16) == "integrity"
        assert refused(passed(extra={"integrity": {"trust": "full"}}), BF16) is None


def test_a_latency_of_nothing_is_no_measurement():
    assert refused(passed(latency=0.0), BF16) == "latency"
    assert refused(passed(latency=1e-9), BF16) is None


def rankings(*keys):
    """Return rankings from dicts of latency by solution."""
    return [sorted(Standing(ms, name, 1, "w") for name, ms in key.items()) for key in keys]


class TestBestOfAll:
    def test_the_best_may_be_a_winner_of_no_key(self):
        found = rankings({"a": 1, "c": 1.1, "b": 9}, {"b": 1, "c": 1.1, "a": 9})
        assert best_of_all(found) == "c"

    def test_one_lucky_key_is_not_enough(self):
        found = rankings({"lucky": 0.9, "steady": 1.0}, {"steady": 1.0}, {"steady": 1.0})
        assert best_of_all(found) == "steady"

    def test_if_all_have_few_keys_those_with_most_count(self):
        found = rankings({"a": 1.0}, {"b": 1.0}, {"c": 1.0}, {"d": 1.0, "c": 3.0})
        assert best_of_all(found) == "c"

    def test_some_are_never_taken(self):
        found = rankings({"a": 1.0, "b": 2.0})
        assert best_of_all(found, frozenset({"a"})) == "b"
        assert best_of_all(found, frozenset({"a", "b"})) is None

    def test_equals_more_keys_then_names(self):
        assert best_of_all(rankings({"b": 1.0, "a": 1.0})) == "a"
        assert best_of_all(rankings({"a": 1.0, "b": 1.0}, {"b": 1.0})) == "b"

    table = st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 10), min_size=1), min_size=1
    )

    @given(table, st.randoms())
    def test_the_order_of_keys_does_not_matter(self, keys, random):
        mixed = list(keys)
        random.shuffle(mixed)
        first, second = best_of_all(rankings(*keys)), best_of_all(rankings(*mixed))
        assert first == second
