"""Settings of apply."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.apply.config import (
    MISS_POLICIES,
    ApplyConfig,
    ApplyConfigRegistry,
    as_registry,
    get_default_registry,
)
from flashinfer_bench.errors import ConfigError, DuplicateNameError


class TestApplyConfig:
    def test_the_defaults_are_careful(self):
        config = ApplyConfig()
        assert (config.max_atol, config.max_rtol) == (None, None)
        assert config.on_miss_policy == "fallback_only"
        assert (config.shadow_calls, config.shadow_share) == (0, 0.0)
        assert (config.max_failures, config.strict) == (3, False)

    def test_the_old_positional_order_still_works(self):
        config = ApplyConfig(1e-2, 1e-5, 0.5, "use_def_best")
        assert (config.max_atol, config.max_rtol) == (1e-2, 1e-5)
        assert (config.aot_ratio, config.on_miss_policy) == (0.5, "use_def_best")

    def test_it_cannot_be_changed(self):
        with pytest.raises(FrozenInstanceError):
            ApplyConfig().max_atol = 1.0

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
            ("aot_ratio", math.nan),
            ("aot_ratio", None),
            ("on_miss_policy", "guess"),
            ("on_miss_policy", None),
            ("on_miss_policy", ["nearest"]),
            ("shadow_calls", -1),
            ("shadow_calls", 1.0),
            ("shadow_calls", True),
            ("shadow_share", 2),
            ("max_failures", 0),
            ("max_failures", 2.5),
            ("strict", 1),
            ("strict", "yes"),
            ("nearest_ratio", 0.99),
            ("nearest_ratio", math.nan),
        ],
    )
    def test_what_is_not_allowed_is_refused_by_name_and_value(self, name, value):
        with pytest.raises(ConfigError) as caught:
            ApplyConfig(**{name: value})
        assert f"{name}={value!r}" in str(caught.value)
        assert "give" in str(caught.value)

    def test_a_replaced_value_is_checked_too(self):
        with pytest.raises(ConfigError, match="max_failures"):
            replace(ApplyConfig(), max_failures=0)

    @pytest.mark.parametrize("value", [0, 0.0, 5, math.inf, None])
    def test_bounds_may_be_zero_infinite_or_absent(self, value):
        assert ApplyConfig(max_atol=value, max_rtol=value).max_rtol == value

    @given(
        aot_ratio=st.floats(0, 1),
        on_miss_policy=st.sampled_from(MISS_POLICIES),
        shadow_calls=st.integers(0, 10**9),
        nearest_ratio=st.floats(1, 1e6),
        max_failures=st.integers(1, 10**9),
    )
    def test_everything_within_bounds_is_kept_as_given(self, **values):
        record = ApplyConfig(**values).to_record()
        assert {name: record[name] for name in values} == values
        assert ApplyConfig(**record) == ApplyConfig(**values)


class TestRegistry:
    def test_a_definition_without_settings_gets_the_default(self):
        own, default = ApplyConfig(max_failures=7), ApplyConfig(strict=True)
        registry = ApplyConfigRegistry(default, {"gemm": own})
        assert registry.get("gemm") is own
        assert registry.get("other") is default

    def test_settings_are_not_replaced_by_accident(self):
        registry = ApplyConfigRegistry()
        registry.register("gemm", ApplyConfig(strict=True))
        with pytest.raises(DuplicateNameError, match="gemm"):
            registry.register("gemm", ApplyConfig())
        registry.register("gemm", ApplyConfig(), override=True)
        assert registry.get("gemm") == ApplyConfig()

    def test_the_same_settings_may_be_given_again(self):
        registry = ApplyConfigRegistry(per_definition={"gemm": ApplyConfig(strict=True)})
        registry.register("gemm", ApplyConfig(strict=True))

    def test_of_several_all_are_taken_or_none(self):
        registry = ApplyConfigRegistry(per_definition={"b": ApplyConfig(strict=True)})
        with pytest.raises(DuplicateNameError):
            registry.register_many({"a": ApplyConfig(max_failures=9), "b": ApplyConfig()})
        assert registry.get("a") == ApplyConfig()
        registry.register_many({"a": ApplyConfig(max_failures=9)}, override=True)
        assert registry.get("a").max_failures == 9

    @pytest.mark.parametrize("name", ["", None, 3])
    def test_names_are_texts(self, name):
        with pytest.raises(ConfigError):
            ApplyConfigRegistry(per_definition={name: ApplyConfig()})

    @pytest.mark.parametrize("config", [None, {"max_atol": 1.0}, ApplyConfigRegistry()])
    def test_settings_are_configs(self, config):
        with pytest.raises(ConfigError, match="ApplyConfig"):
            ApplyConfigRegistry(per_definition={"gemm": config})

    def test_the_default_is_a_config(self):
        with pytest.raises(ConfigError, match="default"):
            ApplyConfigRegistry({"max_atol": 1.0})

    def test_what_is_handed_out_is_a_copy(self):
        registry = ApplyConfigRegistry(per_definition={"gemm": ApplyConfig(strict=True)})
        registry.per_definition.clear()
        assert registry.get("gemm").strict

    def test_a_mapping_that_is_handed_in_is_not_shared(self):
        given = {"gemm": ApplyConfig(strict=True)}
        registry = ApplyConfigRegistry(per_definition=given)
        given.clear()
        assert registry.get("gemm").strict

    def test_equality_is_by_content(self):
        one = ApplyConfigRegistry(per_definition={"gemm": ApplyConfig(strict=True)})
        assert one == ApplyConfigRegistry(ApplyConfig(), {"gemm": ApplyConfig(strict=True)})
        assert one != ApplyConfigRegistry()
        assert one != "registry"
        with pytest.raises(TypeError):
            hash(one)


class TestAsRegistry:
    def test_a_config_holds_for_everything(self):
        config = ApplyConfig(strict=True)
        assert as_registry(config).get("anything") is config

    def test_a_registry_is_itself(self):
        registry = ApplyConfigRegistry()
        assert as_registry(registry) is registry

    def test_nothing_is_the_default_registry(self):
        assert as_registry(None) is get_default_registry()

    @pytest.mark.parametrize("config", [{}, "strict", 3])
    def test_anything_else_is_refused(self, config):
        with pytest.raises(ConfigError, match="ApplyConfig"):
            as_registry(config)


def test_the_module_is_light():
    code = (
        "import sys; import flashinfer_bench.apply.config\n"
        "print([name for name in ('torch', 'pydantic', 'numpy') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
