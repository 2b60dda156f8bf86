"""What an adapter adds to a call that apply answers: ``python benchmarks/adapter_overhead.py``.

A call of a patched function is timed against the function form of apply with the inputs that the
adapter makes of it; both are answered by the same dispatcher and the same solution, which does
nothing. So the difference is the adapter: understanding the call, and handing the outputs over.
Nanoseconds of processor time, CPU tensors: medians over rounds of tight loops, taken in turn on one
pinned core.
`quiet` is the lowest decile of the rounds, `spread` the distance between their quartiles, and
`apply` what the function form itself costs over calling the solution.

With `dataset` in its name a case is timed with a dataset enabled whose record names a solution, as
engines have it, against the function form with the same dataset. `tracing` is what a call costs
more while it is traced, by axes alone or as the preset for attention has it: while a solution
answers; or `alone`, with nothing enabled beside and an original that does nothing, so that the
adapter's work counts as well. A cache that is `viewed anew` is another object in each call, as vLLM
has it; one that is `packed` is two, as newer releases have it. What it takes the caller to make
them does not count.

The first case is a route written here, as small as a route can be. The others are the adapters of
`fib_adapters_flashinfer` on the real FlashInfer, whose compiled kernels alone are stood in for;
without the two they are left out. ``--json`` prints JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median, quantiles
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from adapter_cases import Case, cases

from flashinfer_bench.apply import apply, enable_apply
from flashinfer_bench.apply.config import ApplyConfig
from flashinfer_bench.apply.dispatch import Dispatcher, Target
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition, TraceSet
from flashinfer_bench.routing.binding import reordered
from flashinfer_bench.routing.patch_points import opaque, router
from flashinfer_bench.tensors.devices import this_hardware
from flashinfer_bench.tracing import TracingConfig, TracingRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adapter_cases import Timed

CALLS = 2000
ANSWERS = "fib_adapter_overhead_answers"  # a module that a recorded solution imports


class Answering:
    """A runtime in which one solution answers each call of one definition.

    Parameters
    ----------
    of : Definition
        The definition.
    answer : Any
        What the solution returns.
    """

    def __init__(self, of: Definition, answer: Any) -> None:
        function = eval(f"lambda {', '.join(of.inputs)}: answer", {"answer": answer})
        self.function = function
        self._of = of
        self._target = Target(function, of, "solution")
        self._dispatcher = Dispatcher(
            of, self, ApplyConfig(), key_builder=AxesOnlyKeyBuilder(of), device="cpu"
        )

    def resolve(self, key: Any) -> Target:
        """Return the solution, whatever the key."""
        return self._target

    def names(self) -> tuple[str, ...]:
        """Return the one name."""
        return (self._of.name,)

    def definition(self, name: str) -> Definition | None:
        """Return the definition."""
        return self._of if name == self._of.name else None

    def route(self, name: str, point: Any) -> Any:
        """Return what answers: as recorded solutions are put to work."""
        call = opaque(self._dispatcher.call)
        if point is None:
            return call
        return reordered(call, point.signature, list(self._of.inputs))

    def stop(self) -> None:
        """Stay: there is nothing to stop."""

    @property
    def hits(self) -> int:
        """How many calls the solution has answered."""
        return self._dispatcher.stats.hits


def loop_ns(timed: Timed) -> float:
    """Return nanoseconds of processor time of one call in a tight loop, the loop included."""
    function, args, kwargs = timed
    rounds = range(CALLS)
    if kwargs:
        began = time.thread_time_ns()
        for _ in rounds:
            function(*args, **kwargs)
        return (time.thread_time_ns() - began) / CALLS
    began = time.thread_time_ns()
    for _ in rounds:
        function(*args)
    return (time.thread_time_ns() - began) / CALLS


def nothing() -> None:
    """Stands for what a caller does itself that does nothing."""


def seen_inputs(case: Case) -> tuple[Any, ...]:
    """Return what the adapter makes of the call, in the order of the definition."""
    found: list[dict[str, Any]] = []

    def note(_name: str, point: Any, args: tuple[Any, ...], _kwargs: Any) -> None:
        found.append(dict(zip(point.signature.parameters, args, strict=True)))

    function, args, kwargs = case.patched
    end = router.observe(note, case.definition.name)
    function(*args, **kwargs)
    end()
    assert found, f"{case.name}: the adapter did not understand the call"
    return tuple(found[0][name] for name in case.definition.inputs)


def measure(case: Case, rounds: int) -> list[dict[str, Any]]:
    """Time the patched call, the function form and the solution alone in turn."""
    runtime = Answering(case.definition, case.answer)
    router.push(runtime)
    try:
        rows = [timed_case(case, runtime.function, lambda: runtime.hits, rounds)]
    finally:
        router.remove(runtime)
    if case.target_ns is not None:
        rows += [recorded(case, rounds), *traced(case, rounds)]
    return rows


def timed_case(
    case: Case, function: Callable[..., Any], hits: Callable[[], int], rounds: int
) -> dict[str, Any]:
    inputs = seen_inputs(case)
    form: Timed = (apply, (case.definition.name, inputs, None, function), {})
    bare: Timed = (function, inputs, {})
    own: Timed = case.own or (nothing, (), {})
    for each in (case.patched, form):
        loop_ns(each)
    before = hits()
    loops = (case.patched, form, bare, own, (nothing, (), {}))
    times = [tuple(map(loop_ns, loops)) for _ in range(rounds)]
    assert hits() - before == 2 * rounds * CALLS, f"{case.name}: not all calls were hits"
    over = [patched - applied - (mine - empty) for patched, applied, _, mine, empty in times]
    apply_ns = round(median(applied - alone for _, applied, alone, *_ in times))
    return row(case.name, over, case.target_ns, apply_ns)


def row(name: str, times: list[float], target_ns: int | None, apply_ns: Any) -> dict[str, Any]:
    times, quartiles = sorted(times), quantiles(times, n=4)
    return {
        "case": name,
        "ns": round(median(times)),
        "ns_quiet": round(times[len(times) // 10]),
        "ns_spread": round(quartiles[2] - quartiles[0]),
        "target_ns": target_ns,
        "apply_ns": apply_ns,
    }


def recorded(case: Case, rounds: int) -> dict[str, Any]:
    """Time a case with a dataset enabled, whose record of these sizes names a solution."""
    name = case.definition.name
    answers = sys.modules[ANSWERS] = ModuleType(ANSWERS)
    function = eval(f"lambda {', '.join(case.definition.inputs)}: answer", {"answer": case.answer})
    vars(answers)["run"] = function
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder), case)
        with enable_apply(folder, device="cpu") as runtime:

            def hits() -> int:
                found: int = runtime.stats()[name].hits
                return found

            found = timed_case(case, function, hits, rounds)
    return {**found, "case": f"{case.name}: dataset"}


def write_dataset(folder: Path, case: Case) -> None:
    """Write a dataset with one solution of the case's definition, and a record of it."""
    of = case.definition
    sizes: dict[str, int] = {}
    for spec, value in zip(of.inputs.values(), seen_inputs(case), strict=True):
        sizes.update(zip(spec.shape or (), getattr(value, "shape", ()), strict=True))
    axes = {axis: size for axis, size in sizes.items() if axis not in of.const_axes}
    scalar = {"type": "scalar", "value": 1.0}
    inputs = {
        each: {"type": "random"} if spec.shape is not None else scalar
        for each, spec in of.inputs.items()
    }
    source = f"from {ANSWERS} import run as answer\n\nrun = answer\n"
    solution = {
        "name": "answering",
        "definition": of.name,
        "author": "benchmark",
        "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run",
                 "destination_passing_style": False},
        "sources": [{"path": "main.py", "content": source}],
    }  # fmt: skip
    evaluation = {
        "status": "PASSED",
        "environment": {"hardware": this_hardware("cpu"), "libs": {}},
        "timestamp": "2026-01-01T00:00:00",
        "log": "",
        "correctness": {"max_relative_error": 0.0, "max_absolute_error": 0.0},
        "performance": {"latency_ms": 1.0, "reference_latency_ms": 2.0, "speedup_factor": 2.0},
    }
    record = {
        "definition": of.name,
        "workload": {"uuid": "one", "axes": axes, "inputs": inputs},
        "solution": "answering",
        "evaluation": evaluation,
    }
    for path, text in (
        (f"definitions/op/{of.name}.json", of.model_dump_json(exclude_none=False)),
        (f"solutions/{of.name}/answering.json", json.dumps(solution)),
        (f"traces/op/{of.name}.jsonl", json.dumps(record) + "\n"),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def traced(case: Case, rounds: int) -> Iterator[dict[str, Any]]:
    """Time a case with tracing on, over the same with tracing off."""
    by_axes = TracingConfig(filter_policy="keep_first_by_axes")
    for what, config in {"axes": by_axes, "preset": None}.items():
        runtime = Answering(case.definition, case.answer)
        router.push(runtime)
        try:
            times = on_minus_off(case.patched, case.definition, config, rounds)
        finally:
            router.remove(runtime)
        yield row(f"{case.name}: tracing, {what}", times, None, None)
        if case.alone is not None:
            times = on_minus_off(case.alone, case.definition, config, rounds)
            yield row(f"{case.name}: tracing alone, {what}", times, None, None)


def on_minus_off(
    timed: Timed, of: Definition, config: TracingConfig | None, rounds: int
) -> list[float]:
    function, args, kwargs = timed
    times = []
    with tempfile.TemporaryDirectory() as folder:
        known = TraceSet(root=Path(folder), definitions={of.name: of})
        tracing = TracingRuntime(known, config)
        loop_ns(timed)
        for _ in range(rounds):
            off = loop_ns(timed)
            with tracing:
                function(*args, **kwargs)
                times.append(loop_ns(timed) - off)
        found = tracing.stats()
    assert not found["errors"], found
    assert found["recorded"] == 1, found
    return times


def table(rows: list[dict[str, Any]]) -> None:
    columns = ("ns", "ns_quiet", "ns_spread", "target_ns", "apply_ns")
    print(f"{'over apply':58}" + "".join(f"{name.removeprefix('ns_'):>12}" for name in columns))
    for row in rows:
        shown = ("" if row[name] is None else row[name] for name in columns)
        print(f"{row['case']:58}" + "".join(f"{value!s:>12}" for value in shown))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--core", type=int, default=None, help="core to run on; default: the last")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable()
    warnings.simplefilter("ignore")
    os.environ["FIB_ADAPTERS"] = "-*"  # only those that are put on here
    if hasattr(os, "sched_getaffinity"):
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(everywhere) if options.core is None else options.core})
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", folder)
        rows = [row for case in cases() for row in measure(case, options.rounds)]
    if options.json:
        print(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
    else:
        table(rows)


if __name__ == "__main__":
    main()
