"""A small library with trace templates, as FlashInfer has them; a function of it, patched."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

import making
import torch
from making import Refusals, Solution

from fib_adapters_flashinfer.templates import Api, TemplateRoute
from flashinfer_bench.apply import enable_apply
from flashinfer_bench.routing.routes import route_calls


class Var:
    description = ""


class Const:
    def __init__(self, abbrev=None, value=None):
        self.abbrev = abbrev
        self.value = value


class Tensor:
    def __init__(self, dim_names, param=None, tuple_idx=None, dtype=None, optional=False):
        self.dim_names = dim_names
        self.param = param
        self.tuple_idx = tuple_idx
        self.dtype = dtype
        self.optional = optional


class Scalar:
    def __init__(self, param=None, optional=False):
        self.dtype = "float32"
        self.param = param
        self.optional = optional


class Template:
    def __init__(self, name_prefix, axes, inputs, outputs, op_type="fake"):
        self.op_type = op_type
        self.name_prefix = name_prefix
        self.axes = axes
        self.inputs = inputs
        self.outputs = outputs


ROWS = ["n", "h"]
AXES = {"n": Var(), "h": Const("h")}


def template(name="scale", inputs=None, outputs=None, axes=None, op_type="fake"):
    return Template(
        name,
        AXES if axes is None else axes,
        {"x": Tensor(ROWS)} if inputs is None else inputs,
        {"y": Tensor(ROWS)} if outputs is None else outputs,
        op_type,
    )


def api(function, *templates, choose=None):
    return Api(f"fake.{function.__name__}", function, templates or (template(),), choose)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Plan:
    """What a library returns that is no tensor."""


def scale(
    x: torch.Tensor,
    factor: float = 2.0,
    out: Optional[torch.Tensor] = None,
    enable_pdl: Optional[bool] = None,
) -> torch.Tensor:
    y = x * factor
    return y if out is None else out.copy_(y)


def attend(
    q: torch.Tensor,
    cache,
    kv_layout: str = "NHD",
    out: Optional[torch.Tensor] = None,
    lse: Optional[torch.Tensor] = None,
    return_lse: bool = False,
) -> Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    y, total = q + cache[0].sum(), q.sum(-1)
    y = y if out is None else out.copy_(y)
    total = total if lse is None else lse.copy_(total)
    return (y, total) if return_lse else y


PAGES = ["pages", "page_size", "num_kv_heads", "d"]
ATTEND = template(
    "attend",
    inputs={
        "q": Tensor(["n", "num_heads", "d"]),
        "k_cache": Tensor(PAGES, param="cache", tuple_idx=0),
        "v_cache": Tensor(PAGES, param="cache", tuple_idx=1),
    },
    outputs={
        "output": Tensor(["n", "num_heads", "d"]),
        "lse": Tensor(["n", "num_heads"], optional=True),
    },
    axes={
        "n": Var(),
        "pages": Var(),
        "num_heads": Const("h"),
        "num_kv_heads": Const("kv"),
        "d": Const("d"),
        "page_size": Const("ps"),
    },
)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    inverse = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (x * inverse * weight).to(x.dtype)


NORM = template("norm", inputs={"x": Tensor(ROWS), "weight": Tensor(["h"])})


def merge(v: torch.Tensor, s: torch.Tensor, other: torch.Tensor) -> None:
    v.add_(other)
    s.mul_(2)


MERGE = template(
    "merge",
    inputs={"v": Tensor(ROWS), "s": Tensor(["n"]), "other": Tensor(ROWS)},
    outputs={"v": Tensor(ROWS), "s": Tensor(["n"])},
)


def append(x: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor]) -> None:
    caches[0].copy_(x)
    caches[1].copy_(-x)


APPEND = template(
    "append",
    inputs={
        "x": Tensor(ROWS),
        "k": Tensor(ROWS, param="caches", tuple_idx=0),
        "v": Tensor(ROWS, param="caches", tuple_idx=1),
    },
    outputs={"k": Tensor(ROWS, param="caches"), "v": Tensor(ROWS, param="caches")},
)


def route_tokens(
    x: torch.Tensor, top_k: int, kind: int = 0, local: bool = False
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    return x * (kind + 1), None


ROUTE_AXES = {"n": Var(), "h": Const("h"), "top_k": Const("topk")}
ROUTE = {"x": Tensor(ROWS), "top_k": Scalar()}
KINDS = [template(f"route_{kind}", ROUTE, axes=ROUTE_AXES) for kind in ("plain", "grouped")]


def choose_kind(save_dir=None, name=None, **values):
    return {0: KINDS[0], 2: KINDS[1]}.get(values["kind"])


# ------------------------------------------------------------------------ patched functions


class World:
    """A patched function, with one solution enabled for one definition."""

    def __init__(self, described, name, solution, folder=None):
        self.original = Solution(described.function)
        self.solution = Solution(solution)
        self.route = TemplateRoute(described)
        self.wrapper = route_calls(self.route, self.original)
        self.name = name
        self.folder = folder

    def __call__(self, *args, **kwargs):
        refusals = Refusals(self.route.label)
        with enable_apply({self.name: self.solution}, dataset=self.folder):
            result = self.wrapper(*args, **kwargs)
        self.reasons = [*refusals.new()]
        return result

    @property
    def calls(self):
        """How often the solution and the original were called."""
        return len(self.solution.calls), len(self.original.calls)


def definition(folder, name, inputs, outputs, sizes, *, eps=None, op_type="fake"):
    """Write a definition of bfloat16 tensors; None stands for a scalar."""
    inputs, outputs = (
        {
            name: making.SCALAR if axes is None else making.tensor(*axes)
            for name, axes in each.items()
        }
        for each in (inputs, outputs)
    )
    reference = f"def run({', '.join(inputs)}):\n    EPS = {eps}\n    return x\n"
    return making.dataset(folder, making.define(name, op_type, sizes, inputs, outputs, reference))


def rows(n=3, h=8, fill=1.0, dtype=torch.bfloat16):
    return torch.full((n, h), fill, dtype=dtype)
