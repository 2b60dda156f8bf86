"""The template of the attention adapters: plans and runs are paired, however plans are made."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from gqa import (
    DTYPE,
    HKV,
    HQ,
    D,
    Pages,
    Refusals,
    agree,
    decode_name,
    decode_reference,
    decoder,
    i32,
    plan_decode,
    random,
    routed,
)

from fib_adapters_flashinfer.decode import DecodeAdapter, DecodeRoute
from fib_adapters_flashinfer.planned import FAILED, last_of, ledger
from fib_adapters_flashinfer.prefill import PrefillAdapter
from fib_adapters_flashinfer.ragged import RaggedAdapter
from flashinfer_bench.integration.routing import UnroutableError

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


# ------------------------------------------------------------------------------ plans and runs


def test_a_plan_that_was_made_before_counts(kernels):
    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages()), pages)
    wanted = wrapper.run(q, pages.cache())
    with routed(DecodeAdapter(), {NAME: decode_reference}) as runtime:
        agree(wrapper.run(q, pages.cache()), wanted)
    assert runtime.calls == 1


def test_each_plan_replaces_the_one_before(runtime):
    pages = Pages()
    wrapper = plan_decode(decoder(Pages()), pages)
    wrapper.run(random(3, HQ, D), pages.cache())
    for counts in ([1], [2, 2], [1, 0, 2, 3]):
        indptr = i32(0, *torch.tensor(counts).cumsum(0).tolist())
        indices = torch.arange(int(indptr[-1]), dtype=torch.int32)
        plan_decode(wrapper, pages, table=(indptr, indices, torch.full((len(counts),), 16).int()))
        q = random(len(counts), HQ, D)
        wrapper.run(q, pages.cache())
        assert runtime.inputs["kv_indptr"].tolist() == indptr.tolist()
        assert runtime.inputs["kv_indices"].tolist() == indices.tolist()


def test_what_does_not_change_is_worked_out_once_a_plan(runtime, monkeypatch):
    learnt = []
    learn = DecodeRoute._learn
    monkeypatch.setattr(
        DecodeRoute, "_learn", lambda self, *args: learnt.append(1) or learn(self, *args)
    )
    pages = Pages()
    wrapper = plan_decode(decoder(Pages()), pages)
    for _ in range(5):
        wrapper.run(random(3, HQ, D), pages.cache())
        wrapper.run_return_lse(random(3, HQ, D), pages.cache())
    assert len(learnt) == 1
    plan_decode(wrapper, pages)
    wrapper.run(random(3, HQ, D), pages.cache())
    assert len(learnt) == 2


def test_caches_of_several_sizes_take_turns(runtime):
    """As layers of one model may have them: names and shapes follow the tensors, not the plan."""
    pages, other = Pages(), Pages()
    other.k = other.v = random(20, 16, HKV, D)
    wrapper = plan_decode(decoder(Pages()), pages)
    q = random(3, HQ, D)
    for each in (pages, other, pages, other):
        found = wrapper.run(q, each.cache())
        agree(found, decode_reference(*runtime.inputs.values())[0])
        assert runtime.inputs["k_cache"].shape == each.k.shape
    assert runtime.calls == 4


def test_a_plan_that_fails_leaves_nothing_behind(runtime):
    pages = Pages()
    wrapper = plan_decode(decoder(Pages(), graph=True), pages)
    wrapper.run(random(3, HQ, D), pages.cache())
    assert wrapper in ledger.planned
    with pytest.raises(ValueError, match="batch size should be fixed"):
        plan_decode(wrapper, pages, table=(i32(0, 1), i32(1), i32(16)))
    assert ledger.planned[wrapper].refusal == FAILED
    assert wrapper not in ledger.totals


def test_an_object_that_was_never_planned_is_for_the_original_to_refuse(runtime):
    refusals = Refusals(DecodeRoute.label)
    with pytest.raises(AttributeError):
        decoder(Pages()).run(random(3, HQ, D), Pages().cache())
    assert refusals.new() == {"not planned": 1}


def test_objects_are_forgotten_with_their_last_reference(runtime):
    pages = Pages()
    gc.collect()
    before = len(ledger.planned)
    wrappers = [plan_decode(decoder(Pages()), pages) for _ in range(4)]
    for each in wrappers:
        each.run(random(3, HQ, D), pages.cache())
    assert len(ledger.planned) == before + 4
    del wrappers, each, runtime.again
    gc.collect()
    assert len(ledger.planned) == before


def test_one_plan_for_several_objects(runtime):
    """Engines copy what a plan left to other wrappers, or have them share buffers."""
    pages, q = Pages(), random(3, HQ, D)
    first, second = plan_decode(decoder(Pages()), pages), decoder(Pages())
    for key, value in vars(first).items():
        setattr(second, key, value)
    first.run(q, pages.cache())
    second.run(q, pages.cache())
    assert runtime.calls == 2
    later = (i32(0, 1, 2, 3), i32(1, 2, 3), i32(1, 1, 1))
    plan_decode(first, pages, table=later)
    first.run(q, pages.cache())
    assert runtime.inputs["kv_indices"].tolist() == [1, 2, 3]
    second.run(q, pages.cache())
    assert runtime.inputs["kv_indices"].tolist() == pages.indices.tolist()


# ---------------------------------------------------------------------------- plans of engines


def fast(wrapper, *table, **options):
    from flashinfer.decode import fast_decode_plan

    options.setdefault("q_data_type", DTYPE)
    return fast_decode_plan(wrapper, *table, HQ, HKV, D, 16, **options)


@pytest.mark.parametrize("tensor_cores", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_plans_that_pass_by_ours_are_noticed(graph, tensor_cores, runtime):
    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages(), graph=graph, use_tensor_cores=tensor_cores), pages)
    wrapper.run(q, pages.cache())
    table = (i32(0, 1, 2, 4), i32(7, 6, 5, 4), i32(3, 4, 5))
    if graph:  # the caller has written to the buffers itself
        wrapper._paged_kv_indptr_buf.copy_(table[0])
        wrapper._paged_kv_indices_buf[:4] = table[1]
        wrapper._paged_kv_last_page_len_buf.copy_(table[2])
    fast(wrapper, *table)
    found = wrapper.run(q, pages.cache(), return_lse=True)
    assert runtime.calls == 2
    assert runtime.inputs["kv_indices"].tolist() == [7, 6, 5, 4]
    runtime.stop()
    agree(found, wrapper.run(q, pages.cache(), return_lse=True))


def test_plans_that_an_engine_puts_on_the_object_are_noticed(runtime):
    from flashinfer.decode import fast_decode_plan

    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages()), pages)
    wrapper.begin_forward = functools.partial(fast_decode_plan, wrapper)
    wrapper.run(q, pages.cache())
    wrapper.begin_forward(
        i32(0, 1, 2, 3), i32(3, 2, 1), i32(1, 2, 3), HQ, HKV, D, 16, data_type=DTYPE,
        q_data_type=DTYPE, non_blocking=True,
    )  # fmt: skip
    assert wrapper.begin_forward.func is fast_decode_plan
    found = wrapper.run(q, pages.cache())
    assert runtime.calls == 2
    assert runtime.inputs["kv_indices"].tolist() == [3, 2, 1]
    runtime.stop()
    agree(found, wrapper.run(q, pages.cache()))


def test_what_a_fast_plan_changes_goes_to_the_original(runtime):
    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages()), pages)
    refusals = Refusals(DecodeRoute.label)
    fast(wrapper, *pages.table, window_left=4)
    wrapper.run(q, pages.cache())
    fast(wrapper, *pages.table, sm_scale=0.3)
    wrapper.run(q, pages.cache())
    assert refusals.new() == {"sliding window": 1}
    assert runtime.inputs["sm_scale"] == 0.3


# ------------------------------------------------------------------------------ page numbers


def with_slack(pages):
    slack = torch.full((9,), 10**6, dtype=torch.int32)
    return pages.indptr, torch.cat([pages.indices, slack]), pages.last


def test_pages_in_use_are_a_view_of_the_buffer_that_is_made_once_a_plan(runtime):
    pages = Pages()
    wrapper = plan_decode(decoder(Pages()), pages, table=with_slack(pages))
    q = random(3, HQ, D)
    wrapper.run(q, pages.cache())
    first = runtime.inputs["kv_indices"]
    wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"] is first
    assert first.data_ptr() == wrapper._paged_kv_indices_buf.data_ptr()
    assert first.tolist() == pages.indices.tolist()


class Asked:
    """Stands for offsets on a device: counts how often somebody waits for them."""

    def __init__(self, values):
        self.values, self.device, self.times = values, DEVICE, 0

    def __getitem__(self, place):
        self.times += 1
        return self.values[place]


@pytest.mark.parametrize("known", [True, False])
def test_the_device_is_asked_once_a_plan_and_only_if_the_plan_does_not_say(known):
    class Wrapper:
        pass

    route, wrapper = DecodeRoute(), Wrapper()
    vars(wrapper).update(vars(plan_decode(decoder(Pages()), Pages())))
    offsets = wrapper._paged_kv_indptr_buf = Asked(i32(0, 2, 3, 6))
    wrapper._paged_kv_indices_buf = torch.arange(9, dtype=torch.int32)
    q = random(3, HQ, D)
    if known:
        route.note(wrapper, (i32(0, 2, 3, 6),), {})
    for _ in range(3):
        planned = route.planned(wrapper, q)
        assert route.pages(planned).tolist() == [0, 1, 2, 3, 4, 5]
    assert offsets.times == (0 if known else 1)
    wrapper._plan_info = object()
    route.planned(wrapper, q)
    assert offsets.times == (1 if known else 2)


def test_the_device_is_never_asked_while_a_graph_is_captured(runtime, kernels):
    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages(), graph=True), pages)
    runtime.functions[NAME] = lambda q, *others: (torch.zeros_like(q), torch.zeros(q.shape[:2]))
    ledger.forget(wrapper)
    kernels.capturing = True
    wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"] is wrapper._paged_kv_indices_buf
    assert ledger.planned[wrapper].total is None
    kernels.capturing = False
    wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"].tolist() == pages.indices.tolist()
    kernels.capturing = True  # also when it is known by now: replays have other plans
    wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"] is wrapper._paged_kv_indices_buf


def test_fewer_pages_than_the_offsets_say_go_to_the_original(runtime, kernels):
    pages = Pages()
    wrapper = plan_decode(decoder(Pages()), pages)
    wrapper._paged_kv_indices_buf = pages.indices[:4]
    ledger.forget(wrapper)
    refusals = Refusals(DecodeRoute.label)
    wrapper.run(random(3, HQ, D), pages.cache())
    assert refusals.new() == {"plan without its pages": 1}
    ledger.forget(wrapper)
    kernels.capturing = True
    runtime.functions[NAME] = lambda q, *others: (torch.zeros_like(q), torch.zeros(q.shape[:2]))
    wrapper.run(random(3, HQ, D), pages.cache())  # nobody can know
    kernels.capturing = False
    wrapper.run(random(3, HQ, D), pages.cache())
    assert refusals.new() == {"plan without its pages": 2}


def test_offsets_on_another_device_go_to_the_original():
    route, wrapper = DecodeRoute(), plan_decode(decoder(Pages()), Pages())
    with pytest.raises(UnroutableError, match="another device"):
        route.planned(wrapper, torch.zeros(3, HQ, D, device="meta"))


@pytest.mark.parametrize(
    ("args", "kwargs", "wanted"),
    [
        ((i32(0, 3),), {}, 3),
        ((), {"indptr": i32(0, 4)}, 4),
        ((), {}, None),
        ((None,), {}, None),
        (([0, 5],), {}, None),
        ((i32(),), {}, None),
        ((torch.zeros(3, device="meta"),), {}, None),
    ],
)
def test_totals_are_read_from_the_arguments_of_a_plan_on_the_host(args, kwargs, wanted):
    assert last_of((0, "indptr"), args, kwargs) == wanted
    assert last_of(None, args, kwargs) is None
