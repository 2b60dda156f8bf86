"""The CUDA driver, by ctypes: small kernels that do not depend on torch's."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

# It ends when the device's clock has advanced by `count` nanoseconds, and stores at `place`, if
# that is not 0, by how many it has.
SPIN = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 count, .param .u64 place)
{
    .reg .pred %early, %store;
    .reg .b64 %limit, %place, %start, %now;
    ld.param.u64 %limit, [count];
    ld.param.u64 %place, [place];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %limit;
    @%early bra again;
    setp.ne.u64 %store, %place, 0;
    @%store st.u64 [%place], %now;
    ret;
}
\0"""


def cuda_driver() -> Optional[ctypes.CDLL]:
    """Return the library of the CUDA driver; None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


class Kernel:
    """A kernel that the driver compiles for the current context.

    Attributes
    ----------
    error : int
        Why it cannot be had, as the driver's error code; 0 if it can.
    """

    def __init__(self, driver: Any, ptx: bytes, name: bytes) -> None:
        self._launch: Any = driver.cuLaunchKernel
        self._function, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.error = int(
            driver.cuModuleLoadData(ctypes.byref(module), ptx)
            or driver.cuModuleGetFunction(ctypes.byref(self._function), module, name)
        )

    def launch(self, stream: int, *values: Any, blocks: int = 1, threads: int = 1) -> int:
        """Enqueue it on a stream, with values of ctypes; return the driver's error code."""
        size = (blocks, 1, 1, threads, 1, 1, 0)
        given = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        where = ctypes.c_void_p(stream)
        return int(self._launch(self._function, *size, where, given, None))
