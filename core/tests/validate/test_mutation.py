"""Feeding mutants: real references in real processes, on small datasets."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="references need torch")

from flashinfer_bench.bench import BenchmarkConfig  # noqa: E402
from flashinfer_bench.data import TraceSet  # noqa: E402
from flashinfer_bench.errors import SelectionError, UnknownNameError  # noqa: E402
from flashinfer_bench.validate import validate_dataset  # noqa: E402
from flashinfer_bench.validate.mutation import MutationTest, mutate_dataset  # noqa: E402

pytestmark = pytest.mark.plugin("python")

MATMUL: dict[str, Any] = {
    "axes": {"N": {"type": "var"}, "K": {"type": "const", "value": 32}},
    "inputs": {
        "a": {"shape": ["N", "K"], "dtype": "float32"},
        "b": {"shape": ["N", "K"], "dtype": "float32"},
    },
    "outputs": {"c": {"shape": ["N", "N"], "dtype": "float32"}},
    "reference": "def run(a, b):\n    return a @ b.T\n",
}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


def add(maker: Any, name: str, n: int = 12, uuid: str = "w1", **changes: Any) -> None:
    """Write a definition of matrices and one workload."""
    record = {**MATMUL, **changes}
    maker.definition(name, **record)
    inputs = {key: {"type": "random"} for key in record["inputs"]}
    maker.workload(definition=name, uuid=uuid, axes={"N": n}, inputs=inputs)


def strange_workload(maker: Any) -> None:
    """Append a workload with a tolerance for an output that ``double`` does not have."""
    workload = {
        "axes": {"N": 16},
        "inputs": {"x": {"type": "random"}},
        "uuid": "strange",
        "tolerance": {"outputs": {"q": {"atol": 1}, "y": {"max_atol": 1}}},
    }
    path = maker.root / "workloads/op/double.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"definition": "double", "workload": workload}) + "\n")


def results(maker: Any, *definitions: str, **options: Any) -> dict[str, Any]:
    found = mutate_dataset(maker.root, definitions, **options)
    return {result.definition: result for result in found}


def test_all_of_a_sound_workload_are_refused(maker: Any) -> None:
    add(maker, "matmul")
    found = results(maker)["matmul"]
    assert found.survivors == ()
    assert found.problem is None
    assert not found.is_bad
    # zeros, stale, transposed, dropped tile, off by one, two masks, truncated sum, downcast
    assert found.fed == found.killed == 9


def test_a_tolerance_that_is_too_wide_lets_some_survive(maker: Any) -> None:
    add(maker, "matmul", tolerance={"rtol": 0.02})
    found = results(maker)["matmul"]
    assert [(one.mutant, one.variant) for one in found.survivors] == [
        ("downcast", "c, to bfloat16")
    ]
    assert found.is_bad
    assert found.fed - found.killed == 1


def test_a_share_that_is_too_small_lets_some_survive(maker: Any) -> None:
    add(maker, "matmul", n=32, tolerance={"required_matched_ratio": 0.95})
    found = results(maker)["matmul"]
    assert "dropped_tile" in {one.mutant for one in found.survivors}


def test_small_outputs_are_tightened_first(maker: Any) -> None:
    add(maker, "matmul", reference="def run(a, b):\n    return a @ b.T * 1e-5\n")
    found = results(maker)["matmul"]
    assert found.survivors == ()
    assert set(found.tightened) == {"c"}


def test_what_gives_the_right_answer_is_not_fed(maker: Any) -> None:
    symmetric = "def run(a, b):\n    return a @ a.T\n"
    add(maker, "gram", reference=symmetric)
    found = results(maker)["gram"]
    assert found.survivors == ()
    assert found.fed == 8  # its transpose is right


def test_a_constant_cannot_be_decided(maker: Any) -> None:
    add(maker, "ones", reference="def run(a, b):\n    return a @ b.T * 0\n")
    found = results(maker)["ones"]
    assert found.fed == 0
    assert found.is_bad
    assert "zeros as 'c'" in found.problem


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("def run(a, b):\n    raise ValueError('not today')\n", "not today"),
        ("def run(a, b):\n    return a\n", "has shape"),
        ("import os\ndef run(a, b):\n    os._exit(3)\n", "exit"),
    ],
)
def test_a_reference_that_fails_costs_only_its_workload(
    maker: Any, reference: str, problem: str
) -> None:
    add(maker, "a_bad_one", reference=reference)
    add(maker, "matmul")
    found = results(maker)
    assert found["a_bad_one"].is_broken
    assert problem in found["a_bad_one"].problem
    assert found["matmul"].killed == 9


def test_a_missing_file_is_told_and_is_no_finding(maker: Any) -> None:
    maker.definition("double")
    maker.workload(
        uuid="w1",
        inputs={"x": {"type": "safetensors", "path": "blob/none.safetensors", "tensor_key": "x"}},
    )
    found = results(maker)["double"]
    assert "none.safetensors" in found.problem
    assert not found.is_bad


def test_an_unknown_output_in_a_workload_is_told(maker: Any) -> None:
    maker.definition("double")
    strange_workload(maker)
    assert "no output 'q'" in results(maker)["double"].problem


def test_the_file_check_names_the_field_of_an_unknown_output(maker: Any) -> None:
    maker.sound()
    strange_workload(maker)
    (finding,) = validate_dataset(maker.root).errors
    assert finding.check == "workloads"
    assert finding.field == "workload.tolerance.outputs.q"
    assert finding.line == 3
    assert "it has y" in finding.message


def test_the_file_check_names_the_field_of_a_definition(maker: Any) -> None:
    maker.sound()
    maker.definition("strange", tolerance={"outputs": {"q": {"atol": 1}}})
    found = validate_dataset(maker.root).errors
    assert [finding.field for finding in found] == ["tolerance.outputs.q"]


def test_definitions_can_be_chosen(maker: Any) -> None:
    add(maker, "one")
    add(maker, "two")
    assert list(results(maker, "two")) == ["two"]
    with pytest.raises(UnknownNameError, match="three"):
        results(maker, "three")


def test_nothing_to_feed(maker: Any) -> None:
    maker.definition("double")
    with pytest.raises(SelectionError, match="no workload"):
        results(maker)


def test_settings_are_those_of_a_benchmark(maker: Any) -> None:
    add(maker, "matmul")
    lenient = BenchmarkConfig.default(rtol=0.5, num_trials=1)
    found = results(maker, config=lenient)["matmul"]
    assert "downcast" in {one.mutant for one in found.survivors}
    assert "stale" not in {one.mutant for one in found.survivors}
    assert found.fed == 8  # with one trial nothing is stale


def test_the_same_seed_gives_the_same_result(maker: Any) -> None:
    add(maker, "matmul", tolerance={"rtol": 0.02})
    test = MutationTest(TraceSet.from_path(maker.root), seed=7)
    assert list(test.run()) == list(test.run())


def test_mutants_that_the_reference_refuses_are_left_out(maker: Any) -> None:
    picky = "def run(a, b):\n    assert a[:, -1].abs().min() > 0\n    return a @ b.T\n"
    add(maker, "picky", reference=picky)
    found = results(maker)["picky"]
    assert found.survivors == ()
    assert found.fed == 8
