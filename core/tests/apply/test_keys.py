"""Keys, and the builder of keys from the axes alone."""

from __future__ import annotations

import json
import logging
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_tests import definitions
from flashinfer_bench.apply import ApplyKey, ApplyKeyBuilder, AxesOnlyKeyBuilder
from flashinfer_bench.apply.dispatch.layout import Keying, Layout
from flashinfer_bench.apply.keys import ApplyKeyFactory
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.errors import ConfigError, DataError
from flashinfer_bench.plugins import Availability, Catalog, KeyBuilderSpec, reset_default_catalog

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
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | st.integers() | st.text() | finite


class TestApplyKey:
    @given(
        axes=st.lists(st.tuples(names, st.integers(min_value=0))),
        feats=st.lists(st.tuples(names, plain)),
    )
    def test_json_keeps_all_of_it(self, axes, feats):
        key = ApplyKey(tuple(axes), tuple(feats))
        text = key.to_json()
        assert "\n" not in text
        copy = ApplyKey.from_json(text)
        assert copy == key
        assert [type(value) for _, value in copy.feats] == [type(value) for _, value in key.feats]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
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
    def test_by_name_under_the_old_name(self, builder):
        named = {"cache": Tensor(4, 9), "scale": 0.5, "q": Tensor(7, 4)}
        assert builder.build_from_runtime(named).axes == (("tokens", 7), ("pages", 9))

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


@pytest.mark.parametrize(
    "step", ["build_from_args", "build_from_workload", "features", "axes_of", "axes_in"]
)
def test_axes_only_is_not_said_of_a_builder_that_changes_a_step(definition, step):
    inherited = getattr(AxesOnlyKeyBuilder, step)

    def changed(self, *args, **kwargs):
        return inherited(self, *args, **kwargs)

    other = type("Other", (AxesOnlyKeyBuilder,), {step: changed})
    assert not other(definition).axes_only
    # … nor, for that matter, if the change is one level up.
    assert not type("Child", (other,), {})(definition).axes_only


class TestThoseOfTheFirstRelease:
    """Arguments came by name, and workloads without a folder."""

    class OfFirstRelease(ApplyKeyBuilder):
        def build_from_runtime(self, runtime_kwargs):
            tokens = runtime_kwargs["q"].shape[0]
            return ApplyKey((("tokens", tokens),), self.features(runtime_kwargs))

        def build_from_workload(self, workload):
            return ApplyKey((("tokens", workload.axes["tokens"]),), (("big", True),))

        def features(self, runtime_kwargs):
            return (("big", runtime_kwargs["cache"].shape[1] > 5),)

    def test_they_work(self, definition, tmp_path):
        builder = self.OfFirstRelease(definition)
        args = [Tensor(7, 4), 0.5, Tensor(4, 9)]
        key = builder.build_from_args(args)
        assert key == builder.build_from_workload(workload(tokens=7, pages=9, rows=3), tmp_path)
        assert Keying(Layout.of(definition), builder).of(args) == key

    @pytest.mark.parametrize("missing", ["build_from_workload", "features"])
    def test_half_of_one_is_refused_when_it_is_made(self, missing, definition):
        kept = {k: v for k, v in vars(self.OfFirstRelease).items() if k != missing}
        names = ("build_from_runtime", "build_from_workload", "features")
        half = type("Half", (ApplyKeyBuilder,), {n: kept[n] for n in names if n in kept})
        with pytest.raises(TypeError, match=f"abstract class Half .*{missing}"):
            half(definition)

    def test_and_half_of_a_new_one_when_it_is_made(self, definition):
        half = type("Half", (ApplyKeyBuilder,), {"build_from_args": lambda self, args: None})
        with pytest.raises(TypeError, match="build_from_workload"):
            half(definition)


# ---------------------------------------------------------------------- which key builder is taken


MODULE = "key_factory_plugin"


class Mine(AxesOnlyKeyBuilder):
    """A key builder of this file."""


class Other(AxesOnlyKeyBuilder):
    """Another."""


class GQAKeyBuilder(AxesOnlyKeyBuilder):
    """What a family of operators registers as its fallback for attention."""


class GEMMKeyBuilder(AxesOnlyKeyBuilder):
    """And for products."""


