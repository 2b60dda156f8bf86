"""What engines, or what stands for them, find around them in a process of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a process that has the adapters for FlashInfer, and no dataset.

    Solutions of a mapping are looked at more closely where their definitions are at hand: then they
    get contiguous tensors only. What engines pass is to reach them.
    """
    dropped = ("FIB_NO_PLUGINS", "FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING", "FIB_ADAPTERS")
    return {
        **{key: value for key, value in os.environ.items() if key not in dropped},
        "FIB_PLUGINS": "fib_adapters_flashinfer",
        "FIB_DATASET_PATH": str(folder / "nothing"),
        "FIB_CACHE_PATH": str(folder / "cache"),
        "FLASHINFER_WORKSPACE_BASE": str(folder / "flashinfer"),
    }
