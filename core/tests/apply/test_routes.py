"""Patched functions of a library, answered by recorded solutions."""

from __future__ import annotations

import json
import logging

import pytest

torch = pytest.importorskip("torch")

from fib_tests import runtime_dataset  # noqa: E402
from flashinfer_bench.apply.api import enable_apply  # noqa: E402
from flashinfer_bench.apply.config import ApplyConfig  # noqa: E402
from flashinfer_bench.apply.mapping import stats  # noqa: E402
from flashinfer_bench.data import Definition, TraceSet  # noqa: E402
from flashinfer_bench.routing import UnroutableError  # noqa: E402
from flashinfer_bench.routing import routes as routed  # noqa: E402
from flashinfer_bench.routing.patch_points import router  # noqa: E402
from flashinfer_bench.routing.routes import (  # noqa: E402
    Route,
    Understood,
    route_calls,
    route_stats,
    signature_of,
)

pytestmark = pytest.mark.usefixtures("nothing_enabled")

ROWS = runtime_dataset.MATRIX
ROW = {"shape": ["k"], "dtype": "float32"}
SCALAR = {"shape": None, "dtype": "float32"}


class NormRoute(Route):
    """``norm(input, weight, eps=1e-6, out=None)``, which multiplies rows by a weight."""

    label = "library.norm"
    parameters = signature_of("hidden_states", "weight", eps=1e-6)
    definitions = ("norm_k*",)

    def understand(self, input, weight, eps=1e-6, out=None):
        return Understood(f"norm_k{input.shape[-1]}", (input, weight, eps), out)

    def deliver(self, understood, result):
        out = understood.rest
        if out is None:
            return result
        if result.shape != out.shape:
            raise UnroutableError("outputs of another shape")
        return out.copy_(result)

    def outputs(self, original, understood, inputs):
        return original(*inputs)


class Library:
    """Counts calls of the original."""

    def __init__(self, route=NormRoute):
        self.calls = 0
        self.norm = route_calls(route(), self._original)

    def _original(self, input, weight, eps=1e-6, out=None):
        self.calls += 1
        result = input * weight
        return result if out is None else out.copy_(result)


class AddRoute(Route):
    """``add_(input, residual)``: adds the one to the other, in place."""

    label = "library.add_"
    parameters = signature_of("input", "residual")
    definitions = ("add_k*",)

    def understand(self, input, residual):
        return Understood(f"add_k{input.shape[-1]}", (input, residual))

    def deliver(self, understood, result):
        understood.inputs[1].copy_(result)

    def outputs(self, original, understood, inputs):
        original(*inputs)
        return inputs[1]


NORM = {
    "inputs": {"hidden_states": ROWS, "weight": ROW},
    "outputs": {"output": ROWS},
    "reference": "def run(hidden_states, weight):\n    return hidden_states * weight\n",
}
WITH_EPS = {
    # In another order than that of the function.
    "inputs": {"eps": SCALAR, "weight": ROW, "hidden_states": ROWS},
    "reference": "def run(eps, weight, hidden_states):\n    return hidden_states * weight\n",
}
IN_PLACE = {
    "inputs": {"input": ROWS, "residual": ROWS},
    "outputs": {"sum": {**ROWS, "param": "residual"}},
    "reference": "def run(input, residual):\n    return residual + input\n",
}
TIMES = "def run(hidden_states, weight):\n    return hidden_states * weight\n"
MINUS = "def run(hidden_states, weight):\n    return -hidden_states * weight\n"


def dataset(tmp_path, code, name="norm_k4", **changes):
    """Return a folder with one winner for two rows."""
    made, about = runtime_dataset.Dataset(tmp_path / "dataset"), {**NORM, **changes}
    made.definition(name, **about).solution("best", name, source="{tag}", tag=code)
    record = runtime_dataset.trace("best", 2, of=name)
    record["workload"]["inputs"] = {each: {"type": "random"} for each in about["inputs"]}
    made.put(f"traces/op/{name}.jsonl", json.dumps(record) + "\n")
    return made.root


def rows(count=2, k=4, value=3.0):
    return torch.full((count, k), value)


W = torch.full((4,), 2.0)


def enabled(where, **settings):
    return enable_apply(where, apply_config=ApplyConfig(**settings))


