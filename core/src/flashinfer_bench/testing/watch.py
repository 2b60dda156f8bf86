"""Watching what code does to the process that it runs in, and to the disk.

Used in child processes of the kit, which end afterwards: an audit hook cannot be taken back.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, Optional

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_DRIVERS = frozenset({"ninja", "make", "cmake", "meson", "cargo", "bazel"})
_COMPILING = frozenset({"-c", "-o", "-shared", "--shared", "-fPIC"})
# Events that tell of programs, and which of their arguments is the command line.
_STARTS = {"subprocess.Popen": 1, "os.system": 0, "os.exec": 1, "os.posix_spawn": 1}
_ASKING = frozenset({"--version", "-t", "--help", "-version"})


class Watcher:
    """Notes which programs are started and which files are written outside of the cache.

    Parameters
    ----------
    cache : Path
        The folder that may be written to.
    source_names : frozenset of str
        File names of the solution's sources.
    kill_at : int
        Kill the process, with its group, before it starts that compiler, counted from 1; 0: never.

    Attributes
    ----------
    commands : list of list of str
        Every command line, since the last `take_commands`.
    stray_sources : list of str
        Files of a source's name that were opened for writing elsewhere.
    """

    def __init__(self, cache: Path, source_names: frozenset[str], *, kill_at: int = 0) -> None:
        self._cache = f"{os.path.realpath(cache)}{os.sep}"
        self._names = source_names
        self._left = kill_at
        self.commands: list[list[str]] = []
        self.stray_sources: list[str] = []

    def start(self) -> None:
        """Begin to watch; there is no way back."""
        sys.addaudithook(self._event)

    def take_commands(self) -> list[list[str]]:
        """Return the command lines so far, and begin anew."""
        taken, self.commands = self.commands, []
        return taken

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._opened(arguments[0], arguments[2])
        elif event in _STARTS:
            self._started(_words(arguments[_STARTS[event]]))

    def _started(self, command: list[str]) -> None:
        self.commands.append(command)
        if self._left and is_compiler_run(command):
            self._left -= 1
            if not self._left:
                os.killpg(0, signal.SIGKILL) if hasattr(os, "killpg") else os._exit(1)

    def _opened(self, path: Any, flags: Any) -> None:
        if isinstance(path, int) or not (isinstance(flags, int) and flags & _WRITING):
            return
        text = os.fsdecode(path)
        if os.path.basename(text) not in self._names:  # noqa: PTH119 - no objects in an audit hook
            return
        if not os.path.realpath(text).startswith(self._cache):
            self.stray_sources.append(text)


def is_compiler_run(command: list[str]) -> bool:
    """Return whether a command line builds something, rather than asking a tool for its version.

    Parameters
    ----------
    command : list of str
        Program and arguments.
    """
    if not command:
        return False
    program = Path(command[0]).name
    if program.startswith("python") or Path(command[0]) == Path(sys.executable):
        return any(part in _DRIVERS for part in command[1:])
    if program in _DRIVERS:
        # To make, -v is a question; to the others, an order to tell more.
        return not _ASKING & set(command[1:]) and command[1:] != ["-v"]
    return bool(_COMPILING & set(command[1:]))


def _words(command: Any) -> list[str]:
    if isinstance(command, (str, bytes)):
        return os.fsdecode(command).split()
    return [os.fsdecode(part) for part in command]


def process_state() -> dict[str, str]:
    """Return what a library should leave alone, as text by the name of each thing."""
    state = {
        "the working directory": os.getcwd(),  # noqa: PTH109 - the text, as it is
        "sys.path": str(sys.path),
        "the umask": oct(_umask()),
        "sys.stdout": str(id(sys.stdout)),
        "sys.stderr": str(id(sys.stderr)),
        "sys.excepthook": str(id(sys.excepthook)),
        "the handlers of the root logger": str([type(h) for h in logging.getLogger().handlers]),
        "the level of the root logger": str(logging.getLogger().level),
        "the warning filters": str(warnings.filters),
        "the recursion limit": str(sys.getrecursionlimit()),
    }
    state |= {f"env:{name}": value for name, value in os.environ.items()}
    state |= {f"signal:{name}": handler for name, handler in _signals().items()}
    return state | _torch_state()


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return what differs between two results of `process_state`, as ``name: old -> new``."""
    names = sorted(before.keys() | after.keys())
    return {
        name: f"{before.get(name, 'not set')} -> {after.get(name, 'not set')}"
        for name in names
        if before.get(name) != after.get(name)
    }


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _signals() -> dict[str, str]:
    found = {}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        name = getattr(number, "name", str(number))
        found[name] = getattr(handler, "__qualname__", None) or str(handler)
    return found


def _torch_state() -> dict[str, str]:
    torch: Optional[Any] = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "torch's default dtype": str(torch.get_default_dtype()),
        "torch's gradient mode": str(torch.is_grad_enabled()),
        "torch's number of threads": str(torch.get_num_threads()),
        "torch's random state": str(hash(torch.get_rng_state().numpy().tobytes())),
    }


def files_below(root: Path) -> list[str]:
    """Return all files (and links) below `root`, relative to it, sorted."""
    found = []
    for folder, _, names in os.walk(root):
        found += [Path(folder, name).relative_to(root).as_posix() for name in names]
    return sorted(found)
