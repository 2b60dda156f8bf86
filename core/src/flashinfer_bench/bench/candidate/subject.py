"""The solution under test: built, with the inputs that it is called with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashinfer_bench.compile import list_outputs
from flashinfer_bench.tensors import allocate_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.timing.base import Timer
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition


@dataclass(frozen=True)
class InputSet:
    """One set of inputs.

    Attributes
    ----------
    inputs : tuple
        Tensors on the device and Python scalars, in the order of the definition.
    axes : dict
        Value of every variable axis.
    """

    inputs: tuple[Any, ...]
    axes: dict[str, int]


class Subject:
    """A built solution.

    Parameters
    ----------
    definition : Definition
        What it implements.
    runnable : Runnable
        What the builder made of it.
    device : str
        Where it works.
    """

    def __init__(self, definition: Definition, runnable: Runnable, device: str) -> None:
        self._definition = definition
        self._runnable = runnable
        self._device = device
        self.destination_passing_style = runnable.metadata.destination_passing_style
        self.build_type = runnable.metadata.build_type

    def call(self, inputs: InputSet) -> list[Any]:
        """Call it once and wait until the device has finished.

        Returns
        -------
        list
            Outputs, as many as there were; on the device.
        """
        arguments, outputs = self._arguments(inputs)
        result = self._runnable(*arguments)
        synchronize(self._device)
        if self.destination_passing_style:
            return outputs
        return list_outputs(result, self._definition)

    def time(
        self, sets: Sequence[InputSet], timer: Timer, *, warmup: int, iterations: int
    ) -> list[float]:
        """Time `iterations` calls after `warmup` untimed ones, taking `sets` in turn.

        Returns
        -------
        list of float
            Milliseconds of each timed call.
        """
        return timer.measure(
            self._runnable,
            lambda index: self._arguments(sets[index % len(sets)])[0],
            warmup=warmup,
            iterations=iterations,
            device=self._device,
        )

    def _arguments(self, inputs: InputSet) -> tuple[tuple[Any, ...], list[Any]]:
        """Return what to call it with, and the outputs among that: new and poisoned each time."""
        if not self.destination_passing_style:
            return inputs.inputs, []
        outputs = allocate_outputs(self._definition, inputs.axes, self._device)
        return (*inputs.inputs, *outputs), outputs


def synchronize(device: str) -> None:
    """Wait until `device` has finished everything.

    Raises
    ------
    RuntimeError
        If something that ran on it failed.
    """
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def is_usable(device: str) -> bool:
    """Return whether `device` still works in this process.

    An illegal memory access, for one, ends the context of a GPU: every later call fails.
    """
    torch = sys.modules.get("torch")
    if device == "cpu" or torch is None:  # without torch nothing has opened it
        return True
    cuda: Any = torch.cuda
    try:
        if cuda.is_initialized():
            synchronize(device)
    except BaseException:  # noqa: BLE001 - candidate boundary: whatever it raises, it is lost
        return False
    return True
