"""Core's own key builders: what counts for them, and that calls and workloads agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm.key_builders import (
    AttentionKeyBuilder,
    GEMMKeyBuilder,
    GQAKeyBuilder,
    MLAKeyBuilder,
)
from fib_testing import KeyBuilderCase, KeyBuilderConformance
from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyFactory, AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition, RandomInput, ScalarInput, Workload
from flashinfer_bench.errors import DataError
from flashinfer_bench.plugins import discover

BUILTIN = "fib_ops_llm"
CATALOG = discover()
BUILDERS = (AxesOnlyKeyBuilder, GEMMKeyBuilder, GQAKeyBuilder, MLAKeyBuilder)


class Tensor:
    """Has a shape, and nothing else that could be read."""

    __slots__ = ("shape",)

    def __init__(self, *shape):
        self.shape = shape


def define(inputs, axes, op_type="gqa_paged"):
    return Definition.model_validate(
        {
            "name": "attention",
            "op_type": op_type,
            "axes": {
                name: {"type": "var"} if size is None else {"type": "const", "value": size}
                for name, size in axes.items()
            },
            "inputs": inputs,
            "outputs": {"out": {"shape": list(axes)[:1], "dtype": "float32"}},
            "reference": "def run(*args):\n    return args[0]\n",
        }
    )


def decode(*scalars):
    """Paged decoding, with these scalars besides the scale."""
    return define(
        {
            "q": {"shape": ["batch", "heads"], "dtype": "bfloat16"},
            "cache": {"shape": ["pages", "heads"], "dtype": "bfloat16"},
            "indptr": {"shape": ["len_indptr"], "dtype": "int32"},
            "scale": {"shape": None, "dtype": "float32"},
            **{name: {"shape": None, "dtype": dtype} for name, dtype in scalars},
        },
        {"batch": None, "pages": None, "len_indptr": None, "heads": 4},
    )


def recorded(definition, sizes, values, uuid="w"):
    inputs = {
        name: RandomInput() if spec.shape is not None else ScalarInput(value=values[name])
        for name, spec in definition.inputs.items()
    }
    return Workload(axes=sizes, inputs=inputs, uuid=uuid)


TENSORS = [Tensor(3, 4), Tensor(100, 4), Tensor(4), 0.5]
SIZES = {"batch": 3, "pages": 100, "len_indptr": 4}


def test_floats_and_values_of_tensors_do_not_count():
    made = GQAKeyBuilder(decode())
    key = made.build_from_args(TENSORS)
    assert key == ApplyKey((("batch", 3), ("pages", 100), ("len_indptr", 4)))
    assert made.build_from_args([*TENSORS[:3], 0.25]) == key


class TestAttentionWithFlags:
    @pytest.fixture
    def builder(self):
        return GQAKeyBuilder(decode(("causal", "bool"), ("window_left", "int32")))

    def test_a_workload_has_the_key_of_its_call(self, builder):
        key = builder.build_from_args([*TENSORS, True, 128])
        assert key.feats == (("causal", True), ("window_left", 128))
        assert key != builder.build_from_args([*TENSORS, True, -1])
        # Values are of the declared type, whatever was written.
        values = {"scale": 0.5, "causal": 1, "window_left": 128.0}
        workload = recorded(builder.definition, SIZES, values)
        assert repr(builder.build_from_workload(workload)) == repr(key)

    @pytest.mark.parametrize("value", [Tensor(), None, "7", 0.5, float("nan"), float("-inf")])
    def test_what_is_no_integer_is_an_error_that_names_it(self, builder, value):
        with pytest.raises(DataError, match="'window_left' of 'attention' must be of type int"):
            builder.build_from_args([*TENSORS, True, value])

    def test_a_subclass_that_adds_a_feature_is_not_taken_for_axes_only(self):
        class More(GQAKeyBuilder):
            def features(self, args):
                return (*super().features(args), ("long", args[1].shape[0] > 50))

        assert not More(decode()).axes_only
        assert More(decode()).build_from_args(TENSORS).feats == (("long", True),)


@pytest.mark.torch
def test_a_scalar_tensor_is_not_read_since_it_may_be_on_a_device():
    import torch

    builder = AttentionKeyBuilder(decode(("causal", "bool")))
    for tensor in (torch.tensor(True), torch.tensor(True, device="meta")):
        with pytest.raises(DataError, match="must be of type bool, not a Tensor"):
            builder.build_from_args([*TENSORS, tensor])


AXES = ("a", "b", "c", "d")
sizes = st.integers(0, 2**40)
dtypes = st.sampled_from(["float32", "int32", "int64", "bool", "bfloat16"])


def value_of(dtype):
    if dtype == "bool":
        return st.booleans()
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return st.integers(-(2**31), 2**31 - 1) if dtype.startswith("int") else floats


@st.composite
def calls(draw):
    """A definition, a call of it, and the same call as a workload."""
    axes = {name: draw(st.none() | st.integers(1, 8)) for name in AXES}
    shapes = draw(st.lists(st.none() | st.lists(st.sampled_from(AXES)), min_size=1, max_size=6))
    inputs = {f"x{i}": {"shape": s, "dtype": draw(dtypes)} for i, s in enumerate(shapes)}
    definition = define(inputs, axes, draw(st.sampled_from(["gemm", "gqa_paged", "mla", "norm"])))
    chosen = {name: draw(sizes) for name, size in axes.items() if size is None}
    all_sizes = {**chosen, **definition.const_axes}
    values = {
        name: draw(value_of(spec.dtype.value))
        for name, spec in definition.inputs.items()
        if spec.shape is None
    }
    args = [
        Tensor(*(all_sizes[axis] for axis in spec.shape))
        if spec.shape is not None
        else values[name]
        for name, spec in definition.inputs.items()
    ]
    return definition, args, recorded(definition, chosen, values)


@given(call=calls(), make=st.sampled_from(BUILDERS))
def test_any_call_has_the_key_of_its_workload(call, make):
    definition, args, workload = call
    builder = make(definition)
    key = builder.build_from_args(args)
    assert repr(key) == repr(builder.build_from_workload(workload))
    assert ApplyKey.from_json(key.to_json()) == key
    assert dict(key.axes).items() <= workload.axes.items()
    named = dict(zip(definition.inputs, args, strict=True))
    assert builder.build_from_runtime(named) == key


@given(call=calls(), make=st.sampled_from(BUILDERS))
def test_what_is_said_of_axes_only_is_so(call, make):
    definition, args, _ = call
    builder = make(definition)
    places = builder.axis_places
    plain = ApplyKey(tuple((axis, args[i].shape[dim]) for axis, i, dim in places))
    assert builder.axes_only == (builder.build_from_args(args) == plain)


def record(name):
    return CATALOG.find("key_builder", name).spec


@pytest.mark.torch
class TestGemmConforms(KeyBuilderConformance):
    @pytest.fixture
    def case(self):
        product = define(
            {
                "a": {"shape": ["m", "k"], "dtype": "float16"},
                "b": {"shape": ["n", "k"], "dtype": "float16"},
            },
            {"m": None, "n": 16, "k": 8},
            op_type="gemm",
        )
        return KeyBuilderCase(record=record("gemm"), definition=product, plugin=BUILTIN)


@pytest.mark.torch
class TestMlaWithFlagsConforms(KeyBuilderConformance):
    @pytest.fixture
    def case(self):
        definition = decode(("causal", "bool"), ("window_left", "int32"))
        definition = definition.model_copy(update={"op_type": "mla_ragged"})
        values = {"scale": 0.5, "causal": True, "window_left": 128}
        other = ({**values, "causal": False}, {**values, "window_left": -1})
        workloads = tuple(
            recorded(definition, SIZES, each, uuid=str(i))
            for i, each in enumerate((values, *other))
        )
        return KeyBuilderCase(
            record=record("mla"), definition=definition, workloads=workloads, plugin=BUILTIN
        )


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("gemm", GEMMKeyBuilder),
        ("gqa_paged", GQAKeyBuilder),
        ("mla_ragged", MLAKeyBuilder),
        ("rmsnorm", AxesOnlyKeyBuilder),
        ("gq", AxesOnlyKeyBuilder),
        ("", AxesOnlyKeyBuilder),
    ],
)
def test_op_types_have_key_builders(op_type, expected):
    assert ApplyKeyFactory.for_type(op_type) is expected
