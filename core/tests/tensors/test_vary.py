"""Variations: what the judge computes and what a process shows are the same, and always new."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from flashinfer_bench.data import (  # noqa: E402
    AxisConst,
    Definition,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    Workload,
)
from flashinfer_bench.tensors import random_tensor, to_torch_dtype  # noqa: E402
from flashinfer_bench.tensors.vary import (  # noqa: E402  # noqa: E402
    ALIGNMENT,
    Freedom,
    Rotor,
    digest,
    draw_variation,
    freedoms,
    patch_count,
    varied,
)

DTYPES = (
    *("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1"),
    *("int8", "int32", "int64", "bool"),
)
RECORDED = SafetensorsInput(path="x.safetensors", tensor_key="x")


def problem(
    sources: dict[str, Any],
    shape: tuple[int, ...] = (64, 96),
    dtype: str = "float32",
    op_type: str = "other",
) -> tuple[Definition, Workload]:
    """Make a definition with one input of each source, all of one shape and type."""
    axes = {f"a{place}": AxisConst(value=size) for place, size in enumerate(shape)}
    spec = TensorSpec(shape=list(axes), dtype=dtype)
    scalar = TensorSpec(shape=None, dtype="float32")
    definition = Definition(
        name="d",
        op_type=op_type,
        axes=axes,
        inputs={
            name: scalar if isinstance(source, ScalarInput) else spec
            for name, source in sources.items()
        },
        outputs={"out": spec},
        reference="def run(*inputs):\n    return inputs[0]",
    )
    return definition, Workload(axes={}, inputs=sources, uuid="w")


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(-1).view(torch.uint8)


def same(left: Any, right: Any) -> bool:
    if not isinstance(left, torch.Tensor):
        return left == right
    return (
        left.shape == right.shape
        and left.dtype == right.dtype
        and bool(torch.equal(bits(left), bits(right)))
    )


@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
    recorded=st.booleans(),
)
def test_any_sequence_of_variations_leaves_the_rotor_intact(
    shape: tuple[int, ...], dtype: str, seed: int, recorded: bool
) -> None:
    definition, workload = problem({"x": RECORDED if recorded else RandomInput()}, shape, dtype)
    inputs = [random_tensor(shape, dtype, seed)]
    free = freedoms(definition, workload, inputs)
    rotor, rng = Rotor(inputs[0], free[0].way), random.Random(seed)
    before = bits(inputs[0]).clone()
    for _ in range(4):
        variation = draw_variation(free, inputs, 0, rng)
        view = rotor.at(variation.shifts[0])
        rotor.mix(variation.mixes[0])
        for patch in variation.patches:
            rotor.patch(patch.positions, patch.values)
        assert same(view, varied(free, inputs, variation)[0])
        assert view.is_contiguous()
    assert rotor.is_intact()
    assert same(rotor.at(0), inputs[0])
    assert torch.equal(bits(inputs[0]), before)


def test_random_floats_are_rotated_and_their_signs_change() -> None:
    definition, workload = problem({"x": RandomInput()})
    value = torch.randn(64, 96)
    (free,) = freedoms(definition, workload, [value])
    assert (free.way, free.patched, free.step) == ("signs", False, ALIGNMENT // 4)
    variation = draw_variation([free], [value], 0, random.Random(5))
    (seen,) = varied([free], [value], replace(variation, patches=()))
    rotated = value.view(-1).roll(-variation.shifts[0])
    assert torch.equal(seen.view(-1).abs(), rotated.abs())
    changed = (seen.view(-1) != rotated).double().mean()
    assert 0.45 < changed < 0.55


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name.startswith("float")])
def test_signs_change_in_every_type_of_float(dtype: str) -> None:
    definition, workload = problem({"x": RandomInput()}, (64, 64), dtype)
    value = random_tensor((64, 64), dtype, 3)
    (free,) = freedoms(definition, workload, [value])
    variation = replace(draw_variation([free], [value], 0, random.Random(5)), patches=())
    seen = bits(varied([free], [value], variation)[0])
    width = value.element_size()
    rotated = bits(value).roll(-variation.shifts[0] * width)
    flipped = (seen ^ rotated).view(-1, width)
    allowed = 0x88 if dtype.startswith("float4") else 0x80
    assert set(flipped[:, -1].tolist()) <= {0, allowed, allowed & 0x80, allowed & 0x08}
    assert not flipped[:, :-1].any()
    assert 0.4 < float((flipped[:, -1] >= 0x80).double().mean()) < 0.6


def test_columns_of_recorded_numbers_are_rotated_by_numbers_of_their_own() -> None:
    definition, workload = problem({"x": RECORDED}, (64, 96))
    value = torch.arange(64 * 96.0).view(64, 96)
    (free,) = freedoms(definition, workload, [value])
    assert (free.way, free.patched) == ("columns", False)
    variation = draw_variation([free], [value], 0, random.Random(5))
    (seen,) = varied([free], [value], variation)
    assert torch.equal(seen % 96, value % 96)
    assert torch.equal(seen.sort(0).values, value)
    assert not {tuple(row.tolist()) for row in value} & {tuple(row.tolist()) for row in seen}


def test_recorded_indices_only_move() -> None:
    definition, workload = problem({"x": RECORDED}, (1000,), "int32")
    value = torch.arange(1000, dtype=torch.int32)
    (free,) = freedoms(definition, workload, [value])
    assert free.way == "move"
    assert not free.patched
    assert free.most > 0
    rng, rotor = random.Random(2), Rotor(value, "move")
    addresses = set()
    for _ in range(20):
        view = rotor.at(draw_variation([free], [value], 0, rng).shifts[0])
        assert torch.equal(view, value)
        addresses.add(view.data_ptr())
    assert len(addresses) > 15


def test_rows_of_probabilities_stay_probabilities() -> None:
    definition, workload = problem({"probs": RandomInput()}, (32, 64), op_type="sampling")
    value = torch.randn(32, 64).softmax(-1)
    (free,) = freedoms(definition, workload, [value])
    variation = draw_variation([free], [value], 0, random.Random(7))
    assert free.way == "rotate"
    assert not free.patched
    torch.testing.assert_close(varied([free], [value], variation)[0].sum(-1), torch.ones(32))


def test_no_two_calls_see_the_same_values_or_addresses() -> None:
    definition, workload = problem({"x": RandomInput()}, (512, 512))
    value = torch.randn(512, 512)
    free = freedoms(definition, workload, [value])
    rotor, rng = Rotor(value, "signs"), random.Random(3)
    seen, addresses = set(), []
    for _ in range(100):
        variation = draw_variation(free, [value], 0, rng)
        view = rotor.at(variation.shifts[0])
        rotor.mix(variation.mixes[0])
        seen.add(digest(bits(view)))
        addresses.append(view.data_ptr())
    assert len(seen) == 100
    assert len(set(addresses)) > 90
    assert all((address - addresses[0]) % ALIGNMENT == 0 for address in addresses)


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 5000, 1 << 20, 1 << 24])
def test_patches_are_spread_over_the_whole_tensor(elements: int) -> None:
    count = patch_count(elements)
    assert count == elements if elements <= 256 else 256 <= count <= 1 << 14
    value = torch.zeros(elements, dtype=torch.int32)
    variation = draw_variation([Freedom("rotate", 1, 0, True)], [value], 0, random.Random(4))
    places = variation.patches[0].positions
    assert len(places) == count
    assert int(places.max()) < elements
    gaps = places.sort().values.diff()
    assert count == 1 or int(gaps.min()) >= 1
    assert count == 1 or int(gaps.max()) <= 2 * -(-elements // count)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(16, 32), (300,), (128, 512)])
def test_random_values_are_exchanged_and_none_comes_twice(
    dtype: str, shape: tuple[int, ...]
) -> None:
    definition, workload = problem({"x": RandomInput()}, shape, dtype)
    count = torch.Size(shape).numel()
    value = (torch.randperm(count) + 1).to(to_torch_dtype(dtype)).view(shape)
    free = freedoms(definition, workload, [value])
    rng = random.Random(6)
    for _ in range(5):
        variation = draw_variation(free, [value], 0, rng)
        (seen,) = varied(free, [value], variation)
        assert torch.equal(seen.abs().view(-1).sort().values, value.view(-1).sort().values)
        (before,) = varied(free, [value], replace(variation, patches=()))
        assert not torch.equal(before, seen)


@pytest.mark.parametrize("way", ["signs", "columns", "rotate", "move", "fixed"])
def test_a_changed_input_is_noticed(way: Any) -> None:
    rotor = Rotor(torch.randn(100, 100), way)
    view = rotor.at(0 if way == "fixed" else 64)
    assert rotor.is_intact()
    view[50, 50] += 1
    assert not rotor.is_intact()


def test_a_shift_beyond_the_buffer_is_refused() -> None:
    rotor = Rotor(torch.randn(1000), "rotate")
    for shift in (-64, 10**9):
        with pytest.raises(ValueError, match="cannot be shifted"):
            rotor.at(shift)


def test_a_position_outside_is_refused() -> None:
    rotor = Rotor(torch.randn(1000), "rotate")
    rotor.at(64)
    with pytest.raises(IndexError):
        rotor.patch(torch.tensor([1000]), torch.tensor([1.0]))


@pytest.mark.parametrize("way", ["rotate", "move", "fixed"])
def test_what_has_neither_signs_nor_columns_to_change_refuses_it(way: Any) -> None:
    rotor = Rotor(torch.randn(100), way)
    rotor.mix(0)
    with pytest.raises(ValueError, match="cannot be mixed"):
        rotor.mix(5)


@pytest.mark.parametrize("way", ["signs", "columns"])
def test_a_process_that_has_not_been_told_the_mix_cannot_know_much(way: Any) -> None:
    value = torch.randn(256, 256)
    rotor = Rotor(value, way)
    before = rotor.at(64).clone()
    rotor.mix(12345)
    changed = (rotor._shown != before).double().mean()
    assert changed > (0.45 if way == "signs" else 0.99)
    assert rotor.is_intact()


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_digest_depends_on_every_byte_and_on_their_order(
    data: bytes, draw: st.DataObject
) -> None:
    place = draw.draw(st.integers(0, len(data) - 1))
    other = bytearray(data)
    other[place] ^= draw.draw(st.integers(1, 255))
    first = torch.tensor(list(data), dtype=torch.uint8)
    assert digest(first) == digest(first.clone())
    assert digest(first) != digest(torch.tensor(list(other), dtype=torch.uint8))
