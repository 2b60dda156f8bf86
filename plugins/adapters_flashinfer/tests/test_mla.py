"""MLA runs through the adapter: what is routed and what is not, and how long a plan counts."""

import contextlib
import functools

import gqa
import mla_calls as calls
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import Refusals

from fib_adapters_flashinfer.mla import MLARun, read_host
from flashinfer_bench.routing.routes import UnroutableError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("mla"),
]


@pytest.mark.parametrize("return_lse", [False, True])
def test_buffers_of_the_caller_are_filled_and_returned(mla, return_lse):
    batch = calls.Batch([1, 1], [3, 4])
    padded = torch.full((5, calls.HEADS, calls.CKV), 7.0, dtype=batch.dtype)
    out, lse = padded[:2], torch.empty(2, calls.HEADS)
    with calls.answered() as solution:
        result = batch.planned().run(*batch.tensors, out=out, lse=lse, return_lse=return_lse)
        assert len(solution.calls) == 1
    assert (result[0] if return_lse else result) is out
    assert not return_lse or result[1] is lse
    gqa.agree((out, lse), batch.expected())
    assert (padded[2:] == 7.0).all()
    assert mla.calls["mla.run"] == 0


@given(data=st.data(), return_lse=st.booleans())
def test_any_batch_computes_what_the_original_computes(mla, data, return_lse):
    page_size = data.draw(st.sampled_from([1, 2, 64]))
    keys = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    queries = [data.draw(st.integers(0, length)) for length in keys]
    causal = data.draw(st.booleans())
    batch = calls.Batch(queries, keys, page_size, seed=len(keys))
    if not batch.q_nope.shape[0]:
        return
    wrapper = batch.planned(causal)
    original = wrapper.run(*batch.tensors, return_lse=return_lse)
    both = original if return_lse else (original,)
    gqa.agree(both, batch.expected(causal)[: 1 + return_lse])
    before = mla.calls["mla.run"]
    definitions = [calls.definition(stage, page_size) for stage in ("decode", "prefill_causal")]
    with calls.applied(*definitions) as solutions:
        batch.plan(wrapper, causal)
        found = wrapper.run(*batch.tensors, return_lse=return_lse)
        ran = {name for name, each in solutions.items() if each.calls}
    wanted = "decode" if set(queries) == {1} else "prefill_causal" if causal else None
    assert ran == ({calls.name_of(wanted, page_size)} if wanted else set())
    assert mla.calls["mla.run"] == before + (not wanted), "either the solution runs, or the kernel"
    gqa.agree(found, original)


# ------------------------------------------------------------------- forms of later releases


@pytest.fixture
def structural():
    """The wrapper's newer form of arguments: metadata objects, and both parts in one argument."""
    import flashinfer

    if not hasattr(flashinfer.mla, "MLAPlanMetadata"):
        pytest.skip(f"flashinfer {flashinfer.__version__} has no MLAPlanMetadata")

    def plan(batch, causal=False, **options):
        wrapper = calls.wrapper()
        wrapper.plan(
            metadata=flashinfer.mla.MLAPlanMetadata.csr(*batch.arrays),
            num_heads=calls.HEADS,
            head_dim_ckv=calls.CKV,
            head_dim_kpe=calls.KPE,
            page_size=batch.page_size,
            causal=causal,
            sm_scale=calls.SCALE,
            q_data_type=batch.dtype,
            kv_data_type=batch.dtype,
            **options,
        )
        return wrapper

    return plan


def packed(batch):
    return {
        "query": torch.cat([batch.q_nope, batch.q_pe], dim=-1),
        "kv_cache": torch.cat([batch.ckv, batch.kpe], dim=-1),
    }


@pytest.mark.parametrize("stage", ["decode", "prefill_causal"])
def test_packed_queries_and_keys(mla, structural, stage):
    batch = calls.Batch([1, 1] if stage == "decode" else [2, 1], [3, 4])
    causal = stage != "decode"
    with calls.answered(stage, known=False) as solution:
        wrapper = structural(batch, causal)
        gqa.agree(wrapper.run(**packed(batch)), batch.expected(causal)[0])
    assert len(solution.calls) == 1
    assert mla.calls["mla.run"] == 0


def test_pairs_where_the_plan_has_pairs(mla, structural):
    batch = calls.Batch([1, 1], [3, 4])
    split = {"query_layout": "split", "kv_cache_layout": "split", "lse_mode": "base2"}
    pairs = {"query": (batch.q_nope, batch.q_pe), "kv_cache": (batch.ckv, batch.kpe)}
    with calls.answered() as solution:
        wrapper = structural(batch, **split)
        gqa.agree(wrapper.run(**pairs, return_lse=True), batch.expected())
    assert len(solution.calls) == 1
    assert mla.calls["mla.run"] == 0


