"""The tutorial of the first kernel can be followed, from its first command to its last."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fib_tests import forked

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "your-first-kernel.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the page does, in less time.
OPTIONS = "--device cpu --iterations 5 --num-trials 1 --warmup-runs 1"
QUICKLY = f'fib() {{ if [ "$1" = run ]; then set -- "$@" {OPTIONS}; fi; '


def script(text):
    """Return a shell script that does what the page tells its reader to do."""
    parts = ["set -euo pipefail", QUICKLY + '"$PYTHON" -m flashinfer_bench "$@"; }']
    parts.append('python() { "$PYTHON" -W error "$@"; }')
    for number, found in enumerate(BLOCK.finditer(text)):
        language, block = found.groups()
        if language == "bash":
            parts.append(block)
        elif language in ("python", "json", "cpp"):
            before = text[: found.start()].rstrip()
            name = re.match(r"(?:#|//) (\S+)\n", block) or re.search(r"`(\S+\.json)` by:$", before)
            end = f"END_OF_BLOCK_{number}"
            parts += [f"test -e $(dirname {name[1]})", f"cat > {name[1]} <<'{end}'\n{block}{end}"]
    return "\n".join(parts)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.plugin("python", "tvm_ffi")
@pytest.mark.timeout(300)
def test_the_tutorial_can_be_followed(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FIB_")}
    variables = {
        "PYTHON": str(forked.python(tmp_path)),
        "FIB_APPLY_HELPER": "0",  # compiling it takes longer than all else
        "FIB_CACHE_PATH": str(tmp_path / "cache"),
        "FIB_LOCK_PATH": os.environ.get("FIB_LOCK_PATH", str(tmp_path / "locks")),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = ["bash", "-c", script(text)]
    done = forked.run(command, cwd=tmp_path, env={**inherited, **variables}, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert "Traceback" not in done.stderr
    assert done.stderr.count("0 errors, 0 warnings") == 2
    statuses = re.findall(r"\] ([A-Z_]+) (?:bias_gelu|layernorm)", done.stderr)
    assert statuses == ["PASSED"] * 2 + ["INCORRECT_NUMERICAL"] * 2 + ["PASSED"] * 6
    best = [line.split("\t") for line in done.stdout.splitlines() if "\tactivation\t" in line]
    assert any("my_bias_gelu" in line for line in best)
    (told,) = re.findall(r"^It prints `(.*)`\.$", text, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == told
