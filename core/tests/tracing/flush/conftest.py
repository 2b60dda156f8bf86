"""Programs that end in every way, with something left to write."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest

START = """
import os, signal, sys, threading, time
from pathlib import Path
from flashinfer_bench.tracing.shutdown import at_shutdown, flush_all
from flashinfer_bench.tracing.signals import held_back, install_signal_handlers

out = Path(sys.argv[1])
left = []

def flush():
    while left:
        with out.open("a") as file:
            file.write(f"{left.pop(0)}\\n")
"""


class Program:
    """Runs scripts whose first lines are those above, from a file, as spawning needs one."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder
        self.out = folder / "written"

    def start(self, script: str, *args: Any) -> subprocess.Popen[bytes]:
        path = self._folder / "program.py"
        path.write_text(START + dedent(script))
        command = [sys.executable, str(path), str(self.out), *map(str, args)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @staticmethod
    def finish(process: subprocess.Popen[bytes], code: int = 0) -> tuple[str, str]:
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, err.decode()
        return out.decode(), err.decode()

    def run(self, script: str, *args: Any, code: int = 0) -> tuple[str, str]:
        return self.finish(self.start(script, *args), code)

    def written(self) -> list[str]:
        return self.out.read_text().split() if self.out.exists() else []


@pytest.fixture
def program(tmp_path: Any) -> Program:
    return Program(tmp_path)
