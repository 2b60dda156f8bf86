"""MLA runs that are of no definition: the original has them, once, for the reason counted."""

import mla_calls as calls
import pytest
import torch

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("mla"),
]


def refuses(mla, reason, batch, plan=None, causal=False, raises=None, **options):
    """Run with both definitions enabled: no solution runs, the original once, for the reason."""
    definitions = [calls.definition(stage) for stage in ("decode", "prefill_causal")]
    with calls.applied(*definitions) as solutions:
        wrapper = calls.wrapper()
        batch.plan(wrapper, causal, **(plan or {}))
        before, ran = calls.refused().get(reason, 0), mla.calls["mla.run"]
        if raises is not None:
            with pytest.raises(raises):
                wrapper.run(*batch.tensors, **options)
        else:
            wrapper.run(*batch.tensors, **options)
            assert mla.calls["mla.run"] == ran + 1
        assert calls.refused().get(reason, 0) == before + 1, calls.refused()
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
    reason = "option of the run"
    batch = calls.Batch([1], [3])
    refuses(mla, reason, batch, raises=(ValueError, TypeError), **options)


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


def test_lengths_that_do_not_fill_their_pages(mla):
    batch = calls.Batch([1, 1], [4, 5])
    batch.kv_lens = torch.tensor([3, 5], dtype=torch.int32)
    if hasattr(__import__("flashinfer").mla, "MLAPlanMetadata"):
        with calls.applied(calls.definition("decode")), pytest.raises(ValueError, match="counts"):
            batch.plan(calls.wrapper())  # the release itself refuses such a plan
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
    from fib_adapters_flashinfer.mla import MLARun
    from flashinfer_bench.routing.routes import UnroutableError

    batch, more = calls.Batch([1, 1], [3, 4]), calls.Batch([1, 1, 1], [1, 1, 1])
    wrapper = calls.wrapper()
    batch.plan(wrapper)
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
    batch, wrapper = calls.Batch([1], [3]), calls.wrapper()
    with pytest.raises(Exception) as before:  # noqa: PT011 - whatever the release raises
        wrapper.run(*batch.tensors)
    with calls.applied(calls.definition("decode")):
        with pytest.raises(type(before.value)) as after:
            wrapper.run(*batch.tensors)
        assert calls.refused().get("not planned")
    assert str(after.value) == str(before.value)
