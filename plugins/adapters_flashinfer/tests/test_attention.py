"""Attention: what is routed, with which inputs, however plans are made and whatever they leave."""

import contextlib

import gqa
import pytest
import torch
from gqa import DTYPE, HKV, HQ, KINDS, PLACES, ROWS, D, Pages, i32, random
from making import Refusals

from fib_adapters_flashinfer.attention import DecodeAdapter, DecodeRoute, planned
from flashinfer_bench.routing.routes import UnroutableError

# Older forms of calls are deprecated in some releases.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NAME = gqa.decode_name(16)


@pytest.fixture(autouse=True)
def kernels(cpu):
    torch.manual_seed(0)
    with cpu("decode") as patch:
        yield patch


@pytest.fixture
def runtime():
    with gqa.routed(DecodeAdapter(), {NAME: gqa.decode_reference}) as found:
        yield found


@pytest.fixture
def pages():
    return Pages()


@pytest.fixture
def q():
    return random(3, HQ, D)


every_kind = pytest.mark.parametrize("kind", [*KINDS.values()], ids=[*KINDS])
paged = pytest.mark.parametrize("kind", [KINDS["decode"], KINDS["prefill"]], ids=lambda k: k.name)
prefills = pytest.mark.parametrize(
    "kind", [KINDS["prefill"], KINDS["ragged"]], ids=lambda k: k.name
)


# ------------------------------------------------------------------------------------- routed


@pytest.mark.parametrize("way", ["run", "run_return_lse", "forward", "forward_return_lse"])
@pytest.mark.parametrize("planner", ["plan", "begin_forward"])
def test_all_names_of_plan_and_run_are_routed(planner, way, runtime, pages, q):
    wrapper = gqa.decoder(pages)
    getattr(wrapper, planner)(*pages.table, HQ, HKV, D, 16, q_data_type=DTYPE)
    found = getattr(wrapper, way)(q, pages.cache())
    assert runtime.calls == 1
    runtime.stop()
    wanted = getattr(wrapper, way)(q, pages.cache())
    assert isinstance(wanted, tuple) == way.endswith("return_lse")
    gqa.agree(found, wanted)


def test_the_scale_that_forward_sets_counts(runtime, pages, q):
    wrapper = gqa.plan_decode(gqa.decoder(pages), pages, sm_scale=0.25)
    wrapper.forward(q, pages.cache(), sm_scale=0.5)
    assert runtime.inputs["sm_scale"] == 0.5
    wrapper.forward(q, pages.cache())
    assert runtime.inputs["sm_scale"] == D**-0.5


def test_scales_of_one_do_nothing(runtime, pages, q):
    wrapper = gqa.plan_decode(gqa.decoder(pages), pages)
    wrapper.run(q, pages.cache(), q_scale=1.0, k_scale=1.0, v_scale=1.0)
    wrapper.run(q, pages.cache(), q_scale=1, k_scale=None, enable_pdl=False, window_left=-1)
    assert runtime.calls == 2


def test_a_solution_with_one_output_cannot_serve_who_wants_sums(runtime, pages, q):
    runtime.functions[NAME] = lambda *inputs: gqa.decode_reference(*inputs)[0]
    wrapper, refusals = gqa.plan_decode(gqa.decoder(pages), pages), Refusals(DecodeRoute.label)
    found, both = wrapper.run(q, pages.cache()), wrapper.run_return_lse(q, pages.cache())
    assert runtime.calls == 2
    assert refusals.new() == {"no lse among the outputs": 1}
    runtime.stop()
    gqa.agree(found, wrapper.run(q, pages.cache()))
    gqa.agree(both, wrapper.run(q, pages.cache(), return_lse=True))


