"""Attention: calls that are of no definition go to the original, each for a reason."""

import inspect
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import gqa
import pytest
import torch
from gqa import DTYPE, HKV, HQ, KINDS, PLACES, ROWS, D, Pages, i32, random
from making import Refusals

# Some options are deprecated in some releases.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def kind(request, cpu):
    """One class of wrappers, patched, with a runtime that has a definition of its calls."""
    torch.manual_seed(0)
    found = KINDS[request.param]
    area = "decode" if request.param == "decode" else "prefill"
    with cpu(area) as found.kernels, found.routed() as found.runtime:
        yield found


@contextmanager
def refused(kind, reason, computed=True):
    """Assert that one call is refused, for one reason, and that the original computes it."""
    refusals, before = Refusals(kind.label), kind.kernels.calls.total()
    routed_before = kind.runtime.calls
    yield
    assert refusals.new() == {reason: 1}
    assert kind.runtime.calls == routed_before
    assert not computed or kind.kernels.calls.total() == before + 1


def require(wrapper, method, options):
    """Skip the test if a release has no such options."""
    known = inspect.signature(getattr(type(wrapper), method)).parameters
    for option in options:
        if option not in known and not (method == "plan" and "kwargs" in known):
            pytest.skip(f"this release has no {option}")


EVERY, PREFILLS = ("decode", "prefill", "ragged"), ("prefill", "ragged")
OPTIONS = {
    "run": (
        (EVERY, "q scale", {"q_scale": 0.5}),
        (EVERY, "k scale", {"k_scale": 0.5}),
        (EVERY, "v scale", {"v_scale": 2}),
        (("ragged",), "o scale", {"o_scale": 0.5}),
        (("decode", "prefill"), "attention sinks", {"sinks": torch.zeros(HQ)}),
        (
            ("decode", "prefill"),
            "skipping of softmax",
            {"skip_softmax_threshold_scale_factor": 1.0},
        ),
        (PREFILLS, "form of lse", {"lse_base": "ln", "return_lse": True}),
        (PREFILLS, "form of lse", {"lse_layout": "HN", "return_lse": True}),
    ),
    "plan": (
        (EVERY, "sliding window", {"window_left": 4}),
        (EVERY, "logits soft cap", {"logits_soft_cap": 30.0}),
        (EVERY, "position encoding", {"pos_encoding_mode": "ALIBI"}),
        (EVERY, "dtype of the output", {"o_data_type": torch.float16}),
        (EVERY, "sm_scale is not a number", {"sm_scale": torch.tensor(0.5)}),
        (PREFILLS, "not causal", {"causal": False}),
        (PREFILLS, "custom mask", {"packed_custom_mask": torch.zeros(200, dtype=torch.uint8)}),
        (PREFILLS, "multi-item scoring", {"prefix_len_ptr": i32(1, 1, 1)}),
        (("prefill",), "multi-item scoring", {"token_pos_in_items_ptr": i32(1, 1, 1)}),
        (("prefill",), "multi-item scoring", {"max_item_len_ptr": i32(1, 1, 1)}),
        (("ragged",), "offsets of values", {"v_indptr": PLACES.clone()}),
        (("ragged",), "offsets of outputs", {"o_indptr": ROWS.clone()}),
    ),
}


@pytest.mark.parametrize(
    ("kind", "method", "reason", "options"),
    [
        pytest.param(kind, method, reason, options, id=f"{kind} {reason} {next(iter(options))}")
        for method, table in OPTIONS.items()
        for kinds, reason, options in table
        for kind in kinds
    ],
    indirect=["kind"],
)
def test_options(kind, method, reason, options):
    require(kind.planned(), method, options)
    wrapper, tensors = kind.planned(**(options if method == "plan" else {})), kind.tensors()
    with refused(kind, reason):
        wrapper.run(*tensors, **(options if method == "run" else {}))
    kind.planned().run(*tensors)
    assert kind.runtime.calls == 1


every = pytest.mark.parametrize("kind", EVERY, indirect=True)
decode = pytest.mark.parametrize("kind", ["decode"], indirect=True)
ragged = pytest.mark.parametrize("kind", ["ragged"], indirect=True)


@every
def test_other_dtypes(kind):
    wrapper, tensors = kind.planned(torch.float32), kind.tensors(torch.float32)
    with refused(kind, "dtype"):
        wrapper.run(*tensors)
    wrapper = kind.planned(kv_data_type=torch.float16)
    with refused(kind, "dtype"):
        wrapper.run(*kind.tensors(kv=torch.float16))


