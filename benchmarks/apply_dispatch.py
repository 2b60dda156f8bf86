"""What a call costs that apply may substitute: ``python benchmarks/apply_dispatch.py``.

Nanoseconds over calling the solution's function (or, where nothing is substituted, the original)
directly, with CPU tensors and solutions that do nothing: medians over rounds of tight loops, taken
in turn on one pinned core. `x.shape` is measured in the same run, loop and all, and each figure is
given as a multiple of it too: that says more than nanoseconds on a machine that is shared. `quiet`
is the lowest decile of the rounds, `spread` the distance between their quartiles.

``--by`` says how calls are recognised, one way after the other: with the helper that
``fib apply build`` compiles (it is compiled now, if need be), with the checker of torch, or not at
all. ``--calls`` is over how many calls memory is watched. ``--json`` prints JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from flashinfer_bench.apply import apply, enable_apply
from flashinfer_bench.apply.config import ApplyConfig
from flashinfer_bench.apply.dispatch import Dispatcher, Target, recognition
from flashinfer_bench.apply.dispatch import dispatcher as dispatcher_module
from flashinfer_bench.apply.dispatch.recognition import by_torch, tensor_guards
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

CALLS = 5000


class Case(NamedTuple):
    """Something that is timed, and what it is timed against."""

    name: str
    target_ns: int | None
    theirs_ns: int | None
    outer: Call
    inner: Call


def tensor(*shape: str, dtype: str = "bfloat16") -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype}


def definition(
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    name: str = "",
    body: str = "pass",
    **constants: int,
) -> Definition:
    axes = {axis for spec in (inputs | outputs).values() for axis in spec["shape"] or ()}
    return Definition.model_validate(
        {
            "name": name or f"bench_{len(inputs)}",
            "op_type": "op",
            "axes": {
                axis: {"type": "const", "value": constants[axis]}
                if axis in constants
                else {"type": "var"}
                for axis in sorted(axes)
            },
            "inputs": inputs,
            "outputs": outputs,
            "reference": f"def run({', '.join(inputs)}):\n    {body}\n",
        }
    )


TWO = definition(
    {"a": tensor("m", "k"), "b": tensor("n", "k")}, {"c": tensor("m", "n")}, n=64, k=32
)
SIX = definition(
    {
        "q": tensor("batch", "heads", "dim"),
        "k_cache": tensor("pages", "page", "kv_heads", "dim"),
        "v_cache": tensor("pages", "page", "kv_heads", "dim"),
        "indptr": tensor("two", dtype="int32"),
        "indices": tensor("four", dtype="int32"),
        "scale": {"shape": None, "dtype": "float32"},
    },
    {"output": tensor("batch", "heads", "dim"), "lse": tensor("batch", "heads", dtype="float32")},
    heads=8,
    kv_heads=2,
    dim=16,
    page=1,
    two=5,
    four=4,
)


def zeros(of: Definition, **sizes: int) -> tuple[list[Any], list[Any]]:
    """Return inputs and outputs."""
    sizes = {**of.const_axes, **sizes}

    def make(spec: Any) -> Any:
        if spec.shape is None:
            return 1.0
        return torch.zeros([sizes[axis] for axis in spec.shape], dtype=spec.dtype.to_torch())

    return [make(spec) for spec in of.inputs.values()], [make(spec) for spec in of.outputs.values()]


class Always:
    """Resolves each key to one target, or to nothing."""

    def __init__(self, target: Target | None) -> None:
        self.target = target

    def resolve(self, key: Any) -> Target | None:
        """Return the target."""
        return self.target


def dispatcher(of: Definition, function: Callable[..., Any] | None, *, into: bool = False) -> Any:
    target = function and Target(function, of, "solution", into)
    return Dispatcher(
        of, Always(target), ApplyConfig(), key_builder=AxesOnlyKeyBuilder(of), device="cpu"
    ).call


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


def cases() -> Iterator[Case]:
    """Yield what is timed."""
    theirs = {"two": (5439, 5804, 11360, 4556), "six": (9180, 9813, 20635, 8094)}
    wanted = {"two": (600, 600, 2500, 600), "six": (1000, 1000, None, None)}
    for label, of, sizes in (
        ("two", TWO, {"m": 4}),
        ("six", SIX, {"batch": 4, "pages": 9}),
    ):
        yield from forms(label, of, sizes, theirs[label], wanted[label])
    yield from further()
    yield from decorated()


def forms(label: str, of: Definition, sizes: dict[str, int], theirs: Any, wanted: Any) -> Any:
    inputs, outputs = zeros(of, **sizes)
    result = outputs[0] if len(outputs) == 1 else tuple(outputs)
    value = eval(f"lambda {', '.join(of.inputs)}: result", {"result": result})
    into = eval(f"lambda {', '.join([*of.inputs, *of.outputs])}: None")
    a, o = tuple(inputs), (*inputs, *outputs)
    hit, dps = dispatcher(of, value), dispatcher(of, into, into=True)
    missed = dispatcher(of, None)
    names = dict(zip(of.inputs, inputs, strict=True))
    what = f"{len(inputs)} inputs"
    yield Case(f"hit, {what}", wanted[0], theirs[0], call(hit, a), (value, a, {}))
    yield Case(f"hit by name, {what}", None, None, call(hit, (), names), (value, a, {}))
    yield Case(f"destination-passing, {what}", wanted[1], theirs[1], call(dps, o), (into, o, {}))
    yield Case(
        f"DPS solution, returning, {what}", wanted[2], theirs[2], call(dps, a), (into, o, {})
    )
    yield Case(f"miss + fallback, {what}", wanted[3], theirs[3], call(missed, a), (nothing, a, {}))


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None) -> Call:
    return function, (args, kwargs, nothing), {}


def further() -> Iterator[Case]:
    """Yield the less common forms."""
    (a, b), (c,) = zeros(TWO, m=4)
    value = lambda a, b: c  # noqa: E731
    hit = dispatcher(TWO, value)
    copied = lambda a, b: c.copy_(c)  # noqa: E731
    copying = call(hit, (a, b, c.clone()))
    yield Case("value solution, DPS call (copies)", None, 7395, copying, (copied, (a, b), {}))
    yield Case("guard fails (dtype)", None, None, call(hit, (a, b.float())), (nothing, (a, b), {}))
    turns = [zeros(TWO, m=m)[0] for m in (4, 5)]
    results = {m: zeros(TWO, m=m)[1][0] for m in (4, 5)}
    both = dispatcher(TWO, lambda a, b: results[a.shape[0]])
    yield Case(
        "two sizes in turn, per call", None, None,
        (two_calls(both), (turns[0], turns[1]), {}),
        (lambda x, y: (results[x[0].shape[0]], results[y[0].shape[0]]), (turns[0], turns[1]), {}),
    )  # fmt: skip


def two_calls(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def both(x: Any, y: Any) -> None:
        dispatch(x, None, nothing)
        dispatch(y, None, nothing)

    return both


def decorated() -> Iterator[Case]:
    """Yield calls through the decorator and the function form, with and without a runtime."""
    (a, b), (c,) = zeros(TWO, m=4)

    def plain(a: Any, b: Any) -> Any:
        return c

    direct: Call = (plain, (a, b), {})
    wrapped: Call = (apply("bench_2")(plain), (a, b), {})
    yield Case("decorated, disabled", 100, 316, wrapped, direct)
    yield from function_forms("disabled", (a, b), plain)
    with enable_apply({"bench_other": plain}):  # what is timed within is timed with it enabled
        yield Case("decorated, unknown definition", None, 413, wrapped, direct)
        yield from function_forms("unknown definition", (a, b), plain)


def function_forms(label: str, args: tuple[Any, ...], plain: Callable[..., Any]) -> Iterator[Case]:
    """Yield the forms of a single call; what nothing is enabled for goes to the original."""
    theirs = 329 if label == "disabled" else 455
    named = dict(zip("ab", args, strict=True))
    form: Call = (apply, ("bench_2",), {"args": args, "fallback": plain})
    bare = (apply, ("bench_2", args, {}, plain), {})
    by_name = (apply, ("bench_2",), {"kwargs": named, "fallback": plain})
    yield Case(f"function form, {label}", 300, theirs, form, (plain, args, {}))
    yield Case(f"function form, by position, {label}", 300, theirs, bare, (plain, args, {}))
    yield Case(f"function form, by name, {label}", None, None, by_name, (plain, (), named))


def loop_ns(timed: Call, calls: int) -> float:
    """Return nanoseconds of one call in a tight loop, the loop included."""
    function, args, kwargs = timed
    rounds = range(calls)
    if kwargs:
        began = time.perf_counter_ns()
        for _ in rounds:
            function(*args, **kwargs)
        return (time.perf_counter_ns() - began) / calls
    began = time.perf_counter_ns()
    for _ in rounds:
        function(*args)
    return (time.perf_counter_ns() - began) / calls


def measure(case: Case, rounds: int, shape: Call) -> dict[str, Any]:
    """Time a case, what it is compared with and `x.shape` in turn."""
    parts = 2 if "per call" in case.name else 1
    loop_ns(case.outer, 200)
    over, shapes = [], []
    for _ in range(rounds):
        empty, shown = loop_ns((pass_by, shape[1], {}), CALLS), loop_ns(shape, CALLS)
        inner, outer = loop_ns(case.inner, CALLS), loop_ns(case.outer, CALLS)
        over.append((outer - inner) / parts)
        shapes.append(shown - empty)
    quartiles = quantiles(over, n=4)
    ratio = median(each / max(one, 1.0) for each, one in zip(over, shapes, strict=True))
    return {
        "case": case.name,
        "ns": round(median(over)),
        "ns_quiet": round(sorted(over)[len(over) // 10]),
        "ns_spread": round(quartiles[2] - quartiles[0]),
        "of_shape": round(ratio, 2),
        "target_ns": case.target_ns,
        "theirs_ns": case.theirs_ns,
    }


def pass_by(x: Any) -> Any:
    return x


def show(x: Any) -> Any:
    return x.shape


def threads(count: int, seconds: float) -> dict[str, Any]:
    """Return hits a second of one thread and of many, which take turns under the GIL."""
    (a, b), (c,) = zeros(TWO, m=4)
    hit = dispatcher(TWO, lambda a, b: c)
    hit((a, b), None, nothing)

    def hits(workers: int) -> float:
        totals, stop = [0] * workers, time.perf_counter() + seconds

        def work(index: int) -> None:
            x = a.clone(), b.clone()
            while time.perf_counter() < stop:
                for _ in range(500):
                    hit(x, None, nothing)
                totals[index] += 500

        made = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
        for each in made:
            each.start()
        for each in made:
            each.join()
        return sum(totals) / seconds

    pairs = [(hits(1), hits(count)) for _ in range(5)]
    alone, together = (median(each) for each in zip(*pairs, strict=True))
    return {
        "threads": count,
        "calls_per_s_1": round(alone),
        "calls_per_s_all": round(together),
        "share_kept": round(median(many / one for one, many in pairs), 2),
    }


def memory(calls: int) -> dict[str, Any]:
    """Return by how much memory grows over many hits, and misses of ever new sizes among them."""
    (a, b), (c,) = zeros(TWO, m=4)
    hit, missed = dispatcher(TWO, lambda a, b: c), dispatcher(TWO, None)
    long = zeros(TWO, m=1 << 15)[0][0]

    def work(first: int, count: int) -> None:
        for turn in range(count // 500):
            for _ in range(499):
                hit((a, b), None, nothing)
            missed((long[: 1 + (first + turn) % (1 << 15)], b), None, nothing)

    work(0, min(calls, 500 * 5000))  # until what is remembered of misses is full
    before = held()
    work(5000, calls)
    after = held()
    return {"calls": calls, "blocks": after[0] - before[0], "rss_kib": after[1] - before[1]}


def held() -> tuple[int, int]:
    """Return how many blocks Python has allocated, and the memory of the process in KiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE") // 1024


