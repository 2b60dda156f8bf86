"""Run compilers and linkers, and capture their output."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

from fib_native_toolkit.environment import cuda_architectures, readable_places
from flashinfer_bench.compile.builder import build_failed, first_error
from flashinfer_bench.compile.cache import tool_guard
from flashinfer_bench.errors import CapabilityError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import IO

COMPILER_LOG = "compiler.log"
"""Name of the file in a build's folder with the complete output of its tools."""

_HEAD_BYTES = 4 << 20
_TAIL_BYTES = 1 << 20
_CHUNK = 1 << 16
_PATIENCE_S = 2.0  # for the remaining output of an ended process
_DISK_FULL = re.compile(
    r"(No space left on device|Disk quota exceeded|File too large)['\").\]]*\s*$"
    r"|^[^:]+: (fatal|internal compiler) error: File size limit exceeded"
)
# Messages of GCC, Clang and nvcc when the system has killed one of their processes.
_KILLED = re.compile(
    r"^[^:\s]+: (fatal error: Killed signal terminated program|error: unable to execute command: "
    r"Killed)|^nvcc error\s*: '[^']+' died due to signal 9",
    re.MULTILINE,
)
# Sources can make their compiler print anything, so quoted source text is not evidence of a full
# disk.
_WORDED_BY_THE_SOURCE = re.compile(
    r"#\s*error|#\s*pragma|static.assert|attribute|\bwarning\b|:\d+: Error:"
)


@dataclass(frozen=True)
class ToolOutput:
    """The result of running a tool.

    Parameters
    ----------
    returncode : int
        Its exit status; if negative, the number of the signal that killed it.
    output : str
        Standard output and error, in the order of arrival.
    """

    returncode: int
    output: str


def run_tool(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Optional[Mapping[str, str]] = None,
    log: Optional[Path] = None,
    timeout_s: Optional[float] = None,
) -> ToolOutput:
    """Run a compiler, linker or similar tool to completion.

    The tool gets no input and an English locale. If its output exceeds 5 MiB, the middle is
    dropped.

    Parameters
    ----------
    command : sequence of str or Path
        Program and arguments; no shell is involved.
    cwd : Path
        Working directory.
    env : mapping, optional
        Environment variables to set in addition to this process's.
    log : Path, optional
        A file to which the command and its output are appended: ``folder / COMPILER_LOG``.
    timeout_s : float, optional
        Seconds after which it is killed; default: no limit.

    Returns
    -------
    ToolOutput
        Also returned if the tool failed: see `check_output`.

    Raises
    ------
    CapabilityError
        If it cannot be started, or does not end in time.
    StorageError
        If the log is not writable.
    """
    arguments = [str(part) for part in command]
    try:
        with tool_guard()(cwd, readable_places(arguments[0])) as before_exec:
            process = subprocess.Popen(
                arguments,
                cwd=cwd,
                env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=before_exec,
            )
        with process:
            try:
                assert process.stdout is not None
                output = _Output(process.stdout)
                process.wait(timeout_s)
                text = output.text()
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired:
        raise CapabilityError(
            f"{shlex.join(arguments[:4])} did not answer within {timeout_s:g} s"
        ) from None
    # ValueError: a NUL in an argument; SubprocessError: the guard failed in the child.
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CapabilityError(f"{arguments[0]} cannot be started: {error}") from error
    if log is not None:
        try:
            with log.open("a", encoding="utf-8") as stream:
                stream.write(f"$ {shlex.join(arguments)}\n{text}".rstrip("\n") + "\n")
        except OSError as error:
            raise StorageError(f"{log}: cannot be written: {error}") from error
    return ToolOutput(process.returncode, text)


