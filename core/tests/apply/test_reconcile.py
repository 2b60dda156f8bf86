"""What arguments mean, and what comes back: calls of a function, solutions of a definition."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from fib_tests import definitions  # noqa: E402
from flashinfer_bench.apply import apply, enable_apply  # noqa: E402
from flashinfer_bench.data import TraceSet  # noqa: E402
from flashinfer_bench.errors import DataError  # noqa: E402

ROWS = {"shape": ["rows", "hidden"], "dtype": "float32"}
EXTRA, MORE = "argument not in the definition", "more outputs than the definition has"


def definition(inputs=("x", "weight"), outputs=("y",), **places):
    """Make a definition; `places` gives the `param` of inputs and outputs."""
    tensors = {n: ROWS | ({"param": places[n]} if n in places else {}) for n in (*inputs, *outputs)}
    inputs, outputs = ({name: tensors[name] for name in names} for names in (inputs, outputs))
    return definitions.definition("norm_h4", inputs, outputs, hidden=4)


def rows(value=0.0, count=2):
    return torch.full((count, 4), float(value))


X, W = rows(1), rows(2)
ONE, TWO = definition(), definition(outputs=("y", "lse"))


def call(function, solution, *args, known=None, **kwargs):
    """Return what a decorated function returns; if the original was called, why."""
    called = []

    def original(*args, **kwargs):
        called.append(args)

    original.__signature__ = inspect.signature(function)
    wrapped = apply("norm_h4")(original)
    dataset = None if known is None else TraceSet(definitions={"norm_h4": known})
    with enable_apply({"norm_h4": solution}, dataset=dataset) as handle:
        result = wrapped(*args, **kwargs)
        (found,) = handle.stats().values()
    return "".join(found["misses"]) if called else result


def minus(x, weight):
    """Tell inputs apart: 1 - 2 * 10 for `X` and `W`."""
    return x - 10 * weight


class TestInputs:
    @pytest.mark.parametrize(
        ("function", "args", "kwargs"),
        [
            (lambda x, weight, eps=1e-6: None, (X, W), {"eps": 1e-5}),
            (lambda x, weight, sinks=None: None, (X, W), {"sinks": X}),
            (lambda x, weight, *rest: None, (X, W, X), {}),
            (lambda x, weight, **more: None, (X, W), {"other": 1}),
        ],
    )
    @pytest.mark.parametrize("known", [ONE, None])
    def test_what_is_not_known_must_have_its_default(self, function, args, kwargs, known):
        assert call(function, minus, *args, known=known, **kwargs) == EXTRA

    @pytest.mark.parametrize(
        ("function", "solution", "args", "kwargs", "expected"),
        [
            (lambda x, eps=1e-6: None, lambda x, eps: [x, eps], (X,), {}, [X, 1e-6]),
            (lambda x, eps=1e-6: None, lambda x: [x], (X,), {}, [X]),
            (lambda x, eps=1e-6: None, lambda h, eps=0: [h, eps], (X, 0.5), {}, [X, 0.5]),
            (lambda x, enable_pdl=None: None, lambda x: [x], (X, True), {}, [X]),
            (lambda x, out=None: None, lambda x, out: [x, out], (X, W), {}, [X, W]),
            (lambda x, **more: None, lambda x, scale: [x, scale], (X,), {"scale": 2}, [X, 2]),
            (lambda x, **more: None, lambda **all: [*all.values()], (X,), {"b": 2}, [X, 2]),
            (
                lambda x, enable_pdl=None, return_lse=False: None,
                lambda x, enable_pdl, return_lse: [x, enable_pdl, return_lse],
                (X, True, True),
                {},
                [X, True, True],  # how many outputs it returns is up to it, then
            ),
        ],
    )
    def test_without_a_definition_they_are_what_the_solution_takes(
        self, function, solution, args, kwargs, expected
    ):
        found = call(function, solution, *args, **kwargs)
        assert list(found) == expected or found is expected[0]

    def test_without_a_definition_what_nobody_takes_cannot_be(self):
        assert call(lambda x, weight: None, lambda x: x, X, W) == "signature"


class TestBuffers:
    @pytest.mark.parametrize("known", [TWO, None])
    def test_out_and_lse(self, known):
        function = lambda x, weight, out=None, lse=None: None  # noqa: E731
        solution = lambda x, weight: (x * 3, x * 4)  # noqa: E731
        out, lse = rows(), rows()
        found = call(function, solution, X, W, out=out, lse=lse, known=known)
        assert found[0] is out
        assert found[1] is lse
        assert torch.equal(out, rows(3))
        assert torch.equal(lse, rows(4))
        found = call(function, solution, X, W, lse=lse, known=known)
        assert found[1] is lse
        assert torch.equal(found[0], rows(3))

    def test_out_skips_outputs_that_have_a_place(self):
        # The residual goes back into its input; `out` is for the other output alone.
        known = definition(("x", "residual"), ("sum", "y"), sum="residual")
        function = lambda x, residual, out=None: None  # noqa: E731
        out, residual = rows(), rows(7)
        solution = lambda x, residual: (x * 3, x * 4)  # noqa: E731
        assert call(function, solution, X, residual, out, known=known) is out
        assert torch.equal(residual, rows(3))
        assert torch.equal(out, rows(4))

    def test_a_tuple_of_buffers(self):
        buffers = (rows(), rows())
        solution = lambda x, weight: (x * 3, x * 4)  # noqa: E731
        found = call(lambda x, weight, out=None: None, solution, X, W, buffers, known=TWO)
        assert [each is buffer for each, buffer in zip(found, buffers, strict=True)] == [True] * 2

    def test_one_that_a_gradient_is_wanted_of_is_left_to_the_original(self):
        function = lambda x, weight, out=None: None  # noqa: E731
        wanted = rows().requires_grad_()
        assert call(function, minus, X, W, wanted, known=ONE) == "buffer"
        with torch.no_grad():
            assert call(function, minus, X, W, wanted, known=ONE) is wanted


class TestInPlace:
    def test_a_param_may_be_what_the_function_calls_the_input(self):
        known = definition(x="input", y="input")
        x = rows(1)
        assert call(lambda input, weight: None, minus, x, W, known=known) is None
        assert torch.equal(x, rows(-19))

    def test_a_function_may_return_what_it_worked_on(self):
        def norm_(x, weight):
            pass

        x = rows(1)
        norm_.__annotations__["return"] = torch.Tensor
        assert call(norm_, minus, x, W, known=definition(y="x")) is x


class TestWhatIsReturned:
    FUNCTION = staticmethod(lambda x, weight, return_lse=False: None)

    @pytest.mark.parametrize("known", [TWO, None])
    def test_a_flag_decides_about_the_second(self, known):
        solution = lambda x, weight: (x * 3, x * 4)  # noqa: E731
        assert torch.equal(call(self.FUNCTION, solution, X, W, known=known), rows(3))
        first, second = call(self.FUNCTION, solution, X, W, True, known=known)
        assert torch.equal(first, rows(3))
        assert torch.equal(second, rows(4))

    def test_an_output_that_the_definition_lacks_is_left_to_the_original(self):
        assert torch.equal(call(self.FUNCTION, minus, X, W, known=ONE), rows(-19))
        assert call(self.FUNCTION, minus, X, W, True, known=ONE) == MORE

    def test_an_output_that_the_solution_lacks_is_an_error(self):
        with pytest.raises(DataError, match="got 1 outputs, but the call expects 2"):
            call(self.FUNCTION, minus, X, W, True)

    def test_one_output_of_two(self):
        def norm(x, weight):
            pass

        norm.__annotations__["return"] = torch.Tensor
        solution = lambda x, weight: (x * 3, x * 4)  # noqa: E731
        assert torch.equal(call(norm, solution, X, W, known=TWO), rows(3))

    def test_outputs_that_would_be_lost_are_an_error(self):
        def norm(x):
            pass

        norm.__annotations__["return"] = None
        assert call(norm, lambda x: None, X) is None
        with pytest.raises(DataError, match="got 1 outputs for 0 buffers") as caught:
            call(norm, lambda x: x, X)
        assert "`param`" in caught.value.hint


class TestNothingIsHalfWritten:
    """Of functions that write to their arguments."""

    known = definition(("x", "weight"), ("y", "z"), y="x", z="weight")

    @pytest.mark.parametrize("bad", [lambda t: t.double(), lambda t: t[:-1], lambda t: t[None]])
    @pytest.mark.parametrize("wrong", [0, 1])
    def test_outputs_that_do_not_fit_change_nothing(self, wrong, bad):
        x, weight = rows(1), rows(2)
        results = [rows(3), rows(4)]
        results[wrong] = bad(results[wrong])
        with pytest.raises(RuntimeError, match=f"'{'yz'[wrong]}'"):
            call(
                lambda x, weight: None,
                lambda x, weight: tuple(results),
                x,
                weight,
                known=self.known,
            )
        assert torch.equal(x, rows(1))
        assert torch.equal(weight, rows(2))
