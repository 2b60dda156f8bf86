"""Norms of FlashInfer are answered by solutions: values, buffers, epsilons; and what is not."""

import copy
import types

import pytest
import torch
from making import Refusals, Solution, dataset, enabled, fused, patched, reference_of, rmsnorm

from fib_adapters_flashinfer.common import epsilon_of, reference_epsilons
from fib_adapters_flashinfer.norm import FusedAddRMSNormRoute, NormAdapter, RMSNormRoute
from flashinfer_bench.apply import enable_apply, stats

H = 32
RMS, FUSED = "flashinfer.norm.rmsnorm", "flashinfer.norm.fused_add_rmsnorm"


@pytest.fixture
def norm(flashinfer, cpu_norm):
    """FlashInfer's norms, patched."""
    with patched(NormAdapter()):
        yield flashinfer.norm


def rows(*shape, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def weight(hidden=H):
    return rows(hidden, seed=99)


@pytest.mark.parametrize("buffered", [False, True])
def test_rows_in_three_dimensions_are_handed_on_as_a_matrix(norm, tmp_path, buffered):
    x, w = rows(2, 5, H), weight()
    expected = norm.rmsnorm(x, w) + 1.0
    out = torch.empty_like(x) if buffered else None
    with enabled(tmp_path, rmsnorm(H), tag=1.0) as solution:
        found = norm.rmsnorm(x, w, out=out)
    assert found.shape == (2, 5, H)
    assert out is None or found is out
    assert solution.calls[0]["hidden_states"].shape == (10, H)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", ["", "gemma_"])
@pytest.mark.parametrize(
    "outputs", [("output",), ("output", "residual_out"), ("residual_out", "output")]
)
def test_fused_works_in_place(norm, cpu_norm, tmp_path, outputs, kind):
    definition = fused(H, outputs=outputs, kind=f"{kind}fused_add_rmsnorm")
    w = weight() + (1.0 if kind else 0.0)  # the reference knows no bias
    x, r = rows(3, H, seed=1), rows(3, H, seed=2)
    wanted = x.clone(), r.clone()
    norm.fused_add_rmsnorm(*wanted, w)
    cpu_norm.calls.clear()
    with enabled(tmp_path, definition) as solution:
        assert getattr(norm, definition["name"].rpartition("_h")[0])(x, r, w) is None
    assert len(solution.calls) == 1
    assert not cpu_norm.calls
    assert torch.equal(r, wanted[1])
    torch.testing.assert_close(x, wanted[0])


def test_gemma_s_norm_has_definitions_of_its_own(norm, cpu_norm, tmp_path):
    plain, own = rmsnorm(H), rmsnorm(H, kind="gemma_rmsnorm")
    solutions = {each["name"]: Solution(reference_of(each)) for each in (plain, own)}
    with enable_apply(solutions, dataset=dataset(tmp_path, plain, own)):
        norm.gemma_rmsnorm(rows(3, H), weight())
    assert [len(each.calls) for each in solutions.values()] == [0, 1]
    assert not cpu_norm.calls


def swapping(hidden_states, residual, weight):
    """Compute in place, the norm where the residual was: outputs are the inputs, crosswise."""
    total = hidden_states.float() + residual.float()
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    hidden_states.copy_(total)
    residual.copy_(total * scale * weight.float())
    return residual, hidden_states


def test_outputs_that_are_the_inputs_crosswise_arrive_in_their_places(norm, tmp_path):
    definition = fused(H, outputs=("output", "residual_out"))
    x, r = rows(3, H), rows(3, H, seed=1)
    wanted = x.clone(), r.clone()
    norm.fused_add_rmsnorm(*wanted, weight())
    with enabled(tmp_path, definition, swapping):
        norm.fused_add_rmsnorm(x, r, weight())
    torch.testing.assert_close((x, r), wanted)


# ------------------------------------------------------------------- what is of no definition

X, R, W = rows(3, H), rows(3, H, seed=1), weight()
FALLBACKS = [
    (RMS, "no rows", (rows(0, H), W), {}),
    (RMS, "out is not like the input", (X, W), {"out": torch.empty(3, H)}),
    (RMS, "not rows", (rows(H), W), {}),
    (RMS, "rows are not evenly spaced", (rows(4, 6, H)[:, :3], W), {}),
    (FUSED, "eps is not the definition's", (X, R, W, 1e-5), {}),
    (FUSED, "not a matrix", (X[None], R[None], W), {}),
    (FUSED, "residual is not like the input", (X, R.float(), W), {}),
    (FUSED, "residual is the input", (X, X, W), {}),
    (FUSED, "no rows", (X[:0], R[:0], W), {}),
]


@pytest.mark.parametrize(("label", "reason", "args", "kwargs"), FALLBACKS)
def test_it_goes_to_the_original(norm, cpu_norm, tmp_path, label, reason, args, kwargs):
    definition, refusals = rmsnorm(H) if label == RMS else fused(H), Refusals(label)
    with enabled(tmp_path, definition, tag=50.0) as solution:
        result = getattr(norm, label.rpartition(".")[2])(*copy.deepcopy(args), **kwargs)
    assert (len(solution.calls), cpu_norm.calls.total()) == (0, 1)
    assert refusals.new() == {reason: 1}
    assert result is None if label == FUSED else not result.numel() or result.abs().max() < 50.0


@pytest.mark.parametrize("label", [RMS, FUSED])
def test_arguments_that_do_not_fit_raise_what_the_original_raises(norm, tmp_path, label):
    definition, unexpected = rmsnorm(H) if label == RMS else fused(H), "unexpected keyword"
    with enabled(tmp_path, definition), pytest.raises(TypeError, match=unexpected):
        getattr(norm, label.rpartition(".")[2])(X, no_such=1)


@pytest.mark.parametrize("wrong", ["shape", "type", "number"])
def test_a_solution_whose_output_does_not_fit_changes_nothing(norm, wrong):
    """Outputs are looked at before anything is written, and a broken solution is told."""

    def solution(hidden_states, residual, weight):
        made = {"shape": hidden_states[:1], "type": hidden_states.float()}
        return made.get(wrong, (hidden_states,) * 3)

    x, r = X.clone(), R.clone()
    with enable_apply({f"fused_add_rmsnorm_h{H}": solution}):
        with pytest.raises(RuntimeError, match=f"solution of 'fused_add_rmsnorm_h{H}'"):
            norm.fused_add_rmsnorm(x, r, W)
        assert stats()[FUSED]["error"] == 1
    assert torch.equal(x, X)
    assert torch.equal(r, R)


def test_originals_compute_outputs_for_comparison_without_side_effects(flashinfer, cpu_norm):
    """What shadow mode asks for: outputs as the definition has them, from copies of the inputs."""
    x, r, route = X.clone(), R.clone(), RMSNormRoute("rmsnorm")
    understood = route.understand(x[None], W, 1e-6)
    found = route.outputs(flashinfer.norm.rmsnorm, understood, understood.inputs)
    assert torch.equal(found, flashinfer.norm.rmsnorm(x, W))
    wanted = x.clone(), r.clone()
    flashinfer.norm.fused_add_rmsnorm(*wanted, W)
    route = FusedAddRMSNormRoute("fused_add_rmsnorm")
    understood = route.understand(x, r, W)
    outputs = route.outputs(flashinfer.norm.fused_add_rmsnorm, understood, understood.inputs)
    assert all(map(torch.equal, (*outputs, x, r), (*wanted, X, R)))


# ---------------------------------------------------------------------------------- epsilons

REFERENCES = {
    "EPS = 1e-5": {1e-5},
    "def run(x):\n    EPS = 1e-5\n    return torch.rsqrt(x.pow(2).mean(-1) + EPS)": {1e-5},
    "def run(x):\n    return torch.rsqrt(1e-5 + x.pow(2).mean(-1))": {1e-5},
    "def run(x):\n    return x / torch.sqrt(x.pow(2).mean(-1) + 1e-5)": {1e-5},
    "def run(x, epsilon: float = 1e-5):\n    return x": {1e-5},
    "def run(x, *, eps=1e-5):\n    return x": {1e-5},
    "def run(x, w):\n    return F.rms_norm(x, (4096,), w, eps=1e-5)": {1e-5},
    "def run(x, w):\n    return F.rms_norm(x, (4096,), w, 1e-5)": {1e-5},
    "rms_eps: float = 1e-5": {1e-5},
    "class A:\n    def f(self):\n        self.variance_epsilon = 1e-5": {1e-5},
    "def run(x):\n    return (x + 0.5) * torch.rsqrt(x.mean() + 1e-6)": {1e-6},
    "def run(x, w):\n    return close(x * torch.rsqrt(x.mean() + 1e-6), atol=1e-3)": {1e-6},
    "EPS = 1e-5\nother_eps = 1e-6": {1e-5, 1e-6},
    "def run(x, eps):\n    return torch.rsqrt(x + eps)": set(),
    "steps = 0.25": set(),
    "EPS = 12": set(),
    "EPS = 'small'": set(),
    "def run(x)": set(),
    "": set(),
    "\0": set(),
}


def definition(reference="", tags=()):
    inputs = {"hidden_states": None, "weight": None}
    return types.SimpleNamespace(inputs=inputs, reference=reference, tags=list(tags))


@pytest.mark.parametrize("source", REFERENCES)
def test_numbers_that_a_reference_uses(source):
    assert reference_epsilons(source) == REFERENCES[source]


def test_what_decides_in_which_order():
    two = "EPS = 1e-5\nother_eps = 1e-6"
    assert epsilon_of(definition()) == 1e-6
    assert epsilon_of(definition("EPS = 1e-5")) == 1e-5
    assert epsilon_of(definition("EPS = 1e-5", tags=["model:x", "eps:1e-3"])) == 1e-3
    assert epsilon_of(definition("EPS = 1e-5", tags=["eps:small"])) == 1e-5
    assert epsilon_of(definition(two)) is None
    assert epsilon_of(definition(two, tags=["eps:1e-6"])) == 1e-6


CALLS = {
    "a constant": (rmsnorm(H, "1e-5"), 1e-5, True),
    "another constant": (rmsnorm(H, "1e-5"), 1e-6, False),
    "a tag": (rmsnorm(H, "1e-5 * 1", tags=["eps:1e-5"]), 1e-5, True),
    "an input": (rmsnorm(H, takes_eps=True), 1e-5, True),
    "an input, the default": (rmsnorm(H, takes_eps=True), 1e-6, True),
    "float32": (rmsnorm(H, "1e-5"), torch.tensor(1e-5).item(), True),
}


@pytest.mark.parametrize("what", CALLS)
def test_epsilons_of_calls(norm, tmp_path, what):
    made, eps, answered = CALLS[what]
    # Values so small that the epsilon decides.
    x, w = torch.full((3, H), 1e-3).bfloat16(), torch.ones(H).bfloat16()
    expected = norm.rmsnorm(x, w, eps)
    with enabled(tmp_path, made) as solution:
        found = norm.rmsnorm(x, w, eps)
    assert len(solution.calls) == answered
    torch.testing.assert_close(found, expected)


def test_without_a_definition_the_solution_s_own_parameter_decides(norm, cpu_norm):
    def takes(hidden_states, weight, eps=1e-6):
        seen.append(eps)
        return hidden_states

    def lacks(hidden_states, weight):
        seen.append(None)
        return hidden_states

    seen = []
    for solution in (takes, lacks):
        with enable_apply({f"rmsnorm_h{H}": solution}):
            norm.rmsnorm(X, W)
            norm.rmsnorm(X, W, 1e-5)
    assert seen == [1e-6, 1e-5, None]
    assert cpu_norm.calls == {"norm.rmsnorm": 1}


def test_what_is_known_is_asked_anew_when_another_definition_is_enabled(norm, tmp_path):
    for eps in ("1e-5", "1e-6", "1e-5"):
        with enabled(tmp_path / eps, rmsnorm(H, eps)) as solution:
            norm.rmsnorm(X, W, 1e-5)
        assert len(solution.calls) == (eps == "1e-5")
