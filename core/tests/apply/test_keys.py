"""Keys, and the builder of keys from the axes alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.apply import ApplyKey, ApplyKeyBuilder, AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.errors import DataError

DEFINITION = {
    "name": "attention",
    "op_type": "gqa",
    "axes": {
        "tokens": {"type": "var"},
        "heads": {"type": "const", "value": 4},
        "pages": {"type": "var"},
        "rows": {"type": "var"},
    },
    "inputs": {
        "q": {"shape": ["tokens", "heads"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
        "cache": {"shape": ["heads", "pages"], "dtype": "float32"},
    },
    "outputs": {"out": {"shape": ["tokens", "rows"], "dtype": "float32"}},
    "reference": "def run(q, scale, cache):\n    return q\n",
}


class Tensor:
    """Has a shape, and nothing else that could be read."""

    __slots__ = ("shape",)

    def __init__(self, *shape):
        self.shape = shape


@pytest.fixture
def definition():
    return Definition.model_validate(DEFINITION)


@pytest.fixture
def builder(definition):
    return AxesOnlyKeyBuilder(definition)


def workload(**axes):
    inputs = {"q": {"type": "random"}, "scale": {"type": "scalar", "value": 0.5}}
    return Workload(axes=axes, inputs={**inputs, "cache": {"type": "random"}}, uuid="w")


names = st.text(min_size=1, max_size=8)
plain = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
finite = plain.filter(lambda value: value not in (float("inf"), float("-inf")))


class TestApplyKey:
    def test_equal_keys_find_each_other_in_a_table(self):
        one = ApplyKey((("tokens", 7),), (("causal", True),))
        other = ApplyKey((("tokens", 7),), (("causal", True),))
        assert one == other
        assert {one: "best"}[other] == "best"

    @pytest.mark.parametrize(
        "other",
        [
            ApplyKey((("tokens", 8),)),
            ApplyKey((("rows", 7),)),
            ApplyKey((("tokens", 7),), (("causal", True),)),
            ApplyKey(()),
        ],
    )
    def test_other_keys_are_others(self, other):
        assert ApplyKey((("tokens", 7),)) != other

    def test_it_cannot_be_changed(self):
        with pytest.raises(FrozenInstanceError):
            ApplyKey(()).axes = (("tokens", 7),)

    @given(
        axes=st.lists(st.tuples(names, st.integers(min_value=0))),
        feats=st.lists(st.tuples(names, finite)),
    )
    def test_json_keeps_all_of_it(self, axes, feats):
        key = ApplyKey(tuple(axes), tuple(feats))
        text = key.to_json()
        assert "\n" not in text
        copy = ApplyKey.from_json(text)
        assert copy == key
        assert [type(value) for _, value in copy.feats] == [type(value) for _, value in key.feats]

    def test_a_nan_which_equals_nothing_is_refused(self):
        with pytest.raises(ValueError, match="not JSON compliant"):
            ApplyKey((), (("mean", float("nan")),)).to_json()

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            '{"axes": []}',
            '{"axes": 3, "feats": []}',
            '{"axes": [["a"]], "feats": []}',
            '{"axes": [["a", [1]]], "feats": []}',
            '{"axes": [[1, 1]], "feats": []}',
            '{"axes": [["a", 1, 2]], "feats": []}',
        ],
    )
    def test_other_text_is_an_error_that_shows_it(self, text):
        with pytest.raises(DataError, match="not an apply key: "):
            ApplyKey.from_json(text)

    def test_the_old_names(self):
        key = ApplyKey((("tokens", 7),))
        assert json.loads(key.encode) == {"axes": [["tokens", 7]], "feats": []}
        assert ApplyKey.from_encoded(key.encode) == key


class TestAxesOnly:
    def test_a_call_and_its_workload_have_the_same_key(self, builder):
        args = [Tensor(7, 4), 0.5, Tensor(4, 9)]
        key = builder.build_from_args(args)
        assert key == builder.build_from_workload(workload(tokens=7, pages=9, rows=3))
        assert key.axes == (("tokens", 7), ("pages", 9))
        assert key.feats == ()

    def test_outputs_may_follow_the_inputs(self, builder):
        inputs = [Tensor(7, 4), 0.5, Tensor(4, 9)]
        assert builder.build_from_args([*inputs, Tensor(7, 3)]) == builder.build_from_args(inputs)

    def test_each_axis_counts(self, builder):
        key = builder.build_from_args([Tensor(7, 4), 0.5, Tensor(4, 9)])
        assert key != builder.build_from_args([Tensor(8, 4), 0.5, Tensor(4, 9)])
        assert key != builder.build_from_args([Tensor(7, 4), 0.5, Tensor(4, 10)])
        assert key == builder.build_from_args([Tensor(7, 4), 0.25, Tensor(4, 9)])

    def test_by_name_under_the_old_name(self, builder):
        named = {"cache": Tensor(4, 9), "scale": 0.5, "q": Tensor(7, 4)}
        assert builder.build_from_runtime(named).axes == (("tokens", 7), ("pages", 9))

    def test_a_definition_without_variable_axes_has_one_key(self):
        record = {**DEFINITION, "axes": {"heads": {"type": "const", "value": 4}}}
        record["inputs"] = {"q": {"shape": ["heads"], "dtype": "float32"}}
        record["outputs"] = {"out": {"shape": ["heads"], "dtype": "float32"}}
        record["reference"] = "def run(q):\n    return q\n"
        builder = AxesOnlyKeyBuilder(Definition.model_validate(record))
        assert builder.build_from_args([Tensor(4)]) == ApplyKey(())

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            ([], "input 'q' of 'attention' is missing: 0 arguments for 3"),
            ([Tensor(7, 4), 0.5], "input 'cache' of 'attention' is missing: 2 arguments for 3"),
            ([3.0, 0.5, Tensor(4, 9)], "input 'q' of 'attention' has no dimension 0"),
            ([Tensor(7, 4), 0.5, Tensor(4)], "has no dimension 1 .pages.: .4."),
            ([Tensor(7, 4), 0.5, None], "has no dimension 1 .pages.: NoneType"),
        ],
    )
    def test_other_arguments_are_an_error_that_says_which(self, builder, args, told):
        with pytest.raises(DataError, match=told):
            builder.build_from_args(args)

    def test_a_workload_that_lacks_an_axis(self, builder):
        with pytest.raises(DataError, match="workload 'w' has no value for axis 'pages'"):
            builder.build_from_workload(workload(tokens=7))


class TestPlaces:
    def test_they_say_where_each_axis_is_read(self, builder):
        assert builder.axis_places == (("tokens", 0, 0), ("pages", 2, 1))

    def test_an_axis_that_a_subclass_takes_out_is_in_no_key(self, definition):
        class WithoutPages(AxesOnlyKeyBuilder):
            def __init__(self, definition):
                super().__init__(definition)
                self.axis_places = tuple(p for p in self.axis_places if p[0] != "pages")

        builder = WithoutPages(definition)
        key = builder.build_from_args([Tensor(7, 4), 0.5, Tensor(4, 9)])
        assert key.axes == (("tokens", 7),)
        assert key == builder.build_from_workload(workload(tokens=7))
        assert builder.axes_only

    def test_axes_come_from_sizes_by_name_too(self, builder):
        sizes = {"pages": 9, "rows": 3, "tokens": 7}
        assert builder.axes_from(sizes) == (("tokens", 7), ("pages", 9))

    def test_a_size_that_is_missing_is_named_and_so_is_where(self, builder):
        with pytest.raises(DataError, match="--axes has no value for axis 'tokens' of 'attention'"):
            builder.axes_from({"pages": 9}, source="--axes")
        with pytest.raises(DataError) as caught:
            builder.axes_from({})
        assert caught.value.field == "axes.tokens"


class TestAxesOnlyIsSaidOfABuilder:
    def test_that_makes_its_keys_of_the_axes(self, builder):
        assert builder.axes_only

    def test_that_inherits_and_changes_no_step(self, definition):
        class Named(AxesOnlyKeyBuilder):
            """Nothing but another name."""

        assert Named(definition).axes_only

    @pytest.mark.parametrize(
        "step", ["build_from_args", "build_from_workload", "features", "axes_of", "axes_in"]
    )
    def test_but_not_if_a_subclass_changes_a_step(self, definition, step):
        inherited = getattr(AxesOnlyKeyBuilder, step)

        def changed(self, *args, **kwargs):
            return inherited(self, *args, **kwargs)

        other = type("Other", (AxesOnlyKeyBuilder,), {step: changed})
        assert not other(definition).axes_only
        # … nor, for that matter, if the change is one level up.
        assert not type("Child", (other,), {})(definition).axes_only

    def test_nor_if_the_object_itself_is_changed(self, builder):
        builder.features = lambda args: (("scale", args[1]),)
        assert not builder.axes_only

    def test_nor_of_one_that_makes_its_keys_itself(self, definition):
        class Own(ApplyKeyBuilder):
            def build_from_args(self, args):
                return ApplyKey(self.axes_of(args))

            def build_from_workload(self, workload, root=None):
                return ApplyKey(self.axes_in(workload))

            def features(self, args):
                return ()

        assert not Own(definition).axes_only


class TestFeatures:
    def test_a_subclass_adds_what_counts_besides_the_axes(self, definition):
        class ByScale(AxesOnlyKeyBuilder):
            def features(self, args):
                return (("scale", args[1]),)

            def build_from_workload(self, workload, root=None):
                feats = (("scale", workload.inputs["scale"].value),)
                return ApplyKey(self.axes_in(workload), feats)

        builder = ByScale(definition)
        key = builder.build_from_args([Tensor(7, 4), 0.5, Tensor(4, 9)])
        assert key.feats == (("scale", 0.5),)
        assert key == builder.build_from_workload(workload(tokens=7, pages=9))
        assert key != builder.build_from_args([Tensor(7, 4), 1.0, Tensor(4, 9)])

    def test_a_builder_must_say_all_three(self, definition):
        class Half(ApplyKeyBuilder):
            def build_from_args(self, args):
                return ApplyKey(())

        with pytest.raises(TypeError, match="abstract"):
            Half(definition)

    def test_no_builder_reads_data_unless_it_says_so(self):
        assert ApplyKeyBuilder.reads_data is False


def test_keys_need_no_torch():
    code = "import sys, flashinfer_bench.apply; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
