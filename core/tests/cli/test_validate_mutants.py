"""``fib validate --mutants``."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.plugin("python")]

SQUARE = {
    "axes": {"N": {"type": "var"}},
    "inputs": {"x": {"shape": ["N", "N"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["N", "N"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x @ x\n",
}


@pytest.fixture
def dataset(maker):
    """A workload that refuses everything, and one whose definition tolerates too much."""
    maker.definition("square", **SQUARE)
    maker.workload(definition="square", uuid="w1", axes={"N": 16})
    maker.definition("wide", **SQUARE, tolerance={"rtol": 0.02})
    maker.workload(definition="wide", uuid="w2", axes={"N": 16})
    return maker


def test_survivors_are_findings(fib, dataset):
    result = fib("validate", "--mutants", dataset.root)
    assert result.exit_code == 1, result.output
    header, line = result.stdout.splitlines()
    assert header.split("\t") == ["definition", "workload", "finding", "mutant", "what"]
    assert line.split("\t") == ["wide", "w2", "survived", "downcast", "y, to bfloat16"]
    assert "15 of 16 wrong outputs refused on 2 of 2 workloads; 1 survived" in result.stderr


def test_definitions_can_be_chosen(fib, dataset):
    result = fib("validate", "--mutants", "--local", dataset.root, "--definitions", "square")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "8 of 8 wrong outputs refused" in result.stderr


def test_json(fib, dataset):
    result = fib("validate", "--mutants", "--json", "--local", dataset.root)
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)["datasets"]
    assert (found["fed"], found["killed"], found["survived"]) == (16, 15, 1)
    by_name = {one["definition"]: one for one in found["workloads"]}
    assert by_name["square"]["survivors"] == []
    assert by_name["wide"]["survivors"] == [{"mutant": "downcast", "variant": "y, to bfloat16"}]


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--strict"], 1)])
def test_what_cannot_be_tested_counts_only_when_asked(fib, maker, flags, code):
    maker.definition()
    spec = {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}
    maker.workload(uuid="w1", inputs={"x": spec})
    result = fib("validate", "--mutants", "--local", maker.root, *flags)
    assert result.exit_code == code, result.output
    assert "not tested" in result.stdout


def test_a_broken_reference_is_a_finding(fib, maker):
    maker.definition(reference="def run(x):\n    raise ValueError('\x1b[2J')\n")
    maker.workload(uuid="w1")
    result = fib("validate", "--mutants", "--local", maker.root)
    assert result.exit_code == 1
    assert "broken" in result.stdout
    assert "\x1b" not in result.output


def test_an_unknown_definition_is_an_error(fib, dataset):
    result = fib("validate", "--mutants", "--local", dataset.root, "--definitions", "cube")
    assert result.exit_code not in (0, 1)


def test_definitions_need_mutants(fib, dataset):
    result = fib("validate", "--local", dataset.root, "--definitions", "square")
    assert result.exit_code == 2


def test_a_dataset_may_stand_alone(fib, dataset):
    result = fib("validate", dataset.root)
    assert result.exit_code == 0, result.output
    assert "0 errors" in result.stderr


def test_progress_is_drawn_on_a_terminal(fib_terminal, dataset):
    code, shown = fib_terminal("validate", "--mutants", "--local", dataset.root)
    assert code == 1
    assert "feeding wrong outputs" in shown
    assert "15 of 16 wrong outputs refused" in shown
