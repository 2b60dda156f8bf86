"""What the README shows works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (said,) = re.findall(r"# ([\d.]+)$", code, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{said}\n"
