"""``linear`` is answered by solutions for matrix products, under all its conditions."""

import pytest
import torch
from making import Refusals, enabled, gemm, patched
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fib_adapters_flashinfer.linear import LinearAdapter, LinearRoute

N, K = 12, 8
LABEL = "torch.nn.functional.linear"


def halves(*shape, dtype=torch.float16):
    return torch.randn(*shape).to(dtype)


@pytest.fixture
def originals(monkeypatch):
    """Counts the calls of the original."""
    calls = []
    original = functional.linear

    def counting(*args, **kwargs):
        calls.append((args, kwargs))
        return original(*args, **kwargs)

    monkeypatch.setattr(functional, "linear", counting)
    return calls


@pytest.fixture
def solution(originals, tmp_path):
    with patched(LinearAdapter()), enabled(tmp_path, gemm(N, K), tag=100.0) as found:
        yield found


@pytest.mark.parametrize("leading", [(3,), (2, 3), (2, 1, 3), ()], ids=str)
def test_leading_dimensions_are_one_for_the_solution(solution, originals, leading):
    x, w = halves(*leading, K), halves(N, K)
    found = functional.linear(x, w)
    assert not originals
    assert len(solution.calls) == 1
    assert solution.calls[0]["A"].shape == (max(1, x.numel() // K), K)
    assert solution.calls[0]["B"] is w
    assert found.shape == (*leading, N)
    torch.testing.assert_close(found, x @ w.T + 100.0, rtol=1e-2, atol=0.1)


class Marked(torch.Tensor):
    """A kind of tensor that computes in its own way."""


X, W = halves(3, K), halves(N, K)
FALLBACKS = [
    ("bias", (X, W, halves(N)), {}),
    ("bias", (X, W), {"bias": halves(N)}),
    ("dtype", (X.double(), W.double()), {}),
    ("gradient", (halves(3, K).requires_grad_(), W), {}),
    ("gradient", (X, torch.nn.Parameter(W)), {}),
    ("shapes", (X, halves(K)), {}),
    ("no rows", (halves(0, K), W), {}),
    ("rows are not evenly spaced", (halves(4, 6, K)[:, :3], W), {}),
    ("kind of tensor", (X.as_subclass(Marked), W), {}),
    (None, (halves(3, K + 1), halves(N, K + 1)), {}),  # another size
]


@pytest.mark.parametrize(("reason", "args", "kwargs"), FALLBACKS)
def test_it_goes_to_the_original(solution, originals, reason, args, kwargs):
    refusals = Refusals(LABEL)
    found = functional.linear(*args, **kwargs)
    assert not solution.calls
    assert len(originals) == 1
    # A mapping takes every call, and finds nothing for some.
    assert refusals.new() == ({reason: 1} if reason else {})
    assert not found.numel() or found.abs().max() < 90.0


def test_under_autocast_it_is_torch_s(solution, originals):
    refusals = Refusals(LABEL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = functional.linear(halves(3, K), halves(N, K))
    assert found.dtype == torch.bfloat16
    assert not solution.calls
    assert refusals.new() == {"autocast": 1}


def test_the_original_computes_outputs_for_comparison():
    x, w = halves(2, 3, K), halves(N, K)
    route = LinearRoute()
    understood = route.understand(x, w)
    found = route.outputs(functional.linear, understood, understood.inputs)
    assert torch.equal(found, functional.linear(x.view(-1, K), w))


# What is looked at of a call below is not in its tensors: torch is told to do more than multiply.


def in_forward_mode(x, w):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        product = forward_ad.unpack_dual(functional.linear(dual, w))
        return product.primal, product.tangent


def in_a_trace(x, w):
    return torch.jit.trace(lambda a: functional.linear(a, w), x, check_trace=False)(x)


def under_a_mode(x, w):
    with FlopCounterMode(display=False) as counter:
        found = functional.linear(x, w)
    assert counter.get_total_flops() == 2 * x.shape[0] * K * N
    return found


TRANSFORMED = {
    "a derivative forwards": in_forward_mode,
    "a jvp": lambda x, w: torch.func.jvp(lambda a: functional.linear(a, w), (x,), (x,)),
    "a vmap": lambda x, w: torch.func.vmap(lambda a: functional.linear(a, w))(x),
    "a vjp": lambda x, w: torch.func.vjp(lambda a: functional.linear(a, w), x)[0],
    "a trace": in_a_trace,
    "a dispatch mode": under_a_mode,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", TRANSFORMED)
def test_what_torch_transforms_goes_to_the_original(solution, originals, how):
    x, w = halves(3, K, dtype=torch.float16), halves(N, K)
    with torch.no_grad():
        found = TRANSFORMED[how](x, w)
    assert not solution.calls
    assert originals
    product = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(product, x @ w.T, rtol=1e-2, atol=0.1)
