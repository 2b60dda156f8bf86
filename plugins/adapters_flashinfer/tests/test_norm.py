"""Norms of FlashInfer are answered by solutions: values, buffers, identity, arity."""

import pytest
import torch
from making import Solution, dataset, enabled, fused, patched, rmsnorm

from fib_adapters_flashinfer.norm import NormAdapter
from flashinfer_bench.apply import enable_apply

H = 32
KINDS = ("", "gemma_")


@pytest.fixture(autouse=True)
def adapter(cpu_norm):
    with patched(NormAdapter()):
        yield


def rows(*shape, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def weight(hidden=H):
    return rows(hidden, seed=99)


@pytest.mark.parametrize("buffered", [False, True])
def test_rows_in_three_dimensions_are_handed_on_as_a_matrix(flashinfer, tmp_path, buffered):
    x, w = rows(2, 5, H), weight()
    expected = flashinfer.norm.rmsnorm(x, w) + 1.0
    out = torch.empty_like(x) if buffered else None
    with enabled(tmp_path, rmsnorm(H), tag=1.0) as solution:
        found = flashinfer.norm.rmsnorm(x, w, out=out)
    assert found.shape == (2, 5, H)
    assert out is None or found is out
    (args, kwargs) = solution.calls[0]
    assert next(iter([*args, *kwargs.values()])).shape == (10, H)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "outputs", [("output",), ("output", "residual_out"), ("residual_out", "output")]
)
def test_fused_works_in_place(flashinfer, cpu_norm, tmp_path, outputs, kind):
    definition = fused(H, outputs=outputs, kind=f"{kind}fused_add_rmsnorm")
    w = weight() + (1.0 if kind else 0.0)  # the reference knows no bias
    x, r = rows(3, H, seed=1), rows(3, H, seed=2)
    norm, total = x.clone(), r.clone()
    flashinfer.norm.fused_add_rmsnorm(norm, total, w)
    cpu_norm.calls.clear()
    with enabled(tmp_path, definition) as solution:
        assert getattr(flashinfer.norm, definition["name"].rpartition("_h")[0])(x, r, w) is None
    assert len(solution.calls) == 1
    assert not cpu_norm.calls
    assert torch.equal(r, total)
    torch.testing.assert_close(x, norm)


def test_gemma_s_norm_has_definitions_of_its_own(flashinfer, cpu_norm, tmp_path):
    plain, own = rmsnorm(H), rmsnorm(H, kind="gemma_rmsnorm")
    solutions = {f"rmsnorm_h{H}": Solution(plain), f"gemma_rmsnorm_h{H}": Solution(own, tag=3.0)}
    with enable_apply(solutions, dataset=dataset(tmp_path, plain, own)):
        flashinfer.norm.gemma_rmsnorm(rows(3, H), weight())
    assert [len(each.calls) for each in solutions.values()] == [0, 1]
    assert not cpu_norm.calls


def swapping(hidden_states, residual, weight):
    """Compute in place, the norm where the residual was: outputs are the inputs, crosswise."""
    total = hidden_states.float() + residual.float()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    hidden_states.copy_(total)
    residual.copy_(total * scale * weight.float())
    return residual, hidden_states


def test_outputs_that_are_the_inputs_crosswise_arrive_in_their_places(flashinfer, tmp_path):
    definition = fused(H, outputs=("output", "residual_out"))
    x, r = rows(3, H), rows(3, H, seed=1)
    wanted = x.clone(), r.clone()
    flashinfer.norm.fused_add_rmsnorm(*wanted, weight())
    with enabled(tmp_path, definition, swapping):
        flashinfer.norm.fused_add_rmsnorm(x, r, weight())
    torch.testing.assert_close((x, r), wanted)