@every
@pytest.mark.parametrize("backend", ["trtllm-gen", "cudnn", "one of the future"])
def test_backends_with_page_tables_of_their_own(kind, backend):
    wrapper, tensors = kind.planned(), kind.tensors()
    wrapper._backend = backend
    # It is not really set up for that backend.
    with refused(kind, "backend", computed=False), suppress(Exception):
        wrapper.run(*tensors)


@every
def test_more_queries_than_planned_are_for_the_original_to_refuse(kind):
    wrapper, (q, *others) = kind.planned(), kind.tensors()
    refusal = pytest.raises(Exception)  # noqa: PT011 - releases have their own
    with refused(kind, "number of queries", computed=False), refusal:
        wrapper.run(torch.cat([q, q]), *others, out=torch.zeros(1))


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("decode", {"of_the_future": 1}, "an option that is not known"),
        ("prefill", {"use_fp16_softmax": True}, "half-precision softmax"),
        ("prefill", {"uses_spcompress": True}, "compressed keys"),
        ("decode", {"k_scale": torch.tensor(1.0, device="meta")}, "k scale"),
        ("decode", {"kv_cache_sf": (torch.zeros(1), torch.zeros(1))}, None),
        ("decode", {"out": torch.zeros(2, HQ, D, dtype=DTYPE)}, "out buffer"),
        ("decode", {"out": torch.zeros(3, HQ, D)}, "out buffer"),
        ("decode", {"lse": torch.zeros(3, HQ + 1), "return_lse": True}, "lse buffer"),
        ("decode", {"lse": torch.zeros(3, HQ, dtype=DTYPE), "return_lse": True}, "lse buffer"),
        ("decode", {"q_len_per_req": 2}, "several queries"),
        ("decode", {"window_left": 3}, "sliding window"),
    ],
    indirect=["kind"],
)
def test_what_the_original_may_refuse_is_handed_to_it(kind, options, reason):
    wrapper, tensors = kind.planned(), kind.tensors()
    refusals = Refusals(kind.label)
    with suppress(Exception):
        wrapper.run(*tensors, **options)
    assert kind.runtime.calls == 0
    assert len(refusals.new()) == 1
    assert reason is None or refusals.new() == {reason: 1}


@pytest.mark.parametrize(
    "cache",
    [
        [torch.zeros(8, 16, HKV, D, dtype=DTYPE)] * 2,
        (torch.zeros(8, 16, HKV, D, dtype=DTYPE),) * 3,
        torch.zeros(8, 3, 16, HKV, D, dtype=DTYPE),
        None,
    ],
)
@decode
def test_other_forms_of_the_cache_are_for_the_original_to_refuse(kind, cache):
    wrapper, error = kind.planned(), pytest.raises((KeyError, ValueError))
    with refused(kind, "form of the kv cache", computed=False), error:
        wrapper.run(random(3, HQ, D), cache)


@ragged
def test_sinks_that_an_engine_sets_on_the_object(kind):
    wrapper, tensors = kind.planned(), kind.tensors()
    wrapper._sinks = torch.zeros(HQ)
    with refused(kind, "attention sinks"):
        wrapper.run(*tensors)
    wrapper._sinks = None
    wrapper.run(*tensors)
    assert kind.runtime.calls == 1


@decode
def test_custom_kernels(kind):
    from flashinfer import decode

    made = decode.get_batch_decode_module()
    spec = SimpleNamespace(build_and_load=lambda: made)
    kind.kernels.set(decode, "gen_customize_batch_decode_module", lambda *args: spec)
    kind.kernels.set(decode, "get_batch_decode_jit_module", lambda uri, module: module)
    pages, q = Pages(16), random(3, HQ, D)
    wrapper = gqa.plan_decode(gqa.decoder(pages, jit_args=["uri", *[[]] * 9]), pages)
    refusals = Refusals(kind.label)
    wrapper.run(q, pages.cache(), None, 0.0, 1.0)
    with pytest.raises(TypeError):
        wrapper.run(q, pages.cache())
    assert refusals.new() == {"arguments for a custom kernel": 1, "custom kernel": 1}


@ragged
def test_values_of_another_dtype_than_keys(kind):
    wrapper, (q, k, v) = kind.planned(), kind.tensors()
    with refused(kind, "dtype"):
        wrapper.run(q, k, v.half())
