"""The name of a device that is the same in every process of the machine."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Optional

from flashinfer_bench import env

if TYPE_CHECKING:
    from collections.abc import Sequence

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def physical_name(device: str) -> str:
    """Return a name for a device that does not depend on how this process numbers devices.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``. Which GPU a number means depends on
        ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``.

    Returns
    -------
    str
        For a GPU ``cuda-`` and its UUID, as far as that can be found out: torch is asked, then the
        driver's management library. Else its entry in ``CUDA_VISIBLE_DEVICES``, or the number.
        Only letters, digits, ``-`` and ``_``.
    """
    kind, _, index = device.partition(":")
    if kind != "cuda":
        name = device
    else:
        number = int(index or 0)
        name = f"cuda-{_uuid_from_torch(number) or _uuid_from_driver(number) or _entry(number)}"
    return re.sub(r"[^A-Za-z0-9-]", "_", name)


def _uuid_from_torch(number: int) -> Optional[str]:
    """Ask torch, whose numbers are those of the devices that solutions work on."""
    with suppress(ImportError, RuntimeError, AssertionError, AttributeError):
        import torch

        if torch.cuda.is_available() and number < torch.cuda.device_count():
            return _uuid(str(torch.cuda.get_device_properties(number).uuid))
    return None


def _uuid_from_driver(number: int) -> Optional[str]:
    """Ask the driver, which numbers devices by their place on the bus."""
    from flashinfer_bench.compile.toolkit.gpu import gpu_uuids

    known = gpu_uuids()
    visible = env.cuda_visible_devices()
    if visible is None:
        return _uuid(_at(known, number))
    entry = _at(visible, number)
    if entry.isdecimal():
        return _uuid(_at(known, int(entry)))
    matches = [uuid for uuid in known if entry and uuid.startswith(entry)]
    return _uuid(matches[0] if len(matches) == 1 else entry)


def _at(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else ""


def _uuid(text: str) -> Optional[str]:
    """Return the UUID in what torch or the driver call it; MIG devices have one, too."""
    found = _UUID.search(text)
    return found[0].lower() if found else None


def _entry(number: int) -> str:
    return _at(env.visible_cuda_devices(), number) or str(number)
