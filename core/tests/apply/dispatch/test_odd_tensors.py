"""Tensors that are not plain numbers in memory: the original gets them, and nothing ends."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

pytestmark = [
    pytest.mark.usefixtures("guards"),
    pytest.mark.filterwarnings("ignore"),  # many of these are prototypes, and say so
]


def plain():
    return torch.ones(2, 4)


def nested(layout=torch.strided):
    return torch.nested.nested_tensor([torch.ones(4), torch.ones(4)], layout=layout)


class Own(torch.Tensor):
    """A subclass."""


ODD = {
    "nested": nested,
    "nested, jagged": lambda: nested(torch.jagged),
    "nested parameter": lambda: torch.nn.Parameter(nested(), requires_grad=False),
    "nested that wants a gradient": lambda: nested().requires_grad_(),
    "sparse": lambda: plain().to_sparse(),
    "sparse rows": lambda: plain().to_sparse_csr(),
    "sparse columns": lambda: plain().to_sparse_csc(),
    "sparse blocks": lambda: plain().to_sparse_bsr((1, 1)),
    "quantized": lambda: torch.quantize_per_tensor(plain(), 0.1, 0, torch.qint8),
    "meta": lambda: plain().to("meta"),
    "fake": lambda: FakeTensorMode().from_tensor(plain()),
    "functional": lambda: torch._to_functional_tensor(plain()),
    "negated": lambda: torch._neg_view(plain()),
    "imaginary part of a conjugate": lambda: torch.ones(2, 4, dtype=torch.cfloat).conj().imag,
    "zeros without memory": lambda: torch._efficientzerotensor((2, 4)),
    "two in one": lambda: TwoTensor(plain(), plain()),
    "subclass": lambda: plain().as_subclass(Own),
    "not made yet": lambda: torch.nn.parameter.UninitializedParameter(requires_grad=False),
    "buffer not made yet": torch.nn.parameter.UninitializedBuffer,
    "masked": lambda: torch.masked.masked_tensor(plain(), plain().bool()),
    "wanting a gradient": lambda: plain().requires_grad_(),
    "view of what wants one": lambda: plain().requires_grad_().view(2, 4),
    "parameter": lambda: torch.nn.Parameter(plain()),
    "complex": lambda: plain().to(torch.cfloat),
    "conjugate": lambda: plain().to(torch.cfloat).conj(),
    "nothing": lambda: None,
    "number": lambda: 1.0,
}
if torch.backends.mkldnn.is_available():
    ODD["mkldnn"] = lambda: plain().to_mkldnn()

# What is as good as a fresh tensor.
ORDINARY = {
    "parameter without gradient": lambda: torch.nn.Parameter(plain(), requires_grad=False),
    "detached": lambda: plain().requires_grad_().detach(),
    "data": lambda: plain().requires_grad_().data,
    "conjugate of a real one": lambda: plain().conj(),
    "negated and resolved": lambda: torch._neg_view(-plain()).resolve_neg(),
    "part of a nested one": lambda: torch.stack(nested().unbind()),
    "end of a longer one": lambda: torch.ones(9, 4)[7:],
    "padded from a nested one": lambda: torch.nested.to_padded_tensor(nested(), 0.0),
}


@pytest.fixture
def adding(bench):
    """A bench that knows calls of two plain tensors, with and without a place for the output."""
    made = bench(lambda x, y: x + y)
    for _ in range(2):
        made(plain(), plain())
        made(plain(), plain(), torch.zeros(2, 4))
    return made


@pytest.mark.parametrize("kind", sorted(ODD))
def test_an_odd_tensor_in_every_place(adding, kind):
    before = adding.stats.hits
    for place in range(3):
        for _ in range(2):
            args = [plain(), plain(), torch.zeros(2, 4)]
            args[place] = ODD[kind]()
            assert adding(*args) == "original"
            assert adding.original.calls[-1][0][place] is args[place]
            if place < 2:
                assert adding(*args[:2]) == "original"
            adding(plain(), plain())  # the pattern that is known stays so
            before += 1
    assert adding.stats.hits == before
    assert adding.stats.errors == 0


@pytest.mark.parametrize("kind", sorted(ORDINARY))
def test_a_tensor_that_only_looks_odd_is_substituted(adding, kind):
    before = adding.stats.hits
    for place in range(2):
        for _ in range(2):
            args = [plain(), plain()]
            args[place] = ORDINARY[kind]()
            assert torch.equal(adding(*args), plain() * 2)
    assert adding.stats.hits == before + 4


@pytest.mark.parametrize("kind", sorted(ODD))
def test_an_odd_output_is_a_failure_of_the_solution(bench, kind):
    """Where it wants a gradient alone, it is a plain tensor: the caller may want just that."""
    plain_ones = ("wanting a gradient", "view of what wants one", "parameter")
    answers = [plain(), plain(), plain(), ODD[kind]()]
    made = bench(lambda x, y: answers.pop(0))
    for _ in range(3):
        made(plain(), plain())
    result = made(plain(), plain())
    assert (result == "original") is (kind not in plain_ones)
    assert made.stats.errors == (kind not in plain_ones)


TRANSFORMS = {
    "vmap": lambda f: torch.vmap(f)(torch.ones(3, 2, 4)),
    "vmap over a nested one": lambda f: torch.vmap(f)(
        torch.nested.nested_tensor([plain(), plain()])
    ),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(plain()),
    "jvp": lambda f: torch.func.jvp(f, (plain(),), (plain(),)),
    "functionalize": lambda f: torch.func.functionalize(f)(plain()),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda x: f(x).sum()))(
        torch.ones(3, 2, 4)
    ),
}


@pytest.mark.parametrize("transform", sorted(TRANSFORMS))
def test_a_tensor_under_a_transform(adding, transform):
    before, inside = adding.stats.hits, []

    def call(x):
        inside.append(1)
        assert adding(x, plain()) == "original"
        assert adding(plain(), x) == "original"
        assert adding(plain(), plain()) == "original"  # an ordinary one, but not an ordinary mode
        return x * 2

    TRANSFORMS[transform](call)
    assert inside
    assert adding.stats.hits == before
    assert adding.stats.misses.keys() == {"mode"}
    assert torch.equal(adding(plain(), plain()), plain() * 2)


def test_tensors_without_dimensions(bench, make_definition):
    scalar = {"shape": [], "dtype": "float32"}
    definition = make_definition({"x": scalar, "y": scalar}, {"z": scalar})
    made = bench(lambda x, y: x + y, definition, key_builder=None)
    for _ in range(3):
        assert made(torch.tensor(1.0), torch.tensor(2.0)) == 3
        z = torch.tensor(0.0)
        made(torch.ones(3)[1], torch.tensor(2.0), z)
        assert z == 3
    assert made.stats.hits == 6
    for odd in (1.0, torch.tensor(1), torch.ones(1), torch.tensor(1.0, requires_grad=True)):
        for _ in range(2):
            assert made(odd, torch.tensor(2.0)) == "original"
            assert made(torch.tensor(2.0), odd) == "original"
