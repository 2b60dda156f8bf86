"""Python programs in processes forked from one that has torch and the package imported already.

`run` and `Popen` are as those of `subprocess`, without the seconds that a new interpreter takes to
import torch, and scripts get the same by `python`. What a program imports first is not its own;
tests of that start interpreters.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib.util
import json
import os
import pkgutil
import random
import re
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_START = "import sys; sys.path[0] = sys.argv.pop(); from fib_tests import forked; forked.main()()"
_ADDRESS = "TESTS_FORK_FROM"  # a variable, for processes of processes
_REQUEST_BYTES = 1024
_SUPPORT = Path(__file__).parents[1]
CAN_FORK = sys.platform == "linux" and importlib.util.find_spec("torch") is not None


class Popen:
    """A process, as one of `subprocess`."""

    def __init__(
        self,
        args: Sequence[Any],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        cwd: Any = None,
        env: Optional[Mapping[str, str]] = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        assert args[0] == sys.executable, args
        self.args = args
        self.returncode: Optional[int] = None
        self._lock = threading.Lock()
        request = {
            "args": [*map(str, args)],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "fds": [*pass_fds],
            "session": start_new_session,
        }
        with contextlib.ExitStack() as stack:
            order = stack.enter_context(tempfile.TemporaryFile())
            order.write(json.dumps(request).encode())
            order.seek(0)
            (given, self.stdin), (out, self.stdout), (err, self.stderr) = (
                _ends(stack, number, stream, "" if text else "b")
                for number, stream in enumerate((stdin, stdout, stderr))
            )
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.connect(_address())
            numbers = [order.fileno(), given, out, err, *pass_fds]
            socket.send_fds(self._socket, [b"go"], numbers)
        self.pid = int(self._socket.recv(_REQUEST_BYTES))

    def poll(self) -> Optional[int]:
        """Return how it ended, if it has."""
        return self._look(0)

    def wait(self, timeout: Optional[float] = None) -> int:
        """Wait for its end."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _look(self, timeout: Optional[float]) -> Optional[int]:
        with self._lock:
            if self.returncode is None and select.select([self._socket], [], [], timeout)[0]:
                told = self._socket.recv(_REQUEST_BYTES)
                self.returncode = int(told) if told else -signal.SIGKILL
                self._socket.close()
            return self.returncode

    def communicate(self, input: Any = None, timeout: Optional[float] = None) -> tuple[Any, Any]:
        """Write to it, read to the end what it writes, and wait for that of the process."""
        with self, ThreadPoolExecutor(2) as pool:
            streams = [pool.submit(each.read) for each in (self.stdout, self.stderr) if each]
            if self.stdin is not None:
                if input:
                    self.stdin.write(input)
                self.stdin.close()
            try:
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
            read = [each.result() for each in streams]
        return (read.pop(0) if self.stdout else None), (read.pop() if self.stderr else None)

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, *error: object) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                each.close()
        self.wait()


def _ends(
    stack: contextlib.ExitStack, number: int, stream: Any, mode: str
) -> tuple[int, Optional[IO[Any]]]:
    """Return what the process gets as one of its streams, and what this one gets of a pipe."""
    if stream == subprocess.PIPE:
        theirs, ours = os.pipe() if number == 0 else reversed(os.pipe())
        stack.callback(os.close, theirs)
        return theirs, os.fdopen(ours, ("r" if number else "w") + mode)
    if stream == subprocess.DEVNULL:
        return stack.enter_context(Path(os.devnull).open("r+b")).fileno(), None
    if stream is None:
        return number, None
    return (stream if isinstance(stream, int) else stream.fileno()), None


if not CAN_FORK:
    Popen = subprocess.Popen  # type: ignore[misc, assignment]
SUBPROCESS = types.SimpleNamespace(**{**vars(subprocess), "Popen": Popen})


