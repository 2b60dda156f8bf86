"""Settings: what is allowed, whose they are, and which policy a name means."""

from __future__ import annotations

from typing import Any

import pytest

from fib_tests.recorded import DECODE, GEMM, decode_inputs, gemm_inputs
from flashinfer_bench.errors import CapabilityError, ConfigError, DuplicateNameError
from flashinfer_bench.tracing import (
    FilterPolicy,
    PolicyRegistry,
    TracingConfig,
    TracingConfigRegistry,
    TracingRuntime,
    get_default_configs,
    policies,
)
from flashinfer_bench.tracing.config import AXES_ONLY, as_registry
from flashinfer_bench.tracing.config import DECODE as DECODES
from flashinfer_bench.tracing.recorder import Layout

FILTERS = "keep_all keep_first keep_first_by_axes keep_first_k keep_first_k_by_axes keep_none"


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_dump_policy": 3},
        {"input_dump_policy": ""},
        {"input_dump_policy": ["a", 3]},
        {"filter_policy": None},
        {"filter_policy": ["keep_all"]},
        {"filter_policy_kwargs": [1]},
        {"filter_policy_kwargs": {1: 2}},
        {"input_dump_policy_kwargs": "k"},
    ],
)
def test_what_is_not_allowed_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        TracingConfig(**wrong)


def test_names_go_before_patterns_and_patterns_before_the_default() -> None:
    one, two, three, four = (
        TracingConfig(filter_policy="keep_first_k", filter_policy_kwargs={"k": k})
        for k in (1, 2, 3, 4)
    )
    registry = TracingConfigRegistry(four, {"gemm_*": two, "*": three, "gemm_x": one})
    assert registry.get("gemm_x") is one
    assert registry.get("gemm_y") is two
    assert registry.get("other") is three
    assert TracingConfigRegistry(four, {"gemm_*": two}).get("other") is four
    assert TracingConfigRegistry(None, {"gemm_*": two}).get("other") is None


def test_settings_are_replaced_only_if_asked() -> None:
    registry = TracingConfigRegistry()
    registry.register("a", AXES_ONLY)
    registry.register("a", AXES_ONLY)
    with pytest.raises(DuplicateNameError, match="'a'"):
        registry.register_many({"b": AXES_ONLY, "a": TracingConfig()})
    assert list(registry.per_definition) == ["a"], "all of them, or none"
    registry.register("a", TracingConfig(), override=True)
    assert registry.get("a") == TracingConfig()
    with pytest.raises(ConfigError, match="is not a definition name"):
        registry.register("", AXES_ONLY)
    with pytest.raises(ConfigError, match="TracingConfig, not dict"):
        registry.register("c", {})  # type: ignore[arg-type]


def test_settings_in_any_form() -> None:
    registry = TracingConfigRegistry(AXES_ONLY)
    assert as_registry(registry) is registry
    assert as_registry(AXES_ONLY) == registry
    assert as_registry({"a": AXES_ONLY}) == TracingConfigRegistry(None, {"a": AXES_ONLY})
    assert as_registry(None) == get_default_configs()
    with pytest.raises(ConfigError, match="int"):
        as_registry(3)


class TestNames:
    def test_each_name_makes_its_policy(self) -> None:
        registry = PolicyRegistry
        for name in FILTERS.split():
            policy = registry.make_filter_policy(TracingConfig(filter_policy=name))
            assert isinstance(policy, FilterPolicy)
        assert {*FILTERS.split()} <= {*registry.list_filter_policies()}
        builtin = ["dump_all", "dump_int32", "dump_integers", "dump_none"]
        assert registry.list_input_dump_policies() == builtin

    @pytest.mark.parametrize("kwargs", [{"k": 0}, {"k": True}, {"k": "1"}, {"n": 1}])
    def test_parameters_are_checked(self, kwargs: dict[str, Any]) -> None:
        config = TracingConfig(filter_policy="keep_first_k", filter_policy_kwargs=kwargs)
        with pytest.raises(ConfigError):
            PolicyRegistry.make_filter_policy(config)

    def test_what_is_picked(self) -> None:
        registry, layout = PolicyRegistry, Layout(DECODE)
        inputs = dict.fromkeys(layout.names)

        def picked(policy: Any, **kwargs: Any) -> tuple[str, ...]:
            return registry.make_picker(TracingConfig(policy, kwargs), layout)(inputs)

        assert picked("dump_none") == ()
        assert picked("dump_int32") == picked("dump_integers") == ("kv_indptr", "kv_indices")
        assert picked("dump_all") == ("q", "k_cache", "v_cache", "kv_indptr", "kv_indices")
        assert picked(["kv_indices", "q", "sm_scale"]) == ("q", "kv_indices")
        assert picked(lambda inputs: list(inputs)) == picked("dump_all")
        assert picked(lambda inputs, n: {n: inputs[n]}, n="q") == ("q",)
        assert picked(lambda inputs: None) == ()

    def test_own_policies(self, monkeypatch: Any) -> None:
        registry = PolicyRegistry
        monkeypatch.setattr(registry, "_own", {"calls": {}, "inputs": {}})
        registry.register_input_dump_policy("mine", lambda inputs: ["A"])
        assert registry.make_picker(TracingConfig("mine"), Layout(GEMM))({"A": 1}) == ("A",)
        with pytest.raises(DuplicateNameError, match="override"):
            registry.register_input_dump_policy("mine", list)
        registry.register_input_dump_policy("mine", lambda inputs: [], override=True)
        for built_in in ("keep_all", "keep_first_k"):
            with pytest.raises(DuplicateNameError, match="built in"):
                registry.register_filter_policy(built_in, list, override=True)
        with pytest.raises(DuplicateNameError, match="built in"):
            registry.register_input_dump_policy("dump_all", list, override=True)
        with pytest.raises(ConfigError, match="cannot be called"):
            registry.register_filter_policy("other", 3)  # type: ignore[arg-type]
        registry.register_filter_policy("no_policy", dict)
        with pytest.raises(ConfigError, match="lacks submit, drain"):
            registry.make_filter_policy(TracingConfig(filter_policy="no_policy"))
        assert "no_policy" in registry.list_filter_policies()

    def test_what_a_distribution_would_provide_is_named(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(policies, "_registered", lambda decides: {})
        with pytest.raises(CapabilityError, match="fib-ops-llm") as caught:
            PolicyRegistry.make_filter_policy(DECODES)
        assert "fib-ops-llm==" in caught.value.hint

    def test_what_needs_a_missing_policy_is_left_out(
        self, root: Any, sink: Any, monkeypatch: Any, caplog: Any
    ) -> None:
        found = policies._registered("calls")
        found.pop("keep_first_by_avg_seq_len", None)
        monkeypatch.setattr(policies, "_registered", lambda decides: found)
        tracing = TracingRuntime(root, store=sink)
        tracing.collect(DECODE.name, decode_inputs([2]))
        tracing.collect(GEMM.name, gemm_inputs())
        assert tracing.flush()["written"] == len(sink.axes(GEMM.name)) == 1
        assert "fib-ops-llm" in tracing.stats()["problems"][DECODE.name]
        assert "are not recorded: there is no filter policy" in caplog.text
