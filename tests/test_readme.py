"""The README keeps its promises; `test_docs` asks of it what is asked of every page."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from fib_tests import forked

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_length() -> None:
    assert 90 <= README.count("\n") <= 160


def test_every_nox_session_it_names_exists() -> None:
    named = set(re.findall(r"nox -s ([a-z]+)", README))
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert named >= {"demo", "tests"}
    assert [name for name in named if f"def {name}(" not in source] == []


@pytest.mark.timeout(420)
def test_its_python_example_runs(tmp_path: Path, build_cache: str) -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert examples
    shutil.copytree(ROOT / "examples" / "sample-dataset", tmp_path / "dataset")
    for example in examples:
        # It compiles some solutions, which takes minutes where much else goes on.
        env = {**os.environ, "FIB_CACHE_PATH": build_cache}
        command = [sys.executable, "-c", example]
        done = forked.run(command, cwd=tmp_path, env=env, timeout=400)
        assert done.returncode == 0, done.stderr
