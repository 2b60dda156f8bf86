"""The solution under test: built, and called with inputs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flashinfer_bench.compile import list_outputs
from flashinfer_bench.tensors import allocate_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.bench.candidate.device_control import DeviceControl
    from flashinfer_bench.bench.candidate.timed_calls import InputSet
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition


class Subject:
    """A built solution.

    Parameters
    ----------
    definition : Definition
        What it implements.
    runnable : Runnable
        What the builder made of it.
    device_control : DeviceControl
        Waits for the device that it works on, and flushes its caches.
    """

    def __init__(
        self, definition: Definition, runnable: Runnable, device_control: DeviceControl
    ) -> None:
        self.definition = definition
        self._device_control = device_control
        self._device = device_control.device
        self.function: Callable[..., Any] = runnable
        self.destination_passing_style = runnable.metadata.destination_passing_style

    def call(self, inputs: InputSet) -> list[Any]:
        """Call it once and wait until the device has finished.

        Returns
        -------
        list
            Outputs, as many as there were; on the device.
        """
        outputs = self.new_outputs(inputs)
        result = self.function(*inputs.values, *outputs)
        self._device_control.synchronize()
        return self.listed(result, outputs)

    def new_outputs(self, inputs: InputSet) -> list[Any]:
        """Allocate the outputs that it is to write into, poisoned; none if it returns them.

        Parameters
        ----------
        inputs : InputSet
            Tells their sizes.
        """
        if not self.destination_passing_style:
            return []
        return allocate_outputs(self.definition, inputs.axes, self._device)

    def listed(self, result: Any, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a call that returned `result`, and was to write into `outputs`."""
        if self.destination_passing_style:
            return list(outputs)
        return list_outputs(result, self.definition)


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
            cuda.synchronize(device)
    except BaseException:  # noqa: BLE001 - candidate boundary: whatever it raises, it is lost
        return False
    return True
