"""The settings of timing: what is refused, and how the layers merge."""

import pytest

from flashinfer_bench.bench import BenchmarkConfig, EvalConfig
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError

NAME = "d"


def resolved(config):
    reference = "def run(): pass"
    definition = Definition(
        name=NAME, op_type="o", axes={}, inputs={}, outputs={}, reference=reference
    )
    return config.resolve_eval_config(definition)


def from_file(tmp_path, text, **overrides):
    (tmp_path / "bench.yaml").write_text(text, encoding="utf-8")
    return BenchmarkConfig.from_yaml(tmp_path / "bench.yaml", **overrides)


def rule_and_params(config):
    settings = resolved(config)
    return settings.stop_rule, settings.stop_params


@pytest.mark.parametrize("kind", [BenchmarkConfig, EvalConfig])
class TestRefused:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("stop_rule", "never"),
            ("stop_rule", 3),
            ("stop_params", [("reach", 1)]),
            ("stop_params", {1: 2}),
            ("min_samples", 0),
            ("min_samples", 2.5),
            ("max_samples", 0),
            ("max_samples", True),
            ("max_seconds", 0),
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
    def test_with_the_field_named(self, kind, field, value):
        with pytest.raises(ConfigError, match=field):
            kind(**{field: value})

    def test_most_below_least(self, kind):
        with pytest.raises(ConfigError, match=r"max_samples: must be at least min_samples, .* 50"):
            kind(min_samples=50, max_samples=49)
        assert kind(min_samples=50, max_samples=50).max_samples == 50


def test_a_definition_may_leave_the_rule_to_others():
    assert EvalConfig(stop_params={"reach": 0.01}).stop_rule is None
    with pytest.raises(ConfigError, match="no stop rule has a parameter 'reachs'"):
        EvalConfig(stop_params={"reachs": 0.01})


class TestLayers:
    def test_parameters_are_merged_key_by_key(self):
        config = BenchmarkConfig(
            op_type_config={"o": {"stop_rule": "near", "stop_params": {"reach": 1, "calm": 1}}},
            definition_config={NAME: {"stop_params": {"reach": 0.5}}},
        )
        assert rule_and_params(config) == ("near", {"reach": 0.5, "calm": 1})

    def test_another_rule_drops_them(self):
        config = BenchmarkConfig(
            op_type_config={"o": {"stop_rule": "near", "stop_params": {"reach": 0.1}}},
            definition_config={NAME: {"stop_rule": "flat"}},
        )
        assert rule_and_params(config) == ("flat", {})

    def test_parameters_for_no_rule_in_particular_hold_where_they_fit(self):
        own = EvalConfig(stop_params={"reach": 0.2})
        for rule, params in (("near", {"reach": 0.2}), ("flat", {}), ("fixed", {})):
            config = BenchmarkConfig(stop_rule=rule, definition_config={NAME: own})
            assert rule_and_params(config) == (rule, params)

    def test_parameters_that_fit_no_rule_that_holds(self):
        config = BenchmarkConfig(definition_config={NAME: {"stop_params": {"reach": 0.2}}})
        with pytest.raises(ConfigError, match="stop rule 'fixed' has no parameter 'reach'"):
            resolved(config)


class TestFiles:
    TEXT = "stop_rule: near\nstop_params: {reach: 0.5%, calm: 0}\nmax_seconds: 3\n"

    def test_an_option_stands_over_one_key(self, tmp_path):
        text = self.TEXT + "definition_config: {d: {stop_params: {reach: 0.25}}}"
        config = from_file(tmp_path, text, stop_params={"calm": "0.1"})
        assert rule_and_params(config) == ("near", {"reach": 0.25, "calm": "0.1"})
        config = from_file(tmp_path, text, stop_params={"reach": "2%"})
        assert rule_and_params(config) == ("near", {"reach": "2%", "calm": 0})
