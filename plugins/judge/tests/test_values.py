"""Inputs of timed calls: how each kind is made fresh."""

import sys
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fib_judge.values import Values
from flashinfer_bench.data import RandomInput, SafetensorsInput, TensorSpec
from flashinfer_bench.plugins import Catalog, OpFamilySpec, default_catalog, reset_default_catalog
from flashinfer_bench.tensors import dtype_name, random_tensor

FLOATS = ["float32", "float16", "bfloat16"]
NARROW = ["float8_e4m3fn", "float8_e5m2"]
OTHERS = ["int8", "int32", "int64", "bool", "float4_e2m1"]
SEEDS = st.integers(0, 2**53 - 1)
NUMBERS = st.integers(0, 2**51)
PAIRS = st.lists(NUMBERS, min_size=2, max_size=2, unique=True)
MANY = (64, 96)
few = settings(max_examples=12, deadline=None)


@pytest.fixture(scope="module")
def values_of(problems):
    """``values_of(seed, random, recorded)``: of inputs by name, tensors or scalars."""

    def make(seed, random=None, recorded=None, *, op_type="elementwise"):
        given = {**(random or {}), **(recorded or {})}
        specs, sources = {}, {}
        for name, one in given.items():
            shape, dtype = getattr(one, "shape", None), getattr(one, "dtype", torch.float32)
            sizes = None if shape is None else [*map(str, shape)]
            specs[name] = TensorSpec(shape=sizes, dtype=dtype_name(dtype))
            file = SafetensorsInput(path=f"{name}.safetensors", tensor_key="t")
            sources[name] = RandomInput() if random and name in random else file
        definition = problems.definition(
            op_type=op_type,
            axes={},
            inputs=specs,
            outputs={"out": TensorSpec(shape=None, dtype="float32")},
        )
        workload = problems.workload(uuid="w", **sources).model_copy(update={"axes": {}})
        return Values(definition, workload, None, [*given.values()], seed)

    return make


def standing(dtype, shape=MANY):
    return random_tensor(shape, dtype, 7)


def alike(one, other):
    """Whether two tensors have the same bits."""
    if not isinstance(one, torch.Tensor):
        return one == other
    return one.reshape(-1).view(torch.uint8).equal(other.reshape(-1).view(torch.uint8))


def shared(one, other):
    """Return which share of elements is equal within a tolerance."""
    return torch.isclose(one.double(), other.double(), rtol=1e-2, atol=1e-3).double().mean().item()


class TestRules:
    @pytest.mark.parametrize("dtype", [*FLOATS, *NARROW, *OTHERS])
    def test_each_type_in_each_shape(self, dtype, values_of):
        for shape in (MANY, (), (1,), (2, 1, 3)):
            one = standing(dtype, shape)
            values = values_of(3, {"random": one}, {"recorded": one, "scalar": 2.5})
            recorded = "kept" if dtype in OTHERS else "scaled"
            random = "mixed" if dtype in FLOATS else "drawn"
            assert values.rules == {"random": random, "recorded": recorded, "scalar": "kept"}
            made = values.draw(4)
            assert [(x.shape, x.dtype) for x in made[:2]] == [(one.shape, one.dtype)] * 2
            assert made[2] == 2.5
            assert alike(made[1], one) == (recorded == "kept")

    def test_what_is_empty_is_kept(self, values_of):
        empty = standing("float32", (0, 3))
        values = values_of(3, {"x": empty}, {"z": empty})
        assert values.rules == {"x": "kept", "z": "kept"}
        assert values.draw(1)[0].shape == (0, 3)

    @given(SEEDS, PAIRS)
    @few
    def test_a_number_has_its_own_values(self, values_of, seed, numbers):
        random = {dtype: standing(dtype) for dtype in (*FLOATS, *NARROW, *OTHERS)}
        recorded = {f"kept_{name}": one for name, one in random.items()}
        values, again = (values_of(seed, random, recorded) for _ in range(2))
        first, second = map(values.draw, numbers)
        assert all(map(alike, first, again.draw(numbers[0])))
        under_another_seed = values_of(seed + 1, random, recorded).draw(numbers[0])
        for other in (second, under_another_seed):
            found = zip(values.rules.items(), map(alike, first, other), strict=True)
            assert all(same == (rule == "kept") for (_, rule), same in found)

    def test_replayable_is_what_never_changes(self, values_of):
        indices, floats = standing("int32"), standing("float32")
        assert values_of(1, None, {"i": indices, "s": 1.0}).is_replayable
        assert values_of(1, {"empty": standing("float32", (0,))}, {"i": indices}).is_replayable
        assert not values_of(1, None, {"i": indices, "x": floats}).is_replayable
        assert not values_of(1, {"i": indices}).is_replayable


