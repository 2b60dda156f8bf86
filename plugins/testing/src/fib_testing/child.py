"""The code in child processes of the kit, which observes effects on the process and the disk.

As a script it reads a request from standard input, and imports a plugin's module, calls a probe or
constructs something; the report is the last line of standard output. It imports neither the rest of
the kit nor pytest. `run_task`, the target of `fib_testing.children`, builds and calls a solution.
"""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

HEAVY = ("torch", "numpy", "triton", "tvm_ffi", "tvm", "tilelang", "flashinfer", "jax", "cupy")
"""Libraries that take long to import, and may create a device context."""

_BARRIER_S = 60.0
_FOLDERS_OF_USERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_DRIVERS = frozenset({"ninja", "make", "cmake", "meson", "cargo", "bazel"})
_COMPILING = frozenset({"-c", "-o", "-shared", "--shared", "-fPIC"})
_ASKING = frozenset({"--version", "-t", "--help", "-version"})
# Audit events of starting programs, and the index of the command line in their arguments.
_STARTS = {"subprocess.Popen": 1, "os.system": 0, "os.exec": 1, "os.posix_spawn": 1}


# ------------------------------------------------------------- the state of a process


def process_state() -> dict[str, str]:
    """Return process state that a library should not change, as text by name."""
    umask = os.umask(0o077)
    os.umask(umask)
    root = logging.getLogger()
    state = {
        "the working directory": os.getcwd(),  # noqa: PTH109 - the text, as it is
        "sys.path": str(sys.path),
        "sys.meta_path": str([type(finder).__name__ for finder in sys.meta_path]),
        "the umask": oct(umask),
        "sys.stdout": str(id(sys.stdout)),
        "sys.stderr": str(id(sys.stderr)),
        "sys.excepthook": str(id(sys.excepthook)),
        "the handlers of the root logger": str([type(handler) for handler in root.handlers]),
        "the level of the root logger": str(root.level),
        "the warning filters": str(warnings.filters),
        "the recursion limit": str(sys.getrecursionlimit()),
    }
    state |= {f"env:{name}": value for name, value in os.environ.items()}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        text = getattr(handler, "__qualname__", None) or str(handler)
        state[f"signal:{getattr(number, 'name', number)}"] = text
    torch: Optional[Any] = sys.modules.get("torch")
    if torch is not None:
        state |= {
            "torch's default dtype": str(torch.get_default_dtype()),
            "torch's gradient mode": str(torch.is_grad_enabled()),
            "torch's number of threads": str(torch.get_num_threads()),
            "torch's random state": str(hash(torch.get_rng_state().numpy().tobytes())),
        }
    return state


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return what differs between two results of `process_state`, as ``name: old -> new``."""
    return {
        name: f"{before.get(name, 'not set')} -> {after.get(name, 'not set')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }


# -------------------------------------------------- a plugin's module, and its probes


def main() -> None:
    """Handle the request, and report effects on this process."""
    request = json.loads(sys.stdin.read())
    sys.path[:] = request["sys_path"]
    from flashinfer_bench.plugins import import_string
    from flashinfer_bench.plugins.registry import Probe

    def answers(path: str) -> list[dict[str, Any]]:
        probes = [Probe(path, request["timeout_s"]) for _ in range(3)]
        return [{**asdict(p.answer()), "raised": p.failure is not None} for p in probes]

    steps: dict[str, Callable[[str], object]] = {
        "plugin": lambda module: importlib.import_module(module.split(":")[0]),
        "probe": answers,
        "construct": lambda path: import_string(path)(),
    }
    heavy = {*HEAVY, *request["libraries"]}
    before, loaded = process_state(), heavy & sys.modules.keys()
    answer, error = None, ""
    try:
        answer = steps[request["what"]](request["path"])
    except BaseException:  # noqa: BLE001 - a plugin's code; the report tells of it
        error = traceback.format_exc()
    report = {
        "error": error,
        "answer": answer if isinstance(answer, list) else None,
        "changes": changes(before, process_state()),
        "heavy": sorted((heavy & sys.modules.keys()) - loaded),
    }
    sys.stdout.write("\n" + json.dumps(report) + "\n")


# -------------------------------------------------------------------------- a build


class Watcher:
    """Records which programs are started and which files are written outside of the cache.

    Parameters
    ----------
    cache : Path
        The only folder to write to.
    source_names : collection of str
        File names of the solution's sources.
    kill_at : int
        Kill the process, with its group, before it starts this compiler, from 1; 0: never.
    compilers : sequence of str
        Names of further compilers; see `is_compiler_run`.

    Attributes
    ----------
    commands : list of list of str
        Gets the command lines of compilers.
    programs : list of str
        Names of other programs that were started.
    stray_sources : list of str
        Files with names of sources that were opened for writing elsewhere.
    """

    def __init__(
        self, cache: Path, source_names: Collection[str], kill_at: int, compilers: Collection[str]
    ) -> None:
        self._cache = f"{os.path.realpath(cache)}{os.sep}"
        self._names, self._left, self._compilers = source_names, kill_at, compilers
        self.commands: list[list[str]] = []
        self.programs: list[str] = []
        self.stray_sources: list[str] = []

    def start(self) -> None:
        """Start recording, which cannot be stopped."""
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._opened(arguments[0], arguments[2])
        elif event in _STARTS:
            given = arguments[_STARTS[event]]
            text = isinstance(given, (str, bytes))
            words = os.fsdecode(given).split() if text else [os.fsdecode(each) for each in given]
            if not is_compiler_run(words, self._compilers):
                self.programs += [Path(word).name for word in words[:1]]
                return
            self.commands.append(words)
            self._left -= 1
            if self._left == 0:
                os.killpg(0, signal.SIGKILL) if hasattr(os, "killpg") else os._exit(1)

    def _opened(self, path: Any, flags: Any) -> None:
        if isinstance(path, int) or not (isinstance(flags, int) and flags & _WRITING):
            return
        text = os.fsdecode(path)
        if os.path.basename(text) not in self._names:  # noqa: PTH119 - no objects in an audit hook
            return
        if not os.path.realpath(text).startswith(self._cache):
            self.stray_sources.append(text)


def is_compiler_run(command: list[str], compilers: Collection[str] = ()) -> bool:
    """Return whether a command line builds something, rather than asking a tool for its version.

    Recognises options such as ``-c`` and ``-o``, build tools such as ``ninja``, and `compilers`.
    """
    if not command:
        return False
    program, known = Path(command[0]).name, _DRIVERS.union(compilers)
    if program.startswith("python") or Path(command[0]) == Path(sys.executable):
        return any(part in known for part in command[1:])
    if program in known:
        # -v asks make for its version, and makes other tools verbose.
        return not _ASKING & set(command[1:]) and command[1:] != ["-v"]
    return bool(_COMPILING & set(command[1:]))


def run_task(task: Any, folder: Path, barrier: Any) -> None:
    """Build and call a solution as a `ChildTask` says, and write a report into `folder`."""
    _enter(task, folder)
    from flashinfer_bench.errors import BuildError

    report: dict[str, Any] = {"error": None, "commands": {}, "changes": {}}
    names = frozenset(Path(source.path).name for source in task.solution.sources)
    watcher = Watcher(task.cache, names, task.kill_at, task.compilers)
    try:
        _build(task, folder, barrier, report, watcher)
    except BaseException as error:  # noqa: BLE001 - a plugin's code; the report tells of it
        report["error"] = {
            "type": type(error).__name__,
            "build_error": isinstance(error, BuildError),
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
    report |= {"stray_sources": watcher.stray_sources, "programs": watcher.programs}
    (folder / "report").write_text(json.dumps(report), encoding="utf-8")
    # Like a normal exit, but without unloading torch, which takes longest.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _enter(task: Any, folder: Path) -> None:
    """Set up the process like that of the tests, but with separate folders and its own group."""
    if hasattr(os, "setsid"):
        os.setsid()
    places = {name: folder / name for name in ("cwd", "HOME", "TMPDIR")}
    for place in places.values():
        place.mkdir()
    os.chdir(places.pop("cwd"))
    os.environ.clear()
    os.environ.update({k: v for k, v in task.env.items() if k not in _FOLDERS_OF_USERS})
    os.environ.update({name: str(place) for name, place in places.items()})
    # The driver's cache, which builders cannot control, is not in the home folder.
    os.environ.update(CUDA_CACHE_PATH=str(folder / "driver"), FIB_CACHE_PATH=str(task.cache))
    sys.path[:] = task.sys_path
    for number, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)


def _build(task: Any, folder: Path, barrier: Any, report: dict[str, Any], watcher: Watcher) -> None:
    import torch

    from flashinfer_bench.compile import BuilderRegistry
    from flashinfer_bench.plugins import import_string

    arguments = torch.load(folder / "arguments", weights_only=True)
    if barrier is not None:
        barrier.wait(_BARRIER_S)
    before = process_state()
    watcher.start()
    registry = BuilderRegistry((import_string(task.factory)(),))
    report["commands"]["compile"] = watcher.commands
    registry.compile(task.definition, task.solution)
    report["commands"]["build"] = watcher.commands = []
    runnable = registry.build(task.definition, task.solution)
    built = process_state()
    sys.stdout.flush()
    report["stdout"] = os.fstat(1).st_size
    runnable.call_destination_passing(*arguments)
    inputs = len(task.definition.inputs)
    torch.save([tensor.cpu() for tensor in arguments[inputs:]], folder / "outputs")
    with suppress(Exception):  # test_cleaning_up reports it
        runnable.cleanup()
    # An import finder may exist as long as the build.
    built["sys.meta_path"] = process_state()["sys.meta_path"]
    report["changes"] = changes(before, built)


if __name__ == "__main__":
    main()
