"""Declared parameters: what they are, and what values they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from flashinfer_bench.bench.stopping import (
    Parameter,
    StoppingRule,
    parameter,
    rule_of,
    rules,
)
from flashinfer_bench.errors import ConfigError

TARGET = Parameter("target", 0.5, "What to reach.", "fraction", 0.0, 1.0)
WINDOW = Parameter("window", 8, "How many to look at.", "", 2, math.inf)


class TestParameter:
    @pytest.mark.parametrize(
        ("value", "number"),
        [(0.25, 0.25), (1, 1.0), ("0.25", 0.25), ("0.5%", 0.005), (" 1e-3 ", 1e-3), ("100 %", 1.0)],
    )
    def test_allowed(self, value, number):
        assert TARGET.parse(value) == pytest.approx(number)

    @pytest.mark.parametrize(
        "value",
        [-0.1, 1.5, "150%", "nan", math.nan, math.inf, "-inf", "much", "", "%", True, None, [1]],
    )
    def test_refused(self, value):
        with pytest.raises(ConfigError) as caught:
            TARGET.parse(value)
        expected = f"target must be a number from 0 to 1 (fraction), not {value!r}"
        assert caught.value.message == expected
        assert caught.value.hint == "What to reach."

    @pytest.mark.parametrize("value", [2, "2", 2.0, "1e3"])
    def test_integer(self, value):
        parsed = WINDOW.parse(value)
        assert isinstance(parsed, int)
        assert parsed == float(value)  # type: ignore[arg-type]


class TestDeclarations:
    def test_only_declared_fields_are_parameters(self):
        @dataclass(frozen=True)
        class Rule(StoppingRule):
            name: ClassVar[str] = "mine"
            internal: int = 3
            size: int = parameter(5, "How much.", unit="sample", low=1, high=9)

            def wants_more(self, samples_ms):
                return len(samples_ms) < self.size

        assert Rule.parameters() == (Parameter("size", 5, "How much.", "sample", 1, 9),)
        assert Rule(size=7).values == {"size": 7}
        assert Rule().outcome([1.0, 2.0]) == "2 samples"

    @pytest.mark.parametrize("rule", rules().values(), ids=rules())
    def test_ours_are_whole(self, rule):
        assert rule.name
        assert rule.summary
        for one in rule.parameters():
            assert one.parse(one.default) == one.default
            assert one.help.endswith(".")
            assert len(one.help) <= 55, "longer lines break in the help"
        assert rule().values == {one.name: one.default for one in rule.parameters()}


class TestLookUp:
    @pytest.mark.parametrize(
        ("rule", "key", "hint"),
        [
            ("near", "reatch", "did you mean 'reach'?"),
            ("near", "xyz", "known: calm, reach"),
            ("near", "max_angle", "'max_angle' belongs to the rule flat"),
            ("fixed", "reach", "'reach' belongs to the rule near"),
            ("fixed", "xyz", "it has none"),
            ("fixed", "count", "it has none"),
        ],
    )
    def test_an_unknown_parameter(self, rule, key, hint):
        with pytest.raises(ConfigError) as caught:
            rule_of(rule, {key: 1})
        assert caught.value.message == f"stop rule {rule!r} has no parameter {key!r}"
        assert caught.value.hint == hint

    def test_a_rule_of_ours_that_is_not_installed(self):
        with pytest.raises(ConfigError) as caught:
            rule_of("rse", {})
        assert "fib-judge==" in (caught.value.hint or "")
