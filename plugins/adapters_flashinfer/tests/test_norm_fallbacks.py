"""Calls of norms that no definition describes go to the original, once, with a reason."""

import pytest
import torch
from making import enabled, fused, patched, rmsnorm

from fib_adapters_flashinfer.norm import NormAdapter
from flashinfer_bench.apply import enable_apply, stats
from flashinfer_bench.routing.routes import route_stats

H = 32
RMS, FUSED = "flashinfer.norm.rmsnorm", "flashinfer.norm.fused_add_rmsnorm"


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


@pytest.fixture
def calling(flashinfer, cpu_norm, tmp_path):
    """Makes one call with a solution enabled; returns what came of it, and the new reasons."""

    def call(definition, label, *args, **kwargs):
        with patched(NormAdapter()), enabled(tmp_path, definition, tag=50.0) as solution:
            before = route_stats()[label]["refused"]
            cpu_norm.calls.clear()
            result = getattr(flashinfer.norm, label.rpartition(".")[2])(*args, **kwargs)
            after = route_stats()[label]["refused"]
        new = [reason for reason, count in after.items() if count > before.get(reason, 0)]
        return result, len(solution.calls), sum(cpu_norm.calls.values()), new

    return call


NORM_CALLS = {
    "no rows": ("no rows", lambda x: ((rows(0, H), rows(H)), {})),
    "out of another type": (
        "out is not like the input",
        lambda x: ((x, rows(H)), {"out": torch.empty(3, H)}),
    ),
    "one row without a batch": ("not rows", lambda x: ((rows(H), rows(H)), {})),
    "rows with gaps in three dimensions": (
        "rows are not evenly spaced",
        lambda x: ((rows(4, 6, H)[:, :3], rows(H)), {}),
    ),
}


FUSED_CALLS = {
    "another epsilon": (
        "eps is not the definition's",
        lambda x: ((x, rows(3, H), rows(H), 1e-5), {}),
    ),
    "three dimensions": ("not a matrix", lambda x: ((x[None], rows(1, 3, H), rows(H)), {})),
    "a residual of another type": (
        "residual is not like the input",
        lambda x: ((x, rows(3, H, dtype=torch.float32), rows(H)), {}),
    ),
    "the residual is the input": ("residual is the input", lambda x: ((x, x, rows(H)), {})),
    "no rows": ("no rows", lambda x: ((x[:0], rows(0, H), rows(H)), {})),
}


@pytest.mark.parametrize(
    ("label", "what"), [*((RMS, what) for what in NORM_CALLS), *((FUSED, w) for w in FUSED_CALLS)]
)
def test_it_goes_to_the_original(calling, label, what):
    reason, make = (NORM_CALLS if label == RMS else FUSED_CALLS)[what]
    args, kwargs = make(rows(3, H))
    definition = rmsnorm(H) if label == RMS else fused(H)
    result, solved, original, new = calling(definition, label, *args, **kwargs)
    assert (solved, original) == (0, 1)
    assert new == [reason]
    assert result is None if label == FUSED else not result.numel() or result.abs().max() < 50.0


@pytest.mark.parametrize("label", [RMS, FUSED])
def test_arguments_that_do_not_fit_raise_what_the_original_raises(calling, label):
    with pytest.raises(TypeError, match="unexpected keyword"):
        calling(rmsnorm(H) if label == RMS else fused(H), label, rows(3, H), no_such=1)


@pytest.mark.parametrize("wrong", ["shape", "type", "number"])
def test_a_solution_whose_output_does_not_fit_changes_nothing(flashinfer, cpu_norm, wrong):
    """Outputs are looked at before anything is written, and a broken solution is told."""

    def solution(hidden_states, residual, weight):
        made = {"shape": hidden_states[:1], "type": hidden_states.float()}
        return made.get(wrong, (hidden_states,) * 3)

    x, r, w = rows(3, H), rows(3, H), rows(H)
    kept = [x.clone(), r.clone()]
    with patched(NormAdapter()), enable_apply({f"fused_add_rmsnorm_h{H}": solution}):
        with pytest.raises(RuntimeError, match=f"solution of 'fused_add_rmsnorm_h{H}'"):
            flashinfer.norm.fused_add_rmsnorm(x, r, w)
        assert stats()[FUSED]["error"] == 1
    assert torch.equal(x, kept[0])
    assert torch.equal(r, kept[1])


def test_originals_compute_outputs_for_comparison_without_side_effects(flashinfer, cpu_norm):
    """What shadow mode asks for: outputs as the definition has them, from copies of the inputs."""
    from fib_adapters_flashinfer.norm import FusedAddRMSNormRoute, RMSNormRoute

    x, r, w = rows(3, H), rows(3, H), rows(H)
    route = RMSNormRoute("rmsnorm")
    understood = route.understand(x[None], w, 1e-6)
    found = route.outputs(flashinfer.norm.rmsnorm, understood, understood.inputs)
    assert torch.equal(found, flashinfer.norm.rmsnorm(x, w))
    norm, total = x.clone(), r.clone()
    flashinfer.norm.fused_add_rmsnorm(norm, total, w)
    kept = x.clone(), r.clone()
    fused_route = FusedAddRMSNormRoute("fused_add_rmsnorm")
    understood = fused_route.understand(x, r, w)
    outputs = fused_route.outputs(flashinfer.norm.fused_add_rmsnorm, understood, understood.inputs)
    assert torch.equal(outputs[0], norm)
    assert torch.equal(outputs[1], total)
    assert torch.equal(x, kept[0])
    assert torch.equal(r, kept[1])
