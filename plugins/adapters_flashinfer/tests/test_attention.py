"""Attention: plans and runs are paired, however plans are made, and whatever state they leave."""

import contextlib

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
    agree,
    decode_name,
    decode_reference,
    decoder,
    i32,
    plan_decode,
    random,
    routed,
)

from fib_adapters_flashinfer.attention import DecodeAdapter, DecodeRoute, planned
from flashinfer_bench.routing.routes import UnroutableError

NAME = decode_name(16)


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


# ------------------------------------------------------------------------------ page numbers


def test_the_device_is_never_asked_while_a_graph_is_captured(runtime, kernels):
    pages, q = Pages(), random(3, HQ, D)
    wrapper = plan_decode(decoder(Pages(), graph=True), pages)
    runtime.functions[NAME] = lambda q, *others: (torch.zeros_like(q), torch.zeros(q.shape[:2]))
    planned.discard(wrapper)
    kernels.capturing = True
    wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"] is wrapper._paged_kv_indices_buf
    assert planned.find(wrapper).total is None
    kernels.capturing = False
    wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"].tolist() == pages.indices.tolist()
    kernels.capturing = True  # also when it is known by now: replays have other plans
    wrapper.run(q, pages.cache())
    assert runtime.inputs["kv_indices"] is wrapper._paged_kv_indices_buf


def test_fewer_pages_than_the_offsets_say_go_to_the_original(runtime, kernels):
    wrapper = plan_decode(decoder(Pages()), Pages())
    wrapper._paged_kv_indices_buf = Pages().indices[:4]
    planned.discard(wrapper)
    refusals = Refusals(DecodeRoute.label)
    for kernels.capturing in (False, True, False):
        if kernels.capturing:  # nobody can know
            runtime.functions[NAME] = lambda q, *_: (torch.zeros_like(q), torch.zeros(q.shape[:2]))
        wrapper.run(random(3, HQ, D), Pages().cache())
        planned.discard(wrapper)
    assert refusals.new() == {"plan without its pages": 2}


def test_offsets_on_another_device_go_to_the_original():
    with pytest.raises(UnroutableError, match="another device"):
        DecodeRoute().planned(
            plan_decode(decoder(Pages()), Pages()), torch.zeros(3, HQ, D, device="meta")
        )


# ------------------------------------------------------------------------------------- buffers


@pytest.mark.parametrize("kind", KINDS)
def test_sums_go_into_a_buffer_that_is_given_though_they_are_not_returned(kind):
    """The kernels write to the buffer whenever there is one."""
    wrapper, tensors = KINDS[kind].planned(), KINDS[kind].tensors()
    wanted, sums = wrapper.run(*tensors, return_lse=True)
    lse = torch.full_like(sums, 7.0)
    with KINDS[kind].routed():
        found = wrapper.run(*tensors, lse=lse, return_lse=False)
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, sums, atol=2e-2, rtol=2e-2)


# --------------------------------------------------------------------------------------- plans


def test_a_plan_that_fails_halfway_has_runs_go_to_the_original_until_the_next(monkeypatch):
    """Page numbers are the new plan's by then, and the schedule and the scale are the old one's."""
    pages = Pages()
    wrapper, (q, cache) = KINDS["decode"].planned(), KINDS["decode"].tensors()
    with KINDS["decode"].routed() as runtime:
        wrapper.run(q, cache)
        assert runtime.calls == 1
        refusals = Refusals(DecodeRoute.label)
        fail_in_the_kernel(wrapper, monkeypatch)
        with pytest.raises(RuntimeError, match="workspace"):
            plan_decode(wrapper, pages, table=(i32(0, 1, 2, 6), *pages.table[1:]), sm_scale=0.3)
        monkeypatch.undo()
        with pytest.raises(AssertionError):  # the stand-in compares offsets and schedule
            wrapper.run(q, cache)
        assert runtime.calls == 1
        assert refusals.new() == {"its last plan failed": 1}
        plan_decode(wrapper, pages)
        wrapper.run(q, cache)
        assert runtime.calls == 2


def fail_in_the_kernel(wrapper, monkeypatch):
    import flashinfer.decode

    def fail(*args, **kwargs):
        raise RuntimeError("the workspace is too small")

    kernels = flashinfer.decode.get_batch_decode_module()
    monkeypatch.setattr(kernels, "plan", fail)


def test_more_queries_than_were_planned_go_to_the_original_if_only_the_device_knows():
    """Rows that no request has are left as they are by the kernels."""
    kind = KINDS["prefill"]
    wrapper, (_, cache) = kind.planned(), kind.tensors()
    vars(wrapper).pop("_qo_indptr_last", None)  # as earlier releases are, and plans of engines
    with kind.routed() as runtime:
        refusals = Refusals(kind.label)
        with contextlib.suppress(AttributeError, AssertionError, RuntimeError, ValueError):
            wrapper.run(random(14, HQ, D), cache)  # what comes of it is for the release to say
        assert refusals.new() == {"number of queries": 1}
        assert runtime.calls == 0


# --------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_values_unlike_keys_go_to_the_original_however_often_others_came(kind):
    wrapper, (q, (k, v)) = KINDS[kind].planned(), KINDS[kind].tensors()
    with KINDS[kind].routed() as runtime:
        wrapper.run(q, (k, v))
        refusals = Refusals(KINDS[kind].label)
        with contextlib.suppress(RuntimeError, AssertionError, ValueError):
            wrapper.run(q, (k, v[:, :, :, : D // 2]))
        assert refusals.new() == {"shapes": 1}
        assert runtime.calls == 1


# --------------------------------------------------------------------------------------- leaks


@pytest.mark.parametrize("kind", ["prefill", "ragged"])
def test_more_queries_than_keys_go_to_the_original_unless_there_are_no_keys(kind):
    """References make no number of a query that sees no key, and kernels make one."""
    kind, table = KINDS[kind], Pages().table
    # Of paged keys, the first request has 32, the second 1, the third 40; of others 9, 1 and 7.
    many = i32(0, 4, 7, 12)
    where = (*table, HQ, HKV, D, 16) if kind.name == "prefill" else (PLACES, HQ, HKV, D)
    for queries, routed_calls in ((many, 0), (ROWS, 1)):
        with kind.routed() as runtime:
            wrapper, refusals = kind.planned(), Refusals(kind.label)
            wrapper.plan(queries, *where, causal=True, q_data_type=DTYPE)
            wrapper.run(*kind.tensors())
            assert runtime.calls == routed_calls
            assert refusals.new() == ({} if routed_calls else {"more queries than keys": 1})


# ------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", ["decode", "prefill", "ragged"])
def test_outputs_to_compare_with_touch_no_buffer_of_the_caller(kind, layout):
    kind = KINDS[kind]
    wrapper, tensors = kind.planned(layout=layout), kind.tensors(layout=layout)
    route, original = kind.adapter.route, type(wrapper).run
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
