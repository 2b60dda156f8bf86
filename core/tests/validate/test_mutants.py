"""Each mutant makes what its name says, and leaves alone what it does not apply to."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="mutants are made of tensors")

from flashinfer_bench.bench.evaluators import Trial  # noqa: E402
from flashinfer_bench.data import Definition, TensorSpec, Workload  # noqa: E402
from flashinfer_bench.validate.mutants import MUTANTS, Case  # noqa: E402


def make_case(
    outputs: dict[str, Any],
    *,
    inputs: dict[str, Any] | None = None,
    shapes: dict[str, list[str]] | None = None,
    reference: Any = None,
    earlier: dict[str, Any] | None = None,
) -> Case:
    """Make a case of given tensors; axes are named after their tensor unless `shapes` says so."""
    tensors = {**(inputs or {"x": torch.ones(2)}), **outputs}
    names = {
        name: (shapes or {}).get(name, [f"{name}{i}" for i in range(tensor.dim())])
        for name, tensor in tensors.items()
    }

    def specs(group: dict[str, Any]) -> dict[str, TensorSpec]:
        return {
            name: TensorSpec(
                shape=names[name] if tensor.dim() else None, dtype=str(tensor.dtype)[6:]
            )
            for name, tensor in group.items()
        }

    axes = {
        axis: size
        for name, tensor in tensors.items()
        for axis, size in zip(names[name], tensor.shape, strict=True)
    }
    definition = Definition(
        name="d",
        op_type="o",
        axes={axis: {"type": "var"} for axis in axes},
        inputs=specs(inputs or {"x": torch.ones(2)}),
        outputs=specs(outputs),
        reference="def run(*args): pass",
    )
    given = list((inputs or {"x": torch.ones(2)}).values())
    trials = [Trial(0, 0, given, list(outputs.values()))]
    if earlier is not None:
        trials.insert(0, Trial(1, 1, given, list(earlier.values())))
    workload = Workload(axes=axes, inputs={}, uuid="w")
    return Case(definition, workload, tuple(trials), len(trials) - 1, reference)


def made(name: str, case: Case) -> dict[str, list[Any]]:
    """Return what a mutant makes of a case."""
    return {mutation.variant: mutation.outputs for mutation in MUTANTS[name](case)}


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestExchange:
    def test_zeros_of_one_output_after_the_other(self) -> None:
        found = made("zeros", make_case({"y": torch.ones(2, 2), "n": torch.ones(3).int()}))
        assert list(found) == ["y", "n"]
        assert not found["y"][0].any()
        assert found["y"][1].all()
        assert found["n"][1].dtype == torch.int32

    @pytest.mark.parametrize("name", ["float8_e4m3fn", "bool", "bfloat16"])
    def test_zeros_of_any_type(self, name: str) -> None:
        found = made("zeros", make_case({"y": torch.ones(3).to(getattr(torch, name))}))
        assert found["y"][0].float().tolist() == [0.0, 0.0, 0.0]

    def test_zeros_of_a_scalar(self) -> None:
        assert made("zeros", make_case({"y": torch.tensor(3.0)}))["y"][0] == 0.0

    def test_stale_are_those_of_another_trial(self) -> None:
        case = make_case({"y": torch.ones(2)}, earlier={"y": torch.full((2,), 5.0)})
        assert made("stale", case)["all outputs"][0].tolist() == [5.0, 5.0]
        assert made("stale", make_case({"y": torch.ones(2)})) == {}

    def test_swapped_ones_are_alike(self) -> None:
        shapes = {name: ["n"] for name in "yzi"} | {"w": ["m"]}
        outputs = {
            "y": torch.zeros(2),
            "i": torch.zeros(2).int(),
            "z": torch.ones(2),
            "w": torch.ones(3),
        }
        found = made("swapped_outputs", make_case(outputs, shapes=shapes))
        assert list(found) == ["y and z"]
        assert found["y and z"][0].tolist() == [1.0, 1.0]
        assert found["y and z"][2].tolist() == [0.0, 0.0]


class TestRegion:
    def test_transposed_where_two_axes_are_equal(self) -> None:
        square = torch.arange(9.0).reshape(3, 3)
        assert torch.equal(made("transposed", make_case({"y": square}))["y"][0], square.T)
        outer = torch.arange(18.0).reshape(3, 2, 3)
        found = made("transposed", make_case({"y": outer}))["y"][0]
        assert torch.equal(found, outer.transpose(0, 2))

    @pytest.mark.parametrize("shape", [(), (4,), (2, 3), (1, 1)])
    def test_not_transposed_otherwise(self, shape: tuple[int, ...]) -> None:
        assert made("transposed", make_case({"y": torch.ones(shape)})) == {}

    def test_dropped_tile_is_the_last_one(self) -> None:
        found = made("dropped_tile", make_case({"y": torch.ones(2, 16, 1024)}))["y"][0]
        assert not found[:, 14:, 960:].any()
        found[:, 14:, 960:] = 1.0
        assert found.all()

    def test_dropped_tile_of_narrow_types(self) -> None:
        right = torch.ones(16, 2).to(torch.float8_e4m3fn)
        found = made("dropped_tile", make_case({"y": right}))["y"][0]
        assert found.dtype == right.dtype
        assert float(found.float().sum()) == 30.0

    def test_dropped_tile_of_a_number_there_is_none(self) -> None:
        assert made("dropped_tile", make_case({"y": torch.ones(1, 1)})) == {}

    def test_off_by_one_row(self) -> None:
        right = torch.arange(6.0).reshape(1, 3, 2)
        found = made("off_by_one", make_case({"y": right}))["y"][0]
        assert found.tolist() == [[[4.0, 5.0], [0.0, 1.0], [2.0, 3.0]]]

    def test_wrong_mask_on_both_sides(self) -> None:
        found = made("wrong_mask", make_case({"y": torch.ones(3, 3)}))
        assert torch.equal(found["y, above"][0], torch.ones(3, 3).tril())
        assert torch.equal(found["y, below"][0], torch.ones(3, 3).triu())

    def test_no_mask_for_a_row(self) -> None:
        assert made("wrong_mask", make_case({"y": torch.ones(1, 4)})) == {}
        assert made("wrong_mask", make_case({"y": torch.ones(4)})) == {}

    def test_the_right_outputs_stay_as_they_are(self) -> None:
        right = drawn(8, 8)
        case = make_case({"y": right.clone()}, reference=lambda inputs: [torch.zeros(8, 8)])
        for name in MUTANTS:
            made(name, case)
        assert torch.equal(case.trial.expected[0], right)


class TestContraction:
    def matmul(self, k: int = 16) -> Case:
        a, b = drawn(4, k), drawn(k, 5, seed=1)
        return make_case(
            {"c": a @ b, "a_norm": a.norm(dim=1)},
            inputs={"a": a, "b": b},
            shapes={"a": ["m", "k"], "b": ["k", "n"], "c": ["m", "n"], "a_norm": ["m"]},
            reference=lambda values: [values[0] @ values[1], values[0].norm(dim=1)],
        )

    def test_the_end_of_the_sum_is_left_out(self) -> None:
        case = self.matmul()
        a, b = case.trial.inputs
        outputs = made("truncated_contraction", case)["axis k"]
        assert torch.allclose(outputs[0], a[:, :14] @ b[:14])
        assert torch.allclose(outputs[1], a[:, :14].norm(dim=1))

    def test_an_axis_of_an_output_is_summed_over_for_the_others(self) -> None:
        found = made("truncated_contraction", self.matmul())
        assert sorted(found) == ["axis k", "axis n"]
        assert torch.equal(found["axis n"][0], self.matmul().trial.expected[0])

    def test_the_inputs_stay_as_they_are(self) -> None:
        case = self.matmul()
        before = [value.clone() for value in case.trial.inputs]
        made("truncated_contraction", case)
        assert all(map(torch.equal, case.trial.inputs, before))

    def test_a_sum_of_one_term_cannot_be_cut(self) -> None:
        assert "axis k" not in made("truncated_contraction", self.matmul(1))

    def test_indices_are_not_cut(self) -> None:
        case = make_case({"y": torch.ones(2)}, inputs={"i": torch.arange(9)}, shapes={"i": ["k"]})
        assert made("truncated_contraction", case) == {}


class TestPrecision:
    @pytest.mark.parametrize(
        ("dtype", "coarser", "worst"),
        [
            ("float32", "bfloat16", 2**-8),
            ("bfloat16", "float8_e4m3fn", 2**-4),
            ("float16", "float8_e4m3fn", 2**-4),
        ],
    )
    def test_rounds_to_the_next_coarser_type(self, dtype: str, coarser: str, worst: float) -> None:
        right = drawn(64, 64).to(getattr(torch, dtype))
        case = make_case({"y": right}, inputs={"x": torch.ones(2).to(right.dtype)})
        found = made("downcast", case)[f"y, to {coarser}"][0]
        assert found.dtype == right.dtype
        large = right.abs() > 0.1
        error = ((found.double() - right.double()) / right.double()).abs()[large]
        assert worst / 2 < float(error.max()) <= worst * 1.1

    def test_the_inputs_count(self) -> None:
        case = make_case({"y": drawn(64, 64)}, inputs={"x": torch.ones(2).bfloat16()})
        assert list(made("downcast", case)) == ["y, to float8_e4m3fn"]

    def test_float8_to_float4(self) -> None:
        right = drawn(64, 64).to(torch.float8_e4m3fn)
        case = make_case({"y": right}, inputs={"x": torch.ones(2).to(torch.float8_e4m3fn)})
        found = made("downcast", case)["y, to float4_e2m1"][0]
        assert len(found.float().abs().unique()) <= 8

    def test_nonfinite_ones_stay(self) -> None:
        right = drawn(100)
        right[3], right[4] = -math.inf, math.nan
        found = made("downcast", make_case({"y": right}))["y, to bfloat16"][0]
        assert found[3] == -math.inf
        assert found[4].isnan()

    @pytest.mark.parametrize("right", [torch.ones(100).int(), torch.ones(8), torch.ones(100) > 0])
    def test_not_of_integers_and_few_numbers(self, right: Any) -> None:
        assert made("downcast", make_case({"y": right})) == {}


class TestRightAnswers:
    def test_one_rounding_is_no_mutant(self) -> None:
        right = drawn(16, 16)
        case = make_case({"y": right})
        assert case.is_right([right.clone()])
        assert case.is_right([right * (1 + 2**-24)])
        assert not case.is_right([right * (1 + 2**-20)])

    def test_integers_have_none(self) -> None:
        case = make_case({"y": torch.arange(4)})
        assert case.is_right([torch.arange(4)])
        assert not case.is_right([torch.arange(4) + 1])

    def test_wider_references_are_brought_into_the_declared_type(self) -> None:
        case = make_case({"y": torch.ones(2).bfloat16()})
        case.trial.expected[0] = torch.tensor([1.001, 2.0], dtype=torch.float64)
        assert case.right[0].dtype == torch.bfloat16
        assert all(out[0].dtype == torch.bfloat16 for out in made("off_by_one", case).values())
