"""Whether a CUDA graph is being captured: then nothing may wait for the device, or be built."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@lru_cache(maxsize=1)
def _question() -> Callable[[], bool]:
    import torch

    # Builds of torch without CUDA have the function, but it raises.
    if not torch.cuda.is_available():
        return lambda: False
    return torch.cuda.is_current_stream_capturing


def is_capturing() -> bool:
    """Return whether the current stream is being captured into a CUDA graph.

    Nothing may be copied to the CPU then: waiting for the device invalidates the capture.
    """
    # Without torch nobody captures; and at exit it must not be imported for the first time.
    return "torch" in sys.modules and _question()()
