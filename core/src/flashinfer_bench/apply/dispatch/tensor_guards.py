"""Recognising tensors like those seen before, many of them in one call into C++.

torch.compile asks before each call of a compiled function whether the arguments are like those that
it was compiled for, and has a checker of its own for that, `torch._C._dynamo.guards.TensorGuards`:
exact type, dispatch keys (with those of the thread), dtype, device, shape, strides and
``requires_grad``. It is not public; so it is tried out before its first use (`trial` says where),
and done without if it is missing or does not do exactly that. What it passes over has to be asked
apart: grad mode, the modes of compilers (`Facts.modes`), and forward-mode gradients.

It asks any tensor for its sizes. One that has none, because it is a nested tensor of the strided
kind or stands for one in a transform, raises in C++ where nothing catches that, and the process
ends. Such tensors are turned away before; but for one that a program has kept from a transform
over nested tensors beyond its end, with which torch can do nothing either.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch import trial
from flashinfer_bench.apply.dispatch.codegen import compile_source
from flashinfer_bench.apply.dispatch.ordinary import in_fresh_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    Check = Callable[..., bool]
    Maker = Callable[..., Any]

logger = logging.getLogger(__name__)


_SOURCE = """\
def check({arguments}):
    try:
        if transformed() or {nested}:
            return False
    except Exception:  # no tensor
        return False
    return compare({arguments})
"""


def checker_for(maker: Maker, *tensors: torch.Tensor) -> Check:
    """Return a check for tensors of exactly these sizes and strides, of one at least."""
    import torch

    # Both must be given: without them it reads what is not there.
    sizes, strides = ([list(ask(each)) for each in tensors] for ask in (_sizes, _strides))
    made = maker(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    arguments = [f"a{index}" for index in range(len(tensors))]
    source = _SOURCE.format(
        arguments=", ".join(arguments),
        nested=" or ".join(f"{argument}.is_nested" for argument in arguments),
    )
    transformed = torch._C._are_functorch_transforms_active
    namespace = {"transformed": transformed, "compare": made.check}
    return compile_source(source, "check", "check of tensors", namespace)


def _sizes(tensor: torch.Tensor) -> Sequence[int]:
    return tensor.shape


def _strides(tensor: torch.Tensor) -> Sequence[Optional[int]]:
    """Return strides, None where any will do: no element is found by them."""
    some = tensor.numel() > 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if some and size > 1 else None for size, stride in pairs]


@lru_cache(maxsize=1)
def tensor_guards() -> Optional[Maker]:
    """Return the checker of torch, if it does what is wanted of it here."""
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError as error:
        logger.debug("guards in Python: %s", error)
        return None
    maker: Maker = TensorGuards
    problem = trial.problem() or in_fresh_thread(problem_of, maker)
    if problem is not None:
        logger.debug("guards in Python: TensorGuards %s", problem)
        return None
    return maker


def problem_of(maker: Maker) -> Optional[str]:
    """Try a checker out, and say what is wrong with it, if anything."""
    import torch

    problem = comparing_problem(lambda *tensors: checker_for(maker, *tensors))
    if problem is not None:
        return problem
    try:
        wanting = torch.zeros(4, 8, requires_grad=True)
        with torch.no_grad():  # the answer must not depend on grad mode: that is asked apart
            check = checker_for(maker, wanting)
            if check(wanting) is True and check(torch.zeros(4, 8)) is False:
                return None
    except Exception as error:  # noqa: BLE001
        return f"raised {type(error).__name__}: {error}"
    return "does not recognise a tensor that requires a gradient"


def comparing_problem(make: Callable[..., Check]) -> Optional[str]:
    """Say what is wrong with the checks that ``make(*tensors)`` returns, if anything."""
    import torch

    try:
        return _problem(make, torch.zeros(4, 8), torch.zeros(4, 8))
    except Exception as error:  # noqa: BLE001  # whatever a changed interface may raise
        return f"raised {type(error).__name__}: {error}"


def _problem(make: Callable[..., Check], x: torch.Tensor, y: torch.Tensor) -> Optional[str]:
    import torch

    single, double = make(x), make(x, y)
    if single(y) is not True or double(y, x) is not True:
        return "does not recognise a tensor"
    for what, other in _others(x):
        if single(other) is not False or double(x, other) is not False:
            return f"takes {what} for a tensor"
    with torch.inference_mode():
        if single(torch.zeros(4, 8)) is not False:
            return "does not tell a tensor of inference mode"
    return None


def _others(x: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Yield what differs from `x` in one respect."""
    import torch

    yield "nothing", None
    yield "a number", 3
    yield "a list", [[0.0] * 8] * 4
    yield "another dtype", x.double()
    yield "another dtype of one size", x.int()
    yield "another size", torch.zeros(5, 8)
    yield "a smaller size", torch.zeros(1, 8)
    yield "another rank", torch.zeros(4, 8, 1)
    yield "a transposed tensor", torch.zeros(8, 4).t()
    yield "a slice", torch.zeros(4, 16)[:, ::2]
    yield "an expanded tensor", torch.zeros(1, 8).expand(4, 8)
    yield "another device", torch.zeros(4, 8, device="meta")
    yield "requires_grad", torch.zeros(4, 8, requires_grad=True)
    yield "a parameter", torch.nn.Parameter(x.clone(), requires_grad=False)
    yield "a subclass", x.clone().as_subclass(type("Own", (torch.Tensor,), {}))
    yield "a negated view", torch._neg_view(x)
    yield "a sparse tensor", x.to_sparse()
