"""``torch.nn.functional.linear`` without bias: matrix products with a transposed weight."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from flashinfer_bench import routing
from flashinfer_bench.routing import Understood, UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


def as_matrix(rows: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor with its leading dimensions merged.

    Raises
    ------
    UnroutableError
        If that needs a copy.
    """
    try:
        return rows.view(-1, rows.shape[-1])
    except RuntimeError:
        raise UnroutableError("rows are not evenly spaced") from None


class LinearRoute(routing.Route):
    """``linear(input, weight)`` is ``gemm_n{N}_k{K}``: A [M, K], B [N, K] -> C [M, N] = A B^T.

    Leading dimensions of the input are merged if that needs no copy.
    """

    label = "torch.nn.functional.linear"
    parameters = routing.signature_of("A", "B")
    definitions = ("gemm_n*_k*",)

    def understand(
        self, input: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None
    ) -> Understood:
        """Interpret a call; see `Route.understand`."""
        if bias is not None:
            raise UnroutableError("bias")
        _require_plain(input, weight)
        leading, shape = input.shape, weight.shape
        if len(shape) != 2 or not leading or leading[-1] != shape[1]:
            raise UnroutableError("shapes")
        if not leading.numel():
            raise UnroutableError("no rows")
        rows = input if len(leading) == 2 else as_matrix(input)
        return Understood(f"gemm_n{shape[0]}_k{shape[1]}", (rows, weight), leading)

    def deliver(self, understood: Understood, result: Any) -> torch.Tensor:
        """Return the product, with the leading dimensions of the input."""
        rows, weight = understood.inputs
        leading = understood.rest
        product: torch.Tensor = result[0] if isinstance(result, (tuple, list)) else result
        columns = weight.shape[0]
        if product.shape != (rows.shape[0], columns) or product.dtype is not rows.dtype:
            raise UnroutableError("output is not the product's shape or type")
        return product if len(leading) == 2 else product.view(*leading[:-1], columns)

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return the product, computed by the original."""
        return original(inputs[0], inputs[1])


class LinearAdapter(routing.RouteAdapter):
    """Routes ``torch.nn.functional.linear``, which `torch.nn.Linear` calls."""

    routes: ClassVar[Mapping[str, Callable[[], routing.Route]]] = {LinearRoute.label: LinearRoute}


@functools.cache
def _torch() -> Any:
    """Return torch, the patched library, which creating the adapter must not import."""
    import torch

    return torch


def _require_plain(input: torch.Tensor, weight: torch.Tensor) -> None:
    """Refuse calls in which torch would do more than multiply: differentiate, cast, dispatch."""
    torch = _torch()
    # Tensor subclasses (sharded, quantised, fake) define their own computation.
    plain, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    if type(input) not in plain or type(weight) not in plain:
        raise UnroutableError("kind of tensor")
    dtype = input.dtype
    if dtype not in (torch.float16, torch.bfloat16, torch.float32) or weight.dtype is not dtype:
        raise UnroutableError("dtype")
    if input.layout is not strided or weight.layout is not strided:
        raise UnroutableError("kind of tensor")
    device = input.device
    if device != weight.device or device.type not in ("cuda", "cpu"):
        raise UnroutableError("device")
    if torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad):
        raise UnroutableError("gradient")
    if torch.is_autocast_enabled(device.type):
        raise UnroutableError("autocast")