@pytest.mark.parametrize("planner", ["plan", "begin_forward"])
def test_latent_attention_has_a_name_of_its_own(planner):
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    name = f"mla_ragged_prefill_causal_h{HQ}_qk192_vo128"
    with gqa.routed(KINDS["ragged"].adapter(), {name: gqa.ragged_reference}) as runtime:
        wrapper = BatchPrefillWithRaggedKVCacheWrapper(gqa.workspace())
        getattr(wrapper, planner)(
            qo_indptr=ROWS, kv_indptr=PLACES, num_qo_heads=HQ, num_kv_heads=HQ, head_dim_qk=192,
            head_dim_vo=128, causal=True, q_data_type=DTYPE,
        )  # fmt: skip
        q, k, v = random(12, HQ, 192), random(17, HQ, 192), random(17, HQ, 128)
        found = wrapper.forward_return_lse(q, k, v, causal=True, sm_scale=0.1)
    assert runtime.name == name
    assert runtime.inputs["sm_scale"] == 0.1
    assert found[0].shape == (12, HQ, 128)
    gqa.agree(found, wrapper.forward_return_lse(q, k, v, causal=True, sm_scale=0.1))


@prefills
def test_the_name_that_flashinfers_traces_give_it_is_taken_if_only_that_is_enabled(kind):
    wrapper = kind.planned()
    other = kind.definition.replace("prefill_causal_", "prefill_" if kind.name == "prefill" else "")
    for names in ([other], [other, kind.definition]):
        with gqa.routed(kind.adapter(), dict.fromkeys(names, kind.reference)) as runtime:
            wrapper.run(*kind.tensors())
            assert runtime.name == names[-1]


# ------------------------------------------------------------------------------ plans and runs


def test_one_plan_for_several_objects(runtime, pages, q):
    """Engines copy what a plan left to other wrappers, or have them share buffers."""
    first, second = gqa.plan_decode(gqa.decoder(pages), pages), gqa.decoder(pages)
    for key, value in vars(first).items():
        setattr(second, key, value)
    first.run(q, pages.cache())
    second.run(q, pages.cache())
    assert runtime.calls == 2
    later = (i32(0, 1, 2, 3), i32(1, 2, 3), i32(1, 1, 1))
    gqa.plan_decode(first, pages, table=later)
    first.run(q, pages.cache())
    assert runtime.inputs["kv_indices"].tolist() == [1, 2, 3]
    second.run(q, pages.cache())
    assert runtime.inputs["kv_indices"].tolist() == pages.indices.tolist()


# ---------------------------------------------------------------------------- plans of engines


