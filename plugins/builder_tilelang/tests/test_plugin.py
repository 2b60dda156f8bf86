"""The plugin as the host sees it."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_of_the_readme_runs(tmp_path, in_child):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    example = tmp_path / "example.py"
    example.write_text(code, encoding="utf-8")
    printed = in_child(f"import runpy; runpy.run_path({str(example)!r})")
    assert printed.endswith("<Runnable 'scale_tilelang': tilelang>\n")