class TestDataset:
    def test_solution_answers(self, tmp_path):
        library = Library()
        with enabled(dataset(tmp_path, MINUS)) as runtime:
            for _ in range(3):
                assert library.norm(rows(), W)[0, 0] == -6
            assert runtime.stats()["norm_k4"].hits == 3
        assert library.calls == 0
        assert library.norm(rows(), W)[0, 0] == 6
        assert route_stats()["library.norm"] == {"calls": 3, "routed": 3, "refused": {}}

    def test_an_extra_that_the_definition_lacks(self, tmp_path):
        library = Library()
        with enabled(dataset(tmp_path, MINUS)):
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
        with caplog.at_level(logging.WARNING), enabled(dataset(tmp_path, code, **odd)):
            assert library.norm(rows(), W)[0, 0] == 6
        assert "norm_k4 (library.norm)" in caplog.text
        assert route_stats()["library.norm"]["refused"] == {routed.NOT_WANTED: 1}

    def test_torch_compile_takes_the_original(self, tmp_path):
        library = Library()
        compiled = torch.compile(lambda x: library.norm(x, W) + 1, backend="eager", fullgraph=True)
        with enabled(dataset(tmp_path, MINUS)):
            assert compiled(rows())[0, 0] == 7
        assert compiled(rows())[0, 0] == 7
        assert route_stats()["library.norm"]["calls"] == 0


def test_inputs_with_gaps_that_are_drawn_for_comparison(tmp_path, monkeypatch):
    """One of the halves of a tensor, as of a cache for keys and values."""
    half, draws = torch.arange(16.0).view(2, 2, 4)[:, 0], iter([1.0, 1.0, 0.0, *[1.0] * 20])
    monkeypatch.setattr(
        "flashinfer_bench.apply.dispatch.hot_path.random.random", lambda: next(draws)
    )
    library = Library()
    with enabled(dataset(tmp_path, TIMES), shadow_share=0.5) as runtime:
        for _ in range(10):
            assert torch.equal(library.norm(half, W), half * 2)
        assert runtime.stats()["norm_k4"].hits == 8
    assert library.calls == 4  # of two that were compared, each with its outputs


def test_watchers_are_told_once_in_both_modes(tmp_path):
    library, told = Library(), []
    end = router.observe(lambda name, point, args, kwargs: told.append((name, len(args), kwargs)))
    with enabled(dataset(tmp_path, TIMES), shadow_calls=2):
        library.norm(rows(), W)
    with enable_apply({"norm_k4": lambda hidden_states, weight: -hidden_states}):
        library.norm(rows(), W, eps=1e-5)
    library.norm(rows(), weight=W)
    end()
    assert told == [("norm_k4", 3, None)] * 3


# ------------------------------------------------------------------------------------ by a mapping


