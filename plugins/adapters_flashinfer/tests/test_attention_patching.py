"""The template of the attention adapters: wrappers are put on, answer, and are taken off."""

from __future__ import annotations

import threading

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    D,
    Pages,
    Solutions,
    agree,
    decode_name,
    decode_reference,
    decoder,
    i32,
    patched,
    plan_decode,
    prefill_reference,
    ragged_reference,
    random,
    routed,
    workspace,
)

from fib_adapters_flashinfer.attention import PLANS, RUNS
from fib_adapters_flashinfer.decode import DecodeAdapter, DecodeRoute
from fib_adapters_flashinfer.planned import Ledger
from fib_adapters_flashinfer.prefill import PrefillAdapter, PrefillRoute
from fib_adapters_flashinfer.ragged import RaggedAdapter, RaggedRoute
from flashinfer_bench.integration.patch_manager import Order, PatchManager
from flashinfer_bench.integration.slots import board

NAME = decode_name(16)
ADAPTERS = (DecodeAdapter, PrefillAdapter, RaggedAdapter)
DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels(cpu):
    torch.manual_seed(0)
    with cpu("decode") as patch:
        yield patch


@pytest.fixture
def runtime():
    with routed(DecodeAdapter(), {NAME: decode_reference}) as found:
        yield found


def _case(kind, layout="NHD"):
    from flashinfer import (
        BatchPrefillWithPagedKVCacheWrapper,
        BatchPrefillWithRaggedKVCacheWrapper,
    )

    pages = Pages()
    if kind == "decode":
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        wrapper = plan_decode(BatchDecodeWithPagedKVCacheWrapper(workspace(), layout), pages)
        return DecodeAdapter(), wrapper, (random(3, HQ, D), pages.cache(layout))
    rows = i32(0, 2, 3, 6)
    options = {"causal": True, "q_data_type": DTYPE}
    if kind == "prefill":
        wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace(), layout)
        wrapper.plan(rows, *pages.table, HQ, HKV, D, 16, **options)
        return PrefillAdapter(), wrapper, (random(6, HQ, D), pages.cache(layout))
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace(), layout)
    wrapper.plan(rows, rows, HQ, HKV, D, **options)
    shape = (6, HKV, D) if layout == "NHD" else (HKV, 6, D)
    return RaggedAdapter(), wrapper, (random(6, HQ, D), random(*shape), random(*shape))


# ------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", ["decode", "prefill", "ragged"])
def test_outputs_to_compare_with_touch_no_buffer_of_the_caller(kind, layout):
    adapter, wrapper, tensors = _case(kind, layout)
    route, original = adapter.route(), type(wrapper).run
    wanted = wrapper.run(*tensors, return_lse=True)
    out, lse = torch.full_like(wanted[0], 7), torch.full_like(wanted[1], 7)
    understood = route.understand(wrapper, *tensors, out=out, lse=lse, return_lse=True)
    copies = tuple(
        each.clone() if isinstance(each, torch.Tensor) else each for each in understood.inputs
    )
    agree(route.outputs(original, understood, copies), wanted)
    assert bool((out == 7).all())
    assert bool((lse == 7).all())
    found = route.deliver(understood, wanted)
    assert found[0] is out
    assert torch.equal(out, wanted[0])


# ---------------------------------------------------------------------------------- patching


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_plans_and_runs_are_patched_under_all_their_names(adapter):
    made = adapter()
    paths = [each.path for each in made.targets()]
    assert paths == [f"{adapter.owner}.{name}" for name in (*PLANS, *RUNS)]
    assert made.targets() == made.targets()
    for each in made.targets():
        assert each.definitions == adapter.route.definitions
        assert each.kind == "method"


def test_one_object_in_the_place_of_another(kernels):
    """While nothing is enabled, wrappers call the original once and return its very result."""
    pages, q = Pages(), random(3, HQ, D)
    with patched(*(adapter() for adapter in ADAPTERS)):
        wrapper = plan_decode(decoder(Pages()), pages)
        out = torch.empty_like(q)
        assert wrapper.run(q, pages.cache(), out=out) is out
        assert isinstance(wrapper.run_return_lse(q, pages.cache()), tuple)
        assert isinstance(wrapper.forward_return_lse(q, pages.cache()), tuple)
    assert kernels.calls["decode.run"] == 3
    assert kernels.calls["decode.plan"] == 1


