"""Which key builder is taken: what is registered, records by priority, and the axes alone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import types

import pytest

from flashinfer_bench.apply.key_builders import GEMMKeyBuilder, GQAKeyBuilder, MLAKeyBuilder
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.keys import ApplyKey, AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.plugins import (
    Availability,
    Catalog,
    KeyBuilderSpec,
    Settings,
    discover,
    reset_default_catalog,
)

CORE = discover(Settings(no_plugins=True))
MODULE = "key_factory_plugin"


class Mine(AxesOnlyKeyBuilder):
    """A key builder of this file."""


class Other(AxesOnlyKeyBuilder):
    """Another."""


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
    module.Mine, module.Other, module.RefusesLarge = Mine, Other, RefusesLarge
    module.a_function = lambda definition: AxesOnlyKeyBuilder(definition)
    module.no = lambda: Availability(False, "not today", "come back tomorrow")
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def use(*records, version="1.0", core=True):
    """Make these records, and core's own, the catalog of the process."""
    mine = Catalog.of(*records, distribution="fib-keys", version=version)
    reset_default_catalog(Catalog.build([*mine.entries(), *(CORE.entries() if core else ())]))


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
    @pytest.mark.parametrize(
        ("op_type", "expected"),
        [
            ("gemm", GEMMKeyBuilder),
            ("gqa", GQAKeyBuilder),
            ("gqa_paged", GQAKeyBuilder),
            ("gqa_ragged", GQAKeyBuilder),
            ("mla", MLAKeyBuilder),
            ("mla_paged", MLAKeyBuilder),
            ("mla_ragged", MLAKeyBuilder),
            ("rmsnorm", AxesOnlyKeyBuilder),
            ("gq", AxesOnlyKeyBuilder),
            ("", AxesOnlyKeyBuilder),
        ],
    )
    def test_op_types_have_key_builders(self, op_type, expected):
        use()
        assert ApplyKeyFactory.for_type(op_type) is expected

    @pytest.mark.parametrize("spelling", ["GEMM", "Gemm", " gemm "])
    def test_upper_and_lower_case_are_the_same(self, spelling):
        use()
        assert ApplyKeyFactory.for_type(spelling) is GEMMKeyBuilder

    def test_a_key_builder_is_made_for_a_definition(self):
        use()
        definition = define("gqa_paged")
        builder = ApplyKeyFactory.specialize(definition)
        assert type(builder) is GQAKeyBuilder
        assert builder.definition is definition

    def test_without_any_records_there_are_still_the_axes(self):
        use(core=False)
        assert ApplyKeyFactory.for_type("gemm") is AxesOnlyKeyBuilder


