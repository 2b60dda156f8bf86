from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from flashinfer_bench.bench.executors import launch

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import os, sys
def main(arguments):
    print(arguments)
    print(sys.argv)
    print(sys.path)
    print(os.environ["FIB_CACHE_PATH"], os.environ["TMPDIR"], os.environ.get("FIB_STRICT_PLUGINS"))
"""


def run(tmp_path: Path, *arguments: object) -> list[str]:
    done = subprocess.run(
        launch.command("launched_module", *arguments),
        env=launch.environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.fixture
def module(monkeypatch, tmp_path):
    """A module that only this process's path leads to."""
    folder = tmp_path / "modules with spaces"
    folder.mkdir()
    (folder / "launched_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)


def test_modules_in_the_folder_it_starts_in_are_not_found(module, tmp_path):
    started_in = tmp_path / "started_in"
    started_in.mkdir()
    for name in ("importlib", "launched_module", "sitecustomize"):
        (started_in / f"{name}.py").write_text("raise SystemExit('hijacked')\n")
    assert run(started_in, 1)[0] == "['1']"


def test_environment(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", "relative/cache")
    monkeypatch.setenv("FIB_STRICT_PLUGINS", "1")
    assert run(tmp_path)[3] == f"{tmp_path / 'relative/cache'} {tmp_path} 1"
