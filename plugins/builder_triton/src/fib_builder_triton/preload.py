"""What Triton does once in each process is done in the one from which workers are forked.

On an H200's host a first compilation takes 1 s: Triton hashes its own 0.5 GB for the key of its
cache, and builds a C module, since a worker's own cache is empty at first. Later ones take 50 ms.
"""

import triton.experimental.gluon.nvidia  # noqa: F401, TID253 - what arguments may be is looked up
from triton.backends.nvidia.driver import CudaUtils  # noqa: TID253
from triton.runtime.cache import triton_key  # noqa: TID253

triton_key()
CudaUtils()
