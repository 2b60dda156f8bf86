"""Which devices a table of choices holds for."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch.ordinary import ordinary_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Switch = Callable[[], bool]


class Devices:
    """The devices with the hardware that a table was made for.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``. Other GPUs of the same name are as good.
    """

    def __init__(self, device: str) -> None:
        self.kind, _, index = device.partition(":")
        self._index = int(index or 0)
        self._known: dict[Any, Optional[frozenset[int]]] = {}

    def keys_on(self, device: torch.device) -> Optional[frozenset[int]]:
        """Return the dispatch keys of ordinary tensors on `device`; None for other hardware."""
        try:
            return self._known[device]
        except KeyError:
            found = ordinary_keys(device) if self._same_hardware(device) else None
            self._known[device] = found  # as many as there are devices in the machine
            return found

    def _same_hardware(self, device: torch.device) -> bool:
        if device.type != self.kind:
            return False
        return self.kind == "cpu" or (
            self.kind == "cuda" and _gpu_name(device.index or 0) == _gpu_name(self._index)
        )


@lru_cache(maxsize=64)
def _gpu_name(index: int) -> str:
    import torch

    return torch.cuda.get_device_name(index)


def is_current(device: torch.device) -> Optional[Switch]:
    """Return a question whether `device` is the current one; None where it cannot be another."""
    if device.type != "cuda":
        return None
    import torch

    if torch.cuda.device_count() < 2:
        return None
    index, current = device.index, torch.cuda.current_device
    return lambda: current() == index


def on_device(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, to be called with `device` as the current one."""
    import torch

    def call(*args: Any) -> Any:
        with torch.cuda.device(device):
            return function(*args)

    return call
