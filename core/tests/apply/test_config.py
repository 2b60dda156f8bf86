"""Settings of apply."""

from __future__ import annotations

import math

import pytest

from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry, as_registry
from flashinfer_bench.errors import ConfigError


class TestApplyConfig:
    def test_the_old_positional_order_still_works(self):
        config = ApplyConfig(1e-2, 1e-5, 0.5, "use_def_best")
        assert (config.max_atol, config.max_rtol) == (1e-2, 1e-5)
        assert (config.aot_ratio, config.on_miss_policy) == (0.5, "use_def_best")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_atol", -1e-9),
            ("max_atol", math.nan),
            ("max_atol", "0.1"),
            ("max_atol", True),
            ("max_rtol", -1),
            ("aot_ratio", -0.1),
            ("aot_ratio", 1.1),
            ("aot_ratio", None),
            ("on_miss_policy", "guess"),
            ("on_miss_policy", ["nearest"]),
            ("shadow_calls", -1),
            ("shadow_calls", 1.0),
            ("shadow_calls", True),
            ("shadow_share", 2),
            ("max_failures", 0),
            ("strict", 1),
            ("nearest_ratio", 0.99),
        ],
    )
    def test_what_is_not_allowed_is_refused_by_name_and_value(self, name, value):
        with pytest.raises(ConfigError) as caught:
            ApplyConfig(**{name: value})
        assert f"{name}={value!r}" in str(caught.value)
        assert "give" in str(caught.value)

    @pytest.mark.parametrize("value", [0, 0.0, 5, math.inf, None])
    def test_bounds_may_be_zero_infinite_or_absent(self, value):
        assert ApplyConfig(max_atol=value, max_rtol=value).max_rtol == value


def test_a_definition_without_settings_gets_the_default():
    own, default = ApplyConfig(max_failures=7), ApplyConfig(strict=True)
    registry = ApplyConfigRegistry(default, {"gemm": own})
    assert registry.get("gemm") is own
    assert registry.get("other") is default


@pytest.mark.parametrize("config", [{}, "strict", 3])
def test_other_settings_are_refused(config):
    with pytest.raises(ConfigError, match="ApplyConfig"):
        as_registry(config)
