"""What a GPU can do: memory bandwidth by size, matrix products by dtype, the shortest call.

Operations on small sets are timed many at a time in a CUDA graph, where launching them costs least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fib_judge.calibration.passes import Probe, doubling, nothing, product
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUDGET_S = 20.0
"""Time for all measurements; starting the process and torch comes on top."""

DTYPES = ("float32", "bfloat16", "float16", "float64", "int8", "float8_e4m3fn", "float8_e5m2")
SIDES = (2048, 4096, 8192)

_SMALLEST = 256 << 10
_LARGEST = 4 << 30
_REPLAYS = 5
_PER_GRAPH_BYTES = 256 << 20
_MOST_PER_GRAPH = 64
_PRODUCTS = 6


def probes(device: str) -> list[Probe]:
    """Return the measurements on `device`."""
    import torch

    torch.cuda.set_device(device)
    # A solution may use them too, where the tolerance allows it.
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    sizes = _ladder(torch, device)
    space = torch.zeros(sizes[-1], dtype=torch.uint8, device=device)
    return [
        Probe(("call", "events"), lambda: _calls(device)),
        Probe(("call", "kernel"), lambda: 1.0 / _graph_s(torch, space[:4].zero_, _MOST_PER_GRAPH)),
        *_memory(torch, space, sizes),
        *(
            Probe(("flops", dtype), _product(torch, device, dtype, side))
            for dtype in DTYPES
            for side in SIDES
        ),
    ]


def _ladder(torch: Any, device: str) -> list[int]:
    """Return the sizes of working sets: doubling from 256 KiB to far beyond the L2 cache."""
    free, _ = torch.cuda.mem_get_info(device)
    cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    largest = min(max(4 * cache, 1 << 30), _LARGEST, free // 4)
    return doubling(_SMALLEST, largest)


def _memory(torch: Any, space: Any, sizes: list[int]) -> Iterator[Probe]:
    """Read, copy and write working sets of each size."""
    for name, operation in _OPERATIONS.items():
        for size in sizes:
            half = size // 2
            a, b = space[:half].view(torch.float32), space[half:size].view(torch.float32)
            yield Probe(("bytes", size), _bandwidth(torch, operation(torch, a, b), size, name))


# Each touches all of a working set that is in two halves.
_OPERATIONS: dict[str, Callable[[Any, Any, Any], Callable[[], object]]] = {
    "copy": lambda torch, a, b: lambda: a.copy_(b),
    "add": lambda torch, a, b: lambda: a.add_(b),  # reads both, writes one: counted as less
    "fill": lambda torch, a, b: lambda: (a.zero_(), b.zero_()),
    "sum": lambda torch, a, b: lambda: (torch.sum(a), torch.sum(b)),
}


def _bandwidth(torch: Any, work: Callable[[], object], size: int, name: str) -> Callable[[], float]:
    count = max(1, min(_MOST_PER_GRAPH, _PER_GRAPH_BYTES // size))
    moved = size * 3 // 2 if name == "add" else size

    def rate() -> float:
        return moved / _graph_s(torch, work, count)

    return rate


def _graph_s(torch: Any, work: Callable[[], object], count: int) -> float:
    """Return the shortest time of one of `count` calls of `work` in a graph, in seconds."""
    work()  # what is set up at the first call cannot be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            work()
    return _shortest_s(torch, graph.replay, _REPLAYS) / count


def _shortest_s(torch: Any, work: Callable[[], object], repetitions: int) -> float:
    work()
    pairs = []
    for _ in range(repetitions):
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        work()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return float(min(start.elapsed_time(stop) for start, stop in pairs)) / 1e3


def _product(torch: Any, device: str, dtype: str, side: int) -> Callable[[], float]:
    def rate() -> float:
        work = product(device, dtype, side)
        return float(2 * side**3) / _shortest_s(torch, work, _PRODUCTS)

    return rate


def _calls(device: str) -> float:
    """Return the rate of calls of nothing, as timers show them: never less than they show."""
    timer = default_catalog().timers.for_device("cuda", "cuda_event").load()()
    times = timer.measure(nothing, lambda index: (), warmup=3, iterations=50, device=device)
    return 1e3 / float(min(times))
