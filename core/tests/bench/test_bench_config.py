from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench import BenchmarkConfig, EvalConfig, ResolvedEvalConfig
from flashinfer_bench.data import Tolerance
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bench.yaml"
    path.write_text(text, encoding="utf-8")
    return path


class TestDefaults:
    def test_documented_values(self) -> None:
        config = BenchmarkConfig()
        assert (config.warmup_runs, config.iterations, config.num_trials) == (10, 50, 3)
        assert (config.rtol, config.atol, config.required_matched_ratio) == (1e-2, 1e-2, None)
        assert config.timeout_seconds == 300
        assert config.profile_baseline is True
        assert config.use_isolated_runner is False
        assert config.device is config.seed is config.definitions is config.solutions is None
        assert config.op_type_config == config.definition_config == {}

    def test_packaged_ones_are_visible(self) -> None:
        config = BenchmarkConfig.default()
        assert config.op_type_config["moe"].required_matched_ratio == 0.95
        assert config.op_type_config["sampling"].extra == {
            "sampling_validation_trials": 100,
            "sampling_tvd_threshold": 0.2,
        }

    def test_none_means_not_given(self) -> None:
        config = BenchmarkConfig.default(rtol=None, device=None, iterations=7)
        assert (config.rtol, config.iterations) == (1e-2, 7)
        assert config.explicit_fields == {"iterations"}


class TestValidation:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("warmup_runs", -1),
            ("iterations", 0),
            ("iterations", 2.5),
            ("iterations", True),
            ("num_trials", 0),
            ("rtol", -1e-9),
            ("atol", float("nan")),
            ("atol", float("inf")),
            ("required_matched_ratio", 0.0),
            ("required_matched_ratio", 1.5),
            ("timeout_seconds", 0),
            ("timeout_seconds", -3),
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
    def test_refused_with_the_field_named(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            BenchmarkConfig(**{field: value})

    def test_every_problem_is_told_at_once(self) -> None:
        with pytest.raises(ConfigError, match=r"iterations: .*; rtol: "):
            BenchmarkConfig(iterations=0, rtol=-1)

    def test_unknown_setting_has_a_near_one(self) -> None:
        with pytest.raises(ConfigError, match="no such setting") as caught:
            BenchmarkConfig(iteration=3)
        assert caught.value.hint == "did you mean 'iterations'?"

    def test_unknown_setting_without_a_near_one(self) -> None:
        with pytest.raises(ConfigError) as caught:
            EvalConfig(zzz=3)
        assert "warmup_runs" in str(caught.value.hint)

    def test_nested_problem_names_the_whole_path(self) -> None:
        with pytest.raises(ConfigError, match="there is no such setting") as caught:
            BenchmarkConfig(definition_config={"d": {"rtl": 1}})
        assert caught.value.message.startswith("definition_config.d: rtl:")
        assert caught.value.hint == "did you mean 'rtol'?"

    def test_assignment_is_checked_too(self) -> None:
        config = BenchmarkConfig()
        with pytest.raises(ConfigError, match="iterations"):
            config.iterations = 0
        config.iterations = 3
        assert "iterations" in config.explicit_fields

    def test_is_a_value_error(self) -> None:
        with pytest.raises(ValueError, match="rtol"):
            BenchmarkConfig(rtol="much")

    @given(st.sampled_from(["cpu", "cuda", "cuda:0", "cuda:15", "xpu:2"]))
    def test_devices(self, device: str) -> None:
        assert BenchmarkConfig(device=device).device == device

    def test_level_is_upper_case(self) -> None:
        assert BenchmarkConfig(log_level="debug").log_level == "DEBUG"


class TestYaml:
    def test_reads_all_layers(self, tmp_path: Path) -> None:
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

    def test_override_stands_over_the_file(self, tmp_path: Path) -> None:
        config = BenchmarkConfig.from_yaml(str(write(tmp_path, "iterations: 20")), iterations=5)
        assert config.iterations == 5
        assert config.explicit_fields == {"iterations"}

    def test_empty_file(self, tmp_path: Path) -> None:
        assert BenchmarkConfig.from_yaml(write(tmp_path, "# nothing")) == BenchmarkConfig()

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"cannot read the settings file .*absent"):
            BenchmarkConfig.from_yaml(tmp_path / "absent.yaml")

    def test_folder_instead_of_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot read"):
            BenchmarkConfig.from_yaml(tmp_path)

    def test_binary(self, tmp_path: Path) -> None:
        path = tmp_path / "b.yaml"
        path.write_bytes(b"\xff\xfe\x00a: 1")
        with pytest.raises(ConfigError, match="cannot read"):
            BenchmarkConfig.from_yaml(path)

    def test_syntax_error_tells_the_line(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"(?s)not valid YAML.*line 3"):
            BenchmarkConfig.from_yaml(write(tmp_path, "rtol: 1\nx: [1,\n"))

    @pytest.mark.parametrize("text", ["- 1\n- 2", "just text", "1: 2"])
    def test_no_mapping(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ConfigError, match="must hold a mapping"):
            BenchmarkConfig.from_yaml(write(tmp_path, text))

    def test_no_objects_are_built(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not valid YAML"):
            BenchmarkConfig.from_yaml(write(tmp_path, "a: !!python/object/apply:os.getpid []"))

    def test_bad_value_names_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"bench\.yaml: iterations"):
            BenchmarkConfig.from_yaml(write(tmp_path, "iterations: zero"))

    def test_bad_override_is_not_blamed_on_the_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, "iterations: 20")
        with pytest.raises(ConfigError, match=r"^iterations:"):
            BenchmarkConfig.from_yaml(path, iterations=0)
        with pytest.raises(ConfigError, match=r"^iterations:"):
            BenchmarkConfig.default(iterations=0)