class RefusesLarge(AxesOnlyKeyBuilder):
    """Cannot be made for every definition."""

    def __init__(self, definition):
        if definition.const_axes["k"] > 100:
            raise RuntimeError("too large")
        super().__init__(definition)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Let nothing that a test registers, or warns of, be left for the next one."""
    monkeypatch.setattr(ApplyKeyFactory, "_registered", {})
    monkeypatch.setattr(ApplyKeyFactory, "_warned", set())
    yield
    reset_default_catalog()


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
    """The module in which the records of this file find their code."""
    module = types.ModuleType(MODULE)
    for each in (Mine, Other, RefusesLarge, GQAKeyBuilder, GEMMKeyBuilder):
        setattr(module, each.__name__, each)
    module.a_function = lambda definition: AxesOnlyKeyBuilder(definition)
    module.no = lambda: Availability(False, "not today", "come back tomorrow")
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def use(*records, version="1.0", core=True):
    """Make these records, and those of a family of operators, the catalog of the process."""
    mine = Catalog.of(*records, distribution="fib-keys", version=version)
    attention = ("gqa", "gqa_paged", "gqa_ragged")
    family = Catalog.of(
        spec("gqa", attention, "GQAKeyBuilder", priority=0),
        spec("gemm", ("gemm",), "GEMMKeyBuilder", priority=0),
        distribution="fib-ops",
        version="1.0",
    )
    reset_default_catalog(Catalog.build([*mine.records, *(family.records if core else ())]))


def spec(name="mine", op_types=("gqa_paged",), of="Mine", **more):
    return KeyBuilderSpec(name=name, op_types=op_types, factory=f"{MODULE}:{of}", **more)


def define(op_type, k=4):
    x = {"shape": ["n", "k"], "dtype": "float32"}
    return definitions.definition(f"some_{op_type}", {"x": x}, {"y": x}, op_type=op_type, k=k)


def test_without_any_records_there_are_still_the_axes():
    use(core=False)
    assert ApplyKeyFactory.for_type("gemm") is AxesOnlyKeyBuilder


class TestPlugins:
    def test_a_record_of_usual_priority_goes_before_core_s(self):
        use(spec())
        assert ApplyKeyFactory.for_type("gqa_paged") is Mine
        assert ApplyKeyFactory.for_type("gqa_ragged") is GQAKeyBuilder

    def test_of_two_the_higher_priority_decides_and_then_the_name(self):
        use(spec("b"), spec("a", of="Other"))
        assert ApplyKeyFactory.for_type("gqa_paged") is Other
        use(spec("b", priority=51), spec("a", of="Other"))
        assert ApplyKeyFactory.for_type("gqa_paged") is Mine

    def test_one_that_cannot_be_used_here_is_passed_over(self, caplog):
        use(spec(probe=f"{MODULE}:no"))
        assert ApplyKeyFactory.for_type("gqa_paged") is GQAKeyBuilder
        assert caplog.records == []

    @pytest.mark.parametrize(
        ("of", "told"),
        [
            ("Missing", "cannot be imported from key_factory_plugin:Missing"),
            ("a_function", "key_factory_plugin:a_function is not a subclass of"),
        ],
    )
    def test_a_broken_one_loses_itself_only_and_is_told_of_once(self, caplog, of, told):
        use(spec(of=of))
        for _ in range(3):
            assert ApplyKeyFactory.for_type("gqa_paged") is GQAKeyBuilder
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert told in record.getMessage()
        assert "fib-keys 1.0" in record.getMessage()

    def test_one_that_refuses_a_definition_is_passed_over_for_that_one(self, caplog):
        use(spec(of="RefusesLarge"))
        assert type(ApplyKeyFactory.specialize(define("gqa_paged"))) is RefusesLarge
        for _ in range(2):
            large = ApplyKeyFactory.specialize(define("gqa_paged", k=1000))
            assert type(large) is GQAKeyBuilder
        (record,) = caplog.records
        assert "cannot be created for definition 'some_gqa_paged'" in record.getMessage()
        assert "RuntimeError: too large" in record.getMessage()


class TestRegister:
    def test_what_a_program_registers_goes_before_all_records(self):
        use(spec(of="Other", priority=1000))
        ApplyKeyFactory.register("gqa_paged", Mine)
        assert ApplyKeyFactory.for_type("gqa_paged") is Mine
        assert ApplyKeyFactory.for_type("GQA_Paged") is Mine

    @pytest.mark.parametrize("thing", [ApplyKey, lambda definition: None, "gemm", None])
    def test_anything_else_is_refused(self, thing):
        with pytest.raises(ConfigError, match=r"'gemm': give a subclass of .*ApplyKeyBuilder"):
            ApplyKeyFactory.register("gemm", thing)
        assert ApplyKeyFactory._registered == {}
