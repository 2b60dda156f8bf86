"""What CUPTI records on this machine, what the timer makes of it, and how both fail.

Prints what is needed to find out from afar why it does not work: versions, libraries, all fields of
records, errors, costs. A part goes on where another fails. Exits with 1 if something is not as it
should be. Arguments name parts (`PARTS`); by default all.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import ROOT, traces_of

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda:0"
CALLS = 200
SOURCES = [ROOT / "core/src", *sorted(ROOT.glob("plugins/*/src"))]
sys.path[:0] = map(str, SOURCES)
WRONG: list[str] = []


def warm_up() -> None:
    """Have the clocks rise."""
    import torch

    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        a @ a
        torch.cuda.synchronize()


def expect(truth: bool, what: str) -> None:
    print("  ok   " if truth else "  WRONG", what, flush=True)
    if not truth:
        WRONG.append(what)


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"min": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "max": 1.0}
    return {name: round(ordered[round(q * (len(ordered) - 1))], 2) for name, q in at.items()}


def mapped(part: str) -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if part in line.rpartition("/")[2]})


def versions() -> None:
    names = ("torch", "numpy", "triton", "cupti", "nvidia-cuda-cupti", "cuda-")
    for each in distributions():
        if (each.metadata["Name"] or "").startswith(names):
            files = [str(f.locate()) for f in each.files or [] if "libcupti" in f.name]
            print(f"  {each.metadata['Name']} {each.version}", *files)
    for variable in ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "LD_LIBRARY_PATH"):
        print(f"  {variable}={os.environ.get(variable)!r}")
    import torch

    print(f"  {sys.version}; CUDA of torch {torch.version.cuda}; {torch.cuda.get_device_name(0)}")
    print(f"  after import torch: {mapped('libcupti')}")
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv"]
    subprocess.run(query, check=False)
    from fib_timing_cuda.probes import cupti as probe

    print("  probe:", probe())
    expect(probe().ok, "the probe says that CUPTI can be used")


def timed(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    begun = time.perf_counter()
    found = function(*arguments)
    print(f"  {what}: {(time.perf_counter() - begun) * 1e6:.0f} µs, returned {found!r}")
    return found


def fields_of(record: Any) -> dict[str, Any]:
    names = [name for name in dir(record) if not name.startswith(("_", "from_", "reserved", "pad"))]
    values = {name: getattr(record, name, None) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, (int, str))}


def raw() -> None:
    """CUPTI without the plugin: what it costs, when it delivers, what is in a record."""
    import torch
    from cupti import cupti

    x = torch.randn(1 << 20, device=DEVICE)
    torch.cuda.synchronize()
    rows: list[dict[str, Any]] = []
    threads: set[str] = set()

    def take(records: Any) -> None:
        threads.add(threading.current_thread().name)
        rows.extend(fields_of(record) | {"class": type(record).__name__} for record in records)

    kinds = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET")
    subscriber = timed("subscribe", cupti.subscribe, lambda *_: None, None)
    size = [8 << 20]
    timed("register", cupti.activity_register_callbacks, lambda: (size[0], 0), take)
    for kind in kinds:
        timed(f"enable {kind}", cupti.activity_enable, int(getattr(cupti.ActivityKind, kind)))
    print(f"  libcupti now: {mapped('libcupti')}")
    print(f"  get_timestamp - time_ns: {cupti.get_timestamp() - time.time_ns()} ns")
    timed("first kernel", lambda: (x + 1, torch.cuda.synchronize())[1])
    timed("flush(0) after it", cupti.activity_flush_all, 0)
    print(f"  records after flush(0): {len(rows)}; delivered by {threads}")
    timed("flush(1)", cupti.activity_flush_all, 1)
    print(f"  records after flush(1): {len(rows)}")
    host = torch.empty(1 << 20).pin_memory()
    for work in (lambda: x + 1, lambda: x.zero_(), lambda: x.copy_(host), lambda: x.clone()):
        work()
    torch.cuda._sleep(100_000)
    torch.cuda.synchronize()
    cupti.activity_flush_all(0)
    for row in rows:
        print("  record", json.dumps(row))
    expect(len(rows) >= 6, f"six records or more of six activities after flush(0): {len(rows)}")
    for size[0] in (8 << 20, 1 << 20, 256 << 10, 64 << 10):
        print(f"  buffers of {size[0] >> 10} KiB")
        costs(cupti, x, rows)
    for kind in kinds:
        timed(f"disable {kind}", cupti.activity_disable, int(getattr(cupti.ActivityKind, kind)))
    timed("unsubscribe", cupti.unsubscribe, subscriber)


def costs(cupti: Any, x: Any, rows: list[dict[str, Any]]) -> None:
    import torch

    event = torch.cuda.Event()
    does: dict[str, Callable[[], object]] = {
        "idle flush": lambda: cupti.activity_flush_all(0),
        "launch": lambda: x.add_(1),
        "second launch": lambda: x.add_(1),
        "record": lambda: event.record(),
        "query": lambda: [None for _ in iter(event.query, True)],
        "synchronize": torch.cuda.synchronize,
        "again": torch.cuda.synchronize,
        "flush after a kernel": lambda: cupti.activity_flush_all(0),
    }
    steps: dict[str, list[float]] = {name: [] for name in does}
    rows.clear()
    for _ in range(CALLS):
        for name, function in does.items():
            begun = time.perf_counter()
            function()
            steps[name].append((time.perf_counter() - begun) * 1e6)
    print("  µs:", {name: quantiles(values) for name, values in steps.items()})
    expect(len(rows) == 2 * CALLS, f"one record for each of {2 * CALLS} kernels: {len(rows)}")
    took = [row["end"] - row["start"] for row in rows]
    print(f"  durations of one kernel, ns: {quantiles(took)}; their gcd {math.gcd(*took)}")


class Tapped:
    """A `CuptiTimer` whose intermediate figures are kept."""

    def __init__(self) -> None:
        from fib_timing_cuda.cupti import CuptiTimer, span_of, split_at_hold

        self.timer = CuptiTimer()
        self.rows: list[dict[str, float]] = []
        self.last: Any = None
        self.waits: dict[str, list[float]] = {}
        latency, events = self.timer._latency, self.timer._events
        events._everything.finish = self._clocked("finish", events._everything.finish)
        events._synchronize = self._clocked("synchronize", events._synchronize)

        def kept(activities: Any, by_events: float) -> float:
            self.last = activities
            released, others = split_at_hold(activities)
            span = span_of(others, not_before=released)
            if span is not None:
                row = {"span": span.milliseconds * 1e3, "events": by_events * 1e3}
                row["excess"] = row["events"] - row["span"]
                row["enqueued"] = events._enqueued_us
                row["after_hold"] = (min(each.start for each in others) - released) / 1e3
                self.rows.append(row | {"idle": span.idle_share})
            return latency(activities, by_events)

        self.timer._latency = kept  # type: ignore[method-assign]

    def _clocked(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            found = function(*arguments)
            self.waits.setdefault(what, []).append((time.perf_counter() - begun) * 1e6)
            return found

        return call

    def measure(self, name: str, function: Callable[[], object], calls: int) -> dict[str, Any]:
        self.rows, samples, walls, self.waits = [], [], [], {}
        for _ in range(calls):
            begun = time.perf_counter()
            sample, _result = self.timer.time_call(function, (), device=DEVICE)
            walls.append((time.perf_counter() - begun) * 1e6 - sample * 1e3)
            samples.append(sample * 1e3)
        warm = self.rows[calls // 10 :]
        found = {key: quantiles([row[key] for row in warm]) for key in (warm[0] if warm else {})}
        found |= {"given": quantiles(samples[calls // 10 :]), "cost": quantiles(walls)}
        found |= {what: quantiles(values) for what, values in self.waits.items()}
        found |= {"notes": self.timer.take_notes(), "records": len(self.last)}
        print(f"  {name}:", json.dumps(found), flush=True)
        return found


def shapes() -> None:
    """Streams, graphs, copies, many kernels, nothing: what the timer gives, beside events."""
    import torch

    from flashinfer_bench.errors import TimingError

    tapped = Tapped()
    a = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    x, host = torch.randn(1 << 24, device=DEVICE), torch.empty(1 << 24).pin_memory()
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def on_side() -> object:
        with torch.cuda.stream(side):
            return a @ a

    on_side()
    warm_up()
    tiny = x[:1024]
    short = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            x.add_(1)
    with torch.cuda.graph(short):
        tiny.add_(1)

    work: dict[str, Callable[[], object]] = {
        "matmul": lambda: a @ a,
        "matmul on a side stream": on_side,
        "joined": lambda: (on_side(), torch.cuda.current_stream().wait_stream(side)),
        "graph of 20 adds": graph.replay,
        "graph of a tiny add": short.replay,
        "tiny add": lambda: tiny.add_(1),
        "20 adds": lambda: [x.add_(1) for _ in range(20)],
        "copy to host": lambda: host.copy_(x, non_blocking=True),
        "copy on device": lambda: x.clone(),
        "fill": lambda: x.zero_(),
        "a gap of 3 ms": lambda: (x.add_(1), torch.cuda.synchronize(), time.sleep(3e-3), x.add_(1)),
        "2000 small adds": lambda: [x[:1024].add_(1) for _ in range(2000)],
        "20000 small adds": lambda: [tiny.add_(1) for _ in range(20_000)],
        "3 ms of host first": lambda: (time.sleep(0.003), x.add_(1)),
        "nothing": lambda: None,
    }
    found = {}
    for name, function in work.items():
        try:
            found[name] = tapped.measure(name, function, 3 if "20000" in name else 30)
        except Exception:  # noqa: BLE001 - the next part may say more
            WRONG.append(name)
            traceback.print_exc(file=sys.stdout)
    expect(found["20000 small adds"]["records"] >= 20_000, "20000 small adds leave as many records")
    usual = found["matmul"]["given"]["median"]
    for name in ("matmul on a side stream", "joined"):
        expect(found[name]["given"]["median"] > 0.9 * usual, f"{name} hides nothing")
    with contextlib.suppress(TimingError):
        tapped.timer.time_call(lambda: time.sleep(0.01), (), device=DEVICE)
        expect(False, "work on the CPU alone is refused")


# Beside other tools, and solutions that get in its way.
HEAD = """
import faulthandler, threading, torch
faulthandler.dump_traceback_later(60, exit=True)
from cupti import cupti
from fib_timing_cuda.cupti import CuptiTimer
from torch.profiler import ProfilerActivity, profile
x, big = (torch.randn(1 << size, device="cuda:0") for size in (20, 26))
def work(): x.add_(1)
def time_it(timer=None, function=work):
    timer = timer or CuptiTimer()
    for _ in range(3):
        try:
            print("latency", timer.time_call(function, (), device="cuda:0")[0])
        except Exception as error:
            print(type(error).__name__, error)
    print("notes", timer.take_notes())
    return timer
