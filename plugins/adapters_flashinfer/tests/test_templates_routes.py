"""Routes made from templates: what can be routed, what is taken, and what is handed over."""

from __future__ import annotations

import inspect

import pytest
import template_fakes as fakes
import torch
from making import Solution
from template_fakes import ROWS, Tensor, World, api, definition, rows, template

from fib_adapters_flashinfer.templates import TemplateRoute
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing.routes import UnroutableError

# ------------------------------------------------------------------------------ what is handed on


def test_the_caller_s_buffer_is_filled_and_returned():
    world = World(api(fakes.scale), "scale_h8", lambda x: x + 40)
    out = rows(fill=0.0)
    assert world(rows(), out=out) is out
    assert torch.equal(out, rows(fill=41.0))


def test_an_option_that_the_solution_knows_is_handed_on():
    world = World(api(fakes.scale), "scale_h8", lambda x, factor=2.0: x * factor)
    assert torch.equal(world(rows(), 7.0), rows(fill=7.0))
    assert not world.original.calls


@pytest.mark.parametrize("shape", [("output",), ("output", "lse")])
def test_return_lse_decides_how_much_is_returned(shape):
    described = api(fakes.attend, fakes.ATTEND)
    q, cache = torch.ones(3, 4, 8), (torch.ones(2, 16, 2, 8), torch.ones(2, 16, 2, 8))

    def solution(q, k_cache, v_cache):
        assert k_cache is cache[0]
        assert v_cache is cache[1]
        made = (q + 1, q.sum(-1) + 1)
        return made if len(shape) == 2 else made[0]

    world = World(described, "attend_h4_kv2_d8_ps16", solution)
    assert torch.equal(world(q, cache), q + 1)
    if len(shape) == 1:  # a mapping is strict
        with pytest.raises(RuntimeError, match="cannot be returned as"):
            world(q, cache, return_lse=True)
        return
    out, lse = torch.empty_like(q), torch.empty(3, 4)
    returned = world(q, cache, out=out, lse=lse, return_lse=True)
    assert returned[0] is out
    assert returned[1] is lse
    assert torch.equal(lse, q.sum(-1) + 1)
    assert not world.original.calls


def test_outputs_go_back_into_inputs_as_if_at_once():
    # Each output is a view of the other one's place.
    world = World(
        api(fakes.merge, fakes.MERGE), "merge_h1", lambda v, s, other: (s[:, None], v[:, 0])
    )
    v, s = torch.arange(3.0)[:, None], torch.arange(3.0) + 10
    assert world(v, s, v.clone()) is None
    assert v.flatten().tolist() == [10.0, 11.0, 12.0]
    assert s.tolist() == [0.0, 1.0, 2.0]
    assert not world.original.calls


def test_outputs_go_into_the_elements_of_a_tuple():
    world = World(api(fakes.append, fakes.APPEND), "append_h8", lambda x, k, v: (x + 1, x + 2))
    caches = (rows(fill=0.0), rows(fill=0.0))
    assert world(rows(), caches) is None
    assert torch.equal(caches[0], rows(fill=2.0))
    assert torch.equal(caches[1], rows(fill=3.0))


def test_a_solution_may_write_into_its_inputs_itself():
    def solution(x, k, v):
        k.fill_(5)
        v.fill_(6)

    world = World(api(fakes.append, fakes.APPEND), "append_h8", solution)
    caches = (rows(fill=0.0), rows(fill=0.0))
    world(rows(), caches)
    assert (caches[0][0, 0].item(), caches[1][0, 0].item()) == (5.0, 6.0)
    assert not world.original.calls


def test_a_named_tuple_is_returned_as_one():
    def split(x: torch.Tensor) -> fakes.Pair:
        raise AssertionError

    described = api(
        split, template("split", outputs={"first": Tensor(["n"]), "second": Tensor(["n"])})
    )
    world = World(described, "split_h8", lambda x: (x[:, 0], x[:, 1]))
    assert isinstance(world(rows()), fakes.Pair)


