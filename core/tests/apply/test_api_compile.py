"""Decorated functions and single calls under torch.compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fib_tests.routed_library import Runtime  # noqa: E402
from flashinfer_bench.apply import apply  # noqa: E402
from flashinfer_bench.routing.patch_points import opaque, router  # noqa: E402

CALLS = []


@opaque
def take(args, kwargs, fallback):
    """Add 100 to the tensor, out of torch.compile's sight."""
    (x,) = [each for each in (*args, *(kwargs or {}).values()) if torch.is_tensor(each)]
    assert type(x) is torch.Tensor
    assert not torch.compiler.is_compiling()
    CALLS.append(x)
    return x + 100


@pytest.fixture(autouse=True)
def clean():
    router.clear()
    router.asked()
    torch._dynamo.reset()
    CALLS.clear()
    yield
    router.clear()
    torch._dynamo.reset()


@apply("d")
def plain(x, y=2.0):
    return x + y


@apply("d")
def with_more(x, *rest, scale=2.0, **more):
    return x + scale


@apply(lambda x: "d" if x.shape[0] == 3 else f"d_n{x.shape[0]}")
def resolved(x, y=2.0):
    return x + y


def single_call(x):
    return apply("d", args=(x,), fallback=lambda x: x + 2.0)


class Layer(torch.nn.Module):
    @apply("d")
    def forward(self, x):
        return x + 2.0


FORMS = {
    "plain": plain,
    "with more parameters": with_more,
    "resolved": resolved,
    "single call": single_call,
    "layer": Layer(),
}


def compiled(form, **options):
    def caller(x):
        return form(x * 2.0) * 3.0

    return torch.compile(caller, backend="eager", **options)


X = torch.tensor([1.0, 2.0, 3.0])
ORIGINAL = (X * 2.0 + 2.0) * 3.0
TAKEN = (X * 2.0 + 100) * 3.0


@pytest.mark.parametrize("name", FORMS)
class TestForms:
    def test_while_nothing_is_enabled_the_original_becomes_part_of_the_graph(self, name):
        caller = compiled(FORMS[name], fullgraph=True)
        assert torch.equal(caller(X), ORIGINAL)

    def test_enabling_and_disabling_is_seen_by_what_has_been_compiled(self, name):
        caller = compiled(FORMS[name])
        assert torch.equal(caller(X), ORIGINAL)
        runtime = Runtime(take, "d")
        router.push(runtime)
        assert torch.equal(caller(X), TAKEN)
        assert torch.equal(caller(X), TAKEN)
        assert len(CALLS) == 2
        router.remove(runtime)
        assert torch.equal(caller(X), ORIGINAL)
        router.push(runtime)
        assert torch.equal(caller(X), TAKEN)


def test_the_decorated_function_itself_may_be_compiled():
    function = torch.compile(plain, backend="eager")
    assert torch.equal(function(X), X + 2.0)
    router.push(Runtime(take, "d"))
    assert torch.equal(function(X), X + 100)
