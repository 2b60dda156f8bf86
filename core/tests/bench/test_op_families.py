"""What an op family of a plugin decides: settings, evaluator, inputs and keys."""

import sys
import types

import pytest
import torch

from flashinfer_bench import BenchmarkConfig, Definition, Workload
from flashinfer_bench.bench import resolve_evaluator
from flashinfer_bench.errors import CapabilityError, ConfigError, DataError
from flashinfer_bench.plugins import (
    Catalog,
    OpFamilySpec,
    Settings,
    discover,
    reset_default_catalog,
)
from flashinfer_bench.tensors import generate_inputs

CORE = discover(Settings(no_plugins=True))


@pytest.fixture
def family(monkeypatch):
    """Make a family for ``rope*`` the catalog of the process: ``family(**fields)``."""
    module = types.ModuleType("a_family")
    module.SETTINGS = {"rope": {"required_matched_ratio": 0.5}}
    module.WRONG = {"rope": {"required_matched_ratio": 7}}
    module.inputs = lambda definition, axes, seed: {"x": torch.full((axes["n"], 4), float(seed))}
    module.misshapen = lambda definition, axes, seed: {"x": torch.zeros(1)}
    monkeypatch.setitem(sys.modules, "a_family", module)

    def use(**fields):
        record = OpFamilySpec(name="rope", op_types=("rope*",), summary="Embeddings", **fields)
        mine = Catalog.of(record, distribution="fib-rope", version="1")
        reset_default_catalog(Catalog.build([*CORE.records, *mine.records]))

    yield use
    reset_default_catalog()


@pytest.fixture
def definition():
    return Definition.model_validate(
        {
            "name": "rope_k4",
            "op_type": "rope",
            "axes": {
                "n": {"type": "var"},
                "m": {"type": "var"},
                "k": {"type": "const", "value": 4},
            },
            "inputs": {
                "x": {"shape": ["n", "k"], "dtype": "float32"},
                "y": {"shape": ["m", "k"], "dtype": "float32"},
            },
            "outputs": {"z": {"shape": ["n", "k"], "dtype": "float32"}},
            "reference": "def run(x, y):\n    return x\n",
        }
    )


@pytest.fixture
def workload():
    random = {"type": "random"}
    return Workload.model_validate(
        {"axes": {"n": 2, "m": 3}, "inputs": {"x": random, "y": random}, "uuid": "w"}
    )


def test_its_settings_are_below_those_of_the_user(family, definition):
    family(settings="a_family:SETTINGS")
    assert BenchmarkConfig().resolve_eval_config(definition).required_matched_ratio == 0.5
    own = BenchmarkConfig(required_matched_ratio=0.75).resolve_eval_config(definition)
    assert own.required_matched_ratio == 0.75


def test_settings_that_are_none_are_blamed_on_the_family(family, definition):
    family(settings="a_family:WRONG")
    with pytest.raises(ConfigError, match="op family 'rope' of fib-rope 1"):
        BenchmarkConfig().resolve_eval_config(definition)


def test_it_names_the_evaluator(family, definition):
    family(evaluator="default")
    assert resolve_evaluator(definition).name == "default"
    family(evaluator="missing")
    with pytest.raises(CapabilityError, match="No evaluator 'missing'"):
        resolve_evaluator(definition)


def test_it_makes_inputs_in_place_of_random_ones(family, definition, workload):
    family(inputs="a_family:inputs")
    x, y = generate_inputs(definition, workload, seed=3, root=None)
    assert x.tolist() == [[3.0] * 4] * 2
    family()
    plain = generate_inputs(definition, workload, seed=3, root=None)
    assert torch.equal(y, plain[1])
    assert not torch.equal(x, plain[0])


def test_inputs_of_another_shape_are_refused(family, definition, workload):
    family(inputs="a_family:misshapen")
    with pytest.raises(DataError, match="op family 'rope' of fib-rope 1 makes an input of shape"):
        generate_inputs(definition, workload, seed=3, root=None)


def test_a_known_family_that_is_not_installed_is_named(family, definition):
    family()
    sampling = definition.model_copy(update={"op_type": "sampling"})
    with pytest.raises(CapabilityError, match="fib-ops-llm") as caught:
        resolve_evaluator(sampling)
    assert "fib-ops-llm==" in caught.value.hint
