"""Runs ``fib`` again and again in processes forked from one that has all but torch imported.

Each is a process like any other, with streams, limits and an exit code of its own, and starts in
milliseconds. Its standard input has a request for each, as one line of JSON.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import resource
import struct
import subprocess
import sys
import traceback
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_PRELOADED = ("flashinfer_bench.cli", "flashinfer_bench.data", "fib_datasets.commands")
_CAPABILITIES = 0x20080522, 0  # version 3, of this process


class Ended(NamedTuple):
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str
    torch: bool
    """Whether it imported torch."""


class Starter:
    """The process that all others are forked from."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fib(self, *args: str, cwd: Path, env: dict[str, str], **limits: Any) -> Ended:
        """Run a command line.

        Limits are `file_size`, of files that are written; `powerless`, root without the rights of
        root; and `hidden`, modules that cannot be imported.
        """
        request = {"args": args, "cwd": str(cwd), "env": env, **limits}
        assert self._process.stdin and self._process.stdout  # noqa: PT018
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return Ended(*json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def _serve() -> None:
    for package in map(importlib.import_module, _PRELOADED):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for entry in entry_points(group="flashinfer_bench.plugins"):
        importlib.import_module(entry.module)
    importlib.import_module("flashinfer_bench.plugins").reset_default_catalog()
    assert "torch" not in sys.modules
    gc.freeze()
    for line in iter(sys.stdin.readline, ""):
        # Pipes, which have no limit of size, and hold all that is printed.
        pipes = [os.pipe() for _ in range(3)]
        for ours, _ in pipes:
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 1 << 20)
            os.set_blocking(ours, False)
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line), *(theirs for _, theirs in pipes))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for _, theirs in pipes:
            os.write(theirs, b".")  # so that there is something to read
        told = [os.read(ours, 1 << 20)[:-1].decode("utf-8", "replace") for ours, _ in pipes]
        for number in (number for pipe in pipes for number in pipe):
            os.close(number)
        print(json.dumps([code, *told[:2], bool(told[2])]), flush=True)


def _run(request: dict[str, Any], out: int, err: int, told: int) -> None:
    for number, given in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(given, number)
    code = 1
    try:
        _become(request)
        from flashinfer_bench.cli.main import main

        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - as an interpreter shows it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.modules.get("torch"):
        os.write(told, b"torch")
    os._exit(code)


def _become(request: dict[str, Any]) -> None:
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    sys.argv[:] = ["fib", *request["args"]]
    for name in request.get("hidden", ()):
        for each in [*sys.modules]:
            if each.startswith(("flashinfer_bench", "fib_", name)):
                del sys.modules[each]
        sys.modules[name] = None  # type: ignore[assignment]
    if size := request.get("file_size"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    if request.get("powerless"):
        assert ctypes.CDLL(None).capset(struct.pack("Ii", *_CAPABILITIES), bytes(24)) == 0


if __name__ == "__main__":
    _serve()
