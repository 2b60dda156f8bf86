"""Plans of MLA wrappers: what is read of them, when, and for how long it counts."""

import contextlib
import functools

import mla_calls as calls
import pytest
import torch
from gqa import i32

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("mla"),
]


def test_plans_on_the_host_may_be_overwritten_after_planning():
    batch = calls.Batch([1, 1], [3, 4])
    other = calls.Batch([1, 1], [2, 5])
    expected = batch.expected()[0]
    arrays = [each.clone() for each in batch.arrays]
    with calls.applied(calls.definition("decode")) as solutions:
        wrapper = calls.wrapper()
        batch.plan(wrapper, arrays=arrays)
        # On the CPU, the buffers of the wrapper are these very tensors.
        arrays[1].copy_(other.kv_indptr)
        arrays[3].copy_(other.kv_lens)
        calls.close(wrapper.run(*batch.tensors), expected)
        assert len(next(iter(solutions.values())).calls) == 1


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
    from fib_adapters_flashinfer.mla import MLARun

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
    from fib_adapters_flashinfer.mla import MLARun
    from flashinfer_bench.routing.routes import UnroutableError

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
    from fib_adapters_flashinfer.mla import MLARun
    from flashinfer_bench.routing.routes import UnroutableError

    batch, later = calls.Batch([1, 1], [3, 4]), calls.Batch([1, 1], [4, 2], seed=1)

    def fast_plan(wrapper, offsets, lengths):
        wrapper._causal, wrapper._page_size = False, 1  # and the schedule, by the compiled module

    wrapper, buffers = graphed(batch)
    with calls.applied(calls.definition("decode")) as solutions:
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
        calls.close(wrapper.run(*later.tensors), later.expected()[0])
    (solution,) = solutions.values()
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
    from fib_adapters_flashinfer.mla import read_host

    host = read_host(i32(*queries), i32(*pages), i32(*lens), page_size)
    assert (host.stage, host.problem) == (stage, problem)
    if problem != "padded plan":
        assert (host.total_q, host.total_pages) == (queries[-1], pages[-1])


def test_a_plan_that_fails_halfway_has_runs_go_to_the_original_until_the_next():
    batch, other = calls.Batch([1, 1], [3, 4]), calls.Batch([1, 1], [2, 5])
    with calls.applied(calls.definition("decode")) as solutions:
        solution = next(iter(solutions.values()))
        wrapper = calls.wrapper()
        batch.plan(wrapper)
        wrapper.run(*batch.tensors)
        before = calls.refused()
        arrays = [*other.arrays[:3], None]
        with pytest.raises(Exception, match=r"."):  # whatever the release says of it
            other.plan(wrapper, arrays=arrays)
        with contextlib.suppress(Exception):
            wrapper.run(*batch.tensors)
        assert len(solution.calls) == 1
        reason = "its last plan failed"
        assert calls.refused().get(reason, 0) == before.get(reason, 0) + 1
        other.plan(wrapper)
        calls.close(wrapper.run(*other.tensors), other.expected()[0])
        assert len(solution.calls) == 2