def test_wrappers_look_like_what_they_wrap():
    import inspect

    from flashinfer import BatchDecodeWithPagedKVCacheWrapper as Wrapper

    before = {name: inspect.signature(getattr(Wrapper, name)) for name in (*PLANS, *RUNS)}
    doc = Wrapper.run.__doc__
    with patched(DecodeAdapter()):
        after = {name: inspect.signature(getattr(Wrapper, name)) for name in before}
        assert Wrapper.run.__doc__ == doc
        assert Wrapper.run.__name__ == "run"
    assert after == before


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("method", [*PLANS, *RUNS])
def test_this_release_is_supported(adapter, method):
    import importlib

    module, name = adapter.owner.rsplit(".", 1)
    wrapper = getattr(importlib.import_module(module), name)
    assert adapter.route().supports(method, getattr(wrapper, method)) is None


class Future:
    """A wrapper of a release to come."""

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim):
        pass

    begin_forward = plan

    def run(self, queries, paged_kv_cache, *, out=None, lse=None, return_lse=False):
        return "a result"

    def run_return_lse(self, q, paged_kv_cache, *, out=None, lse=None, return_lse=True):
        return "a result"


def test_a_release_to_come_is_left_alone():
    class Adapter(DecodeAdapter):
        owner = f"{__name__}.Future"

    manager = PatchManager()
    adapter = Adapter()
    found = manager.patch_all(
        [Order("x", each, adapter.make_wrapper) for each in adapter.targets()]
    )
    states = [each.state for each in found]
    assert states == ["mismatch", "mismatch", "mismatch", "patched"]
    assert "page_size" in found[0].reason
    assert "queries" in found[2].reason
    manager.unpatch_all()


def test_wrappers_of_several_threads_do_not_disturb_each_other(runtime):
    failures = []

    def work(seed):
        try:
            torch.manual_seed(seed)
            pages = Pages()
            wrapper = decoder(Pages())
            for turn in range(8):
                last = i32(*(1 + (seed + turn + i) % 16 for i in range(3)))
                plan_decode(wrapper, pages, table=(pages.indptr, pages.indices, last))
                q = random(3, HQ, D)
                agree(
                    wrapper.run(q, pages.cache()),
                    decode_reference(
                        q, pages.k, pages.v, pages.indptr, pages.indices, D**-0.5, last
                    )[0],
                )
        except BaseException as error:  # noqa: BLE001 - of another thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    assert runtime.calls == 6 * 8


def test_enabling_and_disabling_while_a_plan_stands(kernels):
    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages()), pages)
    wanted = wrapper.run(q, pages.cache(), return_lse=True)
    for turn in range(3):
        with routed(DecodeAdapter(), {NAME: decode_reference}) as runtime:
            agree(wrapper.run(q, pages.cache(), return_lse=True), wanted)
            if turn == 1:
                plan_decode(wrapper, pages)
                agree(wrapper.run(q, pages.cache(), return_lse=True), wanted)
        assert runtime.calls == 1 + (turn == 1)
        agree(wrapper.run(q, pages.cache(), return_lse=True), wanted)


def test_all_classes_together():
    cases = [_case(kind) for kind in ("decode", "prefill", "ragged")]
    names = {
        NAME: decode_reference,
        f"gqa_paged_prefill_causal_h{HQ}_kv{HKV}_d{D}_ps16": prefill_reference,
        f"gqa_ragged_prefill_causal_h{HQ}_kv{HKV}_d{D}": ragged_reference,
    }
    wanted = [wrapper.run(*tensors) for _, wrapper, tensors in cases]
    runtime = Solutions(names)
    with patched(*(adapter for adapter, *_ in cases)):
        board.push(runtime)
        try:
            found = [wrapper.run(*tensors) for _, wrapper, tensors in cases]
        finally:
            runtime.stop()
    assert [name for name, _ in runtime.seen] == list(names)
    for a, b in zip(found, wanted, strict=True):
        agree(a, b)


def test_what_the_original_computes_inside_a_solution_is_not_routed(runtime):
    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages()), pages)
    runtime.functions[NAME] = lambda *inputs: wrapper.run(q, pages.cache(), return_lse=True)
    found = wrapper.run(q, pages.cache())
    assert runtime.calls == 1
    runtime.stop()
    agree(found, wrapper.run(q, pages.cache()))


def test_a_ledger_forgets_what_it_does_not_know():
    class Something:
        pass

    Ledger().forget(Something())


def test_labels_and_patterns():
    for route in (DecodeRoute, PrefillRoute, RaggedRoute):
        made = route()
        assert made.label.startswith("flashinfer.")
        assert made.label.endswith(".run")
        assert not made.could_be("rmsnorm_h128")
    assert DecodeRoute().could_be(NAME)
    assert PrefillRoute().could_be("gqa_paged_prefill_causal_h8_kv1_d128_ps1")
    assert RaggedRoute().could_be("mla_ragged_prefill_causal_h16_qk192_vo128")
    assert not PrefillRoute().could_be(NAME)
