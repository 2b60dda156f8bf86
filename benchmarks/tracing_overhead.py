"""What a call costs more while it is traced: ``python benchmarks/tracing_overhead.py``.

Nanoseconds of a call with tracing on over the same call with tracing off, with CPU tensors and
functions that do nothing. On and off are timed in turn on one core, in rounds of tight loops: the
figure is the median over rounds of the difference, `spread` the distance between its quartiles.
``collect`` is timed against an empty function. All calls but the first are duplicates, as in a
running engine. ``--json`` prints JSON.

``--memory`` prints what so many ``--calls`` add to the resident memory and to the objects that the
garbage collector knows, of a process of its own for each case, after a warm-up. What is recorded
goes into a real dataset. Each case that records writes as many workloads as there are calls, or as
``--written``, if that is less.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from flashinfer_bench.apply import apply
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.tracing import TracingConfig, TracingRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 3000
WARM = 2000


class Row(NamedTuple):
    """One line of the result; times in nanoseconds."""

    case: str
    median_ns: float
    spread_ns: float
    target_ns: int
    release_ns: int


def tensor(*shape: str, dtype: str = "bfloat16") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype}


def definition(
    name: str, inputs: dict[str, Any], outputs: dict[str, Any], constraints: list[str], **const: int
) -> Definition:
    shapes = [spec["shape"] or () for spec in (inputs | outputs).values()]
    return Definition.model_validate(
        {
            "name": name,
            "op_type": "op",
            "axes": {
                axis: {"type": "const", "value": const[axis]} if axis in const else {"type": "var"}
                for axis in dict.fromkeys(axis for shape in shapes for axis in shape)
            },
            "inputs": inputs,
            "outputs": outputs,
            "constraints": constraints,
            "reference": f"def run({', '.join(inputs)}):\n    pass\n",
        }
    )


TWO = definition(
    "gemm_n64_k32", {"A": tensor("M", "K"), "B": tensor("N", "K")}, {"C": tensor("M", "N")}, [],
    N=64, K=32,
)  # fmt: skip
SIX = definition(
    "gqa_paged_decode_h8_kv2_d16_ps1",
    {
        "q": tensor("batch_size", "heads", "dim"),
        "k_cache": tensor("num_pages", "page_size", "kv_heads", "dim"),
        "v_cache": tensor("num_pages", "page_size", "kv_heads", "dim"),
        "kv_indptr": tensor("len_indptr", dtype="int32"),
        "kv_indices": tensor("num_kv_indices", dtype="int32"),
        "sm_scale": {"shape": None, "dtype": "float32"},
    },
    {"output": tensor("batch_size", "heads", "dim")},
    ["len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"],
    heads=8,
    dim=16,
    kv_heads=2,
    page_size=1,
)


def arguments(of: Definition) -> tuple[Any, ...]:
    sizes = {"M": 4, "batch_size": 4, "num_pages": 64, "len_indptr": 5, "num_kv_indices": 16}
    sizes |= of.const_axes

    def make(name: str, spec: Any) -> Any:
        if spec.shape is None:
            return 1.0
        if name == "kv_indptr":
            return torch.arange(0, 20, 4, dtype=torch.int32)
        return torch.zeros([sizes[axis] for axis in spec.shape], dtype=spec.dtype.to_torch())

    return tuple(make(name, spec) for name, spec in of.inputs.items())


def nothing(*args: Any) -> None:
    return None


def decorated(of: Definition) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(of.inputs)}): return None", scope)  # our own names
    function: Callable[..., Any] = scope["f"]
    return apply(of.name)(function)


def loop(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Return nanoseconds of processor time per call."""
    start = time.process_time_ns()
    for _ in range(CALLS):
        call(*args)
    return (time.process_time_ns() - start) / CALLS


def compare(tracing: TracingRuntime, call: Any, args: Any, rounds: int) -> tuple[float, float]:
    """Return median and spread of on minus off."""
    differences = []
    for _ in range(rounds):
        off = loop(call, args)
        with tracing:
            call(*args)
            on = loop(call, args)
        differences.append(on - off)
    quarters = quantiles(differences, n=4)
    return median(differences), quarters[2] - quarters[0]