def profiled(function):
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        work(); torch.cuda.synchronize(); function()
    print(p.key_averages())
def hiding(): cupti.activity_disable(10); big.add_(1); cupti.activity_enable(10); work()
def threaded():
    t = threading.Thread(target=work); t.start(); t.join(); work()
"""
OTHERS = {
    "alone": "time_it()",
    "a profiler is running": "profiled(time_it)",
    "a profiler has run": "profiled(work); time_it()",
    "a profiler comes later": "t = time_it(); profiled(work); time_it(t)",
    "two timers": "time_it(); time_it()",
    "recording is switched off": "t = time_it(); cupti.activity_disable(10); time_it(t)",
    "switched off inside": "t = time_it(None, lambda: big.add_(1)); time_it(t, hiding)",
    "a thread uses the device": "time_it(None, threaded)",
}


def child(*command: str, limit: float = 120, **variables: str) -> tuple[int, str]:
    path = os.pathsep.join([*map(str, SOURCES), os.environ.get("PYTHONPATH", "")])
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": limit, "cwd": ROOT}
    env = os.environ | {"PYTHONPATH": path} | variables
    done = subprocess.run([sys.executable, *command], env=env, check=False, **options)
    return done.returncode, done.stdout + done.stderr


def others() -> None:
    """Beside other subscribers; each in a process of its own, which also shows how it ends."""
    with ThreadPoolExecutor(4) as pool:
        ends = pool.map(lambda code: child("-c", HEAD + code, limit=60), OTHERS.values())
        for name, (status, output) in zip(OTHERS, ends, strict=True):
            print(f"  -- {name}: exit {status}\n{output[-3000:]}")
            expect(status == 0, f"{name}: ends well")


def run() -> None:
    """`fib run` with this timer, sandbox and integrity checks included."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        shutil.copytree(ROOT / "examples/sample-dataset", data)
        use = {"FIB_PLUGINS": "fib_timing_cuda", "FIB_CACHE_PATH": str(Path(folder, "cache"))}
        print(*child("-m", "flashinfer_bench", "plugins", "list", "--kind", "timer", **use))
        for timer in ("cupti", "cuda_event"):
            options = ["--local", str(data), "--device", DEVICE, "--timer", timer]
            options += ["--iterations", "20", "--definitions", "rmsnorm_h512", "gemm_n256_k256"]
            status, output = child("-m", "flashinfer_bench", "run", *options, limit=200, **use)
            print(f"  exit {status}\n{output[-6000:]}")
            expect(status in (0, 4), f"fib run --timer {timer} exits with 0 or 4")
        traces = traces_of(data)
        for trace in traces:
            print("  ", trace["solution"], json.dumps(trace.get("evaluation"))[:700])
        expect("cupti" in json.dumps(traces), "there are traces that name the timer")


