"""Seeds, and digests of inputs and definitions."""

import pytest

from flashinfer_bench.bench.digests import (
    definition_digest,
    fresh_seed,
    inputs_crc32,
    trial_seed,
)
from flashinfer_bench.data import TensorSpec

MIB = 1 << 20


class TestSeeds:
    def test_fresh_ones_differ_and_survive_json_readers(self):
        drawn = {fresh_seed() for _ in range(100)}
        assert len(drawn) == 100
        assert all(0 <= seed < 2**53 for seed in drawn)

    def test_stay_the_same_for_ever(self):
        # A trace's seed must give the same inputs in every later release.
        assert trial_seed(0, 0) == 1576848291327681832
        assert trial_seed(2**53 - 1, 2) == 3918840776600264507


class TestInputs:
    def test_stays_the_same_for_ever(self):
        import torch

        inputs = [torch.arange(6, dtype=torch.int32).reshape(2, 3), 2.5, True]
        assert inputs_crc32([inputs, [1]]) == "7b155f42"

    def test_everything_counts(self):
        import torch

        x = torch.arange(6.0)
        others = [x.reshape(2, 3), x.double(), x + 1, x.flip(0), x[:5]]
        digests = [inputs_crc32([[one]]) for one in (x, *others)]
        assert len(set(digests)) == 6
        assert inputs_crc32([[x, 1]]) != inputs_crc32([[x, 1.0]])
        assert inputs_crc32([[x], [x]]) != inputs_crc32([[x]])

    def test_of_large_tensors_pieces_from_first_to_last_byte_count(self):
        import torch

        x = torch.zeros(20 * MIB, dtype=torch.uint8)
        before = inputs_crc32([[x]])
        for place in (0, MIB - 1, 20 * MIB - 1):
            x[place] = 1
            assert inputs_crc32([[x]]) != before
            x[place] = 0
        assert inputs_crc32([[x]]) == before


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
def test_everything_in_a_definition_counts(problems, change):
    changed = problems.definition(**change)
    assert definition_digest(problems.definition()) != definition_digest(changed)