def test_adjacent_pairs_where_the_plan_has_whole_tensors(structural):
    batch = calls.Batch([1, 1], [3, 4])
    pairs = {key: tuple(value.split([128, 64], -1)) for key, value in packed(batch).items()}
    apart = {"query": (batch.q_nope, batch.q_pe), "kv_cache": pairs["kv_cache"]}
    with calls.answered(known=False) as solution:
        wrapper = structural(batch)
        gqa.agree(wrapper.run(**pairs), batch.expected()[0])
        with pytest.raises(ValueError, match="zero-copy"):  # the original does
            wrapper.run(**apart)
    assert len(solution.calls) == 1


def test_sums_that_were_not_planned_are_refused_by_the_original(structural):
    batch, refusals = calls.Batch([1, 1], [3, 4]), Refusals(calls.LABEL)
    with calls.answered() as solution:
        with pytest.raises(ValueError, match="LSE mode"):
            structural(batch).run(**packed(batch), return_lse=True)
        with pytest.raises(ValueError, match="LSE mode"):
            structural(batch, lse_mode="base2").run(**packed(batch))
        wrapper = structural(batch, lse_mode="basee")
        wrapper.run(**packed(batch), return_lse=True, return_lse_base_on_e=True)
        assert not solution.calls
        assert refusals.new()["sums differ from the plan"] == 2


# ----------------------------------------------------------------------------------- comparing


@pytest.mark.parametrize("stage", ["decode", "prefill_causal"])
def test_outputs_of_the_original_for_comparisons(mla, stage):
    batch = calls.Batch([1, 1] if stage == "decode" else [2, 1], [3, 4])
    wrapper, out = batch.planned(stage != "decode"), torch.full_like(batch.q_nope, 5.0)
    route = MLARun()
    understood = route.understand(wrapper, *batch.tensors, out=out)
    copies = tuple(
        each.clone() if isinstance(each, torch.Tensor) else each for each in understood.inputs
    )
    found = route.outputs(type(wrapper).run, understood, copies)
    gqa.agree(found, batch.expected(stage != "decode"))
    assert (out == 5.0).all(), "the caller's buffer was written to"


# ------------------------------------------------------------------- what is of no definition


def refuses(mla, reason, batch, plan=None, causal=False, raises=None, **options):
    """Run with both definitions enabled: no solution runs, the original once, for the reason."""
    definitions = [calls.definition(stage) for stage in ("decode", "prefill_causal")]
    with calls.applied(*definitions) as solutions:
        wrapper = batch.planned(causal, **(plan or {}))
        refusals, ran = Refusals(calls.LABEL), mla.calls["mla.run"]
        with pytest.raises(raises) if raises else contextlib.nullcontext():
            wrapper.run(*batch.tensors, **options)
        assert raises or mla.calls["mla.run"] == ran + 1
        assert refusals.new() == {reason: 1}
        assert not any(each.calls for each in solutions.values())


