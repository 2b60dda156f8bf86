"""Running ``fib``: in this process where that is enough, else with pipes or in a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fib_tests import forked
from fib_tests.dataset_maker import DatasetMaker

if TYPE_CHECKING:
    from pathlib import Path

FIB = [sys.executable, "-m", "flashinfer_bench"]


@pytest.fixture
def maker(tmp_path: Path) -> DatasetMaker:
    """Writes into an empty dataset."""
    return DatasetMaker(tmp_path / "dataset")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in ("FIB_LOG_LEVEL", "FIB_TRACEBACK", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # A test that forgets --local must not find the user's own dataset.
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-default-dataset"))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.fixture
def fib():
    """Runs a command line in this process: ``fib("report", "best", …) -> result``."""
    from flashinfer_bench.cli.main import app

    def run(*args: Any) -> Any:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return run


@pytest.fixture
def fib_process():
    """Runs a command line in a process of its own."""

    def run(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **options.pop("env", {})}
        command = [*FIB, *(str(arg) for arg in args)]
        return forked.run(command, timeout=100, env=environment, **options)

    return run


@pytest.fixture
def fib_terminal():
    """Runs a command line in a terminal of its own; returns the exit code and what was shown."""

    def run(*args: Any, env: Any = None, columns: int = 120) -> tuple[int, str]:
        command = [*FIB, *(str(arg) for arg in args)]
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # These would stand over the terminal's own size, and pytest-xdist sets one of them.
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        environment = {**inherited, "TERM": "xterm", **(env or {})}
        with subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment
        ) as process:
            os.close(other)
            shown = _read_all(main)
            os.close(main)
        return process.returncode, shown.replace("\r\n", "\n")

    return run


def _read_all(descriptor: int) -> str:
    shown = b""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # how Linux tells that the other end of a terminal is closed
            break
        if not piece:
            break
        shown += piece
    return shown.decode("utf-8", "replace")


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the tables of an output for programs, each as a list of rows by column."""
    found = []
    for part in text.rstrip("\n").split("\n\n"):
        header, *lines = (line.split("\t") for line in part.splitlines())
        found.append([dict(zip(header, line, strict=True)) for line in lines])
    return found


def rows(text: str) -> list[dict[str, str]]:
    """Return the only table of an output for programs, as a list of rows by column."""
    (table,) = tables(text)
    return table


class Terminal(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True
