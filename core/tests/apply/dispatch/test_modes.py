"""torch.compile, inference mode, transforms, tracing, custom operators."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from flashinfer_bench.apply.dispatch import Stats, guards, recognition
from flashinfer_bench.routing import binding

pytestmark = pytest.mark.usefixtures("guards")


@pytest.fixture
def adding(bench, xy):
    """A bench whose patterns are known."""
    made = bench(lambda x, y: x + y, original=lambda x, y, z=None: torch.add(x, y))
    made(*xy)
    made(*xy)
    made(*xy, torch.empty(3, 4))
    assert made.stats.hits == 3
    return made


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_callers_break_their_graph_here(adding, backend):
    def caller(x, y):
        z = adding.dispatcher.call((x * 2, y), None, adding.original)
        return z - 1

    torch._dynamo.reset()
    compiled = torch.compile(caller, backend=backend, fullgraph=False)
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    before = adding.stats.hits
    for _ in range(3):
        assert torch.equal(compiled(x, y), x * 2 + y - 1)
    assert adding.stats.hits == before + 3
    assert adding.stats.fallbacks == 0


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_traces_hold_the_original(adding, tracing_mode):
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    traced = make_fx(adding, tracing_mode=tracing_mode)(x, y)
    assert "torch.ops.aten.add" in traced.code
    assert torch.equal(traced(y, y), y + y)
    assert adding.stats.hits == 3


@torch.library.custom_op("fib_test_dispatch::add", mutates_args=())
def operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return CURRENT[0](x, y)


CURRENT = [None]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_substituted_inside_of_a_custom_operator(adding, mode):
    CURRENT[0] = adding
    with mode():
        x, y = torch.rand(3, 4), torch.rand(3, 4)
        for _ in range(3):
            assert torch.equal(operator(x, y), x + y)
    assert adding.stats == Stats(hits=6)


def test_a_dispatcher_made_in_a_mode_works_outside_of_it(bench, xy):
    for each in (recognition.tensor_guards, guards.facts, guards.ordinary_keys):
        each.cache_clear()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        made = bench(lambda x, y: x + y)
        assert made(*xy) == "original"
    for _ in range(3):
        assert torch.equal(made(*xy), xy[0] + xy[1])


def test_code_that_equals_earlier_code_is_opaque_too(bench):
    """Equal sources may be compiled again, into other objects that are equal."""
    for _ in range(3):
        binding._compiled.cache_clear()
        made = bench(lambda x, y: x + y)
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, y, made=made: made.dispatcher.call((x, y), None, None) + 1, backend="eager"
        )
        for _ in range(3):
            assert (compiled(torch.ones(3, 4), torch.ones(3, 4)) == 3).all()
        assert made.stats.hits == 3
