"""Random signatures and outputs: a substituted call does what the function itself would do."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from flashinfer_bench.apply import apply, enable_apply  # noqa: E402
from flashinfer_bench.data import Definition, TraceSet  # noqa: E402
from flashinfer_bench.routing.binding import Returns, returns_of  # noqa: E402

EMPTY = inspect.Parameter.empty
SIZE = 3


@dataclass
class Shape:
    """A function of a library, and a call of it.

    `places` says for each output whether it is fresh, takes a buffer, or goes back into an input.
    `given` says which buffers the caller passes; `flag` whether the last output can be left out.
    """

    inputs: int
    places: list[object]
    given: list[bool]
    flag: bool
    wanted: bool
    kind: str
    extra: bool
    form: str

    @property
    def outputs(self) -> int:
        return len(self.places)

    def signature(self) -> inspect.Signature:
        plain, named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        found = [inspect.Parameter(f"x{index}", plain) for index in range(self.inputs)]
        if self.extra:
            found.append(inspect.Parameter("eps", plain, default=1e-6))
        found += [
            inspect.Parameter(f"y{index}", named, default=None)
            for index, place in enumerate(self.places)
            if place == "buffer"
        ]
        if self.flag:
            name = f"return_y{self.outputs - 1}"
            found.append(inspect.Parameter(name, named, default=False))
        returns = {"any": EMPTY, "none": None, "tuple": tuple, "list": list, "dict": dict}
        return inspect.Signature(found, return_annotation=returns[self.kind])

    def definition(self) -> Definition:
        spec = {"shape": ["n"], "dtype": "float32"}
        outputs = {f"y{index}": dict(spec) for index in range(self.outputs)}
        for index, place in enumerate(self.places):
            if isinstance(place, int):
                outputs[f"y{index}"]["param"] = f"x{place}"
        return Definition.model_validate(
            {
                "name": "random",
                "op_type": "random",
                "axes": {"n": {"type": "var"}},
                "inputs": {f"x{index}": spec for index in range(self.inputs)},
                "outputs": outputs,
                "reference": "def run(*inputs):\n    return inputs\n",
            }
        )


@st.composite
def shapes(draw):
    inputs = draw(st.integers(1, 4))
    free = list(range(inputs))
    places: list[object] = []
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(["fresh", "buffer", "input"]))
        if place == "input" and free:
            place = free.pop(draw(st.integers(0, len(free) - 1)))
        places.append("fresh" if place == "input" else place)
    last = places[-1]
    return Shape(
        inputs,
        places,
        given=[draw(st.booleans()) for _ in places],
        flag=draw(st.booleans()) and not isinstance(last, int) and len(places) > 1,
        wanted=draw(st.booleans()),
        kind=draw(st.sampled_from(["any", "none", "tuple", "list", "dict"])),
        extra=draw(st.booleans()),
        form=draw(st.sampled_from(["single", "tuple", "list", "dict", "views"])),
    )


class Call:
    """Tensors of one call, with values that tell them apart."""

    def __init__(self, shape: Shape) -> None:
        self.inputs = [torch.full((SIZE,), 1.0 + index) for index in range(shape.inputs)]
        self.buffers = {
            index: torch.full((SIZE,), -1.0 - index)
            for index, place in enumerate(shape.places)
            if place == "buffer" and shape.given[index]
        }

    def arguments(self, shape: Shape):
        kwargs = {f"y{index}": buffer for index, buffer in self.buffers.items()}
        if shape.flag:
            kwargs[f"return_y{shape.outputs - 1}"] = shape.wanted
        return tuple(self.inputs), kwargs


def computed(shape: Shape, inputs):
    """Return the outputs: each a sum of all inputs, and a number of its own."""
    total = sum(tensor.clone() for tensor in inputs)
    return [total + 100.0 * index for index in range(shape.outputs)]


def library(shape: Shape, call: Call):
    """Do what the function of the library does: an oracle that shares no code with the project."""
    results = computed(shape, call.inputs)
    returned = {}
    for index, place in enumerate(shape.places):
        if isinstance(place, int):
            call.inputs[place].copy_(results[index])
            continue
        if index in call.buffers:
            call.buffers[index].copy_(results[index])
            results[index] = call.buffers[index]
        if not (shape.flag and index == shape.outputs - 1 and not shape.wanted):
            returned[f"y{index}"] = results[index]
    values = list(returned.values())
    if shape.kind == "any":
        return values[0] if len(values) == 1 else tuple(values) or None
    return {"none": None, "tuple": tuple(values), "list": values, "dict": returned}[shape.kind]


def solved(shape: Shape, inputs):
    """Return the outputs as a solution may."""
    results = computed(shape, inputs)
    if shape.form == "dict":
        return {f"y{index}": results[index] for index in reversed(range(len(results)))}
    if shape.form == "views":  # parts of one piece of memory
        return tuple(torch.stack(results).unbind())
    if shape.form == "single" and len(results) == 1:
        return results[0]
    return results if shape.form == "list" else tuple(results)


def flat(value):
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (tuple, list)) else [value]


def substituted(shape: Shape, ours: Call, solve):
    """Call a decorated function that has the shape, with a solution mapped."""

    def original(*args, **kwargs):
        raise AssertionError("the original must not be called")

    original.__signature__ = shape.signature()
    wrapped = apply("random")(original)
    known = TraceSet(definitions={"random": shape.definition()})
    with enable_apply({"random": lambda **inputs: solve(list(inputs.values()))}, dataset=known):
        args, kwargs = ours.arguments(shape)
        return wrapped(*args, **kwargs)


@given(shapes())
def test_a_substituted_call_is_like_the_original(shape):
    ours, theirs = Call(shape), Call(shape)
    expected = library(shape, theirs)
    found = substituted(shape, ours, lambda inputs: solved(shape, inputs))

    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
    for mine, other in zip(flat(found), flat(expected), strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or torch.equal(mine, other)
    # The very buffers come back, and every place that the function writes to is written to.
    known = {id(buffer): index for index, buffer in theirs.buffers.items()}
    for mine, other in zip(flat(found), flat(expected), strict=True):
        if id(other) in known:
            assert mine is ours.buffers[known[id(other)]]
    for index, buffer in ours.buffers.items():
        assert torch.equal(buffer, theirs.buffers[index])
    for mine, other in zip(ours.inputs, theirs.inputs, strict=True):
        assert torch.equal(mine, other)


@given(shapes(), st.data())
def test_outputs_that_do_not_fit_change_nothing(shape, data):
    ours = Call(shape)
    results = computed(shape, ours.inputs)
    wrong = data.draw(st.integers(0, shape.outputs - 1))
    results[wrong] = data.draw(
        st.sampled_from([results[wrong].double(), results[wrong][:-1], results[wrong][None]])
    )
    before = [tensor.clone() for tensor in (*ours.inputs, *ours.buffers.values())]
    with pytest.raises(RuntimeError, match=f"random.*'y{wrong}'"):
        substituted(shape, ours, lambda _inputs: tuple(results))
    after = (*ours.inputs, *ours.buffers.values())
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@given(st.permutations(range(4)), st.integers(1, 4))
def test_solutions_may_return_their_inputs_in_any_order(order, count):
    """Writing one back must not change another that is still to be written."""
    shape = Shape(4, list(range(count)), [False] * count, False, False, "none", False, "tuple")
    ours = Call(shape)
    values = [tensor.clone() for tensor in ours.inputs]
    substituted(shape, ours, lambda inputs: tuple(inputs[order[i]] for i in range(count)))
    for index in range(count):
        assert torch.equal(ours.inputs[index], values[order[index]])


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
        ("None", Returns("none", 0)),
        (torch.Tensor, Returns("one", 1)),
        ("torch.Tensor", Returns("one", 1)),
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
        ("Any", Returns()),
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
