"""The process that runs under a profiler or a sanitizer: ``python -m fib_agents.target FOLDER``.

The folder has `REQUEST`, written by the process that starts the tool. This process makes the
inputs, confines itself, loads the solution and calls it. Profilers are told to look only at the
calls after the warm-up, by ``cudaProfilerStart`` and ``cudaProfilerStop``.

What it leaves in the folder is read as untrusted text: the solution shares its memory.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, cast

from pydantic import BaseModel

from flashinfer_bench.bench.confinement import pick_sandbox
from flashinfer_bench.bench.correctness import output_specs
from flashinfer_bench.bench.executors.base import Candidate, Confinement
from flashinfer_bench.bench.sandbox import Level, Sandbox
from flashinfer_bench.compile.cache import use_scratch
from flashinfer_bench.data import Definition, Solution, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

REQUEST = "request.json"
"""What to do; see `Request`."""

SANDBOX = "sandbox.json"
"""What confines the solution; written before any of its code runs."""

WORK = "work"
"""The folder that the process may write to."""

OUTCOME = f"{WORK}/outcome.json"
"""How far the process came, and what was raised."""

STAGES = ("inputs", "confine", "build", "call", "done")
"""The stages of the process, in order."""

_MAX_TEXT = 4000


class Request(BaseModel):
    """What the process is to do; as JSON it is the content of `REQUEST`.

    Attributes
    ----------
    definition, solution, workload : Definition, Solution, Workload
        What is called, with what.
    device : str
        ``cpu`` or ``cuda:N``.
    root : Path, optional
        Folder of the dataset, to which the files of inputs are relative.
    seed : int
        Seed of random inputs.
    warmup, calls : int
        How many calls come before, and how many are looked at.
    sandbox : str
        ``off``, ``auto`` or ``strict``.
    """

    definition: Definition
    solution: Solution
    workload: Workload
    device: str
    root: Optional[Path]
    seed: int
    warmup: int
    calls: int
    sandbox: Level


@dataclass
class _Progress:
    """Keeps in a file how far the process came."""

    file: Path
    stage: str = STAGES[0]

    def enter(self, stage: str) -> None:
        self.stage = stage
        self._write({"stage": stage})

    def fail(self, error: BaseException) -> None:
        compiler = getattr(error, "log", "")  # of a BuildError
        told = {
            "kind": type(error).__name__,
            "message": str(getattr(error, "message", error))[:_MAX_TEXT],
            "hint": str(getattr(error, "hint", None) or "")[:_MAX_TEXT],
            "log": str(compiler or traceback.format_exc())[-_MAX_TEXT:],
        }
        self._write({"stage": self.stage, **told})

    def _write(self, record: dict[str, str]) -> None:
        with suppress(OSError):
            self.file.write_text(json.dumps(record), encoding="utf-8")


@dataclass
class _ThisProcess:
    """Has the sandbox confine this process, as it does with a worker."""

    device: str

    def confine(
        self, writable: Sequence[str], *, hidden: Sequence[str] = (), timeout_s: float
    ) -> Confinement:
        method = pick_sandbox()
        if method is None:
            return Confinement((), {"sandbox": "none is installed"})
        applied, missing = method.confine(
            writable, hidden=hidden, device=self.device, workdir=Path.cwd()
        )
        return Confinement(tuple(applied), missing)


def main(arguments: list[str]) -> None:
    """Do what the request in a folder asks for; exit with 1 if anything fails.

    Parameters
    ----------
    arguments : list of str
        The folder.
    """
    folder = Path(arguments[0]).absolute()
    os.chdir(folder / WORK)
    progress = _Progress(folder / OUTCOME)
    try:
        _run(Request.model_validate_json((folder / REQUEST).read_bytes()), folder, progress)
    except BaseException as error:  # noqa: BLE001 - solutions may raise anything
        progress.fail(error)
        sys.stdout.flush()
        traceback.print_exc()
        raise SystemExit(1) from None


def _run(request: Request, folder: Path, progress: _Progress) -> None:
    import torch

    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.tensors import cpu_threads, generate_inputs

    device, on_gpu = request.device, request.device != "cpu"
    use_scratch(Path.cwd())
    progress.enter("inputs")
    cuda: Any = torch.cuda
    if on_gpu:
        # The tools connect to this process here; to one that is confined already they do not.
        cuda.set_device(device)
        cuda.init()
        torch.zeros(1, device=device)
    else:
        torch.set_num_threads(1)  # other threads would not be confined
    inputs = generate_inputs(
        request.definition, request.workload, seed=request.seed, root=request.root, device=device
    )
    outputs = _empty_outputs(request)
    if on_gpu:
        cuda.synchronize(device)
    progress.enter("confine")
    _confine(request, folder)
    if not on_gpu:
        torch.set_num_threads(cpu_threads())
    progress.enter("build")
    registry = BuilderRegistry.from_catalog(device=device)
    runnable = registry.build(request.definition, request.solution)
    arguments = [*inputs, *(outputs if runnable.metadata.destination_passing_style else ())]
    progress.enter("call")
    for _ in range(request.warmup):
        runnable(*arguments)
    if on_gpu:
        cuda.synchronize(device)
        cuda.check_error(cuda.cudart().cudaProfilerStart())
    for _ in range(request.calls):
        runnable(*arguments)
    if on_gpu:
        cuda.synchronize(device)
        cuda.check_error(cuda.cudart().cudaProfilerStop())
        torch.ones(1, device=device)  # raises if a launch failed, and the solution did not look
        cuda.synchronize(device)
    progress.enter("done")


def _confine(request: Request, folder: Path) -> None:
    sandbox = Sandbox(request.sandbox, dataset=request.root)
    with (folder / SANDBOX).open("w", encoding="utf-8") as file:  # no longer writable afterwards
        process = cast("Candidate", _ThisProcess(request.device))
        what = request.definition, request.solution
        held = sandbox.confine(process, *what, device=request.device)
        held = held or Confinement((), {"sandbox": "is off"})
        json.dump({"applied": held.applied, "missing": dict(held.missing)}, file)


def _empty_outputs(request: Request) -> list[Any]:
    """Allocate outputs without writing to them: a poison would hide uninitialised reads."""
    import torch

    axes = {name: request.workload.axes[name] for name in request.definition.var_axes}
    return [
        torch.empty(one.shape, dtype=one.dtype, device=request.device)
        for one in output_specs(request.definition, axes)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
