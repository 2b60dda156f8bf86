"""The stand-ins for kernels: they leave no trace, and compute what FlashInfer says it computes."""

from __future__ import annotations

import sys

import pytest
import torch
from cpu import Patch, cpu_flashinfer
from hypothesis import given, settings
from hypothesis import strategies as st

H = 16
AREAS = ("norm", "decode", "prefill", "mla")


def attributes():
    """Every attribute of FlashInfer's modules, and of what else is replaced."""
    modules = {name: m for name, m in sys.modules.items() if name.partition(".")[0] == "flashinfer"}
    found = {(name, key): each for name, m in modules.items() for key, each in vars(m).items()}
    found.update({("torch", "empty"): torch.empty})
    found.update({("torch.cuda", key): each for key, each in vars(torch.cuda).items()})
    return found


@pytest.mark.parametrize("areas", [(), ("norm",), AREAS], ids=str)
def test_everything_is_put_back(flashinfer, areas):
    with cpu_flashinfer(*areas):
        pass  # whatever is imported is imported
    before = attributes()
    with cpu_flashinfer(*areas):
        during = attributes()
        with cpu_flashinfer(*areas):
            pass
        inner = attributes()
        assert all(inner[key] is each for key, each in during.items())
    after = attributes()
    assert any(during[key] is not each for key, each in before.items())
    assert [key for key, each in before.items() if after[key] is not each] == []
    assert set(after) == set(before)


def test_it_is_put_back_after_an_error(flashinfer):
    before = torch.empty
    with pytest.raises(ZeroDivisionError), cpu_flashinfer("norm"):
        raise ZeroDivisionError
    with pytest.raises(ModuleNotFoundError), cpu_flashinfer("norm", "no_such_area"):
        pass
    assert torch.empty is before


def test_a_stand_in_that_replaces_nothing_is_a_mistake():
    patch = Patch()
    with pytest.raises(AssertionError, match="no attribute 'no_such'"):
        patch.set(torch, "no_such", 1)
    patch.set_if_there(torch, "no_such", 1)
    patch.set_if_there(None, "no_such", 1)
    patch.set(torch, "no_such", 1, new=True)
    patch.undo()
    assert not hasattr(torch, "no_such")


def test_modules_that_a_release_lacks_are_none():
    assert Patch().module("flashinfer.no_such_module") is None


def test_pinned_memory_is_plain_memory(flashinfer):
    with cpu_flashinfer():
        assert torch.empty(4, dtype=torch.int32, pin_memory=True).shape == (4,)


def test_wrappers_can_be_made(flashinfer):
    with cpu_flashinfer():
        workspace = torch.empty(1024, dtype=torch.uint8)
        made = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND")
    assert made._kv_layout == "HND"


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 4),
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.sampled_from([1e-6, 1e-5, 1e-2]),
    st.booleans(),
)
def test_norms_are_what_they_are_said_to_be(rows, dtype, eps, gemma):
    import flashinfer

    x, r = torch.randn(rows, H).to(dtype), torch.randn(rows, H).to(dtype)
    w = torch.randn(H).to(dtype)
    bias = 1.0 if gemma else 0.0
    prefix = "gemma_" if gemma else ""
    with cpu_flashinfer("norm") as patch:
        norm = getattr(flashinfer.norm, f"{prefix}rmsnorm")(x, w, eps)
        a, b = x.clone(), r.clone()
        assert getattr(flashinfer.norm, f"{prefix}fused_add_rmsnorm")(a, b, w, eps) is None
    assert sum(patch.calls.values()) == 2

    def expected(values):
        wide = values.double()
        return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * (w.double() + bias)

    close = {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(norm.double(), expected(x), **close)
    total = x.double() + r.double()
    torch.testing.assert_close(b.double(), total, **close)
    torch.testing.assert_close(a.double(), expected(total), **close)
