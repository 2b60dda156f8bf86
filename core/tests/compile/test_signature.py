from __future__ import annotations

import functools
import typing

import pytest

from flashinfer_bench.compile.toolkit import annotated_length, choose_style, read_arity
from flashinfer_bench.errors import BuildError

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}


def function(signature: str, returns: str = ""):
    """Make a function with that signature, without or with an annotation of what it returns."""
    arrow = f" -> {returns}" if returns else ""
    namespace: dict[str, typing.Any] = {"typing": typing, "Tensor": int}
    exec(f"def run({signature}){arrow}: pass", namespace)
    return namespace["run"]


def silent():
    """Make a function that does not tell its signature, as compiled ones often do not."""
    run = function("x, y, z")
    run.__signature__ = 3
    return run


class TestArity:
    @pytest.mark.parametrize(
        ("signature", "least", "most"),
        [
            ("", 0, 0),
            ("a, b", 2, 2),
            ("a, b=1", 1, 2),
            ("a, /, b", 2, 2),
            ("*args", 0, None),
            ("a, *args, **kwargs", 1, None),
            ("a, **kwargs", 1, 1),
            ("a, *, flag=True", 1, 1),
        ],
    )
    def test_counts(self, signature, least, most):
        assert read_arity(function(signature)) == (least, most)

    def test_a_keyword_only_parameter_without_default_cannot_be_passed(self):
        with pytest.raises(BuildError, match="'flag' is keyword-only"):
            read_arity(function("a, *, flag"))

    def test_self_of_a_method_is_not_counted(self):
        class Kernel:
            def run(self, a, b):
                pass

            def __call__(self, a):
                pass

        assert read_arity(Kernel().run) == (2, 2)
        assert read_arity(Kernel()) == (1, 1)

    def test_wrapped_and_partial_functions_are_looked_through(self):
        plain = function("a, b, c")

        @functools.wraps(plain)
        def wrapper(*args):
            return plain(*args)

        assert read_arity(wrapper) == (3, 3)
        assert read_arity(functools.partial(plain, 1)) == (2, 2)

    def test_what_does_not_tell_gives_none(self):
        assert read_arity(silent()) is None

    @pytest.mark.parametrize(
        ("signature", "text"),
        [("a", "1"), ("a, b=0", "1 to 2"), ("a, *b", "1 or more"), ("", "0")],
    )
    def test_it_reads_well(self, signature, text):
        assert str(read_arity(function(signature))) == text

    def test_accepts(self):
        arity = read_arity(function("a, b=0"))
        assert [arity.accepts(count) for count in range(4)] == [False, True, True, False]
        assert read_arity(function("*a")).accepts(99)


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
        ("returns", "expected"), [("None", True), ("Tensor", False), ("'Unknown'", False)]
    )
    def test_where_both_numbers_fit_the_annotation_decides(
        self, definition, make_solution, returns, expected
    ):
        assert choose_style(function("*args", returns), definition, make_solution()) is expected

    def test_where_the_number_is_clear_the_annotation_does_not_matter(
        self, definition, make_solution
    ):
        assert choose_style(function("x, y", "None"), definition, make_solution()) is False

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

    def test_a_function_that_does_not_tell_has_the_format_s_default(
        self, definition, make_solution
    ):
        assert choose_style(silent(), definition, make_solution()) is True

    def test_no_outputs(self, make_definition, make_solution):
        definition = make_definition().model_copy(update={"outputs": {}})
        assert choose_style(function("x, y", "None"), definition, make_solution()) is False


class TestDeclaredStyle:
    @pytest.mark.parametrize("signature", ["x, y", "x, y=None", "*args", "x, y, z=None"])
    def test_value_returning(self, definition, make_solution, signature):
        solution = make_solution(destination_passing_style=False)
        assert choose_style(function(signature), definition, solution) is False

    @pytest.mark.parametrize("signature", ["x, y, z", "*args", "x, y, z=None", "a, b, c, d=0"])
    def test_destination_passing(self, definition, make_solution, signature):
        solution = make_solution(destination_passing_style=True)
        assert choose_style(function(signature), definition, solution) is True

    @pytest.mark.parametrize(
        ("style", "signature", "fix"),
        [(True, "x, y", "false"), (False, "x, y, z", "true")],
    )
    def test_a_mistaken_declaration_is_named_with_the_fix(
        self, definition, make_solution, style, signature, fix
    ):
        solution = make_solution(destination_passing_style=style, name="mistaken")
        with pytest.raises(BuildError, match="solution 'mistaken': run: takes") as caught:
            choose_style(function(signature), definition, solution)
        assert caught.value.hint == (
            f"It fits the other convention: set destination_passing_style to {fix}."
        )

    def test_the_message_names_the_arguments(self, definition, make_solution):
        with pytest.raises(BuildError, match=r"a destination-passing solution .* gets 3: x, y, z"):
            choose_style(function("x"), definition, make_solution(destination_passing_style=True))

    def test_keyword_only_parameters_are_refused_with_the_solution_s_name(
        self, definition, make_solution
    ):
        with pytest.raises(BuildError, match="solution 'solution': run: parameter 'scale'"):
            choose_style(function("x, y, *, scale"), definition, make_solution())


class TestReturnAnnotation:
    @pytest.mark.parametrize(
        ("returns", "length"),
        [
            ("tuple[int, int]", 2),
            ("typing.Tuple[int, int, int]", 3),
            ("'tuple[int, int]'", 2),
            ("tuple[()]", 0),
            ("tuple[int]", 1),
            ("tuple[int, ...]", None),
            ("tuple", None),
            ("int", None),
            ("None", None),
            ("typing.Any", None),
            ("'NotThere'", None),
            ("'1 / 0'", None),
            ("", None),
        ],
    )
    def test_its_length_is_read_where_it_has_one(self, returns, length):
        assert annotated_length(function("x", returns)) == length

    def test_another_length_is_refused(self, definition, make_solution):
        with pytest.raises(BuildError, match="return a tuple of 2, but 'add_k4' has 1 outputs: z"):
            choose_style(function("x, y", "tuple[int, int]"), definition, make_solution())

    def test_the_right_length_is_fine(self, make_definition, make_solution):
        definition = make_definition(outputs={"a": MATRIX, "b": MATRIX})
        run = function("x, y", "tuple[int, int]")
        assert choose_style(run, definition, make_solution()) is False

    def test_a_single_output_may_be_a_tuple_of_one(self, definition, make_solution):
        assert choose_style(function("x, y", "tuple[int]"), definition, make_solution()) is False

    def test_a_destination_passing_function_may_return_what_it_likes(
        self, definition, make_solution
    ):
        run = function("x, y, z", "tuple[int, int]")
        assert choose_style(run, definition, make_solution()) is True
