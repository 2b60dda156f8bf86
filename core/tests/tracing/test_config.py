"""Settings: what is allowed, whose they are, and which policy a name means."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_tests.recorded import DECODE, GEMM, decode_inputs, gemm_inputs
from flashinfer_bench.errors import CapabilityError, ConfigError, DuplicateNameError
from flashinfer_bench.tracing import (
    FilterPolicy,
    PolicyRegistry,
    TracingConfig,
    TracingConfigRegistry,
    TracingRuntime,
    WorkloadEntry,
    get_default_configs,
    policies,
)
from flashinfer_bench.tracing.config import AXES_ONLY, as_registry
from flashinfer_bench.tracing.config import DECODE as DECODES
from flashinfer_bench.tracing.policies import (
    KeepAllPolicy,
    KeepFirstKByAxesPolicy,
    KeepFirstKPolicy,
    KeepNonePolicy,
)
from flashinfer_bench.tracing.recorder import Layout


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
def test_what_is_not_allowed_is_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        TracingConfig(**wrong)


def test_names_go_before_patterns_and_patterns_before_the_default():
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


def test_settings_are_replaced_only_if_asked():
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


def test_settings_in_any_form():
    registry = TracingConfigRegistry(AXES_ONLY)
    assert as_registry(registry) is registry
    assert as_registry(AXES_ONLY) == registry
    assert as_registry({"a": AXES_ONLY}) == TracingConfigRegistry(None, {"a": AXES_ONLY})
    assert as_registry(None) == get_default_configs()
    with pytest.raises(ConfigError, match="int"):
        as_registry(3)


class TestNames:
    @pytest.mark.parametrize("kwargs", [{"k": 0}, {"k": True}, {"k": "1"}, {"n": 1}])
    def test_parameters_are_checked(self, kwargs):
        config = TracingConfig(filter_policy="keep_first_k", filter_policy_kwargs=kwargs)
        with pytest.raises(ConfigError):
            PolicyRegistry.make_filter_policy(config)

    def test_what_is_picked(self):
        registry, layout = PolicyRegistry, Layout(DECODE)
        inputs = dict.fromkeys(layout.names)

        def picked(policy, **kwargs):
            return registry.make_picker(TracingConfig(policy, kwargs), layout)(inputs)

        assert picked("dump_none") == ()
        assert picked("dump_int32") == picked("dump_integers") == ("kv_indptr", "kv_indices")
        assert picked("dump_all") == ("q", "k_cache", "v_cache", "kv_indptr", "kv_indices")
        assert picked(["kv_indices", "q", "sm_scale"]) == ("q", "kv_indices")
        assert picked(lambda inputs: list(inputs)) == picked("dump_all")
        assert picked(lambda inputs, n: {n: inputs[n]}, n="q") == ("q",)
        assert picked(lambda inputs: None) == ()

    def test_own_policies(self, monkeypatch):
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

    def test_what_a_distribution_would_provide_is_named(self, monkeypatch):
        monkeypatch.setattr(policies, "_registered", lambda decides: {})
        with pytest.raises(CapabilityError, match="fib-ops-llm") as caught:
            PolicyRegistry.make_filter_policy(DECODES)
        assert "fib-ops-llm==" in caught.value.hint

    def test_what_needs_a_missing_policy_is_left_out(self, root, sink, monkeypatch, caplog):
        found = policies._registered("calls")
        found.pop("keep_first_by_avg_seq_len", None)
        monkeypatch.setattr(policies, "_registered", lambda decides: found)
        tracing = TracingRuntime(root, store=sink)
        tracing.collect(DECODE.name, decode_inputs([2]))
        tracing.collect(GEMM.name, gemm_inputs())
        assert tracing.flush()["written"] == len(sink.axes(GEMM.name)) == 1
        assert "fib-ops-llm" in tracing.stats()["problems"][DECODE.name]
        assert "are not recorded: there is no filter policy" in caplog.text


# ------------------------------------------------------------------------------ what policies keep


def entry(order, **axes):
    return WorkloadEntry("d", axes, {}, order)


def kept(policy, sizes):
    for order, size in enumerate(sizes):
        policy.submit(entry(order, M=size))
    return [each.order for each in policy.drain()]


SIZES = st.lists(st.integers(0, 5), max_size=40)


@given(SIZES, st.integers(1, 4))
def test_policies_that_count(sizes, k):
    everything = list(range(len(sizes)))
    assert kept(KeepAllPolicy(), sizes) == everything
    assert kept(KeepNonePolicy(), sizes) == []
    assert kept(KeepFirstKPolicy(k), sizes) == everything[:k]
    by_size = [i for i in everything if sizes[:i].count(sizes[i]) < k]
    assert kept(KeepFirstKByAxesPolicy(k), sizes) == by_size


@given(SIZES, st.integers(1, 3))
def test_the_fast_path_recognises_what_would_not_be_admitted(sizes, k):
    for policy in (KeepFirstKPolicy(k), KeepFirstKByAxesPolicy(k)):
        recognised = fast(policy, Layout(GEMM))
        for size in sizes:
            args = (torch.empty(size, 4), torch.empty(8, 4))
            assert recognised(args) != policy.admit({"M": size}, {})
    assert KeepAllPolicy().fast_path(Layout(GEMM)) is None


def fast(policy, layout):
    path = policy.fast_path(layout)
    if path is None:
        return lambda args: False
    code = compile(path.condition, "condition", "eval")
    return lambda args: bool(
        eval(code, {**path.namespace, **{f"a{i}": args[i] for i in path.positions}})
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_too_many_keys_the_older_half_is_forgotten(k):
    policy = KeepFirstKByAxesPolicy(k)
    policy.bound(100)
    for size in range(1000):
        for _ in range(k + 1):
            policy.submit(entry(size, M=size))
        assert len(policy._full) + len(policy._counts) <= 100
    assert not policy.admit({"M": 999}, {}), "the newest are remembered"
    assert policy.admit({"M": 0}, {}), "the oldest are not"


@pytest.mark.parametrize("change", [{"def_name": "nowhere"}, {"order": "first"}, None])
def test_a_users_policy_costs_only_its_own(root, sink, change):
    """What it keeps is not what it was given: the calls of other definitions are written."""

    class Forger(FilterPolicy):
        def __init__(self):
            self.kept = []

        def submit(self, entry):
            self.kept.append(entry)

        def drain(self):
            kept, self.kept = self.kept, []
            return [change and dataclasses.replace(entry, **change) for entry in kept]

    config = {
        GEMM.name: TracingConfig(filter_policy=Forger),
        DECODE.name: TracingConfig(),
    }
    tracing = TracingRuntime(root, config, store=sink)
    tracing.collect(GEMM.name, gemm_inputs())
    tracing.collect(DECODE.name, decode_inputs([2, 3]))
    assert tracing.flush()["written"] == 1
    assert [entry.def_name for entry in sink.entries] == [DECODE.name]
    assert tracing.stats()["errors"] == 1
