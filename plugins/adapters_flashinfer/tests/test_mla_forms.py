"""Forms of calls in later releases of FlashInfer; comparing; signatures."""

from __future__ import annotations

import mla_calls as calls
import pytest
import torch
from mla_fixtures import stand_in  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


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
