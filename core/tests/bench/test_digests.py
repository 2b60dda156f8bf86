"""Digests of inputs, definitions and secret seeds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.judge.digests import (
    definition_digest,
    inputs_crc32,
    seed_commitment,
)
from flashinfer_bench.data import Definition, TensorSpec

MIB = 1 << 20


class TestInputs:
    def test_stays_the_same_for_ever(self) -> None:
        import torch

        inputs = [torch.arange(6, dtype=torch.int32).reshape(2, 3), 2.5, True]
        assert inputs_crc32([inputs, [1]]) == "7b155f42"

    def test_everything_counts(self) -> None:
        import torch

        x = torch.arange(6.0)
        others = [x.reshape(2, 3), x.double(), x + 1, x.flip(0), x[:5]]
        digests = [inputs_crc32([[one]]) for one in (x, *others)]
        assert len(set(digests)) == 6
        assert inputs_crc32([[x, 1]]) != inputs_crc32([[x, 1.0]])
        assert inputs_crc32([[x], [x]]) != inputs_crc32([[x]])

    def test_strides_do_not(self) -> None:
        import torch

        x = torch.arange(12.0).reshape(3, 4)
        assert inputs_crc32([[x.t()]]) == inputs_crc32([[x.t().contiguous()]])

    def test_types_of_few_bits(self) -> None:
        import torch

        x = torch.ones(4).to(torch.float8_e4m3fn)
        assert inputs_crc32([[x]]) != inputs_crc32([[x.to(torch.float8_e5m2)]])

    def test_of_large_tensors_pieces_from_first_to_last_byte_count(self) -> None:
        import torch

        x = torch.zeros(20 * MIB, dtype=torch.uint8)
        before = inputs_crc32([[x]])
        for place in (0, MIB - 1, 20 * MIB - 1):
            x[place] = 1
            assert inputs_crc32([[x]]) != before
            x[place] = 0
        assert inputs_crc32([[x]]) == before


class TestDefinition:
    @pytest.fixture
    def make(self, problems: Any) -> Any:
        def make(**changes: Any) -> Definition:
            made: Definition = problems.definition(**changes)
            return made

        return make

    def test_the_description_does_not_count(self, make: Any) -> None:
        assert definition_digest(make()) == definition_digest(make(description="of x"))
        assert len(definition_digest(make())) == 16

    @pytest.mark.parametrize(
        "change",
        [
            {"name": "twice"},
            {"op_type": "other"},
            {"reference": "def run(x):\n    return 2 * x"},
            {"tags": ["a"]},
            {"constraints": ["n > 1"]},
            {"tolerance": {"atol": 0.5}},
            {"outputs": {"z": TensorSpec(shape=["n", "k"], dtype="float32")}},
        ],
    )
    def test_everything_else_does(self, make: Any, change: dict[str, Any]) -> None:
        assert definition_digest(make()) != definition_digest(make(**change))

    def test_the_order_of_inputs_counts_and_that_of_axes_does_not(self, make: Any) -> None:
        one = make()
        spec = TensorSpec(shape=["n"], dtype="float32")
        first, second = {"x": spec, "w": spec}, {"w": spec, "x": spec}
        source = {"reference": "def run(a, b):\n    return a * b"}
        digests = [definition_digest(make(inputs=each, **source)) for each in (first, second)]
        assert digests[0] != digests[1]
        turned = dict(reversed(list(one.axes.items())))
        assert definition_digest(make(axes=turned)) == definition_digest(one)

    def test_survives_being_stored(self, make: Any) -> None:
        one = make(tolerance={"outputs": {"y": {"atol": 1e-3}}})
        again = Definition.model_validate_json(one.model_dump_json(exclude_none=True))
        assert definition_digest(again) == definition_digest(one)


class TestCommitment:
    @given(st.integers(0, 2**53 - 1))
    def test_does_not_tell_the_seed(self, seed: int) -> None:
        told = seed_commitment(seed)
        assert (len(told), told) == (8, seed_commitment(seed))
        assert told != f"{seed & 0xFFFFFFFF:08x}" != seed_commitment(seed + 1)
