"""The nearest recorded key, held against a search that looks at everything."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashinfer_bench.apply.keys import ApplyKey
from flashinfer_bench.apply.nearest import NearestKeys, nearest_choice
from flashinfer_bench.errors import ConfigError


def key(feats=(), **axes):
    return ApplyKey(tuple(axes.items()), tuple(feats))


def keys(*sizes):
    return [key(m=size) for size in sizes]


class TestOneAxis:
    @pytest.mark.parametrize(
        ("wanted", "found"),
        [(16, 16), (17, 16), (22, 16), (23, 32), (31, 32), (40, 32), (64, 32), (8, 16)],
    )
    def test_it_is_the_nearest_on_a_logarithmic_scale(self, wanted, found):
        # The middle of 16 and 32 is 22.6, not 24.
        assert nearest_choice(keys(16, 32), key(m=wanted), 2.0) == key(m=found)

    @pytest.mark.parametrize("wanted", [1, 7, 65, 10**6, 0])
    def test_beyond_the_ratio_there_is_none(self, wanted):
        assert nearest_choice(keys(16, 32), key(m=wanted), 2.0) is None

    def test_the_ratio_itself_is_within(self):
        assert nearest_choice(keys(16), key(m=32), 2.0) == key(m=16)
        assert nearest_choice(keys(16), key(m=8), 2.0) == key(m=16)
        assert nearest_choice(keys(10), key(m=15), 1.5) == key(m=10)
        assert nearest_choice(keys(10), key(m=16), 1.5) is None

    def test_of_two_at_the_same_distance_it_is_the_smaller(self):
        for given_keys in (keys(8, 18), keys(18, 8)):
            assert nearest_choice(given_keys, key(m=12), 2.0) == key(m=8)

    def test_a_ratio_of_one_allows_equal_keys_only(self):
        assert nearest_choice(keys(16, 17), key(m=17), 1.0) == key(m=17)
        assert nearest_choice(keys(16, 18), key(m=17), 1.0) is None

    def test_without_a_limit_all_but_zero_are_near(self):
        assert nearest_choice(keys(0, 1), key(m=10**9), math.inf) == key(m=1)
        assert nearest_choice(keys(0), key(m=10**9), math.inf) is None

    def test_only_zero_is_near_to_zero(self):
        assert nearest_choice(keys(0, 1), key(m=0), 100.0) == key(m=0)
        assert nearest_choice(keys(1), key(m=0), math.inf) is None

    def test_sizes_that_no_float_can_tell_apart(self):
        large = 2**60
        assert nearest_choice(keys(large, large + 2), key(m=large + 3), 2.0) == key(m=large + 2)
        assert nearest_choice(keys(10**400), key(m=10**400 + 1), 2.0) == key(m=10**400)
        assert nearest_choice(keys(10**400), key(m=1), 2.0) is None


class TestSeveralAxes:
    def test_each_axis_must_be_within_the_ratio(self):
        recorded = [key(m=16, n=16)]
        assert nearest_choice(recorded, key(m=32, n=8), 2.0) == recorded[0]
        assert nearest_choice(recorded, key(m=16, n=33), 2.0) is None
        assert nearest_choice(recorded, key(m=33, n=16), 2.0) is None

    def test_distances_add_up(self):
        recorded = [key(m=12, n=12), key(m=20, n=10)]
        assert nearest_choice(recorded, key(m=10, n=10), 2.0) == recorded[0]  # 1.44 against 2
        assert nearest_choice(recorded, key(m=14, n=10), 2.0) == recorded[0]  # 1.4 against 1.43
        assert nearest_choice(recorded, key(m=15, n=10), 2.0) == recorded[1]  # 1.5 against 1.33

    def test_axes_have_the_same_names_in_the_same_order(self):
        assert nearest_choice([key(m=16, n=16)], key(n=16, m=16), 2.0) is None
        assert nearest_choice([key(m=16)], key(n=16), 2.0) is None
        assert nearest_choice([key(m=16)], key(m=16, n=16), 2.0) is None


class TestFeatures:
    def test_all_are_equal(self):
        causal, other = [("causal", True)], [("causal", False)]
        recorded = [key(causal, m=16), key(other, m=20), key(m=19)]
        assert nearest_choice(recorded, key(causal, m=20), 2.0) == recorded[0]
        assert nearest_choice(recorded, key(m=20), 2.0) == recorded[2]
        assert nearest_choice(recorded, key([("causal", None)], m=20), 2.0) is None

    def test_a_key_without_axes_is_near_to_itself(self):
        recorded = [key(), key([("causal", True)])]
        assert nearest_choice(recorded, key([("causal", True)]), 2.0) == recorded[1]
        assert nearest_choice(recorded, key(), 1.0) == recorded[0]
        assert nearest_choice(recorded[:1], key([("causal", True)]), 2.0) is None


def test_nothing_is_near_where_there_is_nothing():
    assert nearest_choice([], key(m=1), 2.0) is None
    assert nearest_choice({}, key(), 2.0) is None


def test_a_mapping_is_taken_by_its_keys():
    assert nearest_choice({key(m=16): "solution"}, key(m=20), 2.0) == key(m=16)


@pytest.mark.parametrize("ratio", [0.5, 0, -2, math.nan, -math.inf])
def test_a_ratio_below_one_is_refused(ratio):
    with pytest.raises(ConfigError, match=r"nearest_ratio=.* give a number from 1 on"):
        nearest_choice(keys(16), key(m=16), ratio)


def test_a_search_looks_at_the_keys_within_the_ratio_only(monkeypatch):
    from flashinfer_bench.apply import nearest

    looked_at = []
    real = nearest._near
    monkeypatch.setattr(nearest, "_near", lambda *args: looked_at.append(args[1]) or real(*args))
    # Batches are few, lengths are many: it is the lengths by which they are sorted.
    recorded = NearestKeys([key(batch=b, length=n) for b in (1, 2) for n in range(1, 5001)])
    assert recorded.find(key(batch=3, length=8000), 1.7) == key(batch=2, length=5000)
    assert len(looked_at) < 1000


sizes = st.integers(0, 40) | st.integers(0, 2**70)
some_feats = st.sampled_from([(), (("causal", True),), (("causal", False),)])
some_keys = st.builds(
    lambda axes, feats: ApplyKey(tuple(zip("mnk", axes, strict=False)), feats),
    st.lists(sizes, min_size=0, max_size=3),
    some_feats,
)
ratios = st.floats(1, 50) | st.sampled_from([1.0, 2.0, 1.5, math.inf])


def oracle(recorded, wanted, ratio):
    """Look at every key, in exact arithmetic."""
    found = []
    for each in recorded:
        names = [axis for axis, _ in each.axes] == [axis for axis, _ in wanted.axes]
        if not names or each.feats != wanted.feats:
            continue
        product, near = Fraction(1), True
        for (_, one), (_, other) in zip(each.axes, wanted.axes, strict=True):
            if one == other:
                continue
            if not one or not other:
                near = False
                break
            factor = max(Fraction(one, other), Fraction(other, one))
            near = near and factor <= ratio
            product *= factor
        if near:
            found.append((product, [size for _, size in each.axes], each))
    return min(found, key=lambda each: each[:2])[2] if found else None


@given(recorded=st.lists(some_keys, max_size=12), wanted=some_keys, ratio=ratios)
@example(recorded=[ApplyKey((("m", 3),))], wanted=ApplyKey((("m", 10),)), ratio=10 / 3)
@example(recorded=[ApplyKey((("m", 10),))], wanted=ApplyKey((("m", 3),)), ratio=10 / 3)
def test_any_search_finds_what_a_look_at_everything_finds(recorded, wanted, ratio):
    expected = oracle(recorded, wanted, ratio)
    assert nearest_choice(recorded, wanted, ratio) == expected
    assert nearest_choice(reversed(recorded), wanted, ratio) == expected


@given(recorded=st.lists(some_keys, min_size=1, max_size=8), ratio=ratios)
def test_a_key_that_is_there_is_its_own_nearest(recorded, ratio):
    prepared = NearestKeys(recorded)
    assert all(prepared.find(each, ratio) == each for each in recorded)