def measure(folder: Path, rounds: int) -> list[Row]:
    dataset = TraceSet(root=folder, definitions={each.name: each for each in (TWO, SIX)})
    by_axes = TracingConfig(filter_policy="keep_first_by_axes")
    rows = []
    for what, of, config, target, release in (
        ("axes only, 2 inputs", TWO, by_axes, 2000, 5023),
        ("axes only, 6 inputs", SIX, by_axes, 3000, 8267),
        ("attention preset, 6 inputs", SIX, None, 6000, 15600),
    ):
        args = arguments(of)
        tracing = TracingRuntime(dataset, config)
        forms: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "apply": (lambda *given, name=of.name: apply(name, given, fallback=nothing), args),
            "decorated": (decorated(of), args),
        }
        for form, (call, given) in forms.items():
            rows.append(
                Row(f"{what}: {form}", *compare(tracing, call, given, rounds), target, release)
            )
        times = []
        for _ in range(rounds):
            empty = loop(nothing, (of.name, args))
            times.append(loop(tracing.collect, (of.name, args)) - empty)
        quarters = quantiles(times, n=4)
        spread = quarters[2] - quarters[0]
        rows.append(Row(f"{what}: collect", median(times), spread, target, release))
        stats = tracing.stats()
        assert stats["errors"] == 0, stats
        assert stats["recorded"] == 1, stats
    return rows


class Held(NamedTuple):
    """What is held after many calls, over what was before them."""

    case: str
    calls: int
    written: int
    rss_mb: float
    objects: int


def resident() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


MEMORY_CASES = ("duplicates", "attention preset", "ever-new axes", "keep_all, dump_all")


def memory_case(case: str) -> tuple[Definition, Any, Callable[[int], tuple[Any, ...]]]:
    """Return the definition, the settings, and what makes the arguments of each call."""
    a, b = arguments(TWO)
    six = arguments(SIX)
    long = torch.empty(1 << 20, TWO.const_axes["K"], dtype=a.dtype)
    by_axes = TracingConfig(filter_policy="keep_first_by_axes")
    if case == "duplicates":
        return TWO, by_axes, lambda number: (a, b)
    if case == "attention preset":
        return SIX, None, lambda number: six
    if case == "ever-new axes":
        return TWO, by_axes, lambda number: (long[: number % len(long) + 1], b)
    return TWO, TracingConfig("dump_all"), lambda number: (a, b)


def remember(case: str, calls: int, written: int) -> Held:
    """Make the calls of a case in this process."""
    of, config, make = memory_case(case)
    if case in MEMORY_CASES[2:]:
        calls = min(calls, written)
    with tempfile.TemporaryDirectory() as folder:
        tracing = TracingRuntime(TraceSet(root=Path(folder), definitions={of.name: of}), config)

        def run(numbers: range) -> tuple[float, int]:
            for number in numbers:
                tracing.collect(of.name, make(number))
            tracing.flush()
            gc.collect()
            return resident(), len(gc.get_objects())

        rss, objects = run(range(WARM))
        then_rss, then_objects = run(range(WARM, calls))
        stats = tracing.stats()
        assert stats["errors"] == stats["lost"] == 0, stats
    return Held(case, calls, stats["written"], then_rss - rss, then_objects - objects)


def print_memory(calls: int, written: int, *, as_json: bool) -> None:
    """Run each case in a process of its own, which has no memory of the others."""
    context = multiprocessing.get_context("spawn")
    held = []
    for case in MEMORY_CASES:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            held.append(pool.submit(remember, case, calls, written).result())
    if as_json:
        print(json.dumps([one._asdict() for one in held], indent=2))
        return
    print(f"{'held after the calls':24} {'calls':>9} {'written':>9} {'RSS MB':>8} {'objects':>8}")
    for one in held:
        print(f"{one.case:24} {one.calls:9,} {one.written:9,} {one.rss_mb:+8.1f} {one.objects:+8,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true", help="memory in place of time")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--written", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.memory:
        print_memory(options.calls, options.written, as_json=options.json)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.rounds)
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    print(
        f"{'nanoseconds over the call':40} {'median':>8} {'spread':>8} {'target':>8} {'release':>8}"
    )
    for row in rows:
        print(
            f"{row.case:40} {row.median_ns:8.0f} {row.spread_ns:8.0f} "
            f"{row.target_ns:8} {row.release_ns:8}"
        )


if __name__ == "__main__":
    main()
