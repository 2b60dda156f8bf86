"""MLA runs through the adapter: what is routed, with which inputs, and what comes back."""

import mla_calls as calls
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("mla"),
]


@pytest.mark.parametrize("return_lse", [False, True])
def test_buffers_of_the_caller_are_filled_and_returned(mla, return_lse):
    batch = calls.Batch([1, 1], [3, 4])
    padded = torch.full((5, calls.HEADS, calls.CKV), 7.0, dtype=batch.dtype)
    out, lse = padded[:2], torch.empty(2, calls.HEADS)
    with calls.applied(calls.definition("decode")) as solutions:
        wrapper = calls.wrapper()
        batch.plan(wrapper)
        result = wrapper.run(*batch.tensors, out=out, lse=lse, return_lse=return_lse)
        assert len(next(iter(solutions.values())).calls) == 1
    assert (result[0] if return_lse else result) is out
    assert not return_lse or result[1] is lse
    expected = batch.expected()
    calls.close((out, lse), expected)
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
    wrapper = calls.wrapper()
    batch.plan(wrapper, causal)
    original = wrapper.run(*batch.tensors, return_lse=return_lse)
    both = original if return_lse else (original,)
    calls.close(both, batch.expected(causal)[: 1 + return_lse])
    before = mla.calls["mla.run"]
    definitions = [calls.definition(stage, page_size) for stage in ("decode", "prefill_causal")]
    with calls.applied(*definitions) as solutions:
        batch.plan(wrapper, causal)
        found = wrapper.run(*batch.tensors, return_lse=return_lse)
        ran = {name for name, each in solutions.items() if each.calls}
    wanted = "decode" if set(queries) == {1} else "prefill_causal" if causal else None
    assert ran == ({calls.name_of(wanted, page_size)} if wanted else set())
    assert mla.calls["mla.run"] == before + (not wanted), "either the solution runs, or the kernel"
    assert type(found) is type(original)
    calls.close(found, original)


# ------------------------------------------------------------------- forms of later releases


@pytest.fixture
def structural():
    """The wrapper's newer form of arguments: metadata objects, and both parts in one argument."""
    import flashinfer

    metadata = getattr(flashinfer.mla, "MLAPlanMetadata", None)
    if metadata is None:
        pytest.skip(f"flashinfer {flashinfer.__version__} has no MLAPlanMetadata")

    def plan(batch, causal=False, **options):
        wrapper = calls.wrapper()
        names = ("num_heads", "head_dim_ckv", "head_dim_kpe", "page_size")
        sizes = dict(zip(names, (calls.HEADS, calls.CKV, calls.KPE, batch.page_size), strict=True))
        form = options.pop("metadata", None) or metadata.csr(*batch.arrays)
        wrapper.plan(
            metadata=form,
            causal=causal,
            sm_scale=calls.SCALE,
            q_data_type=batch.dtype,
            kv_data_type=batch.dtype,
            **sizes,
            **options,
        )
        return wrapper

    plan.metadata = metadata
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
    with calls.applied(calls.definition(stage), known=False) as solutions:
        wrapper = structural(batch, causal)
        calls.close(wrapper.run(**packed(batch)), batch.expected(causal)[0])
    assert len(next(iter(solutions.values())).calls) == 1
    assert mla.calls["mla.run"] == 0


def test_pairs_where_the_plan_has_pairs(mla, structural):
    batch = calls.Batch([1, 1], [3, 4])
    split = {"query_layout": "split", "kv_cache_layout": "split", "lse_mode": "base2"}
    pairs = {"query": (batch.q_nope, batch.q_pe), "kv_cache": (batch.ckv, batch.kpe)}
    with calls.applied(calls.definition("decode")) as solutions:
        wrapper = structural(batch, **split)
        calls.close(wrapper.run(**pairs, return_lse=True), batch.expected())
    assert len(next(iter(solutions.values())).calls) == 1
    assert mla.calls["mla.run"] == 0


def test_adjacent_pairs_where_the_plan_has_whole_tensors(structural):
    batch = calls.Batch([1, 1], [3, 4])
    pairs = {key: tuple(value.split([128, 64], -1)) for key, value in packed(batch).items()}
    apart = {"query": (batch.q_nope, batch.q_pe), "kv_cache": pairs["kv_cache"]}
    with calls.applied(calls.definition("decode"), known=False) as solutions:
        wrapper = structural(batch)
        calls.close(wrapper.run(**pairs), batch.expected()[0])
        with pytest.raises(ValueError, match="zero-copy"):  # the original does
            wrapper.run(**apart)
    assert len(next(iter(solutions.values())).calls) == 1


def test_sums_that_were_not_planned_are_refused_by_the_original(structural):
    batch = calls.Batch([1, 1], [3, 4])
    with calls.applied(calls.definition("decode")) as solutions:
        with pytest.raises(ValueError, match="LSE mode"):
            structural(batch).run(**packed(batch), return_lse=True)
        with pytest.raises(ValueError, match="LSE mode"):
            structural(batch, lse_mode="base2").run(**packed(batch))
        wrapper = structural(batch, lse_mode="basee")
        wrapper.run(**packed(batch), return_lse=True, return_lse_base_on_e=True)
        assert not next(iter(solutions.values())).calls
        assert calls.refused()["sums differ from the plan"] >= 2


# ---------------------------------------------------------------------- comparing, signatures


@pytest.mark.parametrize("stage", ["decode", "prefill_causal"])
def test_outputs_of_the_original_for_comparisons(mla, stage):
    from fib_adapters_flashinfer.mla import MLARun

    batch = calls.Batch([1, 1] if stage == "decode" else [2, 1], [3, 4])
    wrapper, out = calls.wrapper(), torch.full_like(batch.q_nope, 5.0)
    batch.plan(wrapper, stage != "decode")
    route = MLARun()
    understood = route.understand(wrapper, *batch.tensors, out=out)
    copies = tuple(
        each.clone() if isinstance(each, torch.Tensor) else each for each in understood.inputs
    )
    found = route.outputs(type(wrapper).run, understood, copies)
    calls.close(found, batch.expected(stage != "decode"))
    assert (out == 5.0).all(), "the caller's buffer was written to"
