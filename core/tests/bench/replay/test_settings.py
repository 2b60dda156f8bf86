"""What of the settings is recorded is enough to have them again."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
from flashinfer_bench.bench.replay.settings import RecordedConfig, recorded_settings
from flashinfer_bench.errors import ConfigError, FibError

amounts = st.floats(0, 10, allow_nan=False)
settings_of_runs = st.fixed_dictionaries(
    {},
    optional={
        "atol": amounts,
        "rtol": amounts,
        "required_matched_ratio": st.floats(0.01, 1.0),
        "timeout_seconds": st.floats(1, 1000),
        "profile_baseline": st.booleans(),
        "use_isolated_runner": st.booleans(),
        "sandbox": st.sampled_from(["off", "auto"]),
        "evaluator": st.sampled_from(["default", "lowbit"]),
    },
)
extras = st.dictionaries(st.sampled_from("abc"), st.integers() | st.booleans(), max_size=3)


@given(settings_of_runs, extras, amounts)
def test_round_trip(problems: Any, given_: dict[str, Any], extra: dict[str, Any], x: float) -> None:
    own = {"definition_config": {"double": EvalConfig(extra=extra, rtol=x)}}
    config = BenchmarkConfig.default(**given_, **own)
    problem = problems.definition(), problems.workload(uuid="w")
    told = json.loads(json.dumps(recorded_settings(config, *problem)))
    again = RecordedConfig.restored(told)
    assert again.resolve_eval_config(*problem) == config.resolve_eval_config(*problem)
    names = ("timeout_seconds", "profile_baseline", "use_isolated_runner", "sandbox", "evaluator")
    assert [getattr(again, name) for name in names] == [getattr(config, name) for name in names]
    assert recorded_settings(again, *problem) == told


def test_defaults_take_no_room(problems: Any) -> None:
    counts = {"warmup_runs": 1, "iterations": 2, "num_trials": 5, "seed": 3, "trust": "off"}
    config = BenchmarkConfig.default(**counts, log_level="ERROR", build_jobs=2)
    assert recorded_settings(config, problems.definition(), problems.workload()) == {}


def test_the_same_as_the_default_is_no_change(problems: Any) -> None:
    one = problems.definition()
    resolved = BenchmarkConfig.default().resolve_eval_config(one)
    told = recorded_settings(
        BenchmarkConfig.default(rtol=resolved.tolerances["y"].rtol), one, problems.workload()
    )
    assert "rtol" not in told


@pytest.mark.parametrize(
    "changed",
    [
        {"timeout_seconds": -1},
        {"sandbox": "maybe"},
        {"atol": -1.0},
        {"tolerances": {"y": 3}},
        {"tolerances": [1]},
        {"extra": 5},
        {"extra": None},
        {"atol_by_dtype": 3},
        {"executor": 3},
    ],
)
def test_what_nobody_could_have_set_is_refused(problems: Any, changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RecordedConfig.restored(changed).resolve_eval_config(problems.definition())


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_names = (
    "timeout_seconds profile_baseline use_isolated_runner executor evaluator sandbox atol rtol "
    "required_matched_ratio atol_by_dtype tolerances extra"
)


@given(st.dictionaries(st.sampled_from(_names.split()), _json, max_size=4))
def test_any_record_is_restored_or_refused_by_name(problems: Any, changed: dict[str, Any]) -> None:
    with contextlib.suppress(FibError):
        RecordedConfig.restored(changed).resolve_eval_config(problems.definition())
