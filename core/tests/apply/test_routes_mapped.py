"""Patched functions of a library, answered by the solutions of a mapping."""

from __future__ import annotations

import contextlib
import gc

import pytest

torch = pytest.importorskip("torch")

from fib_tests import routed_norm  # noqa: E402
from fib_tests.routed_norm import WITH_EPS, Library, W, definition, rows  # noqa: E402
from flashinfer_bench.apply.api import enable_apply  # noqa: E402
from flashinfer_bench.apply.mapping import stats  # noqa: E402
from flashinfer_bench.data import Definition, TraceSet  # noqa: E402
from flashinfer_bench.routing import UnroutableError  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_enabled")


class TestMapping:
    def known(self, **changes):
        found = Definition.model_validate(definition(**changes))
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

    def test_function_that_takes_anything(self):
        library, seen = Library(), []
        with enable_apply({"norm_k4": lambda **given: seen.append(set(given)) or rows()}):
            library.norm(rows(), W)
        assert seen == [{"hidden_states", "weight", "eps"}]

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

    def test_a_solution_that_takes_no_gaps_is_not_asked_again(self):
        library, odd = Library(), rows().t().contiguous().t()

        def solution(hidden_states, weight):
            return hidden_states.view(-1).view(2, 4) * weight

        with enable_apply({"norm_k4": solution}, dataset=self.known()):
            assert [float(library.norm(odd, W)[0, 0]) for _ in range(3)] == [6.0] * 3
            assert float(library.norm(rows(), W)[0, 0]) == 6
            assert stats()["library.norm"]["hit"] == 1

    @pytest.mark.parametrize("lacking", [["weight"], []])
    def test_an_input_of_the_definition_that_the_function_lacks(self, lacking):
        """It is none of the function's others, whatever its position."""
        library, inputs = Library(), ["hidden_states", *lacking, "scale"]
        shapes = {
            "hidden_states": routed_norm.ROWS,
            "weight": routed_norm.ROW,
            "scale": routed_norm.ROW,
        }
        known = self.known(
            inputs={name: shapes[name] for name in inputs},
            reference=f"def run({', '.join(inputs)}):\n    return hidden_states\n",
        )
        solution = eval(f"lambda {', '.join(inputs)}: -hidden_states")
        with enable_apply({"norm_k4": solution}, dataset=known):
            assert library.norm(rows(), W)[0, 0] == 6
            assert library.norm(rows(), W, eps=W)[0, 0] == 6
            assert stats()["library.norm"]["misses"] == {"signature": 2}

    def test_its_function_is_counted(self):
        gc.collect()  # those of other tests
        before = enable_apply({"norm_k4": abs})
        library = Library()
        assert enable_apply({"norm_k4": abs}) == before + 1
        assert library.calls == 0

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
        library = Library()
        given = {"norm_k4": lambda hidden_states, weight: -hidden_states * weight}
        with enable_apply(given, dataset=self.known()), pytest.raises(RuntimeError) as caught:
            library.norm(rows(), W, out=torch.zeros(7, 4))
        assert "solution" not in str(caught.value)  # what the original says

    def test_what_cannot_be_delivered_is_no_hit(self):
        library, given = Library(), {"norm_k4": lambda hidden_states, weight: -hidden_states}
        with enable_apply(given, dataset=self.known()):
            with contextlib.suppress(RuntimeError):
                library.norm(rows(), W, out=torch.zeros(7, 4))
            counted = stats()["library.norm"]
        assert (counted["hit"], counted["fallback"], counted["error"]) == (0, 1, 0)
        assert counted["misses"] == {"outputs of another shape": 1}

    def test_what_the_adapter_refuses_is_counted(self, caplog):
        class Picky(routed_norm.NormRoute):
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
