"""Canonical arguments, and what becomes of them for a definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.binding import EXTRAS, reordered, signature_of


class Fallback:
    """What stands for the original of a routed call."""

    def __init__(self):
        self.declined = None

    def decline(self, reason):
        self.declined = reason
        return "declined"


def given_to(signature, inputs, *args):
    """Return what a definition's call gets for canonical arguments, and the fallback."""
    fallback = Fallback()
    call = reordered(lambda args, kwargs, fallback: args, signature, inputs)
    return call(args, None, fallback), fallback


class TestReordered:
    @pytest.mark.parametrize("value", [2.0, 1, True, "1.0", [1.0], None, float("nan")])
    def test_an_extra_that_is_not_its_default(self, value):
        got, fallback = given_to(signature_of("x", eps=1.0), ["x"], 1, value)
        assert (got, fallback.declined) == ("declined", EXTRAS)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            (["x"], "parameter 'y' is neither"),
            (["x", "y", "eps", "bias"], "no parameter is input 'bias'"),
            (["x", "y", "bias"], "no parameter is input 'bias'"),  # though it is the third, as eps
            (["y", "other"], "no parameter is input 'other'"),
            (["a", "b"], "no parameter is input 'a'"),
            (["a", "b", "c"], "no parameter is input 'a'"),
        ],
    )
    def test_what_cannot_be(self, inputs, message):
        with pytest.raises(ConfigError, match=message):
            reordered(None, signature_of("x", "y", eps=1.0), inputs)

    @given(st.permutations("abcdef"), st.integers(0, 6), st.data())
    def test_each_input_gets_the_argument_of_its_name(self, names, required, data):
        """Some of what has a default may be lacking; order is the definition's."""
        plain, defaulted = names[:required], names[required:]
        kept = data.draw(st.sets(st.sampled_from(defaulted)) if defaulted else st.just(set()))
        inputs = data.draw(st.permutations([*plain, *sorted(kept)]))
        values = {name: f"value of {name}" for name in names}
        values.update({name: None for name in defaulted if name not in kept})
        signature = signature_of(*plain, **dict.fromkeys(defaulted))
        got, _ = given_to(signature, inputs, *values.values())
        assert got == tuple(values[name] for name in inputs)
