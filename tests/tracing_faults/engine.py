"""A small engine that is traced while things go wrong: ``engine.py FAULT FOLDER``.

It computes norms and ragged sums in torch through `flashinfer_bench.apply`, with the original as
fallback, and compares every output with its own. At the end it prints what it noticed as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import flashinfer_bench
from flashinfer_bench.tracing import enable_tracing, install_signal_handlers
from flashinfer_bench.tracing import shutdown as shutdown_module

FOLDER = Path(sys.argv[2])
ROOT = FOLDER / "dataset"
seen: Counter[str] = Counter()


class OfTheEngine(Exception):
    """What the engine's own code raises; it must arrive as it was."""


def norm(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 13:
        raise OfTheEngine("13 rows")
    return x * 2


def ragged(q: torch.Tensor, kv_indptr: torch.Tensor, scale: float) -> torch.Tensor:
    return q * scale + kv_indptr[-1]


def step(number: int) -> None:
    """One step of the engine: two calls, and sometimes one that is no call of the definition."""
    rows = number % 40 + 1
    call("norm_h8", (torch.full((rows, 8), float(number)),), norm)
    indptr = torch.arange(rows + 1, dtype=torch.int32) * (number % 7)
    call("ragged_h8", (torch.ones(rows, 8), indptr, 0.5), ragged)
    if number % 10 == 0:
        call("norm_h8", (torch.ones(rows, 9),), norm)
        call("nowhere_h8", (torch.ones(rows, 9),), norm)
        call("ragged_h8", (torch.ones(8), torch.zeros(3, 3), 1), lambda q, *_: q)


def call(name: str, inputs: tuple[Any, ...], original: Any) -> None:
    seen["calls"] += 1
    try:
        got = flashinfer_bench.apply(name, inputs, fallback=original)
        if not torch.equal(got, original(*inputs)):
            seen["wrong outputs"] += 1
    except OfTheEngine:
        seen["errors of the engine"] += 1
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
        seen["exceptions"] += 1
        print(f"noticed: {error!r}", file=sys.stderr)


def steps(count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        step(number)


def report(**more: Any) -> None:
    os.write(1, f"{json.dumps({**seen, **more})}\n".encode())  # in one piece


# -------------------------------------------------------------------------------------- faults


def no_fault() -> None:
    with enable_tracing(ROOT) as runtime:
        steps(200)
    report(stats=runtime.stats())


def threads() -> None:
    with enable_tracing(ROOT) as runtime:
        stop = threading.Event()

        def flush() -> None:
            while not stop.is_set():
                runtime.flush()

        others = [threading.Thread(target=steps, args=(100, n)) for n in range(4)]
        flusher = threading.Thread(target=flush)
        for thread in (*others, flusher):
            thread.start()
        for thread in others:
            thread.join()
        stop.set()
        flusher.join()
    report(stats=runtime.stats())


def worker(first: int) -> None:
    seen.clear()
    steps(100, first)
    report()


def forked_workers() -> None:
    runtime = enable_tracing(ROOT)
    steps(10)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=worker, args=(100 * n,)) for n in range(3)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    runtime.flush()
    report(codes=[one.exitcode for one in workers])


def bare_fork() -> None:
    enable_tracing(ROOT)
    steps(10)
    if os.fork() == 0:
        worker(10)
        sys.exit(0)
    os.wait()
    report()


def terminated_at_work() -> None:
    shutdown_module.FLUSH_TIMEOUT_S = 300.0  # a busy machine is none that waits for itself
    enable_tracing(ROOT)
    install_signal_handlers()
    number = 20
    steps(number)
    report()
    while True:
        number += 1
        step(number)


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
