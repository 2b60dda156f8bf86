"""Patched functions of a library, answered by recorded solutions."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

from fib_tests.routed_norm import (  # noqa: E402
    FAILS,
    MINUS,
    ROW,
    ROWS,
    TIMES,
    Library,
    W,
    dataset,
    enabled,
    rows,
)
from flashinfer_bench.apply.api import enable_apply  # noqa: E402
from flashinfer_bench.apply.dispatch import Dispatcher  # noqa: E402
from flashinfer_bench.routing import routes as routed  # noqa: E402
from flashinfer_bench.routing.patch_points import router  # noqa: E402
from flashinfer_bench.routing.routes import route_stats  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_enabled")


class TestDataset:
    def test_solution_answers(self, tmp_path):
        library = Library()
        with enabled(dataset(tmp_path, MINUS).root) as runtime:
            for _ in range(3):
                assert library.norm(rows(), W)[0, 0] == -6
            assert runtime.stats()["norm_k4"].hits == 3
        assert library.calls == 0
        assert library.norm(rows(), W)[0, 0] == 6
        assert route_stats()["library.norm"] == {"calls": 3, "routed": 3, "refused": {}}

    def test_sizes_that_nobody_recorded(self, tmp_path):
        library, out = Library(), torch.zeros(3, 4)
        with enabled(dataset(tmp_path, MINUS).root, on_miss_policy="fallback_only"):
            assert library.norm(rows(3), W, out=out) is out
        assert (library.calls, float(out[0, 0])) == (1, 6.0)

    def test_an_extra_that_the_definition_lacks(self, tmp_path):
        library = Library()
        with enabled(dataset(tmp_path, MINUS).root):
            assert library.norm(rows(), W, eps=1e-5)[0, 0] == 6
            assert library.norm(rows(), W, eps=1e-6)[0, 0] == -6
        assert route_stats()["library.norm"] == {
            "calls": 2,
            "routed": 1,
            "refused": {"argument unknown to the definition": 1},
        }

    def test_a_definition_of_something_else(self, tmp_path, caplog):
        odd = {
            "inputs": {"hidden_states": ROWS, "weight": ROW, "bias": ROW, "more": ROW},
            "reference": "def run(hidden_states, weight, bias, more):\n    return hidden_states\n",
        }
        code = odd["reference"]
        library = Library()
        with caplog.at_level(logging.WARNING), enabled(dataset(tmp_path, code, **odd).root):
            assert library.norm(rows(), W)[0, 0] == 6
        assert "norm_k4 (library.norm)" in caplog.text
        assert route_stats()["library.norm"]["refused"] == {routed.NOT_WANTED: 1}

    def test_strict(self, tmp_path):
        library = Library()
        place = dataset(tmp_path, FAILS).root
        with enabled(place, strict=True), pytest.raises(ZeroDivisionError):
            library.norm(rows(), W)
        assert library.norm(rows(), W)[0, 0] == 6

    def test_solution_that_fails(self, tmp_path):
        library, out = Library(), torch.zeros(2, 4)
        with enabled(dataset(tmp_path, FAILS).root) as runtime:
            for _ in range(5):
                assert library.norm(rows(), W, out=out) is out
            assert runtime.stats()["norm_k4"].errors > 0
        assert (library.calls, float(out[0, 0])) == (5, 6.0)

    def test_torch_compile_takes_the_original(self, tmp_path):
        library = Library()
        compiled = torch.compile(lambda x: library.norm(x, W) + 1, backend="eager", fullgraph=True)
        with enabled(dataset(tmp_path, MINUS).root):
            assert compiled(rows())[0, 0] == 7
        assert compiled(rows())[0, 0] == 7
        assert route_stats()["library.norm"]["calls"] == 0


class TestInputsWithGaps:
    @pytest.fixture
    def slow(self, monkeypatch):
        """A list that grows with each such call that is not recognised."""
        seen, answer = [], Dispatcher._answer_strided

        def noted(self, *args):
            seen.append(args)
            return answer(self, *args)

        monkeypatch.setattr(Dispatcher, "_answer_strided", noted)
        return seen

    def half(self, number=0):
        """Return one of the halves of a tensor, as of a cache for keys and values."""
        return torch.arange(16.0).view(2, 2, 4).unbind(1)[number]

    @pytest.mark.parametrize("solution", [MINUS, TIMES], ids=["disagrees", "agrees"])
    def test_they_are_compared_once(self, tmp_path, solution, slow):
        library = Library()
        with enabled(dataset(tmp_path, solution).root) as runtime:
            for number in (0, 1, 0, 1, 0):  # other memory, the same strides
                x = self.half(number)
                assert torch.equal(library.norm(x, W), x * 2)
            hits = runtime.stats()["norm_k4"].hits
        assert hits == (4 if solution is TIMES else 0)
        assert library.calls == 6 - hits  # once more, for its outputs
        # One was compared, and answered by the original; one by the solution, and learnt.
        assert len(slow) == (2 if solution is TIMES else 5)

    def test_those_drawn_for_comparison_are_compared(self, tmp_path, slow, monkeypatch):
        draws = iter([1.0, 1.0, 0.0, *[1.0] * 20])
        monkeypatch.setattr(
            "flashinfer_bench.apply.dispatch.hot_path.random.random", lambda: next(draws)
        )
        library = Library()
        with enabled(dataset(tmp_path, TIMES).root, shadow_share=0.5) as runtime:
            for _ in range(10):
                assert torch.equal(library.norm(self.half(), W), self.half() * 2)
            assert runtime.stats()["norm_k4"].hits == 8
        # The first, the one that is learnt, and the one that was drawn.
        assert len(slow) == 3
        assert library.calls == 4  # of two that were compared, each with its outputs


class TestWatched:
    def test_told_once_in_both_modes(self, tmp_path):
        library, told = Library(), []
        end = router.observe(
            lambda name, point, args, kwargs: told.append((name, len(args), kwargs))
        )
        with enabled(dataset(tmp_path, TIMES).root, shadow_calls=2):
            library.norm(rows(), W)
        with enable_apply({"norm_k4": lambda hidden_states, weight: -hidden_states}):
            library.norm(rows(), W, eps=1e-5)
        library.norm(rows(), weight=W)
        end()
        assert told == [("norm_k4", 3, None)] * 3