QUICKEST = recognition.recognition


def recognise_by(way: str) -> None:
    """Have all dispatchers recognise calls in one way."""
    found = QUICKEST
    if way == "helper":
        recognition.build_helper()
        assert recognition.by_helper() is not None
    else:
        checker = tensor_guards()
        assert checker is not None
        by = by_torch(checker) if way == "torch" else None
        found = lambda: by  # noqa: E731
    dispatcher_module.recognition = found  # type: ignore[attr-defined]


def table(rows: list[dict[str, Any]]) -> None:
    columns = ("ns", "ns_quiet", "ns_spread", "of_shape", "target_ns", "theirs_ns")
    print(f"{'case':45}" + "".join(f"{name.removeprefix('ns_'):>10}" for name in columns))
    for row in rows:
        shown = ("" if row[name] is None else row[name] for name in columns)
        print(f"{row['case']:45}" + "".join(f"{value!s:>10}" for value in shown))


def measure_all(way: str, rounds: int, calls: int, core: int | None) -> dict[str, Any]:
    """Measure everything with one way to recognise calls."""
    recognise_by(way)
    many = threads(16, 0.3)
    everywhere = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if everywhere:
        os.sched_setaffinity(0, {max(everywhere) if core is None else core})
    shape: Call = (show, (torch.zeros(4, 8),), {})
    empty: Call = (pass_by, shape[1], {})
    shape_ns = median(loop_ns(shape, CALLS) - loop_ns(empty, CALLS) for _ in range(41))
    rows = [measure(case, rounds, shape) for case in cases()]
    grown = memory(calls) if calls and sys.platform == "linux" else None
    if everywhere:
        os.sched_setaffinity(0, everywhere)
    return {"by": way, "shape_ns": round(shape_ns), "rows": rows, "threads": many, "memory": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--calls", type=int, default=10_000_000, help="0: memory is not watched")
    parser.add_argument("--core", type=int, default=None, help="core to run on; default: the last")
    ways = ("helper", "torch", "python")
    parser.add_argument("--by", choices=ways, nargs="+", default=["helper", "torch"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable()  # that nothing was called while it was enabled
    given = (options.rounds, options.calls, options.core)
    reports = [measure_all(way, *given) for way in options.by]
    if options.json:
        print(json.dumps({"torch": torch.__version__, "reports": reports}, indent=1))
        return
    for report in reports:
        print(f"\ntorch {torch.__version__}, recognised by {report['by']}, "
              f"x.shape: {report['shape_ns']} ns")  # fmt: skip
        table(report["rows"])
        print(f"threads: {report['threads']}\nmemory: {report['memory']}")


if __name__ == "__main__":
    main()
