"""Work that `cupti_on_gpu.py` measures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda:0"
CALLS = 200
# How long they take depends on the clock of the multiprocessors, and so on what came before.
CLOCKED = ("matmul 8192", "sleep 100k", "sleep 35M")


def kernels() -> dict[str, tuple[Callable[[], object], int]]:
    """Work from 2 µs to 20 ms, and how often to do it."""
    import torch

    def vector(elements: int) -> Callable[[], object]:
        x = torch.randn(elements, device=DEVICE)
        return lambda: x.add_(1.0)

    def product(size: int) -> Callable[[], object]:
        a = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)
        return lambda: a @ a

    found = {f"add 2^{power}": (vector(1 << power), CALLS) for power in (10, 20, 22, 24, 26, 28)}
    found |= {f"matmul {size}": (product(size), CALLS // 2) for size in (512, 2048, 4096, 8192)}
    return found | {
        "sleep 100k": (lambda: torch.cuda._sleep(100_000), CALLS),
        "sleep 35M": (lambda: torch.cuda._sleep(35_000_000), 20),
    }


def warm_up() -> None:
    """Have the clocks rise."""
    import torch

    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        a @ a
        torch.cuda.synchronize()
