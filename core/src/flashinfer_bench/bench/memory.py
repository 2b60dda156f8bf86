"""Memory that the judge creates and a worker maps: a page of words, and room for tensors.

The judge writes inputs there and reads outputs itself. On the CPU it is shared memory, on a CUDA
device an allocation of the driver's whose descriptor is handed over. A descriptor is all that the
candidate gets: it knows of no other memory of the judge's.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
import tempfile
import weakref
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

ALIGNMENT = 256
"""Bytes; what kernels that load vectors may expect of an address."""

MOST_OUTPUTS = 64
"""Addresses of outputs that a page has room for."""

GO, SEEN, DONE, ENQUEUED, ADDRESSES = range(5)
"""Words of a page: what the judge writes; what the candidate has seen of that; what it answers; how
many nanoseconds a call took to return to the host, on devices that work by themselves; and from
there on, where the tensors that a call returned begin (0: unknown), or numbers, see `word_of`."""

_PAGE_BYTES = 4096


class Memory:
    """Shared memory on the host: made, or mapped.

    Parameters
    ----------
    nbytes : int
        Its size.
    descriptor : int
        Of memory that another process has made; -1 makes some. It is closed with the object.

    Attributes
    ----------
    tensor : torch.Tensor
        The whole of it, of type uint8.

    Raises
    ------
    CapabilityError
        If there is not as much.
    """

    def __init__(self, nbytes: int, descriptor: int = -1) -> None:
        import torch

        self.descriptor = _shared_file(nbytes) if descriptor < 0 else descriptor
        self._close = weakref.finalize(self, _close, self.descriptor)
        try:
            self._map = mmap.mmap(self.descriptor, _whole(nbytes))
        except OSError as error:
            raise _refused(nbytes, error) from error
        self.tensor: torch.Tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def words(self) -> memoryview:
        """Its first page as unsigned integers of 64 bits; each is read and written at once."""
        return memoryview(self._map)[:_PAGE_BYTES].cast("Q")

    def peek(self, start: int, nbytes: int) -> bytes:
        """Return some bytes, in as little time as possible."""
        return self._map[start : start + nbytes]

    def close(self) -> None:
        """Close the descriptor; what is mapped stays as long as tensors on it do."""
        self._close()


def _whole(nbytes: int) -> int:
    return max(nbytes, mmap.PAGESIZE)


def _shared_file(nbytes: int) -> int:
    size, sealed = _whole(nbytes), hasattr(os, "memfd_create")
    try:
        if sealed:
            descriptor = os.memfd_create("fib", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            descriptor, path = tempfile.mkstemp(prefix="fib-")
            Path(path).unlink()
        try:
            os.ftruncate(descriptor, size)
            if hasattr(os, "posix_fallocate"):  # or writing there would be the end of the process
                os.posix_fallocate(descriptor, 0, size)
            if sealed:  # or whoever is handed it could make it shorter, with the same effect
                seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise _refused(size, error) from error
    return descriptor


def _refused(nbytes: int, error: OSError) -> CapabilityError:
    return CapabilityError(
        f"cannot allocate {nbytes / 2**20:.1f} MiB of shared memory: {error.strerror}",
        hint="free some memory, or skip this workload",
    )


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


def word_of(value: Any) -> int:
    """Return what stands for a returned Python number in a page: its bits."""
    if isinstance(value, float):
        return int.from_bytes(struct.pack("=d", value), sys.byteorder)
    return int(value) & (2**64 - 1)


def page() -> Memory:
    """Return a new page."""
    return Memory(_PAGE_BYTES)


def memory_on(device: str, nbytes: int, descriptor: int = -1) -> Any:
    """Return `Memory` for the tensors of a device, or its like.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    nbytes, descriptor
        As of `Memory`.

    Raises
    ------
    CapabilityError
        If this device, or its driver, has no memory that processes can share, or not as much.
    """
    if device == "cpu":
        return Memory(nbytes, descriptor)
    from flashinfer_bench.bench.cuda_memory import CudaMemory

    return CudaMemory(device, nbytes, descriptor)


def gate_on(page: Memory) -> Any:
    """Return a gate of the current device that words of a page open.

    Raises
    ------
    CapabilityError
        If its driver has none.
    """
    from flashinfer_bench.bench.cuda_memory import CudaGate

    return CudaGate(page.tensor)


def size_of(shape: Sequence[int], dtype: str) -> int:
    """Return how many bytes of a memory a tensor takes, with what keeps the next one aligned."""
    nbytes = prod(shape) * to_torch_dtype(dtype).itemsize
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def tensor_at(memory: torch.Tensor, start: int, shape: Sequence[int], dtype: str) -> torch.Tensor:
    """Return a tensor that lies in a memory.

    Parameters
    ----------
    memory : torch.Tensor
        The memory's bytes.
    start : int
        Where it begins.
    shape : sequence of int
        Its shape.
    dtype : str
        Its element type.

    Raises
    ------
    ValueError
        If the memory ends before.
    """
    kind = to_torch_dtype(dtype)
    end = start + prod(shape) * kind.itemsize
    if end > memory.numel():
        raise ValueError(f"a tensor up to byte {end} in a memory of {memory.numel()}")
    return memory[start:end].view(kind).view(tuple(shape))
