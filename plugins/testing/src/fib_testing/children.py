"""Running a builder in separate processes, from the test's side."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from fib_testing.child import run_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Definition, Solution

TIMEOUT_S = 600.0
"""Time limit of a child in seconds; compiling templates is slow, and machines may be busy."""

_PRELOADED = [
    "torch",
    "torch.utils.serialization",
    "flashinfer_bench.compile.toolkit",
    "flashinfer_bench.data",
    "flashinfer_bench.plugins",
    "fib_testing.child",
]


@dataclass(frozen=True, kw_only=True)
class ChildTask:
    """What a process builds and calls.

    Parameters
    ----------
    factory : str
        The builder: ``"package.module:Name"``.
    definition, solution : Definition, Solution
        The solution to build.
    cache : Path
        Its ``FIB_CACHE_PATH``.
    env, sys_path : mapping of str to str, sequence of str
        Further environment and module paths; folders for users' files are replaced.
    kill_at : int
        Kill it before it starts this compiler, from 1; 0: never.
    compilers : sequence of str
        Names of further compilers; see `BuilderCase`.
    """

    factory: str
    definition: Definition
    solution: Solution
    cache: Path
    env: Mapping[str, str]
    sys_path: Sequence[str]
    kill_at: int = 0
    compilers: Sequence[str] = ()


@dataclass(frozen=True)
class ChildReport:
    """The report of a child process.

    Attributes
    ----------
    status : int
        Exit status; negative for a signal.
    report : mapping
        The report that it wrote; empty if it did not get that far.
    outputs : list or None
        The solution's outputs; None if it did not get that far.
    stdout, stderr : str
        Its output.
    left : tuple of str
        Files left behind in the working directory, the home folder and the folder for temporary
        files.
    """

    status: int
    report: Mapping[str, Any]
    outputs: Optional[list[Any]]
    stdout: str
    stderr: str
    left: tuple[str, ...]

    @property
    def problem(self) -> str:
        """Why it did not complete; empty if it did."""
        error = self.report.get("error")
        if error:
            return f"{error['type']}: {error['message']}\n{error['traceback']}"
        if self.outputs is None or self.status:
            return f"the process ended with status {self.status}\n{self.stderr[-2000:]}"
        return ""

    @property
    def headline(self) -> str:
        """The first line of `problem`."""
        return next(iter(self.problem.splitlines()), "")

    def compiler_runs(self, *phases: str) -> list[list[str]]:
        """Return the command lines of the compilers that ran in ``compile`` or ``build``."""
        commands = self.report.get("commands", {})
        return [run for phase in phases or ("compile", "build") for run in commands.get(phase, [])]


def run_children(
    folder: Path, tasks: Sequence[ChildTask], arguments: Sequence[Any], *, together: bool = False
) -> list[ChildReport]:
    """Run tasks in separate processes at the same time.

    Parameters
    ----------
    folder : Path
        An empty folder for exchanged files.
    tasks : sequence of ChildTask
        The tasks.
    arguments : sequence
        Inputs and outputs of each task.
    together : bool
        Whether the processes wait for one another before they build.

    Returns
    -------
    list of ChildReport
        One for each task.
    """
    import torch

    # If the system can fork, each task is forked from a process that has imported torch.
    forks = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(_PRELOADED)
    barrier = context.Barrier(len(tasks)) if together else None
    started = []
    for number, task in enumerate(tasks):
        own = folder / str(number)
        own.mkdir()
        torch.save(list(arguments), own / "arguments")
        started.append((context.Process(target=run_task, args=(task, own, barrier)), own))
    for process, _ in started:
        process.start()
    deadline = time.monotonic() + TIMEOUT_S
    return [_collect(process, own, deadline) for process, own in started]


def _collect(process: Any, folder: Path, deadline: float) -> ChildReport:
    import torch

    process.join(max(0.0, deadline - time.monotonic()))
    if process.exitcode is None:
        if sys.platform != "win32":
            with suppress(ProcessLookupError):  # it has no group yet
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    report, outputs = folder / "report", folder / "outputs"
    left = [
        f"{place}: {file.relative_to(folder / name).as_posix()}"
        for place, name in (("working directory", "cwd"), ("home", "HOME"), ("temp", "TMPDIR"))
        for file in sorted((folder / name).rglob("*"))
        if file.is_symlink() or not file.is_dir()
    ]
    return ChildReport(
        status=process.exitcode,
        report=json.loads(report.read_text(encoding="utf-8")) if report.exists() else {},
        outputs=torch.load(outputs, weights_only=True) if outputs.exists() else None,
        stdout=_text(folder / "stdout"),
        stderr=_text(folder / "stderr"),
        left=tuple(left),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