class TestMixed:
    @pytest.mark.parametrize("dtype", FLOATS)
    @given(SEEDS, NUMBERS)
    @few
    def test_normal_with_a_scale_of_its_own(self, dtype, values_of, seed, number):
        values = values_of(seed, {"x": standing(dtype)})
        drawn = [values.draw(number + more)[0].double() for more in range(12)]
        scales = [one.std().item() for one in drawn]
        assert 0.55 < min(scales) < 0.95 * max(scales) < 1.0
        for one, scale in zip(drawn, scales, strict=True):
            assert abs(one.mean().item()) < 0.1 * scale
            assert (one / scale).pow(4).mean().item() == pytest.approx(3.0, abs=0.6)
            beyond = (one.abs() > scale).double().mean().item()
            assert beyond == pytest.approx(0.317, abs=0.04)

    def test_the_two_draws_are_never_the_same(self, values_of):
        """Of two elements, half would be, and be larger by up to half."""
        two = standing("float32", (2,))
        drawn = torch.stack([values_of(seed, {"x": two}).draw(3)[0] for seed in range(600)])
        assert drawn.std().item() == pytest.approx(0.81, abs=0.07)

    @given(SEEDS, NUMBERS)
    @few
    def test_nothing_that_is_known_gives_another(self, values_of, seed, number):
        """Neither a combination of two earlier ones, nor what of one is kept in any order."""
        values = values_of(seed, {"x": standing("float32")})
        first, second, third = (values.draw(number + n)[0].reshape(-1) for n in range(3))
        basis = torch.stack([first, second, first.abs(), second.abs(), torch.ones_like(first)], 1)
        best = basis @ torch.linalg.lstsq(basis, third[:, None]).solution
        assert (best[:, 0] - third).norm() > 0.9 * third.norm()
        assert shared(best[:, 0], third) < 0.1
        norms = [one.norm().item() for one in (first, second, third)]
        assert len(set(norms)) == 3


class TestScaled:
    SPECIAL = (0.0, float("nan"), float("inf"), 1.0, 2.0, 300.0)

    @pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
    @pytest.mark.parametrize("sign", [1, -1])
    @given(SEEDS, NUMBERS)
    @few
    def test_zeros_and_what_is_no_number_stay_and_the_sign(
        self, dtype, sign, values_of, seed, number
    ):
        special = [sign * one for one in self.SPECIAL]
        given = torch.tensor(special * 50).to(getattr(torch, dtype))
        (made,) = values_of(seed, None, {"x": given}).draw(number)
        given, made = given.double(), made.double()
        for kept in (torch.isnan, torch.isinf, lambda one: one == 0):
            assert kept(given).equal(kept(made))
        assert (given * made).nan_to_num().min() >= 0

    @given(SEEDS, NUMBERS)
    @few
    def test_near_what_is_recorded_but_no_multiple_of_it(self, values_of, seed, number):
        recorded = standing("float32")
        values = values_of(seed, None, {"x": recorded})
        one, other = (values.draw(number + n)[0] for n in range(2))
        ratios = (one / recorded).reshape(-1)
        assert 0.4 < (ratios > 0).double().mean().item() < 0.6  # it has both signs
        assert 0.45 < ratios.abs().median().item() < 1.1
        assert ratios.abs().log().std().item() == pytest.approx(0.2, abs=0.02)
        for known in (recorded, other):
            assert shared(known * (one / known).abs().median() * (one / known).sign(), one) < 0.1

    @pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
    def test_a_mask_of_the_least_number_stays_finite(self, dtype, values_of):
        mask = torch.zeros(MANY).to(getattr(torch, dtype))
        mask.view(-1)[::3] = torch.finfo(mask.dtype).min
        for number in range(5):
            (made,) = values_of(number, None, {"x": mask}).draw(number)
            assert made.double().isfinite().all()
            assert (made.double() < 0).equal(mask.double() < 0)


class TestDrawn:
    @given(SEEDS, NUMBERS)
    @few
    def test_as_the_generator_draws(self, values_of, seed, number):
        random = {dtype: standing(dtype) for dtype in ("int8", "int32", "bool", "float8_e4m3fn")}
        small, index, flag, narrow = values_of(seed, random).draw(number)
        assert small.min() < -100
        assert small.max() > 100
        assert 0 <= index.min() < index.max() < 128
        assert flag.double().mean().item() == pytest.approx(0.5, abs=0.05)
        assert narrow.float().std().item() == pytest.approx(1.0, abs=0.1)

    def test_probabilities_are_peaked_now_and_then(self, values_of):
        """A sampler that knows a part of the tokens only passes where all weigh about the same."""
        probs = standing("float32").softmax(-1)
        values = values_of(5, {"probs": probs}, op_type="sampling")
        drawn = [values.draw(number)[0] for number in range(24)]
        assert all((one.sum(-1) - 1).abs().max() < 1e-5 and (one >= 0).all() for one in drawn)
        heaviest = sorted(one.amax(-1).median().item() for one in drawn)
        assert heaviest[0] < 0.2 < 0.5 < heaviest[-1]

    def test_a_family_that_makes_inputs_is_asked(self, values_of, monkeypatch):
        made = ModuleType("a_family_of_inputs")
        made.inputs = lambda definition, axes, seed: {"x": torch.full(MANY, float(seed % 1000))}
        monkeypatch.setitem(sys.modules, made.__name__, made)
        family = OpFamilySpec(
            name="made", op_types=("made",), inputs=f"{made.__name__}:inputs", summary="A test"
        )
        before = default_catalog()
        reset_default_catalog(Catalog.of(family))
        try:
            values = values_of(5, {"x": standing("float32")}, op_type="made")
            assert values.rules == {"x": "drawn"}
            first, second = (values.draw(number)[0] for number in range(2))
        finally:
            reset_default_catalog(before)
        assert [len(one.unique()) for one in (first, second)] == [1, 1]
        assert not first.equal(second)