@pytest.mark.parametrize(
    "options",
    [
        {"o_scale": 2.0},
        {"ckv_scale": 0.5, "kpe_scale": 0.5},
        {"sinks": torch.zeros(4)},
        {"bmm1_scale": 1.0, "bmm2_scale": 1.0},
        {"skip_softmax_threshold_scale_factor": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_the_original_refuses_here(mla, options):
    batch, raises = calls.Batch([1], [3]), (ValueError, TypeError)
    refuses(mla, "option of the run", batch, raises=raises, **options)


@pytest.mark.parametrize(
    ("reason", "lengths", "plan", "options"),
    [
        ("not causal", ([2, 1], [3, 4]), {}, {}),
        ("option of the run", ([1], [3]), {}, {"return_lse": True, "return_lse_base_on_e": True}),
        ("option of the run", ([1], [3]), {"use_profiler": True},
         {"profiler_buffer": torch.zeros(8)}),
    ],
)  # fmt: skip
def test_what_no_definition_describes(mla, reason, lengths, plan, options):
    refuses(mla, reason, calls.Batch(*lengths), plan, **options)


def test_lengths_that_do_not_fill_their_pages(mla, flashinfer):
    batch = calls.Batch([1, 1], [4, 5])
    batch.kv_lens = torch.tensor([3, 5], dtype=torch.int32)
    if hasattr(flashinfer.mla, "MLAPlanMetadata"):
        with calls.answered(), pytest.raises(ValueError, match="counts"):
            batch.planned()  # the release itself refuses such a plan
    else:
        refuses(mla, "kv lengths do not fill the pages", batch)


def test_a_buffer_of_another_shape_is_refused_by_the_original(mla):
    batch = calls.Batch([1], [3])
    wrong = torch.empty(2, calls.HEADS, calls.CKV, dtype=batch.dtype)
    refuses(mla, "out buffer", batch, raises=ValueError, out=wrong)
    wrong = torch.empty(1, calls.HEADS, dtype=torch.float16)
    refuses(mla, "lse buffer", batch, raises=ValueError, lse=wrong, return_lse=True)


def test_what_the_original_need_not_be_asked_for():
    """Options of a release to come, tables of the run, and tensors that do not go together."""
    batch, more = calls.Batch([1, 1], [3, 4]), calls.Batch([1, 1, 1], [1, 1, 1])
    wrapper = batch.planned()
    q_nope, q_pe, ckv, kpe = batch.tensors
    assert MLARun().understand(wrapper, *batch.tensors, window_left=None).name
    for tensors, options, reason in (
        (batch.tensors, {"window_left": 4}, "option"),
        (batch.tensors, {"kv_len": batch.kv_lens}, "page table"),
        (batch.tensors, {"page_table": batch.kv_lens}, "page table"),
        (more.tensors, {}, "shape differs"),
        ((q_nope[:1], q_pe, ckv, kpe), {}, "shape"),
        ((q_nope, q_pe, ckv[..., :64], kpe), {}, "shape"),
        ((q_nope, q_pe, ckv, kpe[:2]), {}, "shape"),
        ((q_nope[0], q_pe, ckv, kpe), {}, "shape"),
        ((q_nope, q_pe, ckv.flatten(0, 1), kpe), {}, "shape"),
    ):
        with pytest.raises(UnroutableError, match=reason):
            MLARun().understand(wrapper, *tensors, **options)


def test_a_run_without_a_plan_raises_as_before():
    batch, wrapper, refusals = calls.Batch([1], [3]), calls.wrapper(), Refusals(calls.LABEL)
    with pytest.raises(Exception) as before:  # noqa: PT011 - whatever the release raises
        wrapper.run(*batch.tensors)
    with calls.answered(), pytest.raises(type(before.value)) as after:
        wrapper.run(*batch.tensors)
    assert refusals.new() == {"not planned": 1}
    assert str(after.value) == str(before.value)


# -------------------------------------------------------------------------------------- plans


def test_plans_on_the_host_may_be_overwritten_after_planning():
    batch, other = calls.Batch([1, 1], [3, 4]), calls.Batch([1, 1], [2, 5])
    expected = batch.expected()[0]
    arrays = [each.clone() for each in batch.arrays]
    with calls.answered() as solution:
        wrapper = batch.planned(arrays=arrays)
        # On the CPU, the buffers of the wrapper are these very tensors.
        arrays[1].copy_(other.kv_indptr)
        arrays[3].copy_(other.kv_lens)
        gqa.agree(wrapper.run(*batch.tensors), expected)
        assert len(solution.calls) == 1


# ------------------------------------------------------------------------------- CUDA graphs


def graphed(batch, room=8):
    """Return a wrapper for CUDA graphs with buffers of the caller, room for more pages in one."""
    size = batch.qo_indptr.shape[0]
    buffers = {
        "qo_indptr": torch.zeros(size, dtype=torch.int32),
        "kv_indptr": torch.zeros(size, dtype=torch.int32),
        "kv_indices": torch.zeros(batch.kv_indices.shape[0] + room, dtype=torch.int32),
        "kv_len_arr": torch.zeros(size - 1, dtype=torch.int32),
    }
    return calls.wrapper(use_cuda_graph=True, backend="fa2", **buffers), buffers


def test_a_capture_gets_the_buffers_that_replays_will_fill(mla):
    batch = calls.Batch([1, 1], [70, 64], 64)
    wrapper, buffers = graphed(batch)
    with calls.patched():
        batch.plan(wrapper)
        early = MLARun().understand(wrapper, *batch.tensors).inputs
        mla.capturing = True
        inputs = MLARun().understand(wrapper, *batch.tensors).inputs
        mla.capturing = False
    assert inputs[5] is buffers["kv_indices"]
    assert inputs[4] is buffers["kv_indptr"]
    # Worked out in the capture, so that the graph does so at each replay.
    assert inputs[8].tolist() == [6, 64]
    assert inputs[8] is not early[8]


def test_a_plan_that_was_not_seen_is_left_alone_in_a_capture(mla):
    batch = calls.Batch([1], [3])
    wrapper, _ = graphed(batch)
    batch.plan(wrapper)
    mla.capturing = True
    with pytest.raises(UnroutableError, match="capture"):
        MLARun().understand(wrapper, *batch.tensors)
    mla.capturing = False
    assert MLARun().understand(wrapper, *batch.tensors).name


@pytest.mark.parametrize("capturing", [False, True])
def test_a_plan_that_engines_replaced_is_not_relied_on(capturing, mla):
    """SGLang's writes a schedule that the kernel reads, and leaves the wrapper's buffers alone."""
    batch, later = calls.Batch([1, 1], [3, 4]), calls.Batch([1, 1], [4, 2], seed=1)

    def fast_plan(wrapper, offsets, lengths):
        wrapper._causal, wrapper._page_size = False, 1  # and the schedule, by the compiled module

    wrapper, buffers = graphed(batch)
    with calls.answered() as solution:
        batch.plan(wrapper)
        wrapper.run(*batch.tensors)
        wrapper.plan = functools.partial(fast_plan, wrapper)
        wrapper.plan(later.kv_indptr, later.kv_lens)
        buffers["kv_indices"][:6] = later.kv_indices
        mla.capturing = capturing
        before = mla.calls.total()
        wrapper.run(*batch.tensors)
        assert mla.calls.total() == before + 1
        with pytest.raises(UnroutableError, match="plan replaced by the caller"):
            MLARun().understand(wrapper, *batch.tensors)
        mla.capturing = False
        del wrapper.plan
        later.plan(wrapper)
        gqa.agree(wrapper.run(*later.tensors), later.expected()[0])
    assert [each["kv_indices"].shape[0] for each in solution.calls] == [7, 6]


# ------------------------------------------------------------------------- reading of offsets


@pytest.mark.parametrize(
    ("queries", "pages", "lens", "page_size", "stage", "problem"),
    [
        ((0, 1, 2), (0, 3, 4), (3, 1), 1, "decode", None),
        ((0, 1, 2), (0, 2, 3), (70, 64), 64, "decode", None),
        ((0, 2, 3), (0, 3, 4), (3, 1), 1, "prefill", None),
        ((0, 0, 1), (0, 0, 4), (0, 4), 1, "prefill", None),
        ((0, 1, 2), (0, 0, 4), (0, 4), 1, "decode", None),
        ((0, 4, 5), (0, 3, 4), (3, 1), 1, "", "more queries than keys"),
        ((1, 2, 3), (0, 3, 4), (3, 1), 1, "", "queries do not begin at 0"),
        ((0, 1, 2), (0, 3, 4), (2, 1), 1, "", "kv lengths do not fill the pages"),
        ((0, 1, 2), (0, 3, 4), (129, 64), 64, "decode", None),
        ((0, 1, 2), (0, 3, 4), (128, 64), 64, "", "kv lengths do not fill the pages"),
        ((0, 1, 2, 2), (0, 3, 4), (3, 1), 1, "", "padded plan"),
        ((0, 1, 2), (0, 3, 4, 4), (3, 1), 1, "", "padded plan"),
    ],
)
def test_what_offsets_say(queries, pages, lens, page_size, stage, problem):
    host = read_host((gqa.i32(*queries), gqa.i32(*pages), gqa.i32(*lens)), page_size)
    assert (host.stage, host.problem) == (stage, problem)
    if problem != "padded plan":
        assert (host.total_q, host.total_pages) == (queries[-1], pages[-1])


def test_a_plan_that_fails_halfway_has_runs_go_to_the_original_until_the_next():
    batch, other = calls.Batch([1, 1], [3, 4]), calls.Batch([1, 1], [2, 5])
    with calls.answered() as solution:
        wrapper, refusals = batch.planned(), Refusals(calls.LABEL)
        wrapper.run(*batch.tensors)
        arrays = [*other.arrays[:3], None]
        with pytest.raises(Exception, match=r"."):  # whatever the release says of it
            other.plan(wrapper, arrays=arrays)
        with contextlib.suppress(Exception):
            wrapper.run(*batch.tensors)
        assert len(solution.calls) == 1
        assert refusals.new() == {"its last plan failed": 1}
        other.plan(wrapper)
        gqa.agree(wrapper.run(*other.tensors), other.expected()[0])
        assert len(solution.calls) == 2
