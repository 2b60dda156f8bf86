"""Definitions: fields, validation, axes and shapes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import AxisConst, AxisVar, Definition, DType, TensorSpec
from flashinfer_bench.errors import CapabilityError, DataError


def refused(record, match):
    with pytest.raises(ValidationError, match=match):
        Definition(**record)


def test_fields_and_defaults(make):
    definition = make.definition()
    assert definition.tags == []
    assert definition.description is None
    assert isinstance(definition.axes["M"], AxisVar)
    assert isinstance(definition.axes["N"], AxisConst)
    assert definition.inputs["a"].dtype is DType.BFLOAT16
    assert definition.constraints == ["M >= 1"]


def test_models_can_be_given_as_objects(make):
    axes = {"M": AxisVar(), "N": AxisConst(value=8), "K": AxisConst(value=4)}
    tensor = TensorSpec(shape=["M"], dtype="float32")
    definition = make.definition(axes=axes, inputs={"x": tensor}, outputs={"y": tensor})
    assert definition.axes["N"].value == 8
    assert definition.inputs["x"] == tensor


def test_the_old_name_of_op_type_is_accepted(make):
    record = make.definition_record()
    record["type"] = record.pop("op_type")
    assert Definition(**record).op_type == "gemm"


def test_the_new_name_wins_over_the_old_one(make):
    assert make.definition(type="attention").op_type == "gemm"


def test_unknown_keys_are_ignored(make):
    definition = make.definition(schema_version=3, init=None)
    assert not hasattr(definition, "schema_version")
    assert "schema_version" not in definition.model_dump()


@pytest.mark.parametrize("field", ["tags", "constraints", "description"])
def test_null_is_the_default_of_an_optional_field(make, field):
    default = make.definition_record()
    default.pop(field, None)
    assert make.definition(**{field: None}) == Definition(**default)


@pytest.mark.parametrize("field", ["name", "op_type", "axes", "inputs", "outputs", "reference"])
def test_required_fields(make, field):
    record = make.definition_record()
    del record[field]
    refused(record, rf"{field}\n")


@pytest.mark.parametrize("field", ["name", "op_type"])
def test_names_are_not_empty(make, field):
    refused(make.definition_record(**{field: ""}), "at least 1 character")


def test_names_of_inputs_are_not_empty(make):
    inputs = {"": {"shape": ["M"], "dtype": "float32"}}
    refused(make.definition_record(inputs=inputs), "at least 1 character")


@pytest.mark.parametrize("value", [-1, 1.5, "8", True, None])
def test_sizes_of_constant_axes_are_real_integers_of_at_least_0(make, value):
    axes = {"M": {"type": "const", "value": value}}
    refused(make.definition_record(axes=axes), "axes")


def test_a_constant_axis_of_0_is_allowed(make):
    assert make.definition(axes={**make.definition_record()["axes"], "Z": AxisConst(value=0)})


def test_an_unknown_type_of_axis_is_refused(make):
    axes = {"M": {"type": "expr", "expression": "2 * K"}}
    refused(make.definition_record(axes=axes), "expr")


def test_an_axis_without_type_is_constant_if_it_has_a_value(make):
    axes = {"M": {}, "N": {"value": 8}, "K": {"value": 4}}
    definition = make.definition(axes=axes)
    assert definition.var_axes == ["M"]
    assert definition.const_axes == {"N": 8, "K": 4}


@pytest.mark.parametrize("dtype", [dtype.value for dtype in DType])
def test_all_dtypes(make, dtype):
    tensor = {"shape": ["M"], "dtype": dtype}
    definition = make.definition(inputs={"x": tensor})
    assert definition.inputs["x"].dtype == dtype


@pytest.mark.parametrize("dtype", ["unknown", "uint8", "torch.float32", None, 3])
def test_unknown_dtypes_are_refused(make, dtype):
    refused(make.definition_record(inputs={"x": {"shape": ["M"], "dtype": dtype}}), "dtype")


def test_shape_must_be_given(make):
    refused(make.definition_record(inputs={"x": {"dtype": "int32"}}), "shape")


def test_shapes_name_known_axes(make):
    outputs = {"c": {"shape": ["M", "half"], "dtype": "float32"}}
    refused(make.definition_record(outputs=outputs), r"outputs\.c\.shape.*'half' is not an axis")


@pytest.mark.parametrize("size", [56, "56"])
def test_a_literal_size_may_stand_in_a_shape(make, size):
    definition = make.definition(inputs={"x": {"shape": ["M", size], "dtype": "int32"}})
    assert definition.inputs["x"].shape == ["M", "56"]
    assert definition.get_input_shapes({"M": 2}) == [(2, 56)]


def test_names_of_inputs_and_outputs_differ(make):
    outputs = {"a": {"shape": ["M"], "dtype": "float32"}}
    refused(make.definition_record(outputs=outputs), "a is both an input and an output")


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("", "empty"),
        ("  \n ", "empty"),
        ("def run(:\n", "line 1"),
        ("x = 1\n\ndef run(\n", "line 3"),
        ("def other(a, b):\n    return a\n", "it defines other"),
        ("class Reference:\n    def run(self, a):\n        return a\n", "it defines nothing"),
        ("async def run(a, b):\n    return a\n", "must define a function"),
        ("def run(a): return '\0'", "not valid Python"),
        ("(" * 500 + ")" * 500, "not valid Python"),
    ],
)
def test_references_that_do_not_define_run(make, reference, problem):
    refused(make.definition_record(reference=reference), problem)


def test_a_reference_may_assign_run(make):
    source = "def f(a, b):\n    return a\n\nrun = f\n"
    assert make.definition(reference=source).reference == source


def test_warnings_of_a_reference_are_its_own_affair(make):
    assert make.definition(reference='def run(a, b):\n    return "\\d"\n')


@pytest.mark.parametrize("constraint", ["M >", "M = 1", "", "import os"])
def test_constraints_must_parse(make, constraint):
    refused(make.definition_record(constraints=[constraint]), "constraints")


def test_constraints_may_speak_about_tensors(make):
    constraint = "M == indptr[-1].item()"
    assert make.definition(constraints=[constraint]).constraints == [constraint]


# ------------------------------------------------------------------------------ axes and shapes


def test_axes_by_kind(make):
    definition = make.definition()
    assert definition.const_axes == {"N": 8, "K": 4}
    assert definition.var_axes == ["M"]


def test_bindings_name_the_first_place_of_each_variable_axis(make):
    inputs = {
        "w": {"shape": ["K"], "dtype": "float32"},
        "x": {"shape": ["K", "M"], "dtype": "float32"},
        "y": {"shape": ["M"], "dtype": "float32"},
    }
    assert make.definition(inputs=inputs).var_axes_bindings == {"M": ("x", 1)}


def test_old_names_of_the_properties(make):
    definition = make.definition()
    assert definition.get_const_axes() == definition.const_axes
    assert definition.get_var_axes() == definition.var_axes
    assert definition.get_var_axes_bindings() == definition.var_axes_bindings


def test_shapes_in_declaration_order(make):
    definition = make.definition()
    assert definition.get_input_shapes({"M": 3}) == [(3, 4), (8, 4)]
    assert definition.get_output_shapes({"M": 3}) == [(3, 8)]


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


def test_axes_are_read_off_shapes(make):
    assert make.definition().get_axes_values([(5, 4), (8, 4)]) == {"M": 5}


def test_axes_no_input_shows_are_left_out(make):
    axes = {**make.definition_record()["axes"], "P": {"type": "var"}}
    assert make.definition(axes=axes).get_axes_values([(5, 4), (8, 4)]) == {"M": 5}


@pytest.mark.parametrize(
    ("input_shapes", "problem"),
    [
        ([(5, 4)], "1 inputs given, 2 declared"),
        ([(5, 4), (8, 4), (1,)], "3 inputs given, 2 declared"),
        ([(5, 4, 1), (8, 4)], r"input 'a' has shape \[5, 4, 1\], declared is \[M, K\]"),
        ([None, (8, 4)], "must be a tensor"),
        ([(5, 4), (9, 4)], "N=9, not 8"),
        ([(5, 3), (8, 4)], "K=3, not 4"),
    ],
)
def test_shapes_that_do_not_fit(make, input_shapes, problem):
    with pytest.raises(DataError, match=problem):
        make.definition().get_axes_values(input_shapes)


def test_inputs_that_disagree_on_an_axis(make):
    tensor = {"shape": ["M"], "dtype": "float32"}
    definition = make.definition(inputs={"x": tensor, "y": tensor})
    with pytest.raises(DataError, match=r"input 'y'.*M=4, not 3"):
        definition.get_axes_values([(3,), (4,)])


def test_a_literal_size_is_checked(make):
    definition = make.definition(inputs={"x": {"shape": ["M", "2"], "dtype": "int32"}})
    assert definition.get_axes_values([(7, 2)]) == {"M": 7}
    with pytest.raises(DataError, match="2=3, not 2"):
        definition.get_axes_values([(7, 3)])


class Tensor:
    def __init__(self, *shape):
        self.shape = shape


def test_axes_are_read_off_inputs(make):
    inputs = {
        "x": {"shape": ["M", "K"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    }
    definition = make.definition(inputs=inputs)
    assert definition.get_axes_values_from_inputs([Tensor(6, 4), 0.5]) == {"M": 6}
    assert definition.get_axes_values_from_inputs([Tensor(6, 4), Tensor(1)]) == {"M": 6}


def test_a_number_in_place_of_a_tensor(make):
    with pytest.raises(DataError, match="'b' must be a tensor"):
        make.definition().get_axes_values_from_inputs([Tensor(6, 4), 1.0])


def test_too_few_inputs(make):
    with pytest.raises(DataError, match="1 inputs given, 2 declared"):
        make.definition().get_axes_values_from_inputs([Tensor(6, 4)])


# ---------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "merged"),
    [
        ((1, 2), {}, (1, 2)),
        ((1,), {"b": 2}, (1, 2)),
        ((), {"b": 2, "a": 1}, (1, 2)),
        ((1, 2, 3), {}, (1, 2, 3)),
        ((1,), {"c": 3, "b": 2}, (1, 2, 3)),
        ((), {"c": 3, "a": 1, "b": 2}, (1, 2, 3)),
    ],
)
def test_arguments_by_name_and_position(make, args, kwargs, merged):
    assert make.definition().merge_kwargs_to_args(args, kwargs) == merged


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((1,), {}, "missing arguments b"),
        ((), {"c": 3}, "missing arguments a, b"),
        ((1, 2, 3, 4), {}, "4 positional arguments given; expected 2 inputs, or 3"),
        ((1, 2), {"a": 1}, "'a' is given by position and by name"),
        ((1, 2), {"d": 1}, "unknown argument 'd'; there are a, b, c"),
    ],
)
def test_arguments_that_do_not_fit(make, args, kwargs, problem):
    with pytest.raises(DataError, match=problem):
        make.definition().merge_kwargs_to_args(args, kwargs)


def test_tensors_are_not_compared(make):
    class Incomparable:
        def __eq__(self, other):
            raise RuntimeError("elementwise")

        __hash__ = None

    one, two = Incomparable(), Incomparable()
    assert make.definition().merge_kwargs_to_args((one,), {"b": two})[1] is two


# --------------------------------------------------------------------------------------- dtypes


def test_a_dtype_is_its_name():
    assert DType.FLOAT32 == "float32"
    assert f"{DType.FLOAT32}" == str(DType.FLOAT32) == "float32"
    assert {"float32": 1}[DType.FLOAT32] == 1
    assert f"{DType.BOOL:>6}" == "  bool"


def test_bits_of_each_dtype():
    bits = {dtype.value: dtype.itemsize_bits for dtype in DType}
    assert bits.pop("float4_e2m1") == 4
    assert bits.pop("bool") == 8
    for name, count in bits.items():
        digits = name.removeprefix("b").removeprefix("float").removeprefix("int").split("_")[0]
        assert count == int(digits)


def test_kinds_of_dtypes():
    assert [dtype.value for dtype in DType if dtype.is_integer] == [
        "int64",
        "int32",
        "int16",
        "int8",
    ]
    assert not DType.BOOL.is_floating
    assert not DType.BOOL.is_integer
    assert DType.FLOAT8_E5M2.is_floating
    assert DType.BFLOAT16.is_floating


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
