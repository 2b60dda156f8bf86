"""Solutions for patched functions, compared with what the originals compute; and in place."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

from fib_tests.routed_norm import (  # noqa: E402
    IN_PLACE,
    MINUS,
    TIMES,
    AddRoute,
    Library,
    NormRoute,
    W,
    dataset,
    enabled,
    rows,
)
from flashinfer_bench.routing.routes import Route, route_calls  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_enabled")


class TestShadow:
    def calls(self, library, number=4, out=None):
        return [library.norm(rows(), W, out=out) for _ in range(number)]

    def test_agreeing(self, tmp_path):
        library, out = Library(), torch.zeros(2, 4)
        with enabled(dataset(tmp_path, TIMES).root, shadow_calls=2) as runtime:
            assert all(each is out for each in self.calls(library, out=out))
            found = runtime.stats()["norm_k4"]
        assert (found.hits, found.fallbacks, found.errors) == (2, 2, 0)
        assert library.calls == 4  # in each compared call once for the copies
        assert out[0, 0] == 6

    def test_disagreeing(self, tmp_path, caplog):
        library, out = Library(), torch.zeros(2, 4)
        with enabled(dataset(tmp_path, MINUS).root, shadow_calls=2) as runtime:
            with caplog.at_level(logging.WARNING):
                self.calls(library, out=out)
            found = runtime.stats()["norm_k4"]
        assert (found.hits, found.errors) == (0, 1)
        assert out[0, 0] == 6
        assert "disagrees with the original" in caplog.text

    def test_compared_on_copies(self, tmp_path):
        seen = []

        class Noting(NormRoute):
            def outputs(self, original, understood, inputs):
                seen.append((understood.inputs, inputs))
                inputs[0].zero_()  # its own
                return original(rows(), *inputs[1:])

        library, x = Library(Noting), rows()
        with enabled(dataset(tmp_path, TIMES).root, shadow_calls=1):
            library.norm(x, W)
        ((given, copies),) = seen
        assert given[0] is x
        assert copies[0] is not x
        assert copies[2] == 1e-6  # no input of the definition: as it came
        assert x[0, 0] == 3

    def test_route_that_cannot_compute_them(self, tmp_path, caplog):
        caplog.set_level(logging.WARNING)

        class Plain(NormRoute):
            outputs = Route.outputs

        library = Library(Plain)
        with enabled(dataset(tmp_path, TIMES).root, shadow_calls=1) as runtime:
            self.calls(library)
            assert runtime.stats()["norm_k4"].hits == 0
        assert library.calls == 4
        assert caplog.text.count("cannot be compared") == 1


class TestInPlace:
    """A definition that says that an input is written to, and a function that does it."""

    PURE = "def run(input, residual):\n    return residual + input\n"
    WRITES = "def run(input, residual):\n    return residual.add_(input)\n"
    WRONG = "def run(input, residual):\n    return residual.sub_(input)\n"

    def library(self):
        calls = []

        def add_(input, residual):
            calls.append(input)
            residual.add_(input)

        return route_calls(AddRoute(), add_), calls

    @pytest.mark.parametrize("shadow", [0, 2])
    @pytest.mark.parametrize("code", [PURE, WRITES], ids=["pure", "writes"])
    def test_written_once(self, tmp_path, code, shadow):
        add_, calls = self.library()
        place = dataset(tmp_path, code, "add_k4", **IN_PLACE).root
        residual = rows(value=1.0)
        with enabled(place, shadow_calls=shadow) as runtime:
            for _ in range(4):
                assert add_(rows(value=10.0), residual) is None
            found = runtime.stats()["add_k4"]
        assert (found.hits, found.errors) == (4 - shadow, 0)
        assert residual[0, 0] == 41
        assert len(calls) == 2 * shadow

    def test_a_wrong_one_never_reaches_the_caller(self, tmp_path):
        add_, _ = self.library()
        place = dataset(tmp_path, self.WRONG, "add_k4", **IN_PLACE).root
        residual = rows(value=1.0)
        with enabled(place, shadow_calls=1) as runtime:
            for _ in range(3):
                add_(rows(value=10.0), residual)
            assert runtime.stats()["add_k4"].errors == 1
        assert residual[0, 0] == 31
