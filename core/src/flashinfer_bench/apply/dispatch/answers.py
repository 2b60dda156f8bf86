"""What a solution returned: whether it is what the definition declares, and how it is handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.apply.dispatch.ordinary import facts, ordinary_keys
from flashinfer_bench.compile.outputs import list_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.apply.dispatch.layout import Layout, Operand
    from flashinfer_bench.data import Definition


class WrongOutputError(Exception):
    """A solution returned something that is no output of its definition."""


class Answers:
    """Checks what solutions of one definition return.

    Parameters
    ----------
    definition : Definition
        The definition.
    layout : Layout
        Of it.
    """

    def __init__(self, definition: Definition, layout: Layout) -> None:
        self._definition = definition
        self._layout = layout

    def check(self, result: Any, args: Sequence[Any]) -> list[Any]:
        """Return the outputs in declaration order.

        Parameters
        ----------
        result : Any
            What the solution returned.
        args : sequence
            The inputs, which the guard has let through.

        Raises
        ------
        WrongOutputError
            If their number, or the type, dtype, device or shape of one is not what the definition
            declares for these inputs.
        """
        outputs = self._list(result)
        wanted = self._layout.outputs
        if len(outputs) != len(wanted):
            raise WrongOutputError(f"returned {len(outputs)} outputs instead of {len(wanted)}")
        sizes = self._layout.sizes(args)
        device = args[self._layout.tensors[0]].device if self._layout.tensors else None
        for operand, output in zip(wanted, outputs, strict=True):
            _check_output(operand, output, sizes, device)
        return outputs

    @staticmethod
    def require_fit(outputs: Sequence[Any], places: Sequence[torch.Tensor]) -> None:
        """Check that outputs can be copied to their places.

        Raises
        ------
        WrongOutputError
            If a place, whose axes no input need show, has another shape.
        """
        for output, place in zip(outputs, places, strict=True):
            shape = () if isinstance(output, (bool, int, float)) else output.shape
            if tuple(shape) != tuple(place.shape):
                raise WrongOutputError(
                    f"an output has shape {list(shape)}, its place {list(place.shape)}"
                )

    def _list(self, result: Any) -> list[Any]:
        if not self._layout.outputs:
            return []  # it works by what it writes; whatever it returns is of no use to anyone
        try:
            return list_outputs(result, self._definition)
        except ValueError as error:
            raise WrongOutputError(str(error)) from error


def _check_output(
    operand: Operand, output: Any, sizes: dict[str, int], device: torch.device | None
) -> None:
    asked, kind = facts(), type(output)
    if operand.shape is None and kind is operand.scalar:
        return
    if kind is not asked.tensor and kind is not asked.parameter:
        raise _wrong(operand, f"a {type(output).__name__}")
    if device is not None and output.device != device:
        raise _wrong(operand, f"a tensor on {output.device}")
    if asked.keys_of(output) not in ordinary_keys(output.device):
        raise _wrong(operand, "a tensor that is not plain numbers in memory")
    if output.dtype is not operand.dtype:
        raise _wrong(operand, f"a tensor of {output.dtype}")
    if not _fits(operand.shape or (), output.shape, sizes):
        raise _wrong(operand, f"a tensor of shape {list(output.shape)}")


def _fits(declared: Sequence[int | str], shape: Sequence[int], sizes: dict[str, int]) -> bool:
    """Return whether a shape is as declared; the first output sets axes that no input shows."""
    return len(declared) == len(shape) and all(
        sizes.setdefault(wanted, size) == size if isinstance(wanted, str) else wanted == size
        for wanted, size in zip(declared, shape, strict=True)
    )


def _wrong(operand: Operand, found: str) -> WrongOutputError:
    shape = "a scalar" if operand.shape is None else f"shape {list(operand.shape)}"
    return WrongOutputError(
        f"output {operand.name!r} is {found}; declared is {shape} of {operand.dtype}"
    )


def packed(outputs: Sequence[Any]) -> Any:
    """Return outputs as a call does: one as itself, several as a tuple, none as None."""
    if len(outputs) == 1:
        return outputs[0]
    return tuple(outputs) if outputs else None
