"""``fib plugins new --kind``: what it makes is a plugin in order, and its own test passes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flashinfer_bench.plugins import KINDS

OTHERS = [kind for kind in KINDS if kind != "builder"]


def test_every_kind_is_offered(fib):
    shown = fib("plugins", "new", "--help").stdout
    assert all(kind in " ".join(shown.split()) for kind in KINDS)


@pytest.mark.timeout(300)
def test_the_tests_of_new_plugins_pass(fib, tmp_path):
    for kind in OTHERS:
        result = fib("plugins", "new", "fresh", "--kind", kind, "--output", tmp_path)
        assert result.exit_code == 0, result.output
        folder = tmp_path / f"fib-{kind.replace('_', '-')}-fresh"
        assert result.stdout == f"{folder}\n"
    folders = sorted(tmp_path.glob("fib-*"))
    assert len(folders) == len(OTHERS)
    sources = [str(folder / "src") for folder in folders]
    path = os.pathsep.join([*sources, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(
        [*command, "--import-mode=importlib", *(str(folder) for folder in folders)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(OTHERS)} passed" in done.stdout


def test_what_is_there_is_not_replaced(fib, tmp_path):
    args = ("plugins", "new", "fresh", "--kind", "report", "--output", tmp_path)
    assert fib(*args).exit_code == 0
    again = fib(*args)
    assert again.exit_code == 2
    assert "exists" in again.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["x", "--kind", "tummer"], "available: builder"),
        (["run", "--kind", "command"], "the name 'run' is taken by flashinfer-bench-core"),
        (["Bad Name", "--kind", "timer"], "cannot be the name of a plugin"),
    ],
)
def test_mistakes(fib, tmp_path, args, words):
    result = fib("plugins", "new", *args, "--output", tmp_path)
    assert result.exit_code == 2
    assert words in result.stderr
