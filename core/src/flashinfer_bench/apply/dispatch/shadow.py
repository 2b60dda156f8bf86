"""Compare a solution with the original in calls that the original answers."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from flashinfer_bench.apply.dispatch.target import checked_outputs
from flashinfer_bench.compile import list_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.dispatch.layout import Layout

# Op types with random outputs: two correct calls differ.
_RANDOM = frozenset({"sampling"})


class Disagreement(Exception):
    """A solution's results differ from those of the original."""


class Shadow:
    """Compares solutions of one definition with the original.

    Parameters
    ----------
    layout : Layout
        Layout of the definition.
    config : ApplyConfig
        ``max_atol`` and ``max_rtol`` take precedence over the tolerance of the definition, which
        takes precedence over the default for the dtypes.

    Attributes
    ----------
    comparable : bool
        Whether two correct calls give the same result; False if outputs are random.
    """

    def __init__(self, layout: Layout, config: ApplyConfig) -> None:
        self._layout = layout
        self._inputs = len(layout.inputs)
        self._own = {"atol": config.max_atol, "rtol": config.max_rtol}
        self.comparable = layout.definition.op_type.lower() not in _RANDOM

    @cached_property
    def _tolerances(self) -> list[dict[str, Any]]:
        from flashinfer_bench.tensors.dtypes import default_tolerances, tolerance_values

        definition = self._layout.definition
        return [
            tolerance_values([definition.tolerance, self._own], default, name)
            for name, default in default_tolerances(definition).items()
        ]

    def prepare(self, args: Sequence[Any], *, into: bool) -> list[Any]:
        """Return arguments for the solution, before the original receives those of the call.

        All tensors are copies, so that nothing the solution does affects the caller; outputs are
        filled with conspicuous values.
        """
        import torch

        from flashinfer_bench.tensors import poison

        mine = list(args)
        for index, value in enumerate(args[: self._inputs]):
            if isinstance(value, torch.Tensor):
                mine[index] = value.detach().clone()
        for index in range(self._inputs, len(args) if into else 0):
            mine[index] = torch.empty_like(args[index], requires_grad=False)
            poison(mine[index])
        return mine

    def compare(
        self,
        run: Callable[..., Any],
        mine: Sequence[Any],
        args: Sequence[Any],
        expected: Any,
        *,
        into: bool,
        pure: bool = False,
    ) -> None:
        """Call the solution, and compare its results with those of the original.

        Parameters
        ----------
        run : callable
            The solution.
        mine : sequence
            The result of `prepare`.
        args : sequence
            The arguments of the call; the original has been called with them.
        expected : Any
            The original's return value.
        into : bool
            Whether the original has written its outputs to the last of `args` instead.
        pure : bool
            Whether the original has been called with copies of `args`; its return value then also
            represents the inputs that it writes to.

        Raises
        ------
        Disagreement
            If they differ by more than the tolerance, or the solution changed an input.
        WrongOutputError
            If the solution returned something that is not a valid output of the definition.
        Exception
            Whatever the solution raises.
        """
        result = run(*mine)
        for index in set(self._layout.tensors) - self._layout.mutated:
            if not _same_bytes(mine[index], args[index]):
                raise Disagreement(f"it has changed an input, {self._layout.inputs[index].name!r}")
        if into:
            self._compare_all(mine[self._inputs :], args[self._inputs :])
        else:
            self.compare_outputs(result, mine, expected)
        if not pure:
            self._compare_mutated(mine, args)

    def compare_outputs(self, result: Any, inputs: Sequence[Any], expected: Any) -> None:
        """Compare the results of a solution with those of the original.

        Raises
        ------
        Disagreement, WrongOutputError
            As for `compare`.
        """
        outputs = checked_outputs(self._layout, result, inputs)
        if not outputs:
            return
        try:
            wanted = list_outputs(expected, self._layout.definition)
        except ValueError as error:
            raise Disagreement(f"the original {error}") from error
        if len(wanted) != len(outputs):
            raise Disagreement(f"the original returns {len(wanted)} outputs, not {len(outputs)}")
        self._compare_all(outputs, wanted)

    def _compare_all(self, outputs: Sequence[Any], wanted: Sequence[Any]) -> None:
        for operand, tolerance, mine, original in zip(
            self._layout.outputs, self._tolerances, outputs, wanted, strict=True
        ):
            _require_close(f"output {operand.name!r}", mine, original, tolerance)

    def _compare_mutated(self, mine: Sequence[Any], args: Sequence[Any]) -> None:
        from flashinfer_bench.tensors.dtypes import (
            default_tolerance,
            dtype_name,
            is_float,
            tolerance_values,
        )

        for index in sorted(self._layout.mutated):
            operand = self._layout.inputs[index]
            name = dtype_name(operand.dtype)
            tolerance = tolerance_values([], default_tolerance(name) if is_float(name) else 0.0)
            what = f"input {operand.name!r}, which it writes to"
            _require_close(what, mine[index], args[index], tolerance)


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare bytes: torch does not track writes by kernels, and NaN is not equal to itself."""
    import torch

    flat = (each.detach().reshape(-1).view(torch.uint8) for each in (left, right))
    return torch.equal(*flat)


def _require_close(what: str, actual: Any, expected: Any, tolerance: dict[str, Any]) -> None:
    import torch

    from flashinfer_bench.bench.correctness import compare

    if not isinstance(expected, (torch.Tensor, bool, int, float)):
        raise Disagreement(f"the original returns a {type(expected).__name__} as {what}")
    left, right = (torch.as_tensor(each).detach().cpu() for each in (actual, expected))
    if left.shape != right.shape:
        raise Disagreement(
            f"{what} has shape {list(left.shape)}, that of the original {list(right.shape)}"
        )
    if isinstance(expected, torch.Tensor) and left.dtype != right.dtype:
        raise Disagreement(f"{what} has dtype {left.dtype}, that of the original {right.dtype}")
    found = compare(left, right, atol=tolerance["atol"], rtol=tolerance["rtol"])
    ratio, cap = tolerance.get("required_matched_ratio"), tolerance.get("max_error_cap")
    if not found.passes(1.0 if ratio is None else ratio, float("inf") if cap is None else cap):
        raise Disagreement(
            f"{what} differs from that of the original by up to {found.max_absolute_error:.3g} "
            f"(relatively {found.max_relative_error:.3g}) in {found.elements - found.matched} of "
            f"{found.elements} elements; allowed: {tolerance['atol']:.3g}, or relatively "
            f"{tolerance['rtol']:.3g}"
        )
