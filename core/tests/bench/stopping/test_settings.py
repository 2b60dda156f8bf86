"""The settings of timing: what is refused, and how the layers merge."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench import BenchmarkConfig, EvalConfig, ResolvedEvalConfig
from flashinfer_bench.bench.config import EVAL_FIELDS
from flashinfer_bench.bench.stopping.settings import (
    TIMING_FIELDS,
    TimingOverrides,
    TimingSettings,
    merged_params,
)
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NAME = "d"


def resolved(config: BenchmarkConfig) -> ResolvedEvalConfig:
    reference = "def run(): pass"
    definition = Definition(
        name=NAME, op_type="o", axes={}, inputs={}, outputs={}, reference=reference
    )
    return config.resolve_eval_config(definition)


def from_file(tmp_path: Path, text: str, **overrides: Any) -> BenchmarkConfig:
    (tmp_path / "bench.yaml").write_text(text, encoding="utf-8")
    return BenchmarkConfig.from_yaml(tmp_path / "bench.yaml", **overrides)


def rule_and_params(config: BenchmarkConfig) -> tuple[str, dict[str, Any]]:
    settings = resolved(config)
    return settings.stop_rule, settings.stop_params


class TestDefaults:
    def test_are_those_of_the_fixed_rule(self) -> None:
        config = BenchmarkConfig()
        assert (config.stop_rule, config.stop_params) == ("fixed", {})
        assert config.min_samples is config.max_samples is config.max_seconds is None
        assert (config.cache, config.watch, config.interleave_reference) == ("cold", "auto", True)

    def test_resolved_ones_are_the_same(self) -> None:
        for name in (*TIMING_FIELDS, "stop_params"):
            assert getattr(resolved(BenchmarkConfig()), name) == getattr(BenchmarkConfig(), name)

    @pytest.mark.parametrize("kind", [TimingOverrides, TimingSettings])
    def test_every_field_can_differ_between_definitions(self, kind: type[Any]) -> None:
        assert {*kind.model_fields} == {*TIMING_FIELDS, "stop_params"}
        assert {*TIMING_FIELDS} < {*EVAL_FIELDS}
        for settings in (BenchmarkConfig, EvalConfig, ResolvedEvalConfig):
            assert {*kind.model_fields} < {*settings.model_fields}


@pytest.mark.parametrize("kind", [BenchmarkConfig, EvalConfig])
class TestRefused:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("stop_rule", "never"),
            ("stop_rule", 3),
            ("stop_params", [("target", 1)]),
            ("stop_params", {1: 2}),
            ("min_samples", 0),
            ("min_samples", 2.5),
            ("max_samples", 0),
            ("max_samples", True),
            ("max_seconds", 0),
            ("max_seconds", -1),
            ("max_seconds", float("nan")),
            ("max_seconds", float("inf")),
            ("cache", "hot"),
            ("watch", "on"),
            ("interleave_reference", "perhaps"),
            ("warmup_runs", -1),
            ("iterations", 0),
            ("num_trials", 0),
        ],
    )
    def test_with_the_field_named(self, kind: type[Any], field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            kind(**{field: value})

    def test_unknown_rule_has_a_near_one(self, kind: type[Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            kind(stop_rule="rsd")
        assert caught.value.message == "stop_rule: there is no stop rule 'rsd'"
        assert caught.value.hint == "did you mean 'rse'?"

    def test_unknown_parameter_names_the_known_ones(self, kind: type[Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            kind(stop_rule="rse", stop_params={"window": 3})
        assert caught.value.message == "stop_params: stop rule 'rse' has no parameter 'window'"
        assert caught.value.hint == "known: min_time_ms, settled, target"

    def test_value_out_of_bounds(self, kind: type[Any]) -> None:
        with pytest.raises(ConfigError, match="stop_params: target must be a number from 0 to 1"):
            kind(stop_rule="rse", stop_params={"target": "150%"})

    def test_a_wrong_rule_is_told_once(self, kind: type[Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            kind(stop_rule="never", stop_params={"target": 0.1})
        assert "stop_params" not in caught.value.message

    def test_most_below_least(self, kind: type[Any]) -> None:
        with pytest.raises(ConfigError, match=r"max_samples: must be at least min_samples, .* 50"):
            kind(min_samples=50, max_samples=49)
        assert kind(min_samples=50, max_samples=50).max_samples == 50


class TestOneRule:
    def test_parameters_need_their_rule(self) -> None:
        with pytest.raises(ConfigError) as caught:
            BenchmarkConfig(stop_params={"target": 0.01})
        assert caught.value.hint == "'target' belongs to the rule rse"

    def test_a_definition_may_leave_the_rule_to_others(self) -> None:
        assert EvalConfig(stop_params={"target": 0.01}).stop_rule is None
        with pytest.raises(ConfigError, match="no stop rule has a parameter 'targets'"):
            EvalConfig(stop_params={"targets": 0.01})

    def test_the_whole_path_is_named(self) -> None:
        with pytest.raises(ConfigError, match=r"^definition_config\.d: stop_rule: there is no"):
            BenchmarkConfig(definition_config={NAME: {"stop_rule": "never"}})

    def test_assignment_is_checked(self) -> None:
        config = BenchmarkConfig()
        with pytest.raises(ConfigError, match="stop_rule"):
            config.stop_rule = "never"
        config.stop_rule = "rse"
        with pytest.raises(ConfigError, match="stop_params"):
            config.stop_params = {"targt": 1}
        config.stop_params = {"target": 0.1}
        assert rule_and_params(config) == ("rse", {"target": 0.1})


class TestLayers:
    def test_definition_over_all_but_explicit(self) -> None:
        own = EvalConfig(max_samples=9, cache="warm", watch="off", interleave_reference=False)
        config = BenchmarkConfig(definition_config={NAME: own})
        settings = resolved(config)
        assert (settings.max_samples, settings.cache, settings.watch) == (9, "warm", "off")
        assert settings.interleave_reference is False
        explicit = BenchmarkConfig(max_samples=7, definition_config={NAME: own})
        assert resolved(explicit).max_samples == 7

    def test_operation_type(self) -> None:
        config = BenchmarkConfig(op_type_config={"o": EvalConfig(stop_rule="entropy")})
        assert rule_and_params(config) == ("entropy", {})

    def test_parameters_are_merged_key_by_key(self) -> None:
        config = BenchmarkConfig(
            op_type_config={"o": {"stop_rule": "rse", "stop_params": {"target": 1, "settled": 1}}},
            definition_config={NAME: {"stop_params": {"target": 0.5}}},
        )
        assert rule_and_params(config) == ("rse", {"target": 0.5, "settled": 1})

    def test_another_rule_drops_them(self) -> None:
        config = BenchmarkConfig(
            op_type_config={"o": {"stop_rule": "rse", "stop_params": {"target": 0.1}}},
            definition_config={NAME: {"stop_rule": "entropy"}},
        )
        assert rule_and_params(config) == ("entropy", {})

    def test_an_explicit_rule_drops_those_of_a_definition(self) -> None:
        own = EvalConfig(stop_rule="entropy", stop_params={"min_r2": 0.1})
        config = BenchmarkConfig(
            stop_rule="rse", stop_params={"target": 0.1}, definition_config={NAME: own}
        )
        assert rule_and_params(config) == ("rse", {"target": 0.1})

    def test_parameters_for_no_rule_in_particular_hold_where_they_fit(self) -> None:
        own = EvalConfig(stop_params={"target": 0.2})
        for rule, params in (("rse", {"target": 0.2}), ("entropy", {}), ("fixed", {})):
            config = BenchmarkConfig(stop_rule=rule, definition_config={NAME: own})
            assert rule_and_params(config) == (rule, params)

    def test_parameters_that_fit_no_rule_that_holds(self) -> None:
        config = BenchmarkConfig(definition_config={NAME: {"stop_params": {"target": 0.2}}})
        with pytest.raises(ConfigError, match="stop rule 'fixed' has no parameter 'target'"):
            resolved(config)

    def test_limits_of_two_layers_that_exclude_each_other(self) -> None:
        config = BenchmarkConfig(min_samples=50, definition_config={NAME: {"max_samples": 10}})
        with pytest.raises(ConfigError, match="max_samples: must be at least min_samples"):
            resolved(config)

    def test_layers_do_not_leak(self) -> None:
        config = BenchmarkConfig(stop_rule="rse", stop_params={"target": 0.1})
        resolved(config).stop_params["target"] = 9
        assert rule_and_params(config) == ("rse", {"target": 0.1})


class TestFiles:
    TEXT = "stop_rule: rse\nstop_params: {target: 0.5%, settled: 0}\nmax_seconds: 3\n"

    def test_top_level_of_a_file_is_a_default(self, tmp_path: Path) -> None:
        text = self.TEXT + "definition_config: {d: {stop_params: {target: 0.25}, max_seconds: 4}}"
        config = from_file(tmp_path, text)
        assert rule_and_params(config) == ("rse", {"target": 0.25, "settled": 0})
        assert resolved(config).max_seconds == 4

    def test_an_option_stands_over_one_key(self, tmp_path: Path) -> None:
        text = self.TEXT + "definition_config: {d: {stop_params: {target: 0.25}}}"
        config = from_file(tmp_path, text, stop_params={"settled": "0.1"})
        assert rule_and_params(config) == ("rse", {"target": 0.25, "settled": "0.1"})
        config = from_file(tmp_path, text, stop_params={"target": "2%"})
        assert rule_and_params(config) == ("rse", {"target": "2%", "settled": 0})

    def test_an_option_for_another_rule_drops_the_parameters(self, tmp_path: Path) -> None:
        config = from_file(tmp_path, self.TEXT, stop_rule="entropy")
        assert rule_and_params(config) == ("entropy", {})
        config = from_file(tmp_path, self.TEXT, stop_rule="entropy", stop_params={"min_r2": "0.1"})
        assert rule_and_params(config) == ("entropy", {"min_r2": "0.1"})

    def test_the_same_rule_again_keeps_them(self, tmp_path: Path) -> None:
        config = from_file(tmp_path, self.TEXT, stop_rule="rse")
        assert rule_and_params(config) == ("rse", {"target": "0.5%", "settled": 0})

    def test_a_mistake_in_the_file_names_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"bench\.yaml: stop_params: stop rule 'rse' has no"):
            from_file(tmp_path, "stop_rule: rse\nstop_params: {targt: 1}", stop_rule="entropy")

    def test_a_mistaken_option_does_not(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"^stop_params: target must be"):
            from_file(tmp_path, self.TEXT, stop_params={"target": "nan"})


PARAMS = st.dictionaries(st.sampled_from(["target", "settled", "min_r2"]), st.just(0.5))
LAYERS = st.lists(
    st.fixed_dictionaries(
        {"stop_rule": st.sampled_from([None, "rse", "entropy"]), "stop_params": PARAMS}
    ),
    max_size=5,
)


@given(LAYERS)
def test_merged_parameters_stem_from_layers_at_or_over_the_last_other_rule(
    layers: list[dict[str, Any]],
) -> None:
    merged = merged_params(layers)
    rules = [layer["stop_rule"] for layer in layers]
    named = [(place, rule) for place, rule in enumerate(rules) if rule]
    first = 0
    for (_, before), (place, rule) in pairwise(named):
        first = place if rule != before else first
    allowed = {key for layer in layers[first:] for key in layer["stop_params"]}
    assert {*merged} <= allowed
    if named:
        later = layers[named[-1][0] :]
        assert {key for layer in later for key in layer["stop_params"]} <= {*merged}
