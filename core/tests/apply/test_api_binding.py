"""Which parameter of a function is which input or output of its definition."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fib_tests.runtime_dataset import Dataset  # noqa: E402
from flashinfer_bench.apply import ApplyConfig, apply, enable_apply  # noqa: E402
from flashinfer_bench.errors import ConfigError  # noqa: E402
from flashinfer_bench.routing.binding import Returns, match, returns_of, same_value  # noqa: E402

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}


def matched(function, inputs, outputs=""):
    return match(inspect.signature(function), inputs.split(), outputs.split())


@pytest.mark.parametrize(
    ("function", "inputs", "outputs", "expected"),
    [
        (lambda x, y: 0, "x y", "", ("x y", "", "")),
        (lambda y, x: 0, "x y", "", ("x y", "", "")),
        (lambda x, out: 0, "x", "out", ("x", "out", "")),
        (lambda x, out=None: 0, "x", "out", ("x", "out", "")),
        # What the definition does not know, or knows only some of.
        (lambda x, eps=1e-6, *, out=None: 0, "x", "y", ("x", "", "eps out")),
        (lambda x, out=None: 0, "x", "out lse", ("x", "", "out")),
        # Other names go by position, if they must be given.
        (lambda a, b: 0, "x y", "", ("a b", "", "")),
        (lambda a, y: 0, "x y", "", ("a y", "", "")),
        (lambda a, b, c: 0, "x y", "z", ("a b", "c", "")),
        (lambda a, b, bias=None: 0, "x y", "z", ("a b", "", "bias")),
        (lambda self, a, b: 0, "x y", "", ("a b", "", "")),
        (lambda cls, y, x: 0, "x y", "", ("x y", "", "")),
    ],
)
def test_what_is_what(function, inputs, outputs, expected):
    found = matched(function, inputs, outputs)
    told = found.inputs, found.outputs, found.extras
    assert tuple(" ".join(each) for each in told) == expected
    assert found.rest == ()


@pytest.mark.parametrize(
    ("function", "inputs", "told"),
    [
        (lambda a, x: 0, "x y", r"'x' is at position 1, but .* at 0"),
        (lambda x: 0, "x y", "no parameter is input 'y'"),
        (lambda x, mode: 0, "x", "'mode' is neither"),
    ],
)
def test_what_cannot_be(function, inputs, told):
    with pytest.raises(ConfigError, match=told):
        matched(function, inputs)


class Both(NamedTuple):
    """What a function of a library may return."""

    y: torch.Tensor
    z: torch.Tensor


def rows(value=1.0):
    return torch.full((2, 4), float(value))


@pytest.mark.plugin("python")
@pytest.mark.usefixtures("on_the_cpu")
class TestCalls:
    """A dataset and a mapping tell the arguments of a function apart alike.

    The solution returns 100 + 2 x, and 200 + 2 x as a second output; the original -x.
    """

    @pytest.fixture(params=["dataset", "mapping"])
    def enable(self, request, tmp_path):
        """Have calls of a definition answered; returns how many, and why others were not."""

        def enabled(*outputs, inputs=("x",), **params):
            tensors = {n: MATRIX | ({"param": params[n]} if n in params else {}) for n in outputs}
            about = {"inputs": dict.fromkeys(inputs, MATRIX), "outputs": tensors}
            about["reference"] = f"def run({', '.join(inputs)}):\n    return x\n"
            results = ", ".join(f"{100 * (i + 1)} + 2 * x" for i in range(len(outputs)))
            code = f"def run({', '.join(inputs)}):\n    return {results}\n"
            made = Dataset(tmp_path / "d").definition(**about)
            made.add("best", 2, source="{tag}", tag=code)
            if request.param == "dataset":
                runtime = enable_apply(made.root)
            else:
                path = made.root / "solutions" / "double" / "best.json"
                runtime = enable_apply({"double": path}, dataset=made.root)

            def counts():
                (found,) = runtime.stats().values()
                if isinstance(found, dict):
                    return found["hit"], found["misses"]
                return found.hits, found.misses

            return counts

        return enabled

    def test_keywords_defaults_and_places(self, enable):
        counts = enable("y")

        @apply(lambda x: "double")
        def function(x, approximate="none", *, out=None, flag=False):
            return -x if out is None else out.copy_(-x)

        out = rows(0)
        for _ in range(2):
            assert function(rows())[0, 0] == 102
            assert function(rows(), approximate="no" + "ne")[0, 0] == 102
            assert function(rows(), "tanh")[0, 0] == -1
            assert function(rows(), flag=True)[0, 0] == -1
            assert function(x=rows(), out=out) is out
            assert out[0, 0] == 102
            x = rows()
            assert function(x, out=x) is x
            assert x[0, 0] == 102
            wrong = rows().double()
            assert function(rows(), out=wrong) is wrong
            assert wrong[0, 0] == -1
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            function(rows(), nonsense=1)
        assert counts() == (8, {"argument not in the definition": 4, "buffer": 2})

    def test_order_and_objects(self, enable):
        enable("y", inputs=("x", "w"))

        class Layer:
            @apply("double")
            def forward(self, w, x, *, scale=1.0):
                return -x

        assert Layer().forward(rows(7), rows(1))[0, 0] == 102
        assert Layer().forward(x=rows(1), w=rows(7), scale=2.0)[0, 0] == -1

    def test_outputs_that_are_passed_or_asked_for(self, enable):
        counts = enable("y", "z")

        @apply("double")
        def function(x, y=None, z=None, return_z=True):
            return -x

        y, z = rows(0), rows(0)
        assert [float(each[0, 0]) for each in function(rows())] == [102, 202]
        assert function(rows(), return_z=False)[0, 0] == 102
        found = function(rows(), y=y)
        assert found[0] is y
        assert (y[0, 0], found[1][0, 0]) == (102, 202)
        found = function(rows(2), y, z)
        assert found[0] is y
        assert found[1] is z
        assert (y[0, 0], z[0, 0]) == (104, 204)
        assert counts() == (4, {})

    def test_outputs_that_must_be_passed(self, enable):
        enable("y")
        function = apply("double")(lambda y, x: None)
        y = rows(0)
        assert function(y, rows()) is None
        assert y[0, 0] == 102

    def test_a_named_tuple(self, enable):
        enable("y", "z")

        def function(x):
            return Both(-x, -x)

        function.__annotations__["return"] = Both
        found = apply("double")(function)(rows())
        assert type(found) is Both
        assert (found.y[0, 0], found.z[0, 0]) == (102, 202)

    def test_it_cannot_be_compared_what_the_original_returns_otherwise(self, tmp_path):
        """A flag leaves one output of two: such calls stay with the original in shadow mode."""
        about = {"outputs": {"y": MATRIX, "z": MATRIX}}
        made = Dataset(tmp_path / "d").definition(**about)
        code = "def run(x):\n    return x * 2, x * 2\n"
        made.add("best", 2, source="{tag}", tag=code)

        @apply("double")
        def function(x, return_z=True):
            return (x * 2, x * 2) if return_z else x * 2

        with enable_apply(made.root, ApplyConfig(shadow_calls=1)) as runtime:
            assert torch.equal(function(rows(), return_z=False), rows(2))
            assert runtime.stats()["double"].misses == {"not comparable": 1}
            function(rows())
            function(rows())
            assert torch.equal(function(rows(), return_z=False), rows(2))
            assert (runtime.stats()["double"].hits, runtime.stats()["double"].errors) == (2, 0)


@pytest.mark.parametrize(
    ("value", "default", "same"),
    [
        (1, 1, True),
        (True, 1, False),
        ("a", "a", True),
        (b"a", b"a", True),
        ([], [], False),
    ],
)
def test_when_an_argument_is_the_default(value, default, same):
    assert same_value(value, default) is same


# -------------------------------------------------------------------------------- what is returned


class Pair(NamedTuple):
    """What a library may return."""

    out: object
    lse: object


def annotated(text):
    def function():
        pass

    function.__annotations__["return"] = text
    return function


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (None, Returns("none", 0)),
        (torch.Tensor, Returns("one", 1)),
        ("unknown.Tensor", Returns("one", 1)),
        ("tuple[unknown.Tensor, unknown.Tensor]", Returns("tuple", 2)),
        ("Tuple[Tensor, ...]", Returns("tuple")),
        (tuple[torch.Tensor, torch.Tensor], Returns("tuple", 2)),
        (tuple[torch.Tensor, ...], Returns("tuple")),
        (tuple, Returns("tuple")),
        ("List[Tensor]", Returns("list")),
        (dict[str, torch.Tensor], Returns("dict")),
        ("Dict[str, Tensor]", Returns("dict")),
        ("'Tensor'", Returns("one", 1)),
        ("Union[Tensor, tuple[Tensor, Tensor]]", Returns()),
        ("Tensor | tuple[Tensor, Tensor]", Returns()),
        (torch.Tensor | None, Returns()),
        ("no annotation at all", Returns()),
        ("Pair", Returns("tuple", 2, Pair)),
        (Pair, Returns("tuple", 2, Pair)),
    ],
    ids=str,
)
def test_annotations(annotation, expected):
    assert returns_of(annotation, annotated(annotation)) == expected


@given(st.text(max_size=30))
def test_any_text_is_an_annotation(text):
    assert returns_of(f"{text}[", None) == Returns()
