"""Patched functions whose inputs are views with gaps, answered by recorded solutions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fib_tests.routed_norm import Library, W, dataset, enabled  # noqa: E402
from flashinfer_bench.apply.dispatch import Dispatcher  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_enabled")


COUNTS = "import torch\n\ntorch.fib_test_calls = 0\n"
TIMES = (
    COUNTS + "def run(hidden_states, weight):\n    torch.fib_test_calls += 1\n"
    "    return hidden_states * weight\n"
)
AS_STORED = (
    "import torch\n\ndef run(hidden_states, weight):\n"
    "    return torch.as_strided(hidden_states, (2, 4), (4, 1)) * weight\n"
)


@pytest.fixture(autouse=True)
def no_calls_counted(monkeypatch):
    monkeypatch.setattr(torch, "fib_test_calls", 0, raising=False)


def half(number=0):
    """Return one of the halves of a tensor, as of a cache for keys and values."""
    return torch.arange(16.0).view(2, 2, 4).unbind(1)[number]


def turned():
    return torch.arange(8.0).view(4, 2).t()


def slow_calls(monkeypatch, runtime):
    """Return a list that grows with each call that is not recognised."""
    seen, answer = [], Dispatcher._answer_strided

    def noted(self, *args):
        seen.append(args)
        return answer(self, *args)

    monkeypatch.setattr(Dispatcher, "_answer_strided", noted)
    return seen


def test_after_one_comparison_calls_are_recognised(tmp_path, monkeypatch):
    library = Library()
    with enabled(dataset(tmp_path, TIMES).root) as runtime:
        slow = slow_calls(monkeypatch, runtime)
        for number in (0, 1, 0, 1, 0):  # other memory, the same strides
            x = half(number)
            assert torch.equal(library.norm(x, W), x * 2)
        assert runtime.stats()["norm_k4"].hits == 4
    # One was compared, and answered by the original; one was answered by the solution, and learnt.
    assert len(slow) == 2
    assert library.calls == 2  # the call itself, and its outputs


def test_calls_drawn_for_comparison_are_compared_and_the_others_recognised(tmp_path, monkeypatch):
    draws = iter([False, False, True, *[False] * 20])
    monkeypatch.setattr(
        "flashinfer_bench.apply.dispatch.hot_path.random.random",
        lambda: 0.0 if next(draws) else 1.0,
    )
    library = Library()
    with enabled(dataset(tmp_path, TIMES).root, shadow_share=0.5) as runtime:
        slow = slow_calls(monkeypatch, runtime)
        for _ in range(10):
            assert torch.equal(library.norm(half(), W), half() * 2)
        assert runtime.stats()["norm_k4"].hits == 8
    # The first, the one that is learnt, and the one that was drawn.
    assert len(slow) == 3
    assert torch.fib_test_calls == 10


def test_a_solution_that_ignores_strides_never_answers_such_calls(tmp_path):
    library = Library()
    with enabled(dataset(tmp_path, AS_STORED).root) as runtime:
        for _ in range(3):
            assert torch.equal(library.norm(half(), W), half() * 2)
        assert runtime.stats()["norm_k4"].hits == 0
        x = half().contiguous()
        assert torch.equal(library.norm(x, W), x * 2)
        assert runtime.stats()["norm_k4"].hits == 1