class TestMapping:
    def known(self, **changes):
        record = runtime_dataset.definition("norm_k4", **{**NORM, **changes})
        found = Definition.model_validate(record)
        return TraceSet(definitions={found.name: found})

    def test_without_the_definition(self):
        library, out = Library(), torch.zeros(2, 4)
        with enable_apply({"norm_k4": lambda hidden_states, weight: -hidden_states}):
            assert library.norm(rows(), W, out=out) is out
            assert library.norm(rows(k=5), torch.ones(5))[0, 0] == 3
            assert stats()["library.norm"]["hit"] == 1
            assert stats()["library.norm"]["misses"] == {"not in the mapping": 1}
        assert out[0, 0] == -3
        assert library.calls == 1

    def test_function_says_what_it_takes(self):
        library, seen = Library(), []

        def solution(weight, *, hidden_states, eps=0.0):
            seen.append(eps)
            return -hidden_states

        with enable_apply({"norm_k4": solution}):
            library.norm(rows(), W, 1e-5)
            library.norm(rows(), W)
        assert seen == [1e-5, 1e-6]

    def test_with_the_definition(self):
        library = Library()
        given = {"norm_k4": lambda hidden_states, weight: -hidden_states * weight}
        with enable_apply(given, dataset=self.known()):
            assert library.norm(rows(), W)[0, 0] == -6
            assert library.norm(rows().double(), W.double())[0, 0] == 6
            assert library.norm(rows(), W, 1e-3)[0, 0] == 6
            counted = stats()["library.norm"]
        assert counted["hit"] == 1
        assert counted["misses"] == {"dtype": 1, "argument unknown to the definition": 1}

    @pytest.mark.parametrize("agrees", [False, True])
    @pytest.mark.parametrize("changes", [{}, WITH_EPS], ids=["same order", "other order"])
    def test_inputs_with_gaps_are_compared_once(self, changes, agrees):
        """As in a dataset: the first call with such strides is the original's."""
        library, odd, sign = Library(), rows().t().contiguous().t(), 1 if agrees else -1

        def solution(hidden_states, weight, eps=0.0):
            return sign * hidden_states * weight

        with enable_apply({"norm_k4": solution}, dataset=self.known(**changes)):
            got = [float(library.norm(odd, W)[0, 0]) for _ in range(4)]
            counted = stats()["library.norm"]
            assert float(library.norm(rows(), W)[0, 0]) == 6 * sign
        assert got == [6.0] * 4
        assert counted["hit"] == (3 if agrees else 0)
        assert counted["misses"] == {"layout": 1 if agrees else 4}
        assert library.calls == (2 if agrees else 5)  # once more, for its outputs

    @pytest.mark.parametrize(
        ("broken", "told"),
        [
            (lambda hidden_states, weight: hidden_states[:1], "outputs of another shape"),
            (lambda hidden_states, weight: (hidden_states, weight), "'tuple' object has no"),
            (lambda hidden_states, weight: "no tensor", "'str' object has no"),
            (lambda hidden_states, weight: None, "'NoneType' object has no"),
        ],
        ids=["shape", "two", "text", "none"],
    )
    def test_a_broken_solution_is_an_error_without_a_definition(self, broken, told):
        """Only the route sees that, where there is no definition; nothing hides it."""
        library = Library()
        with enable_apply({"norm_k4": broken}):
            message = f"solution of 'norm_k4' cannot be returned as library.norm .*: {told}"
            with pytest.raises(RuntimeError, match=message):
                library.norm(rows(), W, out=torch.zeros(2, 4))
            counted = stats()["library.norm"]
        assert (counted["hit"], counted["error"], library.calls) == (0, 1, 0)

    def test_a_place_that_does_not_fit_is_the_caller_s_where_there_is_a_definition(self):
        library, given = Library(), {"norm_k4": lambda hidden_states, weight: -hidden_states}
        with enable_apply(given, dataset=self.known()):
            with pytest.raises(RuntimeError) as caught:
                library.norm(rows(), W, out=torch.zeros(7, 4))
            counted = stats()["library.norm"]
        assert "solution" not in str(caught.value)  # what the original says
        assert (counted["hit"], counted["fallback"], counted["error"]) == (0, 1, 0)
        assert counted["misses"] == {"outputs of another shape": 1}

    def test_what_the_adapter_refuses_is_counted(self, caplog):
        class Picky(NormRoute):
            def understand(self, input, weight, eps=1e-6, out=None):
                raise UnroutableError("not today")

        library = Library(Picky)
        with caplog.at_level("WARNING"), enable_apply({"norm_k4": abs}):
            library.norm(rows(), W)
            counted = stats()["library.norm"]
        assert counted == {"hit": 0, "fallback": 1, "error": 0, "misses": {"not today": 1}}
        assert "no call of" not in caplog.text
        with caplog.at_level("WARNING"), enable_apply({"other": abs}):
            library.norm(rows(), W)
            assert stats() == {}
        assert "no call of other" in caplog.text


# -------------------------------------------------------------------------- compared, and in place


class TestShadow:
    def test_compared_on_copies(self, tmp_path):
        seen = []

        class Noting(NormRoute):
            def outputs(self, original, understood, inputs):
                seen.append((understood.inputs, inputs))
                inputs[0].zero_()  # its own
                return original(rows(), *inputs[1:])

        library, x = Library(Noting), rows()
        with enabled(dataset(tmp_path, TIMES), shadow_calls=1):
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
        with enabled(dataset(tmp_path, TIMES), shadow_calls=1) as runtime:
            for _ in range(4):
                library.norm(rows(), W)
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
        place = dataset(tmp_path, code, "add_k4", **IN_PLACE)
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
        place = dataset(tmp_path, self.WRONG, "add_k4", **IN_PLACE)
        residual = rows(value=1.0)
        with enabled(place, shadow_calls=1) as runtime:
            for _ in range(3):
                add_(rows(value=10.0), residual)
            assert runtime.stats()["add_k4"].errors == 1
        assert residual[0, 0] == 31
