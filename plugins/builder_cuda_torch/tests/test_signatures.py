"""What compiled functions tell of their arguments."""

from typing import Any

import pytest

from fib_builder_cuda_torch.builder import TorchBuilder
from fib_builder_cuda_torch.entry import from_docstring
from fib_native_toolkit import Arity, read_arity
from flashinfer_bench.errors import BuildError


@pytest.fixture
def style(make_solution, definition):
    """Return a function that says how one of the module's functions is called."""
    artefact = TorchBuilder().compile(definition, make_solution("module.cpp"))

    def run(symbol, of=None, **spec):
        solution = make_solution("module.cpp", entry=f"module.cpp::{symbol}", **spec)
        # From the same library, though their names would be part of what a build depends on.
        loaded = TorchBuilder().load(of or definition, solution, artefact)
        return loaded.destination_passing_style

    return run


class TestStyle:
    @pytest.mark.parametrize(
        ("symbol", "destination_passing"),
        [
            ("run", False),
            ("run_out", True),
            ("defaults", False),
            ("both", True),  # of overloads nothing is known
            ("any_number", False),
            ("any_number_out", True),
            ("strange_text", False),
        ],
    )
    def test_it_is_told_from_the_signature(self, style, symbol, destination_passing):
        assert style(symbol) is destination_passing

    @pytest.mark.parametrize(
        ("symbol", "message"),
        [
            ("too_few", "too_few: takes 1 positional arguments"),
            ("keyword_only", "keyword_only: parameter 'scale' is keyword-only"),
            ("constant", "'constant' is a int, which cannot be called"),
            ("missing", "module.cpp defines no 'missing'"),
        ],
    )
    def test_what_does_not_fit(self, style, symbol, message):
        with pytest.raises(BuildError, match=message):
            style(symbol)

    def test_the_length_of_a_tuple(self, style, two_outputs):
        assert style("two", two_outputs) is False
        with pytest.raises(BuildError, match="is annotated to return a tuple of 2"):
            style("two")


class TestDocstrings:
    @pytest.mark.parametrize(
        ("text", "least", "most", "returned"),
        [
            ("f() -> None", 0, 0, type(None)),
            ("f(arg0: torch.Tensor, arg1: typing.SupportsFloat) -> torch.Tensor", 2, 2, Any),
            ("f(x: at::Tensor, m: std::map<int, std::pair<int, int> >) -> at::Tensor", 2, 2, Any),
            ("f(x: Callable[[int, int], int], *args, **kwargs) -> int", 1, None, Any),
            ("f(x: int = 1, y: str = ',) -> (', z: object = <X: 1>) -> None", 0, 3, type(None)),
            ("f(x: int, *, y: int = 1, z: int = 2) -> int", 1, 1, Any),
            ("f(self: X, /, x: int) -> int", 2, 2, Any),
            ("f(x: int) -> tuple[int, dict[int, int]]", 1, 1, tuple[Any, Any]),
            ("f(x: int) -> Tuple[int, int, int]", 1, 1, tuple[Any, Any, Any]),
            ("f(x: int) -> tuple[()]", 1, 1, tuple[()]),
            ("f(x: int) -> tuple[int, ...]", 1, 1, Any),
        ],
    )
    def test_one_signature(self, text, least, most, returned):
        signature = from_docstring(f"{text}\n\nWhat the author says -> None.", "f")
        assert read_arity(signature) == Arity(least, most)
        assert signature.return_annotation == returned

    @pytest.mark.parametrize(
        "doc", [None, "", "f(", "f(x)", "g(x) -> int", "f(*args)\nOverloaded function.\n\n1. f(x)"]
    )
    def test_what_says_nothing(self, doc):
        assert from_docstring(doc, "f") is None