class TestLayers:
    def resolve(self, config: BenchmarkConfig, problems: Any, **changes: Any) -> ResolvedEvalConfig:
        return config.resolve_eval_config(problems.definition(**changes))

    def test_plain(self, problems: Any) -> None:
        resolved = self.resolve(BenchmarkConfig(), problems)
        float32 = Tolerance(rtol=2**-10, atol=2**-10)
        assert resolved == ResolvedEvalConfig(
            warmup_runs=10,
            iterations=50,
            num_trials=3,
            rtol=2**-10,
            atol=2**-10,
            tolerances={"y": float32},
            atol_by_dtype={"y"},
        )

    def test_definition_over_op_type(self, problems: Any) -> None:
        config = BenchmarkConfig(
            op_type_config={"elementwise": EvalConfig(rtol=0.1, atol=0.2)},
            definition_config={"double": EvalConfig(rtol=0.3)},
        )
        resolved = self.resolve(config, problems)
        assert (resolved.rtol, resolved.atol) == (0.3, 0.2)
        assert self.resolve(config, problems, name="other").rtol == 0.1
        assert self.resolve(config, problems, name="other", op_type="gemm").rtol == 2**-10

    def test_explicit_over_all(self, problems: Any) -> None:
        config = BenchmarkConfig(rtol=0.5, definition_config={"double": EvalConfig(rtol=0.3)})
        assert self.resolve(config, problems).rtol == 0.5

    def test_explicit_default_value_counts(self, problems: Any) -> None:
        config = BenchmarkConfig(rtol=1e-2, definition_config={"double": EvalConfig(rtol=0.3)})
        assert self.resolve(config, problems).rtol == 1e-2

    def test_top_level_of_a_file_is_a_default(self, tmp_path: Path, problems: Any) -> None:
        text = "rtol: 0.5\ndefinition_config: {double: {rtol: 0.3}}"
        path = write(tmp_path, text)
        assert self.resolve(BenchmarkConfig.from_yaml(path), problems).rtol == 0.3
        assert self.resolve(BenchmarkConfig.from_yaml(path), problems, name="other").rtol == 0.5
        assert self.resolve(BenchmarkConfig.from_yaml(path, rtol=0.7), problems).rtol == 0.7

    @pytest.mark.parametrize("make", [BenchmarkConfig, BenchmarkConfig.default])
    def test_packaged_layer_always_applies(self, make: Any, problems: Any) -> None:
        assert self.resolve(make(), problems, op_type="moe").required_matched_ratio == 0.95
        explicit = make(required_matched_ratio=1.0)
        assert self.resolve(explicit, problems, op_type="moe").required_matched_ratio == 1.0

    def test_packaged_layer_is_below_the_users(self, problems: Any) -> None:
        config = BenchmarkConfig(op_type_config={"moe": EvalConfig(required_matched_ratio=0.8)})
        assert self.resolve(config, problems, op_type="moe").required_matched_ratio == 0.8

    def test_extra_is_merged_key_by_key(self, problems: Any) -> None:
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

    def test_layers_do_not_leak(self, problems: Any) -> None:
        config = BenchmarkConfig()
        self.resolve(config, problems, op_type="sampling").extra["x"] = 1
        assert "x" not in self.resolve(config, problems, op_type="sampling").extra

    def test_a_copy_keeps_its_layers(self, tmp_path: Path, problems: Any) -> None:
        text = "rtol: 0.5\ndefinition_config: {double: {rtol: 0.3}}"
        copied = BenchmarkConfig.from_yaml(write(tmp_path, text)).model_copy(update={"seed": 3})
        assert copied.seed == 3
        assert self.resolve(copied, problems).rtol == 0.3

    @given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=4, max_size=4))
    def test_the_strongest_given_value_holds(self, values: list[float | None]) -> None:
        from flashinfer_bench.data import Definition

        definition = Definition(
            name="d",
            op_type="o",
            axes={},
            inputs={},
            outputs={},
            reference="def run(): pass",
        )
        default, op_type, own, explicit = values
        layered = BenchmarkConfig._layered(
            {
                **({} if default is None else {"atol": default}),
                "op_type_config": {"o": EvalConfig(atol=op_type)},
                "definition_config": {"d": EvalConfig(atol=own)},
            },
            {"atol": explicit},
            "test",
        )
        given_ones = [value for value in (explicit, own, op_type, default) if value is not None]
        expected = given_ones[0] if given_ones else 1e-2
        assert layered.resolve_eval_config(definition).atol == expected


class TestBuildJobs:
    def test_default(self) -> None:
        assert BenchmarkConfig().build_jobs is None

    def test_any_number_from_one(self) -> None:
        assert BenchmarkConfig(build_jobs=1).build_jobs == 1

    @pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
    def test_others_are_refused(self, value: object) -> None:
        with pytest.raises(ConfigError, match="build_jobs"):
            BenchmarkConfig(build_jobs=value)
