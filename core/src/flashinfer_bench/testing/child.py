"""The kit's child processes: a server that imports torch once, and forks a process for each task.

A builder is watched in a process of its own, which it may disturb as it likes. Run as
``python -m flashinfer_bench.testing.child``: each line of standard input names task files that are
run at the same time; the answer is a line with their exit statuses.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import sys
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

from flashinfer_bench._lazy import import_string
from flashinfer_bench.errors import BuildError
from flashinfer_bench.testing.watch import (
    Watcher,
    changes,
    is_compiler_run,
    process_state,
)

_PRELOADED = (
    "torch",
    "torch.utils.serialization",
    "flashinfer_bench.compile.toolkit",
    "flashinfer_bench.data",
    "flashinfer_bench.plugins",
)
_POLL_S = 0.002
_BARRIER_S = 60.0


def main() -> None:
    """Serve, or run the one task that is named on the command line."""
    for name in _PRELOADED:  # so that forked children have them
        importlib.import_module(name)
    path = sys.argv[1] if len(sys.argv) > 1 else _serve()
    if path is not None:
        run_task(json.loads(Path(path).read_text(encoding="utf-8")))
        # As at the end of any process, but without taking torch apart, which takes longest.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _serve() -> Optional[str]:
    """Answer requests until the input ends. In a forked child, return its task instead."""
    for line in sys.stdin:
        request = json.loads(line)
        pids = {}
        for path in request["tasks"]:
            with warnings.catch_warnings():
                # numpy's idle threads are no danger: what is forked computes nothing before it ends
                # or starts threads of its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                return str(path)
            pids[pid] = path
        statuses = _wait(set(pids), request["timeout_s"])
        answer = {"statuses": [statuses[pid] for pid in pids]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def _wait(pids: set[int], timeout_s: float) -> dict[int, int]:
    """Return the exit status of each child; the group of one that takes too long is killed."""
    deadline = time.monotonic() + timeout_s
    found: dict[int, int] = {}
    while waiting := pids - found.keys():
        late = time.monotonic() > deadline
        for pid in waiting:
            if late:
                _kill_group(pid)
            done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if done:
                found[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    return found


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended, or has not made its group yet
            continue


def run_task(task: dict[str, Any]) -> None:
    """Build and call a solution as `task` says, and write a report.

    Parameters
    ----------
    task : dict
        See `flashinfer_bench.testing.children.Children.build`.
    """
    _enter(task)
    report: dict[str, Any] = {"error": None, "commands": {}, "changes": {}}
    names = frozenset(task["source_names"])
    watcher = Watcher(Path(task["cache"]), names, kill_at=task["kill_at"])
    try:
        _build(task, report, watcher)
    except BaseException as error:  # noqa: BLE001 - a plugin's code; the report tells of it
        report["error"] = {
            "type": type(error).__name__,
            "build_error": isinstance(error, BuildError),
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
    report["stray_sources"] = watcher.stray_sources
    target = Path(task["report"])
    target.with_suffix(".part").write_text(json.dumps(report), encoding="utf-8")
    target.with_suffix(".part").replace(target)


def _enter(task: dict[str, Any]) -> None:
    if hasattr(os, "setsid"):
        os.setsid()
    os.chdir(task["cwd"])
    os.environ.clear()
    os.environ.update(task["env"])
    sys.path[:] = task["sys_path"]
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "stdout", 0), (2, "stderr", 0)):
        path = task.get(name, name)
        opened = os.open(path, flags or os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)


def _build(task: dict[str, Any], report: dict[str, Any], watcher: Watcher) -> None:
    import torch

    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.data import Definition, Solution

    definition = Definition.model_validate(task["definition"])
    solution = Solution.model_validate(task["solution"])
    arguments = torch.load(task["arguments"], weights_only=True)
    _meet(task["barrier"])
    before = process_state()
    meta_path = [type(finder).__name__ for finder in sys.meta_path]
    watcher.start()
    registry = BuilderRegistry((import_string(task["factory"])(),))
    if task["compile_first"]:
        registry.compile(definition, solution)
        report["commands"]["compile"] = _builds(watcher)
    runnable = registry.build(definition, solution)
    report["commands"]["build"] = _builds(watcher)
    report["changes"] = changes(before, process_state())
    sys.stdout.flush()
    report["stdout"] = os.fstat(1).st_size
    runnable.call_destination_passing(*arguments)
    inputs = len(definition.inputs)
    torch.save([tensor.cpu() for tensor in arguments[inputs:]], task["outputs"])
    with suppress(Exception):  # test_cleaning_up reports it
        runnable.cleanup()
    after = [type(finder).__name__ for finder in sys.meta_path]
    report["changes"] |= changes({"sys.meta_path": str(meta_path)}, {"sys.meta_path": str(after)})


def _builds(watcher: Watcher) -> list[list[str]]:
    return [command for command in watcher.take_commands() if is_compiler_run(command)]


def _meet(barrier: Optional[dict[str, Any]]) -> None:
    """Wait for the other processes, so that all build at the same time."""
    if barrier is None:
        return
    folder = Path(barrier["folder"])
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + _BARRIER_S
    while len(list(folder.iterdir())) < barrier["parties"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the other process did not come within {_BARRIER_S:g} s")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