def run(
    args: Sequence[Any],
    *,
    input: Optional[str] = None,
    timeout: Optional[float] = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` with pipes and text."""
    known = {"PYTHONPATH", *os.environ}
    of_interpreters = [name for name in {*options.get("env", ())} - known if name[:6] == "PYTHON"]
    ours = CAN_FORK and args[0] == sys.executable
    if not ours or "preexec_fn" in options or of_interpreters:
        pipes = {"capture_output": True, "text": True, "timeout": timeout, "check": check}
        return subprocess.run(args, input=input, **pipes, **options)
    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write((input or "").encode())
        given.seek(0)
        process = Popen(args, stdin=given, stdout=out, stderr=err, **options)
        try:
            process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        shown = [os.pread(one.fileno(), 1 << 30, 0).decode(errors="replace") for one in (out, err)]
    done = subprocess.CompletedProcess(args, process.wait(), *shown)
    if check:
        done.check_returncode()
    return done


_LAUNCHER = """
import os, sys

sys.path.insert(0, {support!r})
os.environ[{variable!r}] = {address!r}
from fib_tests import forked

sys.exit(forked.Popen([sys.executable, *sys.argv[1:]]).wait() % 256)
"""


def python(folder: Path) -> Path:
    """Make a program for scripts to use as their Python: what it is told to run is forked."""
    if not CAN_FORK:
        return Path(sys.executable)
    values = {"support": str(_SUPPORT), "variable": _ADDRESS, "address": _address()}
    command = shlex.join([sys.executable, "-c", _LAUNCHER.format(**values)])
    made = folder / "forking-python"
    made.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    made.chmod(0o755)
    return made


_ENVIRONMENT = dict(os.environ)  # without what single tests set
_server: Optional[subprocess.Popen[bytes]] = None


def _address() -> str:
    """Return where requests go; start what serves them if there is none yet."""
    global _server
    if _ADDRESS not in os.environ:
        folder = tempfile.mkdtemp(prefix="fib-nursery-")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen(100)
            os.environ[_ADDRESS] = f"{folder}/socket"
            number, support = listener.fileno(), str(_SUPPORT)
            _server = subprocess.Popen(
                [sys.executable, "-c", _START, str(number), support],
                stdin=subprocess.PIPE,
                env={**_ENVIRONMENT, _ADDRESS: os.environ[_ADDRESS]},
                pass_fds=[number],
            )
    return os.environ[_ADDRESS]


def end() -> None:
    """End what serves requests, if it was started here."""
    if _server is not None and _server.stdin is not None:
        shutil.rmtree(Path(os.environ.pop(_ADDRESS)).parent, ignore_errors=True)
        _server.stdin.close()
        _server.wait()


# ------------------------------------------------------------------ the process that is forked


def main() -> Callable[[], None]:
    """Serve until the input ends; return, in each child, what it is to do."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]
    atexit.register(_leave)  # before all that others register, so that it is called last
    for module in _modules():
        importlib.import_module(module)
    sys.modules["flashinfer_bench.bench.executors.fork"].subprocess = SUBPROCESS
    sys.modules.pop("__main__")
    gc.collect()
    gc.freeze()
    children: dict[int, tuple[int, socket.socket]] = {}
    poller = select.poll()
    for number in (0, listener.fileno()):
        poller.register(number, select.POLLIN)
    while True:
        for number, _ in poller.poll():
            if number == 0:
                os._exit(0)
            if number != listener.fileno():
                _bury(number, *children.pop(number))
                poller.unregister(number)
                continue
            client = listener.accept()[0]
            _, numbers, *_ = socket.recv_fds(client, _REQUEST_BYTES, 100)
            pid = os.fork()
            if pid == 0:
                for each in (listener, client, *(one for _, one in children.values())):
                    each.close()
                for each in children:
                    os.close(each)
                return _become(numbers)
            for each in numbers:
                os.close(each)
            with contextlib.suppress(OSError):
                client.send(str(pid).encode())
            watched = os.pidfd_open(pid)
            children[watched] = pid, client
            poller.register(watched, select.POLLIN)


def _modules() -> Iterator[str]:
    import flashinfer_bench

    yield from ("torch", "numpy", "safetensors.torch", "torch.utils.cpp_extension", "rich.table")
    yield from (each.module for each in entry_points(group="flashinfer_bench.plugins"))
    for each in pkgutil.walk_packages(flashinfer_bench.__path__, "flashinfer_bench."):
        # Options of `fib run` are those of the plugins that are there when it is imported.
        if not re.search(r"__main__|cli\.run", each.name):
            yield each.name


def _bury(watched: int, pid: int, client: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with client, contextlib.suppress(OSError):
        client.send(str(code).encode())
    os.close(watched)


_code = 0


def _do(program: Callable[[], Any]) -> None:
    global _code
    try:
        program()
    except SystemExit as error:
        _code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except BaseException as error:
        _code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        raise


def _leave() -> None:
    """End without the destructors of torch, which take longer than most programs."""
    sys.stdout.flush()
    sys.stderr.flush()
    if _code < 0:
        signal.signal(-_code, signal.SIG_DFL)
        os.kill(os.getpid(), -_code)
    os._exit(_code)


def _become(numbers: list[int]) -> Callable[[], None]:
    """Make this process what the request wants."""
    with os.fdopen(numbers[0], "rb") as order:
        request = json.load(order)
    if request["session"]:
        os.setsid()
    wanted = dict(zip((0, 1, 2, *request["fds"]), numbers[1:], strict=True))
    above = max(*wanted, *numbers) + 1
    for number, given in wanted.items():  # out of the way of each other first
        wanted[number] = fcntl.fcntl(given, fcntl.F_DUPFD, above)
        os.close(given)
    for number, given in wanted.items():
        os.dup2(given, number)
        os.close(given)
    os.chdir(request["cwd"])
    here = {_ADDRESS: os.environ[_ADDRESS]}
    os.environ.clear()
    os.environ.update(request["env"], **here)
    random.seed()
    return partial(_do, _program(request["args"][1:]))


def _program(args: list[str]) -> Callable[[], None]:
    """Do with a command line what the interpreter does."""
    while args[0] == "-W":
        sys.warnoptions.append(args[1])
        warnings.filterwarnings(args[1])
        del args[:2]
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
    if args[0] == "-m":
        sys.argv[:] = args[1:]
        sys.path.insert(0, str(Path.cwd()))
        return partial(runpy.run_module, args[1], run_name="__main__", alter_sys=True)
    if args[0] != "-c":
        sys.argv[:] = args
        sys.path.insert(0, str(Path(args[0]).parent.absolute()))
        return partial(runpy.run_path, args[0], run_name="__main__")
    sys.argv[:] = ["-c", *args[2:]]
    sys.path.insert(0, "")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    return partial(exec, compile(args[1], "<string>", "exec"), module.__dict__)
