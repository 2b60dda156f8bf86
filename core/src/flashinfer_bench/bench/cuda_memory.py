"""What processes share on a CUDA device: memory by descriptor, and a gate.

See https://docs.nvidia.com/cuda/cuda-c-programming-guide/#virtual-memory-management. The handles of
``cudaIpcGetMemHandle`` would be simpler, but cannot be opened in other namespaces.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    import torch

# Of cuda.h.
_PINNED, _ON_DEVICE, _BY_DESCRIPTOR, _READ_WRITE, _MINIMUM = 1, 1, 1, 3, 0
_PORTABLE_AND_MAPPED, _EQUAL = 3, 1
_Handle, _Address, _Size = ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_size_t


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CapabilityError(f"the CUDA driver cannot be loaded: {error}") from error


def _call(name: str, *arguments: Any) -> None:
    try:
        function = getattr(_driver(), name)
    except AttributeError:
        raise CapabilityError(f"this CUDA driver has no {name}", hint="update the driver") from None
    code = function(*arguments)
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(text))
        raise CapabilityError(f"{name}: {(text.value or b'error').decode()} ({code})")


class CudaMemory:
    """See `flashinfer_bench.bench.memory.Memory`, whose likes this is.

    Parameters
    ----------
    device : str
        ``cuda`` or ``cuda:N``.
    nbytes, descriptor
        As there.
    """

    def __init__(self, device: str, nbytes: int, descriptor: int = -1) -> None:
        import torch

        _, _, given = device.partition(":")
        number = int(given) if given else torch.cuda.current_device()
        torch.zeros(1, device=f"cuda:{number}")  # the driver's calls need the context to be there
        with torch.cuda.device(number):
            self._map(number, nbytes, descriptor)
        self.tensor: torch.Tensor = torch.as_tensor(self, device=f"cuda:{number}")

    def _map(self, number: int, nbytes: int, descriptor: int) -> None:
        location = _Location(_ON_DEVICE, number)
        wanted = _Properties(_PINNED, _BY_DESCRIPTOR, location)
        unit, handle, address = _Size(), _Handle(), _Address()
        _call(
            "cuMemGetAllocationGranularity",
            *(ctypes.byref(unit), ctypes.byref(wanted), _MINIMUM),
        )
        size = _Size(max(1, -(-nbytes // unit.value)) * unit.value)
        if descriptor < 0:
            _call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(wanted), _Handle(0))
            made = ctypes.c_int(-1)
            _call(
                "cuMemExportToShareableHandle",
                *(ctypes.byref(made), handle, _BY_DESCRIPTOR, _Handle(0)),
            )
            descriptor = made.value
        else:
            _call(
                "cuMemImportFromShareableHandle",
                *(ctypes.byref(handle), ctypes.c_void_p(descriptor), _BY_DESCRIPTOR),
            )
        self.descriptor = descriptor
        _call("cuMemAddressReserve", ctypes.byref(address), size, _Size(0), _Address(0), _Handle(0))
        _call("cuMemMap", address, size, _Size(0), handle, _Handle(0))
        access = _Access(location, _READ_WRITE)
        _call("cuMemSetAccess", address, size, ctypes.byref(access), _Size(1))
        _call("cuMemRelease", handle)  # it stays as long as it is mapped
        self._close = weakref.finalize(self, _unmap, address.value, size.value, descriptor)
        self.__cuda_array_interface__ = {
            "shape": (size.value,),
            "typestr": "|u1",
            "data": (address.value, False),
            "version": 2,
        }

    def close(self) -> None:
        """Unmap it; no tensor on it may be used any more."""
        import torch

        with suppress(RuntimeError):  # of a context that is broken
            torch.cuda.synchronize(self.tensor.device)  # what has been launched may still read it
        self._close()


def _unmap(address: int, size: int, descriptor: int) -> None:
    os.close(descriptor)
    driver = _driver()
    driver.cuMemUnmap(_Address(address), _Size(size))
    driver.cuMemAddressFree(_Address(address), _Size(size))


class CudaGate:
    """Has streams of the current CUDA device wait for words of a page.

    Parameters
    ----------
    page : torch.Tensor
        The page, in memory of the host; it stays mapped as long as the gate exists.

    Raises
    ------
    CapabilityError
        If the driver cannot do it.
    """

    def __init__(self, page: torch.Tensor) -> None:
        start, found = ctypes.c_void_p(page.data_ptr()), _Address()
        _call("cuMemHostRegister_v2", start, _Size(page.numel()), _PORTABLE_AND_MAPPED)
        self._close = weakref.finalize(self, _unregister, page)
        _call("cuMemHostGetDevicePointer_v2", ctypes.byref(found), start, 0)
        self._first = found.value
        self._wait: Any = getattr(_driver(), "cuStreamWaitValue64_v2", None)
        if self._wait is None:
            raise CapabilityError("this CUDA driver has no cuStreamWaitValue64_v2")

    def shut(self, stream: int, place: int, word: int) -> bool:
        """Have a stream wait until a word is in its place; return whether it does.

        Parameters
        ----------
        stream : int
            Handle of the stream.
        place : int
            Number of the word in the page.
        word : int
            For what it waits, 64 bits.
        """
        where = _Address(self._first + place * ctypes.sizeof(_Address))
        return bool(
            self._wait(ctypes.c_void_p(stream), where, ctypes.c_ulonglong(word), _EQUAL) == 0
        )


def _unregister(page: torch.Tensor) -> None:
    _driver().cuMemHostUnregister(ctypes.c_void_p(page.data_ptr()))
