"""Attention: calls that are of no definition go to the original, each for a reason."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    KINDS,
    PLACES,
    ROWS,
    D,
    Pages,
    Refusals,
    decoder,
    i32,
    plan_decode,
    quiet,
    random,
    takes,
)


class Watched:
    """One class of wrappers, patched, and a runtime that has a definition of its calls."""

    def __init__(self, kind, runtime, kernels):
        self.name, self.label, self.runtime, self.kernels = kind.name, kind.label, runtime, kernels
        self.planned, self.tensors = kind.planned, kind.tensors

    @contextlib.contextmanager
    def refuses(self, reason, kernel_runs=1):
        """Assert that one call is refused, for one reason; that the original computes it or not."""
        refusals, routed_before = Refusals(self.label), self.runtime.calls
        before = self.kernels.calls.total()
        yield
        assert refusals.new() == {reason: 1}
        assert self.runtime.calls == routed_before
        assert self.kernels.calls.total() == before + kernel_runs

    def takes(self, method, options):
        import flashinfer

        module, name = self.label.rpartition(".")[0].rsplit(".", 1)
        wrapper = getattr(getattr(flashinfer, module.split(".")[1]), name)
        function = getattr(wrapper, method)
        for option in options:
            if not (takes(function, option) or (method == "plan" and takes(function, "kwargs"))):
                pytest.skip(f"this release has no {option}")


@pytest.fixture
def kind(request, cpu):
    torch.manual_seed(0)
    found = KINDS[request.param]
    area = "decode" if request.param == "decode" else "prefill"
    with cpu(area) as kernels, found.routed() as runtime:
        yield Watched(found, runtime, kernels)


EVERY, PREFILLS = ("decode", "prefill", "ragged"), ("prefill", "ragged")
RUN = (
    (EVERY, "q scale", {"q_scale": 0.5}),
    (EVERY, "k scale", {"k_scale": 0.5}),
    (EVERY, "v scale", {"v_scale": 2}),
    (("ragged",), "o scale", {"o_scale": 0.5}),
    (("decode", "prefill"), "attention sinks", {"sinks": torch.zeros(HQ)}),
    (("decode", "prefill"), "skipping of softmax", {"skip_softmax_threshold_scale_factor": 1.0}),
    (PREFILLS, "form of lse", {"lse_base": "ln", "return_lse": True}),
    (PREFILLS, "form of lse", {"lse_layout": "HN", "return_lse": True}),
)
PLAN = (
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
)


def rows(table):
    return pytest.mark.parametrize(
        ("kind", "reason", "options"),
        [
            pytest.param(kind, reason, options, id=f"{kind} {reason} {next(iter(options))}")
            for kinds, reason, options in table
            for kind in kinds
        ],
        indirect=["kind"],
    )


@rows(RUN)
def test_options_of_run(kind, reason, options):
    kind.takes("run", options)
    wrapper, tensors = kind.planned(), kind.tensors()
    with kind.refuses(reason):
        wrapper.run(*tensors, **options)


@rows(PLAN)
def test_options_of_plan(kind, reason, options):
    kind.takes("plan", options)
    wrapper, tensors = kind.planned(**options), kind.tensors()
    with kind.refuses(reason):
        wrapper.run(*tensors)
    wrapper = kind.planned()
    wrapper.run(*tensors)
    assert kind.runtime.calls == 1


every = pytest.mark.parametrize("kind", EVERY, indirect=True)
decode = pytest.mark.parametrize("kind", ["decode"], indirect=True)
prefill = pytest.mark.parametrize("kind", ["prefill"], indirect=True)
ragged = pytest.mark.parametrize("kind", ["ragged"], indirect=True)


@every
def test_other_dtypes(kind):
    wrapper, tensors = kind.planned(torch.float32), kind.tensors(torch.float32)
    with kind.refuses("dtype"):
        wrapper.run(*tensors)
    wrapper = kind.planned(kv_data_type=torch.float16)
    with kind.refuses("dtype"):
        wrapper.run(*kind.tensors(kv=torch.float16))


@every
@pytest.mark.parametrize("backend", ["trtllm-gen", "cudnn", "one of the future"])
def test_backends_with_page_tables_of_their_own(kind, backend):
    wrapper, tensors = kind.planned(), kind.tensors()
    wrapper._backend = backend
    refusals = Refusals(kind.label)
    with contextlib.suppress(Exception):  # it is not really set up for that backend
        wrapper.run(*tensors)
    assert refusals.new() == {"backend": 1}
    assert kind.runtime.calls == 0


@every
def test_more_queries_than_planned_are_for_the_original_to_refuse(kind):
    wrapper, (q, *others) = kind.planned(), kind.tensors()
    refusals = Refusals(kind.label)
    with pytest.raises(Exception):  # noqa: B017, PT011 - releases refuse it in their own ways
        wrapper.run(torch.cat([q, q]), *others, out=torch.zeros(1))
    assert refusals.new() == {"number of queries": 1}


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
    with contextlib.suppress(Exception):
        quiet(wrapper.run)(*tensors, **options)
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
    refusals = Refusals(kind.label)
    with pytest.raises((KeyError, ValueError)):
        kind.planned().run(random(3, HQ, D), cache)
    assert refusals.new() == {"form of the kv cache": 1}


@ragged
def test_sinks_that_an_engine_sets_on_the_object(kind):
    wrapper, tensors = kind.planned(), kind.tensors()
    wrapper._sinks = torch.zeros(HQ)
    with kind.refuses("attention sinks"):
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
    wrapper = plan_decode(decoder(pages, jit_args=["uri", *[[]] * 9]), pages)
    refusals = Refusals(kind.label)
    wrapper.run(q, pages.cache(), None, 0.0, 1.0)
    with pytest.raises(TypeError):
        wrapper.run(q, pages.cache())
    assert refusals.new() == {"arguments for a custom kernel": 1, "custom kernel": 1}


@ragged
def test_values_of_another_dtype_than_keys(kind):
    wrapper, (q, k, v) = kind.planned(), kind.tensors()
    with kind.refuses("dtype"):
        wrapper.run(q, k, v.half())
