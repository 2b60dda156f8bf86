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

    @pytest.mark.parametrize("solution", [MINUS, TIMES], ids=["disagrees", "agrees"])
    def test_inputs_with_gaps_are_compared_once(self, tmp_path, solution):
        library, odd = Library(), rows().t().contiguous().t()
        with enabled(dataset(tmp_path, solution).root) as runtime:
            got = [float(library.norm(odd, W)[0, 0]) for _ in range(4)]
            hits = runtime.stats()["norm_k4"].hits
        assert got == [6.0] * 4
        assert hits == (3 if solution is TIMES else 0)
        assert library.calls == 5 - hits  # once more, for its outputs

    @pytest.mark.parametrize(
        "odd",
        [rows().double(), rows()[:, :2].repeat(1, 2).to_sparse()],
        ids=["dtype", "sparse"],
    )
    def test_calls_that_are_none_of_the_definition(self, tmp_path, odd):
        library = Library()
        with enabled(dataset(tmp_path, MINUS).root):
            got = library.norm(odd, W.to(odd.dtype))
        assert library.calls == 1
        assert float(got.to_dense()[0, 0]) == 6

    def test_solution_that_calls_the_function_itself(self, tmp_path, monkeypatch):
        library = Library()
        monkeypatch.setattr(torch, "fib_test_norm", library.norm, raising=False)
        code = (
            "import torch\n\ndef run(hidden_states, weight):\n"
            "    return torch.fib_test_norm(hidden_states, weight) + 1\n"
        )
        with enabled(dataset(tmp_path, code).root):
            for _ in range(3):
                assert library.norm(rows(), W)[0, 0] == 7
        assert library.calls == 3

    def test_torch_compile_takes_the_original(self, tmp_path):
        library = Library()
        compiled = torch.compile(lambda x: library.norm(x, W) + 1, backend="eager", fullgraph=True)
        with enabled(dataset(tmp_path, MINUS).root):
            assert compiled(rows())[0, 0] == 7
        assert compiled(rows())[0, 0] == 7
        assert route_stats()["library.norm"]["calls"] == 0


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
