"""How much the latency of one kernel differs from process to process on a GPU.

Where a process's memory lies, and how its context was set up, moves all its latencies a little.
"""

from __future__ import annotations

import multiprocessing
from statistics import median
from typing import TYPE_CHECKING, Any

from fib_judge.calibration.passes import product
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PROCESSES = 8
_WARMUP, _CALLS = 20, 50
_SHORT, _LONG = 1 << 16, 2048  # bytes of a copy, and the side of a matrix product


def process_spread(device: str) -> tuple[float, float]:
    """Return how much latencies differ between processes; nothing has opened the device so far.

    Returns
    -------
    milliseconds : float
        Robust standard deviation of the latency of a kernel of microseconds.
    share : float
        That of a kernel of a tenth of a millisecond, as a share of its latency.

    Raises
    ------
    CapabilityError
        If a process cannot use the device.
    """
    short, long = zip(*(_in_a_process(device) for _ in range(_PROCESSES)), strict=True)
    return _deviation(short), _deviation(long) / median(long)


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def _in_a_process(device: str) -> tuple[float, float]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(device, theirs))
    process.start()
    theirs.close()
    try:
        found: tuple[float, float] = ours.recv()
        return found
    except EOFError:
        raise CapabilityError(f"{device}: a process that should have used it has ended") from None
    finally:
        process.join()


def _measure(device: str, answer: Any) -> None:
    import torch

    torch.cuda.set_device(device)
    timer = default_catalog().timers.for_device("cuda", "cuda_event").load()()

    def latency(work: Callable[[], object]) -> float:
        calls: dict[str, Any] = {"warmup": _WARMUP, "iterations": _CALLS, "device": device}
        return float(median(timer.measure(work, lambda index: (), **calls)))

    one, other = (torch.zeros(_SHORT, dtype=torch.uint8, device=device) for _ in range(2))
    answer.send((latency(lambda: one.copy_(other)), latency(product(device, "float32", _LONG))))
