"""What tolerance holds for an output: seven layers, each over the one before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench import BenchmarkConfig, EvalConfig
from flashinfer_bench.data import Definition, OutputTolerance, TensorSpec, Tolerance, Workload
from flashinfer_bench.errors import ConfigError, DataError
from flashinfer_bench.tensors.dtypes import (
    default_tolerance,
    precision_of,
)


def definition(outputs, inputs=None, **changes):
    """Make a definition of tensors of these dtypes, and a float32 scalar."""

    def tensors(dtypes):
        return {name: TensorSpec(shape=["n"], dtype=dtype) for name, dtype in dtypes.items()}

    values = {
        "name": "d",
        "op_type": "o",
        "axes": {"n": {"type": "var"}},
        "inputs": {
            **tensors(inputs or {"x": "float32"}),
            "scale": TensorSpec(shape=None, dtype="float16"),
        },
        "outputs": tensors(outputs),
        "reference": "def run(*args): pass",
    }
    return Definition(**{**values, **changes})


def workload(tolerance=None):
    return Workload(axes={"n": 4}, inputs={}, uuid="w", tolerance=tolerance)


class TestByDtype:
    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [
            ("float64", 2**-26),
            ("float32", 2**-10),
            ("float16", 1e-2),
            ("bfloat16", 1e-2),
            ("float8_e4m3fn", 0.125),
            ("float8_e5m2", 0.25),
            ("float4_e2m1", 0.5),
        ],
    )
    def test_values(self, dtype, expected):
        assert default_tolerance(dtype) == expected

    @pytest.mark.parametrize(
        ("output", "inputs", "coarsest"),
        [
            ("float32", ["float32"], "float32"),
            ("float32", ["bfloat16", "float32"], "bfloat16"),
            ("bfloat16", ["float32"], "bfloat16"),
            ("float16", ["bfloat16"], "bfloat16"),
            ("bfloat16", ["float8_e4m3fn", "float32"], "float8_e4m3fn"),
            ("float32", ["int8", "int64", "bool"], "float32"),
        ],
    )
    def test_the_coarsest_decides(self, output, inputs, coarsest):
        made = definition({"y": output}, {f"x{i}": dtype for i, dtype in enumerate(inputs)})
        assert precision_of(made, "y") == coarsest

    def test_outputs_whose_atol_nobody_set(self):
        made = definition(
            {"y": "float32", "z": "float32"},
            tolerance=Tolerance(rtol=0.5, outputs={"z": OutputTolerance(atol=0.5)}),
        )
        assert BenchmarkConfig().resolve_eval_config(made).atol_by_dtype == {"y"}
        assert BenchmarkConfig(atol=1.0).resolve_eval_config(made).atol_by_dtype == frozenset()


class TestDefault:
    MADE = definition({"y": "float32"})

    def of(self, config):
        found = config.resolve_eval_config(self.MADE).tolerance_of("y")
        return found.atol, found.rtol

    def test_by_dtype_is_a_choice_of_any_layer(self):
        layers = [
            {"tolerance": "dtype"},
            {"op_type_config": {"o": EvalConfig(tolerance="dtype")}},
            {"definition_config": {"d": EvalConfig(tolerance="dtype")}},
        ]
        for layer in layers:
            assert self.of(BenchmarkConfig(**layer)) == (2**-10, 2**-10)
            assert self.of(BenchmarkConfig(**layer, atol=0.5)) == (0.5, 2**-10)
        assert self.of(BenchmarkConfig(tolerance="fixed", **layers[2])) == (1e-2, 1e-2)

    def test_no_other_choice(self):
        with pytest.raises(ConfigError, match="'fixed' or 'dtype'"):
            BenchmarkConfig(tolerance="loose")


FIELDS = ("atol", "rtol", "required_matched_ratio")
value = st.one_of(st.none(), st.floats(0.0625, 1))
settings_layer = st.fixed_dictionaries(dict.fromkeys(FIELDS, value))
record_layer = st.fixed_dictionaries(
    {"shared": settings_layer, "y": st.one_of(st.none(), settings_layer)}
)


def as_tolerance(layer):
    outputs = {"y": OutputTolerance(**layer["y"])} if layer["y"] is not None else None
    return Tolerance(**layer["shared"], outputs=outputs)


class TestLayers:
    @given(
        default=settings_layer,
        op_type=settings_layer,
        own=record_layer,
        by_name=settings_layer,
        workload_own=record_layer,
        explicit=settings_layer,
        kind=st.sampled_from(["fixed", "dtype"]),
    )
    def test_the_strongest_that_is_given_holds(
        self, default, op_type, own, by_name, workload_own, explicit, kind
    ):
        made = definition({"y": "float32", "z": "float32"}, tolerance=as_tolerance(own))
        config = BenchmarkConfig._layered(
            {
                **{name: value for name, value in default.items() if value is not None},
                "op_type_config": {"o": EvalConfig(**op_type)},
                "definition_config": {"d": EvalConfig(**by_name)},
            },
            {**explicit, "tolerance": kind},
            "test",
        )
        resolved = config.resolve_eval_config(made, workload(as_tolerance(workload_own)))
        for output in ("y", "z"):
            layers = [default, op_type, *spread(own, output), by_name]
            layers += [*spread(workload_own, output), explicit]
            found = resolved.tolerance_of(output)
            for name in FIELDS:
                given_ones = [layer[name] for layer in layers if layer[name] is not None]
                tolerance = 1e-2 if kind == "fixed" else 2**-10
                fallback = None if name == "required_matched_ratio" else tolerance
                expected = given_ones[-1] if given_ones else fallback
                assert getattr(found, name) == expected, (output, name)

    def test_a_cap_is_found_in_records_alone(self):
        own = Tolerance(max_error_cap=3.0, outputs={"z": OutputTolerance(max_error_cap=4.0)})
        made = definition({"y": "float32", "z": "float32"}, tolerance=own)
        resolved = BenchmarkConfig(atol=1.0).resolve_eval_config(made)
        assert resolved.tolerance_of("y").max_error_cap == 3.0
        assert resolved.tolerance_of("z").max_error_cap == 4.0
        smaller = workload(Tolerance(max_error_cap=1.0, outputs={"y": OutputTolerance()}))
        resolved = BenchmarkConfig().resolve_eval_config(made, smaller)
        assert resolved.tolerance_of("z").max_error_cap == 1.0

    def test_unknown_output_of_a_workload(self):
        strange = workload(Tolerance(outputs={"lse": OutputTolerance(atol=1.0)}))
        with pytest.raises(DataError, match="unknown output 'lse'; available outputs: y") as caught:
            BenchmarkConfig().resolve_eval_config(definition({"y": "float32"}), strange)
        assert caught.value.field == "workload.tolerance.outputs.lse"


def spread(layer, output):
    """Return what a record says about an output: first about all of them, then about it."""
    own = layer["y"] if output == "y" else None
    return [layer["shared"], own] if own is not None else [layer["shared"]]
