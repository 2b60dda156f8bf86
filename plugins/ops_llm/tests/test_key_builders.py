"""Core's own key builders: what counts for them, and that calls and workloads agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm.key_builders import GEMMKeyBuilder, GQAKeyBuilder, MLAKeyBuilder
from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyFactory, AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition, RandomInput, ScalarInput, Workload
from flashinfer_bench.errors import DataError

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


class TestAttentionWithFlags:
    @pytest.fixture
    def builder(self):
        return GQAKeyBuilder(decode(("causal", "bool"), ("window_left", "int32")))

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
