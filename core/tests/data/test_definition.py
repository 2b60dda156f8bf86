"""Definitions: fields, validation, axes and shapes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flashinfer_bench.data import Definition, DType, Tolerance, Trace, Workload, from_json, to_json
from flashinfer_bench.errors import CapabilityError, DataError


def test_the_new_name_wins_over_the_old_one(make):
    assert make.definition(type="attention").op_type == "gemm"


@pytest.mark.parametrize("size", [56, "56"])
def test_a_literal_size_may_stand_in_a_shape(make, size):
    definition = make.definition(inputs={"x": {"shape": ["M", size], "dtype": "int32"}})
    assert definition.inputs["x"].shape == ["M", "56"]
    assert definition.get_input_shapes({"M": 2}) == [(2, 56)]


def test_names_of_inputs_and_outputs_differ(make):
    with pytest.raises(ValidationError, match="name of both an input and an output: a"):
        make.definition(outputs={"a": {"shape": ["M"], "dtype": "float32"}})


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("  \n ", "empty"),
        ("x = 1\n\ndef run(\n", "line 3"),
        ("def other(a, b):\n    return a\n", "it defines other"),
        ("class Reference:\n    def run(self, a):\n        return a\n", "it defines nothing"),
        ("async def run(a, b):\n    return a\n", "must define a function"),
        ("def run(a): return '\0'", "not valid Python"),
        ("(" * 500 + ")" * 500, "not valid Python"),
    ],
)
def test_references_that_do_not_define_run(make, reference, problem):
    with pytest.raises(ValidationError, match=problem):
        make.definition(reference=reference)


def test_bindings_name_the_first_place_of_each_variable_axis(make):
    inputs = {
        "w": {"shape": ["K"], "dtype": "float32"},
        "x": {"shape": ["K", "M"], "dtype": "float32"},
        "y": {"shape": ["M"], "dtype": "float32"},
    }
    assert make.definition(inputs=inputs).var_axes_bindings == {"M": ("x", 1)}


def test_constant_axes_cannot_be_overridden(make):
    assert make.definition().get_output_shapes({"M": 3, "N": 99}) == [(3, 8)]


def test_scalars_have_no_shape_and_empty_shapes_are_tensors(make):
    inputs = {
        "scale": {"shape": None, "dtype": "float32"},
        "zero_d": {"shape": [], "dtype": "float32"},
    }
    assert make.definition(inputs=inputs).get_input_shapes() == [None, ()]


def test_a_missing_axis_value_is_named(make):
    with pytest.raises(DataError, match="no value for axis 'M' of 'a'"):
        make.definition().get_input_shapes({})


def test_axes_no_input_shows_are_left_out(make):
    axes = {**make.definition_record()["axes"], "P": {"type": "var"}}
    assert make.definition(axes=axes).get_axes_values([(5, 4), (8, 4)]) == {"M": 5}


@pytest.mark.parametrize(
    ("input_shapes", "problem"),
    [
        ([(5, 4)], "1 inputs given; expected 2"),
        ([(5, 4), (8, 4), (1,)], "3 inputs given; expected 2"),
        ([(5, 4, 1), (8, 4)], r"input 'a' must have shape \[M, K\], not \[5, 4, 1\]"),
        ([None, (8, 4)], "must be a tensor"),
        ([(5, 4), (9, 4)], "N=9; expected 8"),
    ],
)
def test_shapes_that_do_not_fit(make, input_shapes, problem):
    with pytest.raises(DataError, match=problem):
        make.definition().get_axes_values(input_shapes)


def test_literal_sizes_and_further_inputs_are_checked(make):
    tensor = {"shape": ["M", "2"], "dtype": "float32"}
    definition = make.definition(inputs={"x": tensor, "y": tensor})
    assert definition.get_axes_values([(7, 2), (7, 2)]) == {"M": 7}
    with pytest.raises(DataError, match="2=3; expected 2"):
        definition.get_axes_values([(7, 3), (7, 2)])
    with pytest.raises(DataError, match=r"input 'y'.*M=4; expected 3"):
        definition.get_axes_values([(3, 2), (4, 2)])


def test_axes_are_read_off_inputs(make):
    inputs = {
        "x": {"shape": ["M", "K"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    }
    definition = make.definition(inputs=inputs)
    x, scale = SimpleNamespace(shape=(6, 4)), SimpleNamespace(shape=(1,))
    assert definition.get_axes_values_from_inputs([x, 0.5]) == {"M": 6}
    assert definition.get_axes_values_from_inputs([x, scale]) == {"M": 6}


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((1,), {}, "missing arguments: b"),
        ((), {"c": 3}, "missing arguments: a, b"),
        ((1, 2, 3, 4), {}, "4 positional arguments given; expected 2 inputs, or 3"),
        ((1, 2), {"a": 1}, "'a' is given by position and by name"),
        ((1, 2), {"d": 1}, "unknown argument 'd'; available arguments: a, b, c"),
    ],
)
def test_arguments_that_do_not_fit(make, args, kwargs, problem):
    with pytest.raises(DataError, match=problem):
        make.definition().merge_kwargs_to_args(args, kwargs)


def test_torch_dtypes(make):
    torch = pytest.importorskip("torch")
    inputs = {
        "x": {"shape": ["M"], "dtype": "bfloat16"},
        "mask": {"shape": ["M"], "dtype": "bool"},
        "q": {"shape": ["M"], "dtype": "float8_e4m3fn"},
    }
    definition = make.definition(inputs=inputs)
    assert definition.torch_input_dtypes == [torch.bfloat16, torch.bool, torch.float8_e4m3fn]
    assert definition.torch_output_dtypes == [torch.bfloat16]


def test_every_dtype_has_a_name_in_torch():
    torch = pytest.importorskip("torch")
    for dtype in DType:
        if hasattr(torch, dtype.torch_name):
            assert dtype.to_torch() is getattr(torch, dtype.torch_name)
        else:
            with pytest.raises(CapabilityError, match=dtype.torch_name):
                dtype.to_torch()


limits = st.fixed_dictionaries(
    {},
    optional={
        "atol": st.floats(0, 1e6),
        "rtol": st.floats(0, 1e6),
        "required_matched_ratio": st.floats(0, 1, exclude_min=True),
        "max_error_cap": st.floats(0, 1e6),
    },
)
tolerances = st.builds(
    lambda shared, outputs: {**shared, **({"outputs": outputs} if outputs else {})},
    limits,
    st.dictionaries(st.sampled_from(["c", "lse"]), limits, max_size=2),
)


@given(tolerances)
def test_a_tolerance_comes_back(record):
    tolerance = Tolerance.model_validate(record)
    assert json.loads(to_json(tolerance)) == record
    assert from_json(to_json(tolerance), Tolerance) == tolerance


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("atol", -1e-9),
        ("rtol", float("nan")),
        ("atol", float("inf")),
        ("required_matched_ratio", 0.0),
        ("required_matched_ratio", 1.01),
        ("max_error_cap", -1.0),
        ("atol", "much"),
        ("max_atol", -1),
        ("outputs", {"": {}}),
        ("outputs", {"c": {"atol": -1}}),
        ("outputs", ["c"]),
    ],
)
def test_other_values_of_a_tolerance_are_refused(field, value):
    with pytest.raises(ValueError, match=field.replace("max_atol", "atol")):
        Tolerance.model_validate({field: value})


@given(tolerances, st.sampled_from(["c", "lse", "none"]))
def test_what_is_set_for_an_output_holds(record, output):
    own = record.get("outputs", {}).get(output, {})
    shared = {name: value for name, value in record.items() if name != "outputs"}
    assert Tolerance.model_validate(record).values_for(output) == {**shared, **own}


def test_other_spellings_of_a_tolerance_are_read_and_written_in_our_own():
    record = {"max_atol": 0.01, "max_rtol": 0.02, "outputs": {"c": {"max_atol": 3}}}
    before = json.dumps(record)
    read = Tolerance.model_validate(record)
    assert json.dumps(record) == before
    expected = {"atol": 0.01, "rtol": 0.02, "outputs": {"c": {"atol": 3.0}}}
    assert json.loads(to_json(read)) == expected


def test_an_unknown_output_is_named_with_its_field(make):
    record = make.definition_record(tolerance={"outputs": {"d": {"atol": 1}}})
    with pytest.raises(DataError, match="unknown output 'd'; available outputs: c") as caught:
        from_json(json.dumps(record), Definition)
    assert caught.value.field == "tolerance.outputs.d"


@pytest.mark.parametrize("tolerance", [{}, {"tolerance": {"max_error_cap": 2.0}}])
def test_only_what_is_set_is_written_in_the_line_of_a_workload(make, tolerance):
    record = make.workload_record(**tolerance)
    line = Trace(definition="d", workload=Workload.model_validate(record))
    written = to_json(line, indent=None)
    expected = {"definition": "d", "workload": record, "solution": None, "evaluation": None}
    assert json.loads(written) == expected
    assert from_json(written, Trace) == line


def test_a_derived_uuid_does_not_depend_on_the_tolerance(make):
    record = make.workload_record()
    del record["uuid"]
    plain, other = (
        Trace.model_validate({"definition": "d", "workload": {**record, **tolerance}})
        for tolerance in ({}, {"tolerance": {"atol": 1.0}})
    )
    assert other.workload.uuid == plain.workload.uuid
    assert other.workload.tolerance == Tolerance(atol=1.0)
