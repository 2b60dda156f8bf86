import pytest

from flashinfer_bench.bench import BenchmarkConfig, EvalConfig
from flashinfer_bench.errors import ConfigError


def write(tmp_path, text):
    path = tmp_path / "bench.yaml"
    path.write_text(text, encoding="utf-8")
    return path


class TestValidation:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("rtol", -1e-9),
            ("atol", float("nan")),
            ("atol", float("inf")),
            ("required_matched_ratio", 0.0),
            ("required_matched_ratio", 1.5),
            ("timeout_seconds", 0),
            ("log_level", "LOUD"),
            ("device", "GPU 1"),
            ("device", "cuda:"),
            ("device", "cuda:-1"),
            ("device", "cpu:7"),
            ("seed", -1),
            ("seed", 2**63),
            ("definitions", "double"),
            ("executor", ""),
            ("op_type_config", {"moe": 3}),
        ],
    )
    def test_refused_with_the_field_named(self, field, value):
        with pytest.raises(ConfigError, match=field):
            BenchmarkConfig(**{field: value})

    def test_assignment_is_checked_too(self):
        config = BenchmarkConfig()
        with pytest.raises(ConfigError, match="iterations"):
            config.iterations = 0
        config.iterations = 3
        assert "iterations" in config.explicit_fields


class TestYaml:
    def test_reads_all_layers(self, tmp_path):
        path = write(
            tmp_path,
            """
            iterations: 20
            rtol: 1e-3
            device: cpu
            op_type_config: {gemm: {atol: 0.5}}
            definition_config:
              gemm_a: {num_trials: 9}
            """,
        )
        config = BenchmarkConfig.from_yaml(path, warmup_runs=2)
        assert (config.iterations, config.rtol, config.device) == (20, 1e-3, "cpu")
        assert config.op_type_config["gemm"] == EvalConfig(atol=0.5)
        assert config.definition_config["gemm_a"].num_trials == 9
        assert config.explicit_fields == {"warmup_runs"}

    def test_no_objects_are_built(self, tmp_path):
        with pytest.raises(ConfigError, match="not valid YAML"):
            BenchmarkConfig.from_yaml(write(tmp_path, "a: !!python/object/apply:os.getpid []"))

    def test_bad_override_is_not_blamed_on_the_file(self, tmp_path):
        path = write(tmp_path, "iterations: 20")
        with pytest.raises(ConfigError, match=r"^iterations:"):
            BenchmarkConfig.from_yaml(path, iterations=0)
        with pytest.raises(ConfigError, match=r"^iterations:"):
            BenchmarkConfig.default(iterations=0)


class TestLayers:
    def resolve(self, config, problems, **changes):
        return config.resolve_eval_config(problems.definition(**changes))

    def test_top_level_of_a_file_is_a_default(self, tmp_path, problems):
        text = "rtol: 0.5\ndefinition_config: {double: {rtol: 0.3}}"
        path = write(tmp_path, text)
        assert self.resolve(BenchmarkConfig.from_yaml(path), problems).rtol == 0.3
        assert self.resolve(BenchmarkConfig.from_yaml(path), problems, name="other").rtol == 0.5
        assert self.resolve(BenchmarkConfig.from_yaml(path, rtol=0.7), problems).rtol == 0.7

    @pytest.mark.parametrize("make", [BenchmarkConfig, BenchmarkConfig.default])
    def test_packaged_layer_always_applies(self, make, problems):
        assert self.resolve(make(), problems, op_type="moe").required_matched_ratio == 0.95
        explicit = make(required_matched_ratio=1.0)
        assert self.resolve(explicit, problems, op_type="moe").required_matched_ratio == 1.0

    def test_extra_is_merged_key_by_key(self, problems):
        config = BenchmarkConfig(
            op_type_config={"sampling": EvalConfig(extra={"sampling_tvd_threshold": 0.1, "a": 1})},
            definition_config={"double": EvalConfig(extra={"a": 2, "b": 3})},
        )
        assert self.resolve(config, problems, op_type="sampling").extra == {
            "sampling_validation_trials": 100,
            "sampling_tvd_threshold": 0.1,
            "a": 2,
            "b": 3,
        }