@pytest.mark.parametrize("tensor_cores", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_plans_that_pass_by_ours_are_noticed(graph, tensor_cores, runtime, pages, q):
    from flashinfer.decode import fast_decode_plan

    wrapper = gqa.decoder(pages, graph=graph, use_tensor_cores=tensor_cores)
    gqa.plan_decode(wrapper, pages).run(q, pages.cache())
    table = (i32(0, 1, 2, 4), i32(7, 6, 5, 4), i32(3, 4, 5))
    if graph:  # the caller has written to the buffers itself
        wrapper._paged_kv_indptr_buf.copy_(table[0])
        wrapper._paged_kv_indices_buf[:4] = table[1]
        wrapper._paged_kv_last_page_len_buf.copy_(table[2])
    fast_decode_plan(wrapper, *table, HQ, HKV, D, 16, q_data_type=DTYPE)
    found = wrapper.run(q, pages.cache(), return_lse=True)
    assert runtime.calls == 2
    assert runtime.inputs["kv_indices"].tolist() == [7, 6, 5, 4]
    runtime.stop()
    gqa.agree(found, wrapper.run(q, pages.cache(), return_lse=True))


# ------------------------------------------------------------------------------ page numbers


def test_the_device_is_never_asked_while_a_graph_is_captured(runtime, kernels, pages, q):
    wrapper = gqa.plan_decode(gqa.decoder(pages, graph=True), pages)
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


def test_fewer_pages_than_the_offsets_say_go_to_the_original(runtime, kernels, pages, q):
    wrapper = gqa.plan_decode(gqa.decoder(pages), pages)
    wrapper._paged_kv_indices_buf = pages.indices[:4]
    planned.discard(wrapper)
    refusals = Refusals(DecodeRoute.label)
    for kernels.capturing in (False, True, False):
        if kernels.capturing:  # nobody can know
            runtime.functions[NAME] = lambda q, *_: (torch.zeros_like(q), torch.zeros(q.shape[:2]))
        wrapper.run(q, pages.cache())
        planned.discard(wrapper)
    assert refusals.new() == {"plan without its pages": 2}


def test_offsets_on_another_device_go_to_the_original(pages, q):
    wrapper = gqa.plan_decode(gqa.decoder(pages), pages)
    with pytest.raises(UnroutableError, match="another device"):
        DecodeRoute().planned(wrapper, q.to("meta"))


# ------------------------------------------------------------------------------------- buffers


@every_kind
def test_sums_go_into_a_buffer_that_is_given_though_they_are_not_returned(kind):
    """The kernels write to the buffer whenever there is one."""
    wrapper, tensors = kind.planned(), kind.tensors()
    wanted, sums = wrapper.run(*tensors, return_lse=True)
    lse = torch.full_like(sums, 7.0)
    with kind.routed():
        found = wrapper.run(*tensors, lse=lse, return_lse=False)
    gqa.agree((found, lse), (wanted, sums))


# --------------------------------------------------------------------------------------- plans


def test_a_plan_that_fails_halfway_has_runs_go_to_the_original_until_the_next(
    monkeypatch, runtime, pages, q
):
    """Page numbers are the new plan's by then, and the schedule and the scale are the old one's."""
    import flashinfer.decode

    def fail(*args, **kwargs):
        raise RuntimeError("the workspace is too small")

    wrapper, cache = gqa.plan_decode(gqa.decoder(pages), pages), pages.cache()
    wrapper.run(q, cache)
    assert runtime.calls == 1
    refusals = Refusals(DecodeRoute.label)
    with monkeypatch.context() as patch:
        patch.setattr(flashinfer.decode.get_batch_decode_module(), "plan", fail)
        with pytest.raises(RuntimeError, match="workspace"):
            gqa.plan_decode(wrapper, pages, table=(i32(0, 1, 2, 6), *pages.table[1:]), sm_scale=0.3)
    with pytest.raises(AssertionError):  # the stand-in compares offsets and schedule
        wrapper.run(q, cache)
    assert runtime.calls == 1
    assert refusals.new() == {"its last plan failed": 1}
    gqa.plan_decode(wrapper, pages).run(q, cache)
    assert runtime.calls == 2


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


@paged
def test_values_unlike_keys_go_to_the_original_however_often_others_came(kind):
    wrapper, (q, (k, v)) = kind.planned(), kind.tensors()
    with kind.routed() as runtime:
        wrapper.run(q, (k, v))
        refusals = Refusals(kind.label)
        with contextlib.suppress(RuntimeError, AssertionError, ValueError):
            wrapper.run(q, (k, v[:, :, :, : D // 2]))
        assert refusals.new() == {"shapes": 1}
        assert runtime.calls == 1


@prefills
def test_more_queries_than_keys_go_to_the_original_unless_there_are_no_keys(kind):
    """References make no number of a query that sees no key, and kernels make one."""
    # Of paged keys, the first request has 32, the second 1, the third 40; of others 9, 1 and 7.
    many = i32(0, 4, 7, 12)
    where = (*Pages().table, HQ, HKV, D, 16) if kind.name == "prefill" else (PLACES, HQ, HKV, D)
    for queries, routed_calls in ((many, 0), (ROWS, 1)):
        with kind.routed() as runtime:
            wrapper, refusals = kind.planned(), Refusals(kind.label)
            wrapper.plan(queries, *where, causal=True, q_data_type=DTYPE)
            wrapper.run(*kind.tensors())
            assert runtime.calls == routed_calls
            assert refusals.new() == ({} if routed_calls else {"more queries than keys": 1})


# ------------------------------------------------------------------------------------ outputs


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@every_kind
def test_outputs_to_compare_with_touch_no_buffer_of_the_caller(kind, layout):
    wrapper, tensors = kind.planned(layout=layout), kind.tensors(layout=layout)
    route, original = kind.adapter.route, type(wrapper).run
    wanted = wrapper.run(*tensors, return_lse=True)
    out, lse = torch.full_like(wanted[0], 7), torch.full_like(wanted[1], 7)
    understood = route.understand(wrapper, *tensors, out=out, lse=lse, return_lse=True)
    copies = tuple(
        each.clone() if isinstance(each, torch.Tensor) else each for each in understood.inputs
    )
    gqa.agree(route.outputs(original, understood, copies), wanted)
    assert bool((out == 7).all())
    assert bool((lse == 7).all())
    found = route.deliver(understood, wanted)
    assert found[0] is out
    assert torch.equal(out, wanted[0])
