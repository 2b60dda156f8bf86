"""Run every solution of a dataset against its reference, each in a process of its own.

Independent of the benchmark: sources are imported plainly and compared with torch. Prints one JSON
object ``{solution: {workload: verdict}}``; a verdict is ``agrees``, ``differs: ...``,
``raised: ...`` or ``died: ...``. Each reference is listed too, under its definition's name, and
compared with the declaration alone. Usage: ``python agreement.py DATASET``.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flashinfer_bench.data import TraceSet
from flashinfer_bench.tensors import allocate_outputs, dtype_name, generate_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.data import Definition, Solution, Workload

SEED = 7
TOLERANCE = 1e-2


def import_package(name: str, sources: dict[str, str], entry: str) -> Callable[..., Any]:
    """Write sources into a fresh package and import the entry point ``file::symbol``."""
    package = Path(name)
    package.mkdir()
    for path, content in sources.items():
        (package / path).write_text(content, encoding="utf-8")
    file, symbol = entry.split("::")
    function: Callable[..., Any] = getattr(
        importlib.import_module(f"{name}.{Path(file).stem}"), symbol
    )
    return function


def as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def call_reference(definition: Definition, workload: Workload, root: Path) -> list[Any]:
    function = import_package("trusted", {"main.py": definition.reference}, "main.py::run")
    return as_list(function(*generate_inputs(definition, workload, seed=SEED, root=root)))


def call_solution(
    solution: Solution, definition: Definition, workload: Workload, root: Path
) -> list[Any]:
    """Build and call one solution in its own style."""
    sources = {source.path: source.content for source in solution.sources}
    function = import_package("under_test", sources, solution.spec.entry_point)
    inputs = generate_inputs(definition, workload, seed=SEED, root=root)
    if not solution.spec.destination_passing_style:
        return as_list(function(*inputs))
    outputs = allocate_outputs(definition, workload.axes)
    function(*inputs, *outputs)
    return outputs


def undeclared(definition: Definition, workload: Workload, outputs: list[Any]) -> str:
    """Say where count, shape or dtype are not as declared."""
    shapes = definition.get_output_shapes(workload.axes)
    if len(outputs) != len(shapes):
        return f"{len(outputs)} outputs instead of {len(shapes)}"
    for value, shape, (name, spec) in zip(outputs, shapes, definition.outputs.items(), strict=True):
        if isinstance(value, float) and shape is None:
            continue  # a Python number stands for a scalar of any float type
        if tuple(value.shape) != tuple(shape or ()):
            return f"{name} has shape {tuple(value.shape)}"
        if dtype_name(value.dtype) != spec.dtype:
            return f"{name} has dtype {value.dtype}"
    return ""


def unequal(definition: Definition, got: list[Any], want: list[Any]) -> str:
    """Say which output is off, in absolute *and* in relative terms."""
    for value, expected, name in zip(got, want, definition.outputs, strict=True):
        actual, wanted = torch.as_tensor(value).double(), expected.double()
        error = (actual - wanted).abs()
        close = (error <= TOLERANCE) | (error <= TOLERANCE * wanted.abs()) | (actual == wanted)
        if not bool(close.all()):
            return f"values of {name}"
    return ""


def judge_reference(definition: Definition, workload: Workload, root: Path) -> str:
    problem = undeclared(definition, workload, call_reference(definition, workload, root))
    return f"differs: {problem}" if problem else "agrees"


def judge_solution(
    solution: Solution, definition: Definition, workload: Workload, root: Path
) -> str:
    got = call_solution(solution, definition, workload, root)
    problem = undeclared(definition, workload, got)
    if not problem:
        problem = unequal(definition, got, call_reference(definition, workload, root))
    return f"differs: {problem}" if problem else "agrees"


def in_child(job: Callable[[], str]) -> str:
    """Run `job` in a forked process and return its verdict, or how the process ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.write(writer, attempt(job)[:1000].encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read().decode()
    _, status = os.waitpid(pid, 0)
    return answer or f"died: exit code {os.waitstatus_to_exitcode(status)}"


def attempt(job: Callable[[], str]) -> str:
    with tempfile.TemporaryDirectory(prefix="sample-") as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            return job()
        except BaseException as error:  # noqa: BLE001 - whatever a solution raises is its verdict
            return f"raised: {type(error).__name__}: {error}"


def judge_all(root: Path) -> dict[str, dict[str, str]]:
    trace_set = TraceSet.from_path(str(root))
    verdicts: dict[str, dict[str, str]] = {}
    for name, definition in trace_set.definitions.items():
        for workload in [trace.workload for trace in trace_set.workloads[name]]:
            job = partial(judge_reference, definition, workload, root)
            verdicts.setdefault(name, {})[workload.uuid] = in_child(job)
            for solution in [s for s in trace_set.solutions[name] if s.spec.language == "python"]:
                job = partial(judge_solution, solution, definition, workload, root)
                verdicts.setdefault(solution.name, {})[workload.uuid] = in_child(job)
    return verdicts


if __name__ == "__main__":
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    json.dump(judge_all(Path(sys.argv[1]).resolve()), sys.stdout)
