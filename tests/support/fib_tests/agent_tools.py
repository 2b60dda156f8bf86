"""A dataset, and programs that stand in for ncu and compute-sanitizer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from fib_tests.scaled_add import DEFINITION
from fib_tests.serving import NAME, UUIDS, add_solution, solution, workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_REPLACES = (
    "import json, os\n\ndef run(x, y, scale):\n"
    "    with open('target.json', 'w') as file:\n"
    "        json.dump({{'stage': 'done'}}, file)\n"
    "    os.unlink('outcome.json')\n    {}\n    os._exit(0)\n"
)
DONE = '{"stage": "done"}'
RAISED = '{"stage": "call", "kind": "ValueError", "message": "not today", "log": "Traceback"}'
SOLUTIONS = {
    "good": None,
    "raises": "def run(x, y, scale):\n    raise ValueError('not today')\n",
    "no_syntax": "def run(x, y, scale:\n",
    "dies": "import os\n\ndef run(x, y, scale):\n    os.kill(os.getpid(), 9)\n",
    "liar": (
        "import os\nfrom pathlib import Path\n\ndef run(x, y, scale):\n"
        "    for place in ('outcome.json', '../sandbox.json'):\n"
        "        try:\n            Path(place).write_text('[' * 100000)\n"
        "        except OSError:\n            pass\n"
        "    os._exit(0)\n"
    ),
    "pipe": _REPLACES.format("os.mkfifo('outcome.json')"),
    "folder": _REPLACES.format("os.mkdir('outcome.json')"),
    "deep": (
        "import os\n\ndef run(x, y, scale):\n"
        "    for _ in range(600):\n        os.mkdir('deep')\n        os.chdir('deep')\n"
        "    return x + y * scale\n"
    ),
}


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One definition with good and bad solutions."""
    root = tmp_path / "dataset"
    lines = [json.dumps({"definition": NAME, "workload": workload(one)}) for one in UUIDS]
    for folder, text in (("definitions", json.dumps(DEFINITION)), ("workloads", "\n".join(lines))):
        path = root / folder / "op" / f"{NAME}.{'json' if folder == 'definitions' else 'jsonl'}"
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n", encoding="utf-8")
    for name, source in SOLUTIONS.items():
        add_solution(root, solution(name, source))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return root


@pytest.fixture
def program(tmp_path: Path) -> Callable[[Path], str]:
    """Makes a program of a Python script, and returns its path."""

    def make(script: Path) -> str:
        path = tmp_path / script.stem
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
        path.chmod(0o755)
        return str(path)

    return make
