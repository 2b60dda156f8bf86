"""Which key builder is taken: what is registered, records by priority, and the axes alone."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyFactory, AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.plugins import Availability, Catalog, KeyBuilderSpec, reset_default_catalog

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
    return Definition.model_validate(
        {
            "name": f"some_{op_type}",
            "op_type": op_type,
            "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": k}},
            "inputs": {"x": {"shape": ["n", "k"], "dtype": "float32"}},
            "outputs": {"y": {"shape": ["n", "k"], "dtype": "float32"}},
            "reference": "def run(x):\n    return x\n",
        }
    )


class TestCore:
    def test_without_any_records_there_are_still_the_axes(self):
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

    def test_it_can_be_taken_back(self):
        use()
        ApplyKeyFactory.register("GEMM", Mine)
        ApplyKeyFactory.unregister("gemm")
        ApplyKeyFactory.unregister("gemm")
        assert ApplyKeyFactory.for_type("gemm") is GEMMKeyBuilder

    @pytest.mark.parametrize("thing", [ApplyKey, lambda definition: None, "gemm", None])
    def test_anything_else_is_refused(self, thing):
        with pytest.raises(ConfigError, match=r"'gemm': give a subclass of .*ApplyKeyBuilder"):
            ApplyKeyFactory.register("gemm", thing)
        assert ApplyKeyFactory._registered == {}
