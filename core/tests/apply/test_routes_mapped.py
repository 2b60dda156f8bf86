"""Patched functions of a library, answered by the solutions of a mapping."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.apply.api import disable_apply, enable_apply  # noqa: E402
from flashinfer_bench.apply.mapping import stats  # noqa: E402
from flashinfer_bench.data import Definition, TraceSet  # noqa: E402

spec = importlib.util.spec_from_file_location(
    "routed_norm", Path(__file__).with_name("routed_norm.py")
)
routed_norm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(routed_norm)
Library = routed_norm.Library
nothing_enabled = routed_norm.nothing_enabled
W = routed_norm.W
WITH_EPS = routed_norm.WITH_EPS
W_SPEC = routed_norm.ROW
dataset = routed_norm.dataset
definition = routed_norm.definition
rows = routed_norm.rows


class TestMapping:
    def known(self, **changes):
        found = Definition.model_validate(definition(**changes))
        return TraceSet(definitions={found.name: found})

    def test_counts_functions(self):
        gc.collect()  # what other tests have decorated by a resolver may be of any definition
        given = {"norm_k4": lambda hidden_states, weight: hidden_states}
        others, foreign = enable_apply(given), enable_apply({"gemm_n4": lambda a, b: a})
        first, second = Library(), Library()
        assert enable_apply(given) == others + 2
        assert enable_apply({"gemm_n4": lambda a, b: a}) == foreign
        disable_apply()
        del first, second
        gc.collect()
        assert enable_apply(given) == others

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

    def test_function_that_takes_anything(self):
        library, seen = Library(), []
        with enable_apply({"norm_k4": lambda **given: seen.append(set(given)) or rows()}):
            library.norm(rows(), W)
        assert seen == [{"hidden_states", "weight", "eps"}]

    def test_function_with_other_names(self):
        library = Library()
        with enable_apply({"norm_k4": lambda x, w: -x * w}):
            assert library.norm(rows(), W)[0, 0] == -6
            assert library.norm(rows(), W, 1e-3)[0, 0] == 6
            assert stats()["library.norm"]["misses"] == {"argument unknown to the definition": 1}

    def test_function_that_needs_something_else(self):
        library = Library()
        given = {"norm_k4": lambda hidden_states, weight, eps, bias: rows()}
        with enable_apply(given), pytest.raises(TypeError, match="bias"):
            library.norm(rows(), W)

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

    def test_order_of_the_definition(self):
        library = Library()

        def solution(eps, weight, hidden_states):
            return -hidden_states * weight + eps

        with enable_apply({"norm_k4": solution}, dataset=self.known(**WITH_EPS)):
            assert library.norm(rows(), W, 1.0)[0, 0] == -5

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

    def test_a_solution_that_takes_no_gaps_is_not_asked_again(self):
        library, odd = Library(), rows().t().contiguous().t()

        def solution(hidden_states, weight):
            return hidden_states.view(-1).view(2, 4) * weight

        with enable_apply({"norm_k4": solution}, dataset=self.known()):
            assert [float(library.norm(odd, W)[0, 0]) for _ in range(3)] == [6.0] * 3
            assert float(library.norm(rows(), W)[0, 0]) == 6
            assert stats()["library.norm"]["hit"] == 1

    def test_inputs_with_gaps_of_calls_with_more_to_them(self):
        library, odd = Library(), rows().t().contiguous().t()
        given = {"norm_k4": lambda hidden_states, weight: hidden_states * weight}
        with enable_apply(given, dataset=self.known()):
            assert library.norm(odd, W, 1e-3)[0, 0] == 6
            assert stats()["library.norm"]["misses"] == {"argument unknown to the definition": 1}

    @pytest.mark.parametrize("lacking", [["weight"], []])
    def test_an_input_of_the_definition_that_the_function_lacks(self, lacking):
        """It is none of the function's others, whatever its position."""
        library, inputs = Library(), ["hidden_states", *lacking, "scale"]
        shapes = {"hidden_states": routed_norm.ROWS, "weight": W_SPEC, "scale": W_SPEC}
        known = self.known(
            inputs={name: shapes[name] for name in inputs},
            reference=f"def run({', '.join(inputs)}):\n    return hidden_states\n",
        )
        solution = eval(f"lambda {', '.join(inputs)}: -hidden_states")
        with enable_apply({"norm_k4": solution}, dataset=known):
            assert library.norm(rows(), W)[0, 0] == 6
            assert library.norm(rows(), W, eps=W)[0, 0] == 6
            assert stats()["library.norm"]["misses"] == {"signature": 2}

    def test_nothing_is_hidden(self):
        def failing(hidden_states, weight):
            raise ZeroDivisionError

        library = Library()
        for known in ({}, {"dataset": self.known()}):
            with enable_apply({"norm_k4": failing}, **known), pytest.raises(ZeroDivisionError):
                library.norm(rows(), W)
        assert library.norm(rows(), W)[0, 0] == 6

    def test_outputs_that_are_none_raise(self):
        """Only the route sees that, where there is no definition."""
        library = Library()
        given = {"norm_k4": lambda hidden_states, weight: "no tensor"}
        with enable_apply(given), pytest.raises(AttributeError):
            library.norm(rows(), W, out=torch.zeros(2, 4))

    def test_gradients(self):
        library, x = Library(), rows(requires_grad=True)
        with enable_apply({"norm_k4": lambda hidden_states, weight: rows()}, dataset=self.known()):
            library.norm(x, W).sum().backward()
        assert x.grad[0, 0] == 2

    def test_decorated_functions_beside_it(self):
        from flashinfer_bench.apply.api import apply

        given = {"norm_k4": lambda hidden_states, weight: -hidden_states}
        gc.collect()
        others = enable_apply(given)
        library = Library()

        @apply("norm_k4")
        def mine(hidden_states, weight):
            return hidden_states

        with enable_apply(given) as count:
            assert int(count) == others + 2
            assert mine(rows(), W)[0, 0] == -3
            assert library.norm(rows(), W)[0, 0] == -3