class _Output(threading.Thread):
    """Output of a process, read in a thread so that leftover children cannot block the caller."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._head, self._tail, self._dropped = bytearray(), bytearray(), 0
        self.start()

    def run(self) -> None:
        """Read to the end."""
        with suppress(OSError, ValueError):  # closed by the reader
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                room = max(0, _HEAD_BYTES - len(self._head))
                self._head += chunk[:room]
                self._tail += chunk[room:]
                if len(self._tail) > 2 * _TAIL_BYTES:
                    self._dropped += len(self._tail) - _TAIL_BYTES
                    del self._tail[:-_TAIL_BYTES]

    def text(self) -> str:
        """Return the complete output; call it after the process has ended."""
        self.join(_PATIENCE_S)
        gap = f"\n[{self._dropped} bytes left out]\n" if self._dropped else ""
        return (self._head + gap.encode() + self._tail).decode("utf-8", "replace")


def check_output(
    solution: str, what: str, result: ToolOutput, *, hint: Optional[str] = None
) -> None:
    """Raise the appropriate error if the tool failed.

    Parameters
    ----------
    solution : str
        Name of the solution.
    what : str
        The step: ``"nvcc"``, ``"linking"``, …
    result : ToolOutput
        The result of the tool.
    hint : str, optional
        What to do next if the solution is at fault.

    Raises
    ------
    BuildError
        If it failed: the first error of the output, with the complete output as its log.
    StorageError
        If it failed because the disk is full.
    CapabilityError
        If it was killed, as when memory runs out, or the CUDA toolkit is incompatible with the GPU
        or the C++ compiler.
    """
    if result.returncode == 0:
        return
    if result.returncode == -getattr(signal, "SIGKILL", 0) or _KILLED.search(result.output):
        raise CapabilityError(
            f"solution {solution!r}: {what} was killed: did the machine run out of memory?",
            hint="Build fewer solutions at a time: 'fib build --jobs 1', 'fib run --build-jobs 1'.",
        )
    lines = (line.strip() for line in result.output.splitlines() if _DISK_FULL.search(line))
    full = next((line for line in lines if not _WORDED_BY_THE_SOURCE.search(line)), "")
    if full or result.returncode == -getattr(signal, "SIGXFSZ", 0):
        raise StorageError(
            f"solution {solution!r}: {what} ran out of disk space: {full or 'file too large'}",
            hint="Make room in FIB_CACHE_PATH and TMPDIR: 'fib cache prune' removes old builds.",
        )
    unsupported = unsupported_by_toolkit(result.output)
    if unsupported:
        raise CapabilityError(
            f"solution {solution!r}: {what} does not work on this machine: {unsupported}",
            hint="Use another CUDA toolkit (CUDA_HOME), another compiler for C++ (NVCC_CCBIN, CXX) "
            "or other architectures (FIB_CUDA_ARCH_LIST).",
        )
    log = result.output
    if result.returncode < 0:
        log = f"{log.rstrip()}\nerror: {what} was killed by signal {-result.returncode}\n".lstrip()
    elif not first_error(log):
        log = f"exit status {result.returncode}\n"
    raise build_failed(solution, what, log, hint=hint)


_UNKNOWN_ARCHITECTURE = re.compile(
    r"^nvcc fatal\s*: Unsupported gpu architecture '(?:compute|sm|lto)_(\w+)'"
)
_WRONG_COMPILER = re.compile(
    r"\bhost_config\.h\W.*#error.*\bunsupported (GNU|clang|Microsoft Visual Studio) version"
)


def unsupported_by_toolkit(output: str) -> str:
    """Return the line in which nvcc reports that it is incompatible with this machine.

    Parameters
    ----------
    output : str
        The output of nvcc.

    Returns
    -------
    str
        Says that nvcc does not support an architecture of `cuda_architectures`, or the C++
        compiler. Empty otherwise: an unsupported architecture named only by the solution is the
        solution's error.
    """
    try:
        # In nvcc's notation: 90a.
        chosen = {name.partition("+")[0].replace(".", "") for name in cuda_architectures()}
    except (CapabilityError, ValueError):
        chosen = set()
    for line in output.splitlines():
        found = _UNKNOWN_ARCHITECTURE.search(line)
        if _WRONG_COMPILER.search(line) or (found and found.group(1) in chosen):
            return line.strip()
    return ""
