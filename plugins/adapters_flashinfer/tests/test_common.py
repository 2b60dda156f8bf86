"""The helpers that adapters share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_adapters_flashinfer.common import (
    capturing,
)
from fib_adapters_flashinfer.gqa import as_pages
from flashinfer_bench.routing.routes import UnroutableError


def test_capturing_is_asked_only_where_there_is_a_device(flashinfer, cpu):
    assert not capturing()
    with cpu() as patch:
        assert not capturing()
        patch.capturing = True
        assert capturing()
    assert not capturing()


# ------------------------------------------------------------------------------- page caches


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["NHD", "HND"]),
    st.booleans(),
)
def test_all_forms_of_a_cache_are_the_same_pages(pages, size, heads, layout, whole):
    nhd = torch.arange(pages * 2 * size * heads * 2).view(pages, 2, size, heads, 2)
    given_ = nhd if layout == "NHD" else nhd.transpose(2, 3).contiguous()
    cache = given_ if whole else (given_[:, 0], given_[:, 1])
    k, v = as_pages(cache, layout, nhd.dtype)
    assert torch.equal(k, nhd[:, 0])
    assert torch.equal(v, nhd[:, 1])
    assert k.untyped_storage().data_ptr() == given_.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "cache",
    [
        None,
        torch.zeros(2, 3, 2, 2, 2),
        (torch.zeros(2, 2, 2, 2),),
        (torch.zeros(2, 2, 2, 2), torch.zeros(2, 2)),
        "cache",
    ],
    ids=["none", "3 in 5-D", "one", "2-D", "text"],
)
def test_other_forms_are_refused(cache):
    with pytest.raises(UnroutableError, match="form of the kv cache"):
        as_pages(cache, "NHD", torch.float32)


@pytest.mark.parametrize("whole", [False, True])
def test_other_layouts_are_refused(whole):
    one = torch.zeros(1, 2, 1, 1, 1)
    with pytest.raises(UnroutableError, match="layout"):
        as_pages(one if whole else one.unbind(1), "DHN", one.dtype)


@pytest.mark.parametrize("whole", [False, True])
def test_element_types(whole):
    one = torch.zeros(1, 2, 1, 1, 1, dtype=torch.float16)
    cache = one if whole else one.unbind(1)
    assert as_pages(cache, "NHD", torch.float16)[0].shape == (1, 1, 1, 1)
    mixed = [] if whole else [(cache[0], cache[1].float())]
    for each, dtype in [(cache, torch.bfloat16), *((pair, torch.float16) for pair in mixed)]:
        with pytest.raises(UnroutableError, match="dtype"):
            as_pages(each, "NHD", dtype)
