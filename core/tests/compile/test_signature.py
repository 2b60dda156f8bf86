from __future__ import annotations

import typing

import pytest

from flashinfer_bench.compile.toolkit import choose_style
from flashinfer_bench.errors import BuildError


def function(signature, returns=""):
    """Make a function with that signature, without or with an annotation of what it returns."""
    arrow = f" -> {returns}" if returns else ""
    namespace = {"typing": typing, "Tensor": int}
    exec(f"def run({signature}){arrow}: pass", namespace)
    return namespace["run"]


class TestUndeclaredStyle:
    """Two inputs and one output; the solution does not state its calling convention."""

    @pytest.mark.parametrize(
        ("signature", "expected"),
        [
            ("x, y", False),
            ("x, y, z", True),
            ("x, y, z=None", False),
            ("x, y, eps=1e-6", False),
            ("x, y, **kwargs", False),
            ("*args", False),
            ("*args, **kwargs", False),
            ("x, *rest", False),
            ("x, y, z, *rest", True),
            ("a, b, c, d=1", True),
        ],
    )
    def test_the_number_of_parameters_decides(self, definition, make_solution, signature, expected):
        assert choose_style(function(signature), definition, make_solution()) is expected

    @pytest.mark.parametrize(
        ("signature", "count"), [("x", "1"), ("x, y, z, w", "4"), ("", "0"), ("x=0", "0 to 1")]
    )
    def test_where_neither_fits_both_numbers_are_told(
        self, definition, make_solution, signature, count
    ):
        with pytest.raises(BuildError, match=f"run: takes {count} positional arguments") as caught:
            choose_style(function(signature), definition, make_solution())
        assert "gets 2: x, y" in str(caught.value)
        assert "Value-returning takes 2 arguments, destination-passing 3." in str(caught.value)


@pytest.mark.parametrize(
    ("style", "signature", "fix"),
    [(True, "x, y", "false"), (False, "x, y, z", "true")],
)
def test_a_mistaken_declaration_is_named_with_the_fix(
    definition, make_solution, style, signature, fix
):
    solution = make_solution(destination_passing_style=style, name="mistaken")
    with pytest.raises(BuildError, match="solution 'mistaken': run: takes") as caught:
        choose_style(function(signature), definition, solution)
    assert caught.value.hint == (
        f"It fits the other convention: set destination_passing_style to {fix}."
    )
