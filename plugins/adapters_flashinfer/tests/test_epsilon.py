"""Which epsilon a definition has: an input, a tag, a constant in its reference, or the default."""

import types

import pytest
import torch
from making import enabled, patched, rmsnorm

from fib_adapters_flashinfer.common import epsilon_of, reference_epsilons
from flashinfer_bench.apply import enable_apply

H = 32
REFERENCES = {
    "EPS = 1e-5": {1e-5},
    "def run(x):\n    EPS = 1e-5\n    return torch.rsqrt(x.pow(2).mean(-1) + EPS)": {1e-5},
    "def run(x):\n    return torch.rsqrt(x.pow(2).mean(-1) + 1e-5)": {1e-5},
    "def run(x):\n    return torch.rsqrt(1e-5 + x.pow(2).mean(-1))": {1e-5},
    "def run(x):\n    return (x.pow(2).mean(-1) + 1e-5).rsqrt()": {1e-5},
    "def run(x):\n    return x / torch.sqrt(x.pow(2).mean(-1) + 1e-5)": {1e-5},
    "def run(x, epsilon: float = 1e-5):\n    return x": {1e-5},
    "def run(x, *, eps=1e-5):\n    return x": {1e-5},
    "def run(x, w):\n    return F.rms_norm(x, (4096,), w, eps=1e-5)": {1e-5},
    "def run(x, w):\n    return F.rms_norm(x, (4096,), w, 1e-5)": {1e-5},
    "rms_eps: float = 1e-5": {1e-5},
    "class A:\n    def f(self):\n        self.variance_epsilon = 1e-5": {1e-5},
    "def run(x):\n    return (x + 0.5) * torch.rsqrt(x.mean() + 1e-6)": {1e-6},
    "def run(x, w):\n    return x * torch.rsqrt(x.mean() + 1e-6) * (1.0 + w)": {1e-6},
    "EPS = 1e-5\nother_eps = 1e-6": {1e-5, 1e-6},
    "def run(x, eps):\n    return torch.rsqrt(x + eps)": set(),
    "steps = 0.25": set(),
    "EPSILON = 1e-5": {1e-5},
    "rmsEps = 1e-5": {1e-5},
    "rms_norm_eps_value = 1e-5": {1e-5},
    "epsom = 0.25": set(),
    "EPS = 12": set(),
    "EPS = 'small'": set(),
    "def run(x)": set(),
    "": set(),
    "\0": set(),
}


def definition(reference="", *, inputs=("hidden_states", "weight"), tags=()):
    return types.SimpleNamespace(inputs=dict.fromkeys(inputs), reference=reference, tags=list(tags))


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
def test_calls(flashinfer, cpu_norm, tmp_path, what):
    from fib_adapters_flashinfer.norm import NormAdapter

    made, eps, answered = CALLS[what]
    # Values so small that the epsilon decides.
    x, w = torch.full((3, H), 1e-3).bfloat16(), torch.ones(H).bfloat16()
    expected = flashinfer.norm.rmsnorm(x, w, eps)
    with patched(NormAdapter()), enabled(tmp_path, made) as solution:
        found = flashinfer.norm.rmsnorm(x, w, eps)
    assert len(solution.calls) == answered
    torch.testing.assert_close(found, expected)


def test_without_a_definition_the_solution_s_own_parameter_decides(flashinfer, cpu_norm):
    from fib_adapters_flashinfer.norm import NormAdapter

    def takes(hidden_states, weight, eps=1e-6):
        seen.append(eps)
        return hidden_states

    def lacks(hidden_states, weight):
        seen.append(None)
        return hidden_states

    x, w, seen = torch.ones(3, H).bfloat16(), torch.ones(H).bfloat16(), []
    with patched(NormAdapter()):
        for solution in (takes, lacks):
            with enable_apply({f"rmsnorm_h{H}": solution}):
                flashinfer.norm.rmsnorm(x, w)
                flashinfer.norm.rmsnorm(x, w, 1e-5)
    assert seen == [1e-6, 1e-5, None]
    assert cpu_norm.calls == {"norm.rmsnorm": 1}


def test_what_is_known_is_asked_anew_when_another_definition_is_enabled(
    flashinfer, cpu_norm, tmp_path
):
    from fib_adapters_flashinfer.norm import NormAdapter

    x, w = torch.ones(3, H).bfloat16(), torch.ones(H).bfloat16()
    with patched(NormAdapter()):
        for eps in ("1e-5", "1e-6", "1e-5"):
            made = rmsnorm(H, eps)
            with enabled(tmp_path / eps, made) as solution:
                flashinfer.norm.rmsnorm(x, w, 1e-5)
            assert len(solution.calls) == (eps == "1e-5")