class TestPlugins:
    def test_a_record_of_usual_priority_goes_before_core_s(self):
        use(spec())
        assert ApplyKeyFactory.for_type("gqa_paged") is Mine
        assert ApplyKeyFactory.for_type("gqa_ragged") is GQAKeyBuilder

    def test_one_of_lower_priority_does_not(self):
        use(spec(priority=-1))
        assert ApplyKeyFactory.for_type("gqa_paged") is GQAKeyBuilder

    def test_of_two_the_higher_priority_decides_and_then_the_name(self):
        use(spec("b"), spec("a", of="Other"))
        assert ApplyKeyFactory.for_type("gqa_paged") is Other
        use(spec("b", priority=51), spec("a", of="Other"))
        assert ApplyKeyFactory.for_type("gqa_paged") is Mine

    def test_records_may_be_in_upper_case(self):
        use(spec(op_types=("MyOp",)))
        assert ApplyKeyFactory.for_type("myop") is Mine

    def test_one_that_cannot_be_used_here_is_passed_over(self, caplog):
        use(spec(probe=f"{MODULE}:no"))
        assert ApplyKeyFactory.for_type("gqa_paged") is GQAKeyBuilder
        assert caplog.records == []

    @pytest.mark.parametrize(
        ("of", "told"),
        [
            ("Missing", "cannot be imported from key_factory_plugin:Missing"),
            ("a_function", "key_factory_plugin:a_function is no subclass of"),
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
        assert "cannot be made for definition 'some_gqa_paged'" in record.getMessage()
        assert "RuntimeError: too large" in record.getMessage()

    def test_one_that_leaves_the_program_does_not(self, plugin):
        plugin.Leaves = type("Leaves", (Mine,), {"__init__": lambda self, definition: sys.exit(3)})
        use(spec(of="Leaves"))
        assert type(ApplyKeyFactory.specialize(define("gqa_paged"))) is GQAKeyBuilder

    def test_ctrl_c_is_no_fault_of_a_key_builder(self, plugin):
        def interrupted(self, definition):
            raise KeyboardInterrupt

        plugin.Slow = type("Slow", (Mine,), {"__init__": interrupted})
        use(spec(of="Slow"))
        with pytest.raises(KeyboardInterrupt):
            ApplyKeyFactory.specialize(define("gqa_paged"))


class TestRegister:
    def test_what_a_program_registers_goes_before_all_records(self):
        use(spec(of="Other", priority=1000))
        ApplyKeyFactory.register("gqa_paged", Mine)
        assert ApplyKeyFactory.for_type("gqa_paged") is Mine
        assert ApplyKeyFactory.for_type("GQA_Paged") is Mine

    def test_the_last_one_counts(self):
        ApplyKeyFactory.register("MyOp", Mine)
        ApplyKeyFactory.register("myop", Other)
        assert ApplyKeyFactory.for_type("myop") is Other

    def test_it_can_be_taken_back(self):
        use()
        ApplyKeyFactory.register("GEMM", Mine)
        ApplyKeyFactory.unregister("gemm")
        ApplyKeyFactory.unregister("gemm")
        assert ApplyKeyFactory.for_type("gemm") is GEMMKeyBuilder

    def test_one_that_refuses_a_definition_is_passed_over_too(self):
        use()
        ApplyKeyFactory.register("gemm", RefusesLarge)
        assert type(ApplyKeyFactory.specialize(define("gemm", k=1000))) is GEMMKeyBuilder

    @pytest.mark.parametrize("thing", [ApplyKey, lambda definition: None, "gemm", None])
    def test_anything_else_is_refused(self, thing):
        with pytest.raises(ConfigError, match=r"'gemm': give a subclass of .*ApplyKeyBuilder"):
            ApplyKeyFactory.register("gemm", thing)
        assert ApplyKeyFactory._registered == {}

    def test_many_threads_may_register_at_once(self):
        def register(number):
            for index in range(50):
                ApplyKeyFactory.register(f"op{number}_{index}", Mine)

        threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ApplyKeyFactory._registered) == 400


class TestIdentity:
    """Tables on disk are made with one identity."""

    def test_it_is_the_same_for_the_same(self):
        use(spec())
        first = ApplyKeyFactory.identity("gqa_paged")
        use(spec())
        assert ApplyKeyFactory.identity("GQA_PAGED") == first

    def test_it_names_all_that_may_be_taken(self):
        use(spec())
        first, second, last = ApplyKeyFactory.identity("gqa_paged").split(", ")
        assert first.endswith("test_key_factory:Mine fib-keys 1.0")
        assert "GQAKeyBuilder flashinfer-bench-core" in second
        assert last == "flashinfer_bench.apply.keys:AxesOnlyKeyBuilder"

    def test_another_release_or_plugin_or_registration_makes_another(self):
        seen = []
        for change in (
            use,
            lambda: use(spec()),
            lambda: use(spec(), version="1.1"),
            lambda: use(spec(of="Other")),
            lambda: use(spec(priority=-1)),
            lambda: ApplyKeyFactory.register("gqa_paged", Other),
        ):
            change()
            seen.append(ApplyKeyFactory.identity("gqa_paged"))
        assert len(set(seen)) == len(seen)

    def test_plugins_for_other_op_types_do_not_matter(self):
        use()
        first = ApplyKeyFactory.identity("gemm")
        use(spec())
        assert ApplyKeyFactory.identity("gemm") == first


def test_choosing_needs_neither_torch_nor_pydantic():
    code = (
        "import sys\n"
        "from flashinfer_bench.apply.key_factory import ApplyKeyFactory\n"
        "print(ApplyKeyFactory.for_type('gqa_paged').__name__)\n"
        "print([name for name in ('torch', 'pydantic', 'numpy') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FIB_NO_PLUGINS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["GQAKeyBuilder", "[]"]
