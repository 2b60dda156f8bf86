"""Mapping mode as others use it: every way to call, from threads, under other names, by mistake."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")


from fib_tests.mapped_norm import (  # noqa: E402
    KNOWN,
    ROWS,
    W,
    dataset,
    definition,
    rows,
    solution,
    thrice,
)
from flashinfer_bench.apply.api import enable_apply  # noqa: E402
from flashinfer_bench.apply.mapping import enable_mapping, stats  # noqa: E402
from flashinfer_bench.apply.wrappers import decorate  # noqa: E402
from flashinfer_bench.errors import DataError  # noqa: E402
from flashinfer_bench.routing.patch_points import router  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_enabled")


def always(function, of="norm_h8", name=""):
    """Return a wrapper of a function all calls of which are of one definition."""
    if name:
        getattr(function, "__func__", function).__qualname__ = name
    return decorate(lambda *args, **kwargs: of, function)


def only():
    """Return the counters of the only function that was called."""
    (found,) = stats().values()
    return found


@pytest.fixture(params=["known", "unknown"])
def known(request):
    """With a definition, and with the name alone."""
    return KNOWN if request.param == "known" else None


class Result(NamedTuple):
    """What a function of a library may return."""

    y: torch.Tensor
    lse: torch.Tensor


class TestWaysToCall:
    def test_a_function_that_tells_nothing_of_its_arguments(self):
        """Other arguments than those of the definition go to the original; so says nobody."""
        calls = []

        def original(*args, **kwargs):
            calls.append(args)
            return -1

        wrapped = always(original, name="compiled")
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            for _ in range(2):
                assert torch.equal(wrapped(rows(), W), rows(3))
                assert torch.equal(wrapped(rows(), weight=W), rows(3))
                out = rows(0)
                assert wrapped(rows(), W, out) is None
                assert torch.equal(out, rows(3))
                assert wrapped(rows(), W, 1e-6, None) == -1
                assert wrapped(rows()) == -1
                assert wrapped(rows(), gamma=W) == -1
                assert wrapped(rows(), W, weight=W) == -1
            assert only()["misses"] == {"arguments": 8}
        assert len(calls) == 8


class TestBuffers:
    def wrapped(self):
        def norm(x, weight, out=None):
            return -x if out is None else out.fill_(-1)

        return always(norm)

    @pytest.mark.parametrize(
        "out",
        [
            torch.zeros(3, 8),
            torch.zeros(2, 9),
            torch.zeros(16),
            torch.zeros(2, 8, dtype=torch.float64),
            torch.zeros(2, 8, requires_grad=True),
            torch.zeros(2, 8).to_sparse(),
            torch.zeros(2, 8, device="meta"),
            "text",
            (torch.zeros(2, 8), torch.zeros(2, 8)),
        ],
        ids=str,
    )
    def test_one_that_the_output_does_not_fit_goes_to_the_original(self, out):
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": thrice}, dataset=KNOWN):
            for _ in range(2):
                with contextlib.suppress(Exception):  # what the original says of it
                    wrapped(rows(), W, out=out)
            found = only()
        assert (found["hit"], found["error"], found["fallback"]) == (0, 0, 2)
        assert sum(found["misses"].values()) == 2

    @pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
    def test_nested_tensors_anywhere(self, known):
        nested = torch.nested.nested_tensor([torch.ones(8), torch.ones(8)])
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": lambda x, weight: x * 3}, dataset=known):
            wrapped(nested, W)
            wrapped(rows(), W, out=nested)
            if known:
                wrapped(nested, W, out=rows(0))
            else:
                with pytest.raises(DataError, match=r"is a Tensor, but goes into \[2, 8\]"):
                    wrapped(nested, W, out=rows(0))
            assert only()["error"] == (0 if known else 1)

    @pytest.mark.parametrize("style", ["a slice", "an input", "transposed", "a view of an input"])
    def test_places_of_every_kind(self, known, style):
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": lambda x, weight: x.flip(0) * 3}, dataset=known):
            for _ in range(3):
                x = torch.arange(16.0).view(2, 8)
                wanted = x.flip(0) * 3
                out = {
                    "a slice": torch.zeros(2, 16)[:, ::2],
                    "an input": x,
                    "transposed": torch.zeros(8, 2).t(),
                    "a view of an input": x.view(2, 8),
                }[style]
                assert wrapped(x, W, out=out) is out
                assert torch.equal(out, wanted)

    def test_views_of_inputs_are_written_as_if_at_once(self, known):
        """The solution swaps its inputs, without a copy."""
        of = definition(
            inputs={"x": ROWS, "residual": ROWS},
            outputs={"a": {**ROWS, "param": "x"}, "b": {**ROWS, "param": "residual"}},
            reference="def run(x, residual):\n    return residual, x\n",
        )

        def in_place(x, residual) -> None:
            raise AssertionError

        wrapped = always(in_place)
        with enable_mapping({"norm_h8": lambda x, residual: (residual, x)}, dataset=dataset(of)):
            for _ in range(3):
                x, residual = rows(1), rows(2)
                assert wrapped(x, residual) is None
                assert torch.equal(x, rows(2))
                assert torch.equal(residual, rows(1))
            shared = rows(1)
            with pytest.raises(AssertionError):  # the same memory twice: the original decides
                wrapped(shared, shared)

    def test_misses_are_counted_once_each(self):
        """A solution that takes its outputs is offered the caller's buffers."""
        code = "def run(x, weight, y):\n    y.copy_(3 * x)\n"
        taking = solution("taking", code=code, destination_passing_style=True)
        wrapped = self.wrapped()
        with enable_mapping({"norm_h8": taking}, dataset=KNOWN):
            assert torch.equal(wrapped(rows(), W, out=rows(0)), rows(3))
            assert torch.equal(wrapped(rows(), W, out=torch.nn.Buffer(rows(0))), rows(3))
            for _ in range(3):
                assert torch.equal(wrapped(rows(), W.double(), out=rows(0)), rows(-1))
            found = only()
        assert (found["hit"], found["fallback"], found["misses"]) == (2, 3, {"dtype": 3})


class TestNesting:
    def test_one_mapped_function_calls_another(self, known):
        inner = always(lambda x, weight: -x, of="inner", name="inner")

        def outer(x, weight):
            return inner(x, weight) * 10

        outer = always(outer, of="outer", name="outer")
        both = dataset(definition("inner"), definition("outer")) if known else None
        with enable_mapping({"inner": thrice}, dataset=both):
            for _ in range(3):
                assert torch.equal(outer(rows(), W), rows(30))
        mapping = {"inner": thrice, "outer": lambda x, weight: inner(x, weight) + 1}
        with enable_mapping(mapping, dataset=both):
            for _ in range(3):
                assert torch.equal(outer(rows(), W), rows(4))

    def test_bodies_within_bodies_and_errors_in_them(self):
        wrapped = always(lambda x, weight: -x)
        times = lambda n: {"norm_h8": lambda x, weight: x * n}  # noqa: E731
        with enable_apply(times(3)):
            with contextlib.suppress(KeyError), enable_apply(times(5)):
                with enable_apply(times(7)):
                    assert torch.equal(wrapped(rows(), W), rows(7))
                assert torch.equal(wrapped(rows(), W), rows(5))
                raise KeyError
            assert torch.equal(wrapped(rows(), W), rows(3))
            with enable_apply({"other": thrice}):
                assert torch.equal(wrapped(rows(), W), rows(-1))
            assert torch.equal(wrapped(rows(), W), rows(3))
        assert router.active == ()
