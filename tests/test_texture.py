"""The project's own rules of hygiene, checked on its own files. Those of size: `test_budgets`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_place_on_somebody_s_machine() -> None:
    machine = re.compile(rb"(?<![\w.])/(?:work|root|home)/[a-z]")
    hits = [
        str(p)
        for p in tracked_files()
        if p.suffix != ".safetensors" and machine.search(p.read_bytes())
    ]
    assert hits == []


def test_no_committed_file_is_large() -> None:
    assert [str(p) for p in tracked_files() if p.stat().st_size > 1_000_000] == []