def conformance() -> None:
    """The suite for timers, and the plugin's other tests that need a GPU."""
    status, output = child("-m", "pytest", "-q", "-m", "gpu", "plugins/timing_cuda/tests/cupti")
    print(output[-6000:])
    expect(status == 0, "the plugin's own tests with a GPU pass")


ALL = (versions, raw, shapes, others, conformance, run)
PARTS = {part.__name__: part for part in ALL}
INSIDE = ("raw", "shapes")  # CUPTI serves one subscriber in a process


def inside(name: str) -> None:
    """Do a part in a process of its own."""
    status, output = child(__file__, "--inside", name, limit=200)
    print(output)
    expect(status == 0, f"{name} is as expected")


def main(names: list[str]) -> int:
    for name in names or list(PARTS):
        print(f"== {name}", flush=True)
        begun = time.perf_counter()
        try:
            inside(name) if name in INSIDE else PARTS[name]()
        except Exception:  # noqa: BLE001 - the next part may say more
            WRONG.append(name)
            traceback.print_exc(file=sys.stdout)
        print(f"== {name}: {time.perf_counter() - begun:.1f} s")
    print(json.dumps({"wrong": WRONG}))
    return 1 if WRONG else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        faulthandler.dump_traceback_later(180, exit=True)
        PARTS[sys.argv[2]]()
        sys.exit(1 if WRONG else 0)
    sys.exit(main(sys.argv[1:]))
