"""RMSNorm, alone and fused with an addition: functions of ``flashinfer.norm``.

A definition such as ``rmsnorm_h4096`` has a constant epsilon, so calls with another epsilon do not
match it (`epsilon`). A definition of a fused norm may lack the output for the sum: the sum is then
computed here, as the function stores it in ``residual``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional

from fib_adapters_flashinfer import common
from fib_adapters_flashinfer.common import DEFAULT_EPS, OTHER_EPS, same_eps
from fib_adapters_flashinfer.linear import as_matrix
from fib_adapters_flashinfer.live import TemplatedRoute
from flashinfer_bench import routing
from flashinfer_bench.routing import Understood, UnroutableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from flashinfer_bench.data import Definition


class Known(NamedTuple):
    """Properties of a definition that a route needs.

    Attributes
    ----------
    name : str
        Name of the definition.
    any_eps : bool
        Whether its epsilon is an input, or there is no definition.
    eps : float, optional
        Its constant epsilon; None if unknown.
    outputs : int, optional
        Number of outputs; None if there is no definition.
    total : int
        Index of the output that is the sum, if there are two.
    """

    name: str
    any_eps: bool = True
    eps: Optional[float] = None
    outputs: Optional[int] = None
    total: int = 1

    @classmethod
    def of(cls, name: str, definition: Optional[Definition]) -> Known:
        """Work it out."""
        if definition is None:
            return cls(name)
        names = list(definition.outputs)
        total = next((i for i, name in enumerate(names) if "residual" in name), 1)
        if common.takes_eps(definition):
            return cls(name, outputs=len(names), total=total)
        return cls(name, False, common.epsilon_of(definition), len(names), total)


class _NormRoute(TemplatedRoute):
    """Base class of routes for norms.

    Parameters
    ----------
    function : str
        Name in ``flashinfer.norm``, and of definitions up to the hidden size. Gemma's norms use
        weights with an offset of one, and separate definitions.
    """

    known: ClassVar[str]  # parameters of the function in supported releases

    def __init__(self, function: str) -> None:
        self.label = f"flashinfer.norm.{function}"
        self.definitions = (f"{function}_h*",)
        self._known = common.PerDefinition(Known.of, f"{function}_h{{}}".format)

    def expects(self, original: Callable[..., Any]) -> Optional[str]:
        """Return why this release is not supported; None if it is."""
        return common.mismatch(original, self.known)


class RMSNormRoute(_NormRoute):
    """Route for ``rmsnorm``: the norm is returned, in ``out`` if given.

    Inputs with more than two dimensions, such as for norms of queries and keys, are passed as a
    matrix if that needs no copy.
    """

    known = "input, weight, eps=1e-06, out=None, enable_pdl=None"
    parameters = routing.signature_of("hidden_states", "weight", eps=DEFAULT_EPS)

    def understand(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        eps: float = DEFAULT_EPS,
        out: Optional[torch.Tensor] = None,
        enable_pdl: Optional[bool] = None,
    ) -> Understood:
        """Interpret a call; `enable_pdl` is only a launch hint."""
        shape = input.shape
        known = self._known(shape[-1])
        if out is not None and (out.shape != shape or out.dtype is not input.dtype):
            raise UnroutableError("out is not like the input")
        if len(shape) < 2:
            raise UnroutableError("not rows")
        if not shape.numel():
            raise UnroutableError("no rows")
        rows = input if len(shape) == 2 else as_matrix(input)
        inputs = (rows, weight, _as_input(eps, known))
        return Understood(known.name, inputs, (input, out, eps))

    def deliver(self, understood: Understood, result: Any) -> torch.Tensor:
        """Return the norm in the shape of the input; in the caller's buffer, if there is one."""
        input, out, _eps = understood.rest
        rows = understood.inputs[0]
        output: torch.Tensor = _like(_only(result), rows)
        if rows is not input:
            output = output.view(input.shape)
        if out is None or out is output:
            return output
        filled: torch.Tensor = out.copy_(output)
        return filled

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return the norm, computed by the original."""
        return original(inputs[0], inputs[1], understood.rest[2])


class FusedAddRMSNormRoute(_NormRoute):
    """Route for ``fused_add_rmsnorm``: the sum goes to ``residual``, its norm to ``input``."""

    known = "input, residual, weight, eps=1e-06, enable_pdl=None"
    parameters = routing.signature_of("hidden_states", "residual", "weight", eps=DEFAULT_EPS)

    def understand(
        self,
        input: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float = DEFAULT_EPS,
        enable_pdl: Optional[bool] = None,
    ) -> Understood:
        """Interpret a call; `enable_pdl` is only a launch hint."""
        shape = input.shape
        if len(shape) != 2:
            raise UnroutableError("not a matrix")
        known = self._known(shape[1])
        if residual.shape != shape or residual.dtype is not input.dtype:
            raise UnroutableError("residual is not like the input")
        if residual is input or not shape[0]:
            raise UnroutableError("residual is the input" if shape[0] else "no rows")
        inputs = (input, residual, weight, _as_input(eps, known))
        return Understood(known.name, inputs, (known, eps))

    def deliver(self, understood: Understood, result: Any) -> None:
        """Write the sum, computed here if the definition does not output it, then its norm."""
        input, residual, _weight, _eps = understood.inputs
        known: Known = understood.rest[0]
        several = isinstance(result, (tuple, list))
        if several and len(result) == 2:
            output = _like(result[1 - known.total], input)
            total = _like(result[known.total], input)
            if total is not residual:
                # A solution may have computed in place, with each output in the other's buffer.
                if output.data_ptr() == residual.data_ptr():
                    output = output.clone()
                residual.copy_(total)
        else:
            output = _like(_only(result), input)
            # Like the kernel: a float32 sum, rounded to the type of the residual. It needs the
            # input, which is overwritten afterwards.
            residual.add_(input)
        if output is not input:
            input.copy_(output)

    def outputs(
        self, original: Callable[..., Any], understood: Understood, inputs: tuple[Any, ...]
    ) -> Any:
        """Return the norm, or norm and sum in the definition's order, computed by the original."""
        known, eps = understood.rest
        output, total = inputs[0].clone(), inputs[1].clone()
        original(output, total, inputs[2], eps)
        if known.outputs == 1:
            return output
        return (output, total) if known.total else (total, output)


class NormAdapter(routing.RouteAdapter):
    """Routes the norms of ``flashinfer.norm``."""

    routes: ClassVar[Mapping[str, Callable[[], routing.Route]]] = {
        f"flashinfer.norm.{name}": functools.partial(route, name)
        for name, route in (
            ("rmsnorm", RMSNormRoute),
            ("fused_add_rmsnorm", FusedAddRMSNormRoute),
            ("gemma_rmsnorm", RMSNormRoute),
            ("gemma_fused_add_rmsnorm", FusedAddRMSNormRoute),
        )
    }


def _as_input(eps: float, known: Known) -> float:
    """Return the value of an epsilon: the default if it is constant in the definition."""
    if known.any_eps:
        return eps
    if not same_eps(eps, known.eps):
        raise UnroutableError(OTHER_EPS)
    return DEFAULT_EPS


def _only(result: Any) -> Any:
    """Return the only output of a definition, possibly from a tuple."""
    if isinstance(result, (tuple, list)):
        if len(result) != 1:
            raise UnroutableError("number of outputs")
        return result[0]
    return result


def _like(output: Any, input: torch.Tensor) -> Any:
    """Return `output` if it has the shape and element type of `input`."""
    if output.shape != input.shape or output.dtype is not input.dtype:
        raise UnroutableError("output is not like the input")
    return output
