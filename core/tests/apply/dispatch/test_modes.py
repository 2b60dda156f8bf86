"""torch.compile, inference mode, transforms, tracing, custom operators."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from flashinfer_bench.apply.dispatch import Stats, codegen, ordinary, tensor_guards

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


def fell_back(made, reason):
    return made.stats.misses == {reason: made.stats.fallbacks} and made.stats.fallbacks > 0


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


def test_a_compiled_caller_sees_which_solution_is_used_now(adding):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, y: adding.dispatcher.call((x, y), None, adding.original) + 1, backend="eager"
    )
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    assert torch.equal(compiled(x, y), x + y + 1)
    adding.solution.function = lambda x, y: x - y
    assert torch.equal(compiled(x, y), x - y + 1)


def test_a_compiled_caller_that_allows_no_break_is_told(adding):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, y: adding.dispatcher.call((x, y), None, adding.original) + 1,
        backend="eager",
        fullgraph=True,
    )
    with pytest.raises(Exception, match=r"(?i)disable"):
        compiled(torch.rand(3, 4), torch.rand(3, 4))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_substituted_in_each_grad_mode(adding, mode):
    with mode():
        x, y = torch.rand(3, 4), torch.rand(3, 4)
        for _ in range(3):
            assert torch.equal(adding(x, y), x + y)
            z = torch.empty(3, 4)
            adding(x, y, z)
            assert torch.equal(z, x + y)
    assert adding.stats == Stats(hits=9)


def test_outputs_allocated_in_inference_mode_belong_to_it(bench, xy):
    made = bench(lambda x, y, z: z.copy_(x + y), destination_passing=True)
    for _ in range(3):
        with torch.inference_mode():
            assert made(*xy).is_inference()
        assert not made(*xy).is_inference()


def test_weights_that_could_be_trained(bench, xy):
    x, y = xy[0], torch.nn.Parameter(xy[1])
    made = bench(lambda x, y: x + y)
    for _ in range(3):
        with torch.no_grad():
            assert torch.equal(made(x, y), x + y)
        assert made(x, y) == "original"
        with torch.inference_mode():
            assert torch.equal(made(x, y), x + y)
        assert made(x, y) == "original"
    assert made.stats == Stats(6, 6, 0, {"grad": 6})


def test_gradients_flow_through_the_original(adding, xy):
    x = xy[0].clone().requires_grad_()
    adding(x, xy[1]).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 4))


def test_transforms_get_the_original(adding, xy):
    x, y = xy
    stacked = torch.stack([x, x + 1])
    result = torch.vmap(lambda each: adding(each, y))(stacked)
    assert torch.equal(result, stacked + y)
    gradient = torch.func.grad(lambda each: adding(each, y).sum())(x)
    assert torch.equal(gradient, torch.ones(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch uses what it has deprecated
        _, tangent = torch.func.jvp(lambda each: adding(each, y), (x,), (y,))
    assert torch.equal(tangent, y)
    assert torch.equal(torch.func.functionalize(adding)(x, y), x + y)
    assert fell_back(adding, "mode")


def test_ordinary_tensors_inside_of_a_transform(adding, xy):
    x, y = xy
    torch.vmap(lambda each: each + adding(x, y))(torch.ones(2, 3, 4))
    assert fell_back(adding, "mode")


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_traces_hold_the_original(adding, tracing_mode):
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    traced = make_fx(adding, tracing_mode=tracing_mode)(x, y)
    assert "torch.ops.aten.add" in traced.code
    assert torch.equal(traced(y, y), y + y)
    assert adding.stats.hits == 3


def test_exported_programs_hold_the_original_or_refuse(adding):
    class Model(torch.nn.Module):
        def forward(self, x, y):
            return adding.dispatcher.call((x, y), None, adding.original)

    x, y = torch.rand(3, 4), torch.rand(3, 4)
    try:
        program = torch.export.export(Model(), (x, y), strict=False)
    except Exception:  # noqa: BLE001
        return
    assert torch.equal(program.module()(y, y), y + y)


def test_jit_traces_hold_the_original(adding):
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        traced = torch.jit.trace(lambda x, y: adding(x, y), (x, y), check_trace=False)
        assert "aten::add" in str(traced.graph)
        assert torch.equal(traced(y, y), y + y)


def test_autocast_gets_the_original(adding, xy):
    with torch.autocast("cpu", torch.bfloat16):
        adding(*xy)
        adding(*xy)
    assert fell_back(adding, "mode")
    with torch.autocast("cpu", enabled=False):
        adding(*xy)
    assert adding.stats.hits == 4


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


def test_a_fresh_thread_is_no_mode(adding):
    import threading

    results = []
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    thread = threading.Thread(target=lambda: results.append(adding(x, y)))
    thread.start()
    thread.join()
    assert torch.equal(results[0], x + y)
    assert adding.stats.hits == 4


def test_a_dispatcher_made_in_a_mode_works_outside_of_it(bench, xy):
    for each in (tensor_guards.tensor_guards, ordinary.facts, ordinary.ordinary_keys):
        each.cache_clear()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        made = bench(lambda x, y: x + y)
        assert made(*xy) == "original"
    for _ in range(3):
        assert torch.equal(made(*xy), xy[0] + xy[1])


def test_code_that_equals_earlier_code_is_opaque_too(bench):
    """Equal sources may be compiled again, into other objects that are equal."""
    for _ in range(3):
        codegen._compiled.cache_clear()
        made = bench(lambda x, y: x + y)
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, y, made=made: made.dispatcher.call((x, y), None, None) + 1, backend="eager"
        )
        for _ in range(3):
            assert is_all(compiled(torch.ones(3, 4), torch.ones(3, 4)), 3)
        assert made.stats.hits == 3


def is_all(tensor, value):
    return bool((tensor == value).all())
