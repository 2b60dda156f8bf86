"""What a call costs that apply may substitute: ``python benchmarks/apply_dispatch.py``.

Nanoseconds over calling the solution's function (or, where nothing is substituted, the original)
directly, with CPU tensors and solutions that do nothing: medians over rounds of tight loops, taken
in turn on one pinned core. `x.shape` is measured in the same run, loop and all, and each figure is
given as a multiple of it too: that says more than nanoseconds on a machine that is shared.

``--by`` says how calls are recognised: with the helper that ``native.build()`` compiles (it is
compiled now, if need be), with the checker of torch, or not at all. `--json` prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from flashinfer_bench.apply.config import ApplyConfig
from flashinfer_bench.apply.dispatch import Dispatcher, Target, native, recognition, runs
from flashinfer_bench.apply.dispatch import dispatcher as dispatcher_module
from flashinfer_bench.apply.dispatch.tensor_guards import tensor_guards
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


def definition(inputs: dict[str, Any], outputs: dict[str, Any], **constants: int) -> Definition:
    axes = {axis for spec in (inputs | outputs).values() for axis in spec["shape"] or ()}
    return Definition.model_validate(
        {
            "name": f"bench_{len(inputs)}",
            "op_type": "op",
            "axes": {
                axis: {"type": "const", "value": constants[axis]}
                if axis in constants
                else {"type": "var"}
                for axis in sorted(axes)
            },
            "inputs": inputs,
            "outputs": outputs,
            "reference": f"def run({', '.join(inputs)}):\n    pass\n",
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
    target = function and Target.from_callable(function, of, destination_passing=into)
    return Dispatcher(
        of, Always(target), ApplyConfig(), key_builder=AxesOnlyKeyBuilder(of), device="cpu"
    ).call


def nothing(*args: Any, **kwargs: Any) -> None:
    return None


# ------------------------------------------------------------------------------------- cases


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
    from flashinfer_bench.apply import apply

    (a, b), (c,) = zeros(TWO, m=4)

    def plain(a: Any, b: Any) -> Any:
        return c

    wrapped = apply("bench_2")(plain)
    yield Case("decorated, disabled", 100, 316, (wrapped, (a, b), {}), (plain, (a, b), {}))
    form = (apply, ("bench_2", (a, b), {}, plain), {})
    yield Case("function form, disabled", None, 329, form, (plain, (a, b), {}))
    try:
        from flashinfer_bench.apply import enable_apply

        handle = enable_apply({"bench_other": plain})
    except Exception as error:  # noqa: BLE001
        print(f"(no runtime for the unknown definition: {error})")
        return
    with handle:  # what is timed within is timed with it enabled
        yield Case(
            "unknown definition, decorated", None, 413, (wrapped, (a, b), {}), (plain, (a, b), {})
        )
        yield Case("unknown definition, function form", None, 455, form, (plain, (a, b), {}))


# ------------------------------------------------------------------------------------ timing


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
    ratio = median(each / max(one, 1.0) for each, one in zip(over, shapes, strict=True))
    return {
        "case": case.name,
        "ns": round(median(over)),
        "ns_quiet": round(sorted(over)[len(over) // 10]),
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


def recognise_by(way: str) -> None:
    """Have all dispatchers recognise calls in one way."""
    if way == "helper":
        native.build()
        assert type(recognition.recognition()) is recognition.ByHelper
        return
    checker = tensor_guards()
    assert checker is not None
    by = recognition.ByTorch(checker) if way == "torch" else None
    for module in (dispatcher_module, runs):
        module.recognition = lambda: by  # type: ignore[attr-defined]


def table(rows: list[dict[str, Any]]) -> None:
    print(f"{'case':40} {'ns':>7} {'quiet':>7} {'x.shape':>8} {'target':>7} {'theirs':>7}")
    for row in rows:
        target, theirs = (row[name] or "" for name in ("target_ns", "theirs_ns"))
        print(
            f"{row['case']:40} {row['ns']:7} {row['ns_quiet']:7} {row['of_shape']:8} "
            f"{target!s:>7} {theirs!s:>7}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--core", type=int, default=None, help="core to run on; default: the last")
    parser.add_argument("--by", choices=("helper", "torch", "python"), default="torch")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    recognise_by(options.by)
    many = threads(16, 0.3)
    if cores:
        os.sched_setaffinity(0, {cores[-1] if options.core is None else options.core})
    torch.set_num_threads(1)
    x = torch.zeros(4, 8)
    shape: Call = (show, (x,), {})
    shape_ns = [loop_ns(shape, CALLS) - loop_ns((pass_by, (x,), {}), CALLS) for _ in range(41)]
    rows = [measure(case, options.rounds, shape) for case in cases()]
    report = {
        "torch": torch.__version__,
        "by": options.by,
        "shape_ns": round(median(shape_ns)),
        "rows": rows,
        "threads": many,
    }
    if options.json:
        print(json.dumps(report, indent=1))
        return
    print(f"torch {report['torch']}, recognised by {options.by}, x.shape: {report['shape_ns']} ns")
    table(rows)
    print(many)


if __name__ == "__main__":
    main()
