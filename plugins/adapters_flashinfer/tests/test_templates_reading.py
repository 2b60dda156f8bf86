"""Reading templates: what cannot be routed, names, and what the originals compute."""

from __future__ import annotations

import pytest
import template_fakes as fakes
import torch
from template_fakes import Const, Tensor, Var, api, template
from template_worlds import Counted, World, rows

from fib_adapters_flashinfer.templates import TemplateRoute
from fib_adapters_flashinfer.templates.plan import UnsupportedError
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing.routes import UnroutableError

ROWS = fakes.ROWS

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
    with pytest.raises(UnsupportedError, match=reason):
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
            {"n": Var(), "vocab": Const("v")},
        ),
    )
    probs, k = torch.ones(3, 8), torch.ones(3, dtype=torch.int32)
    for name in ("top_k_sampling_v8", "top_k_sampling_from_probs_v8"):
        world = World(described, name, lambda probs, top_k: top_k)
        assert world(probs, k) is k
        assert world.route.could_be(name)
    both = {
        name: Counted(lambda probs, top_k: top_k)
        for name in ("top_k_sampling_from_probs_v8", "top_k_sampling_v8")
    }
    with enable_apply(both):
        world.wrapper(probs, k)
    assert [each.calls for each in both.values()] == [0, 1]  # FlashInfer's own name first


def test_a_size_that_no_tensor_has_comes_from_an_argument():
    described = api(fakes.route_tokens, *fakes.KINDS, choose=fakes.choose_kind)
    route = TemplateRoute(described)
    assert route.understand(rows(), 4).name == "route_plain_h8_topk4"
    for odd in (None, 2.5, True):
        with pytest.raises(UnroutableError) as caught:
            route.understand(rows(), odd)
        assert caught.value.reason == "axis not known"
