"""Running a builder in processes of its own, from the side of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.testing.watch import files_below

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.data import Definition, Solution

TIMEOUT_S = 600.0
"""Seconds that a child may take: compilers of templates are slow, and machines are busy."""

_PRIVATE = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
_COMMAND = [sys.executable, "-m", "flashinfer_bench.testing.child"]


@dataclass(frozen=True)
class ChildTask:
    """What one process is to build and call, after `Builder.compile`.

    Parameters
    ----------
    definition, solution : Definition, Solution
        What to build.
    cache : Path
        Its ``FIB_CACHE_PATH``.
    kill_at : int
        Kill it before it starts that compiler, counted from 1; 0: never.
    """

    definition: Definition
    solution: Solution
    cache: Path
    kill_at: int = 0


@dataclass(frozen=True)
class ChildReport:
    """What a child process did.

    Attributes
    ----------
    status : int
        Exit status; negative for a signal.
    report : mapping
        What it wrote down itself; empty if it did not get that far.
    outputs : list or None
        The solution's outputs; None if it did not get that far.
    stdout, stderr : str
        What it printed.
    left : tuple of str
        Files that were left behind in the working directory, the home folder and the folder for
        temporary files.
    """

    status: int
    report: Mapping[str, Any]
    outputs: Optional[list[Any]]
    stdout: str
    stderr: str
    left: tuple[str, ...]

    @property
    def problem(self) -> str:
        """Why it did not get to the end; empty if it did."""
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

    def compiler_runs(self, phase: str) -> list[list[str]]:
        """Return the command lines of the compilers that ran in ``compile`` or ``build``."""
        commands = self.report.get("commands", {})
        found: list[list[str]] = commands.get(phase, [])
        return found

    @property
    def compiled(self) -> list[list[str]]:
        """The command lines of all compilers that ran."""
        return [*self.compiler_runs("compile"), *self.compiler_runs("build")]


class Children:
    """Starts child processes; one server is kept for all of them.

    Parameters
    ----------
    folder : Path
        An empty folder for files that go back and forth.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._server: Optional[subprocess.Popen[str]] = None

    def build(
        self,
        factory: str,
        definition: Definition,
        solution: Solution,
        arguments: Sequence[Any],
        *,
        cache: Path,
        env: Mapping[str, str],
        sys_path: Sequence[str],
        processes: int = 1,
        compile_first: bool = False,
    ) -> list[ChildReport]:
        """Build and call a solution in one process, or in several at the same time.

        Parameters
        ----------
        factory : str
            The builder: ``"package.module:Name"``.
        definition, solution : Definition, Solution
            What to build.
        arguments : sequence
            Inputs, then outputs.
        cache : Path
            ``FIB_CACHE_PATH`` of the processes.
        env, sys_path : mapping of str to str, sequence of str
            What else the processes start with; folders for users' files are replaced.
        processes : int
            How many.
        compile_first : bool
            Whether to call `Builder.compile` before the build.

        Returns
        -------
        list of ChildReport
            One for each process.
        """
        barrier = None
        if processes > 1:
            barrier = {"folder": str(self._new_folder()), "parties": processes}
        task = ChildTask(definition, solution, cache)
        common = {
            **_common(factory, env, sys_path),
            "compile_first": compile_first,
            "barrier": barrier,
        }
        return self._run_all([{**common, **_described(task)}] * processes, arguments)

    def build_each(
        self,
        factory: str,
        tasks: Sequence[ChildTask],
        arguments: Sequence[Any],
        *,
        env: Mapping[str, str],
        sys_path: Sequence[str],
    ) -> list[ChildReport]:
        """Carry out tasks, each in a process of its own, all at the same time.

        Parameters
        ----------
        factory : str
            The builder: ``"package.module:Name"``.
        tasks : sequence of ChildTask
            What to build.
        arguments : sequence
            Inputs, then outputs, of each.
        env, sys_path : mapping of str to str, sequence of str
            As for `build`.

        Returns
        -------
        list of ChildReport
            One for each task.
        """
        common = _common(factory, env, sys_path)
        return self._run_all([{**common, **_described(task)} for task in tasks], arguments)

    def close(self) -> None:
        """End the server."""
        server, self._server = self._server, None
        if server is not None:
            server.communicate()

    def _run_all(
        self, given: Sequence[Mapping[str, Any]], arguments: Sequence[Any]
    ) -> list[ChildReport]:
        tasks = [self._prepare(each, arguments) for each in given]
        statuses = self._run([task / "task.json" for task in tasks])
        return [_collect(task, status) for task, status in zip(tasks, statuses, strict=True)]

    def _new_folder(self) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(parents=True)
        return folder

    def _prepare(self, common: Mapping[str, Any], arguments: Sequence[Any]) -> Path:
        import torch

        folder = self._new_folder()
        for name in ("cwd", "HOME", "TMPDIR"):
            (folder / name).mkdir()
        torch.save(list(arguments), folder / "arguments")
        names = ("cwd", "arguments", "outputs", "report", "stdout", "stderr")
        task = {**common, **{name: str(folder / name) for name in names}}
        own = {name: str(folder / name) for name in ("HOME", "TMPDIR")}
        own["CUDA_CACHE_PATH"] = str(folder / "driver")  # which no builder has a say in
        task["env"] = {**common["env"], **own, "FIB_CACHE_PATH": common["cache"]}
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        return folder

    def _run(self, paths: Sequence[Path]) -> list[int]:
        if not hasattr(os, "fork"):
            started = [subprocess.Popen([*_COMMAND, str(path)]) for path in paths]
            return [process.wait(TIMEOUT_S) for process in started]
        server = self._server = self._server or _start_server()
        assert server.stdin is not None
        assert server.stdout is not None
        request = {"tasks": [str(path) for path in paths], "timeout_s": TIMEOUT_S}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the process that starts the kit's child processes ended with status "
                f"{server.wait()}; is there memory left?"
            )
        statuses: list[int] = json.loads(line)["statuses"]
        return statuses


def _common(factory: str, env: Mapping[str, str], sys_path: Sequence[str]) -> dict[str, Any]:
    return {
        "factory": factory,
        "env": {name: value for name, value in env.items() if name not in _PRIVATE},
        "sys_path": list(sys_path),
        "compile_first": True,
        "barrier": None,
    }


def _described(task: ChildTask) -> dict[str, Any]:
    return {
        "definition": task.definition.model_dump(mode="json"),
        "solution": task.solution.model_dump(mode="json"),
        "source_names": [Path(source.path).name for source in task.solution.sources],
        "cache": str(task.cache),
        "kill_at": task.kill_at,
    }


def _start_server() -> subprocess.Popen[str]:
    return subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def _collect(folder: Path, status: int) -> ChildReport:
    import torch

    report, outputs = folder / "report", folder / "outputs"
    left = [
        f"{place}: {file}"
        for place, name in (("working directory", "cwd"), ("home", "HOME"), ("temp", "TMPDIR"))
        for file in files_below(folder / name)
    ]
    return ChildReport(
        status=status,
        report=json.loads(report.read_text(encoding="utf-8")) if report.exists() else {},
        outputs=torch.load(outputs, weights_only=True) if outputs.exists() else None,
        stdout=_text(folder / "stdout"),
        stderr=_text(folder / "stderr"),
        left=tuple(left),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