def test_sampled_tokens_are_as_wide_as_the_function_has_them():
    def draw(probs: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    inputs, outputs = {"probs": Tensor(ROWS)}, {"samples": Tensor(["n"], dtype="int64")}
    described = api(draw, template("draw", inputs, outputs, op_type="sampling"))
    world = World(described, "draw_h8", lambda probs: torch.zeros(3, dtype=torch.int64))
    assert world(rows()).dtype == torch.int32


# ------------------------------------------------------------------------------- what is not taken


def test_calls_that_the_template_does_not_describe_go_to_the_original():
    cases = {
        "rank of an input": (torch.ones(2, 3, 8),),
        "input missing": ([1.0, 2.0],),
        "arguments": (rows(), 2.0, None, None, "one too many"),
        "buffer": (rows(), 2.0, "no tensor"),
        "": (rows(h=16),),
    }
    for reason, args in cases.items():
        world = World(api(_lenient), "scale_h8", lambda x: x + 40)
        assert world(*args) == "original", reason
        assert world.calls == (0, 1), reason
        # What a mapping does not have, it counts itself.
        assert world.reasons == ([reason] if reason else [])


def _lenient(x, factor=2.0, out=None, enable_pdl=None, *rest):
    return "original"


_lenient.__signature__ = inspect.signature(fakes.scale)


@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_who_asks_for_repeatable_results_gets_the_original(usual, asked):
    """Unless that is the default: then nobody need have asked."""

    def function(x: torch.Tensor, *, deterministic: bool = usual) -> torch.Tensor:
        return x + 1

    world = World(api(function), "scale_h8", lambda x: x + 40)
    world(rows(), deterministic=asked)
    assert world.calls == ((0, 1) if asked > usual else (1, 0))


def test_a_definition_with_more_outputs_is_another_one(tmp_path):
    outputs = {"y": ROWS, "z": ROWS}
    folder = definition(tmp_path, "scale_h8", {"x": ROWS}, outputs, {"h": 8})
    world = World(api(fakes.scale), "scale_h8", lambda x: (x, x), folder)
    world(rows())
    assert world.calls == (0, 1)
    assert world.reasons == ["number of outputs"]


@pytest.mark.parametrize(("eps", "by_solution"), [(1e-6, False), (1e-5, True), (None, False)])
def test_epsilon_is_the_definition_s(tmp_path, eps, by_solution):
    inputs = {"x": ROWS, "weight": ["h"]}
    folder = definition(tmp_path, "norm_h8", inputs, {"y": ROWS}, {"h": 8}, eps="1e-5")
    world = World(api(fakes.norm, fakes.NORM), "norm_h8", lambda x, weight: x, folder)
    options = {} if eps is None else {"eps": eps}
    world(rows(), torch.ones(8, dtype=torch.bfloat16), **options)
    assert world.calls == (by_solution, not by_solution)


def test_the_order_of_dimensions_has_to_be_the_template_s():
    described = api(fakes.attend, fakes.ATTEND)
    world = World(described, "attend_h4_kv2_d8_ps16", lambda q, k_cache, v_cache: q)
    q, cache = torch.ones(3, 4, 8), (torch.ones(2, 2, 16, 8), torch.ones(2, 2, 16, 8))
    world(q, cache, kv_layout="HND")
    assert world.reasons == ["kv layout"]
    assert world.calls == (0, 1)


def test_inputs_that_disagree_about_a_constant_size_go_to_the_original():
    world = World(api(fakes.norm, fakes.NORM), "norm_h8", lambda x, weight: x)
    with pytest.raises(RuntimeError, match="must match"):  # as the original says
        world(rows(), torch.ones(5))
    assert world.calls == (0, 1)


def test_wrong_outputs_are_not_handed_over_and_nothing_is_written():
    wrong = {
        "too many": lambda x: (x, x),
        "another shape": lambda x: x[:1],
        "another type": lambda x: x.float(),
        "no tensor": lambda x: "y",
        "none": lambda x: None,
    }
    for what, solution in wrong.items():
        world = World(api(fakes.scale), "scale_h8", solution)
        out = rows(fill=-1.0)
        with pytest.raises(RuntimeError, match="cannot be returned as"):
            world(rows(), 2.0, out)
        assert world.calls == (1, 0), what
        assert torch.equal(out, rows(fill=-1.0)), what


# ---------------------------------------------------------------------------- several templates


def test_the_chooser_s_template_gives_the_name():
    described = api(fakes.route_tokens, *fakes.KINDS, choose=fakes.choose_kind)
    world = World(described, "route_grouped_h8_topk2", lambda x, top_k: x + 50)
    # The template says that the kind is 2: it is no option that the definition would have to know.
    assert torch.equal(world(rows(), 2, kind=2)[0], rows(fill=51.0))
    assert not world.original.calls
    world(rows(), 2, kind=0)
    assert len(world.original.calls) == 1
    world(rows(), 2, kind=1)
    assert world.reasons == ["no template for the call"]


# -------------------------------------------------------------------------- what cannot be routed


def _in_place(x: torch.Tensor) -> None: ...


def _object(x: torch.Tensor) -> fakes.Plan: ...


def _stateful(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor: ...


def _two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


def _either(x: torch.Tensor) -> fakes.Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]: ...


def _filled(x: torch.Tensor, out: torch.Tensor, y: torch.Tensor) -> None: ...


class _Wrapper:
    def run(self, x: torch.Tensor) -> torch.Tensor: ...


PAIR = {"y": Tensor(ROWS), "z": Tensor(ROWS)}
UNSUPPORTED = {
    "in place, and the template does not say where": (_in_place, [template()]),
    "returns an object of its own": (_object, [template()]),
    "updates 'state' in place": (
        _stateful,
        [template(inputs={"x": Tensor(ROWS), "state": Tensor(ROWS)})],
    ),
    "returns 2 values": (_two, [template()]),
    "how many of its outputs": (_either, [template(outputs=PAIR)]),
    "takes no output": (_filled, [template()]),
    "depends on earlier calls": (_Wrapper.run, [template()]),
    "several templates": (fakes.scale, [template(), template("other")]),
    "input 'w' is not a parameter": (fakes.scale, [template(inputs={"w": Tensor(ROWS)})]),
    "goes into 'nowhere'": (fakes.scale, [template(outputs={"y": Tensor(ROWS, param="nowhere")})]),
    "two outputs go into 'out'": (
        fakes.scale,
        [template(outputs={each: Tensor(ROWS, param="out") for each in "yz"})],
    ),
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_what_a_template_does_not_tell_is_not_routed(reason):
    function, templates = UNSUPPORTED[reason]
    with pytest.raises(UnroutableError, match=reason):
        TemplateRoute(api(function, *templates))


# ---------------------------------------------------------------------------------------- names


def test_the_dataset_s_name_is_taken_if_only_that_is_enabled():
    def top_k(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    described = api(
        top_k,
        template(
            "top_k_sampling",
            {"probs": Tensor(["n", "vocab"]), "top_k": Tensor(["n"])},
            {"samples": Tensor(["n"])},
            {"n": fakes.Var(), "vocab": fakes.Const("v")},
        ),
    )
    probs, k = torch.ones(3, 8), torch.ones(3, dtype=torch.int32)
    for name in ("top_k_sampling_v8", "top_k_sampling_from_probs_v8"):
        world = World(described, name, lambda probs, top_k: top_k)
        assert world(probs, k) is k
        assert world.route.could_be(name)
    both = {
        name: Solution(lambda probs, top_k: top_k)
        for name in ("top_k_sampling_from_probs_v8", "top_k_sampling_v8")
    }
    with enable_apply(both):
        world.wrapper(probs, k)
    assert [len(each.calls) for each in both.values()] == [0, 1]  # FlashInfer's own name first


def test_a_size_that_no_tensor_has_comes_from_an_argument():
    described = api(fakes.route_tokens, *fakes.KINDS, choose=fakes.choose_kind)
    route = TemplateRoute(described)
    assert route.understand(rows(), 4).name == "route_plain_h8_topk4"
    for odd in (None, 2.5, True):
        with pytest.raises(UnroutableError) as caught:
            route.understand(rows(), odd)
        assert caught.value.reason == "axis not known"
