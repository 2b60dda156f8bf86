"""Nothing tells people to install a name that is not ours, or that no package index has."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from flashinfer_bench import _providers

ROOT = Path(__file__).parent.parent
# The tutorial's own plugin is published by its reader.
OURS = re.compile(r"(?:flashinfer-bench|fib-(?!builder-openmp))[\w,\[\]-]*(?P<version>==)?")


def test_our_distributions_are_installed_from_a_clone_or_with_a_version() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    wrong = []
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if path.suffix not in (".py", ".md", ".yml", ".in", ".txt") or "tests" in path.parts:
            continue
        if path.is_file():
            for line in re.findall(r"pip install ([^#\n`)]*)", path.read_text(encoding="utf-8")):
                words = [OURS.match(word.strip("'\"")) for word in line.split()]
                wrong += [f"{name}: {line}" for word in words if word and not word["version"]]
    assert wrong == []


@pytest.mark.parametrize(("files", "found"), [("flashinfer_bench/x.py,,", True), ("", False)])
def test_another_project_of_the_same_name_is_noticed(tmp_path, monkeypatch, files, found) -> None:
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 0.1.2\n")
    (tmp_path / "RECORD").write_text(files)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: PathDistribution(tmp_path))
    assert ("0.1.2 is another project" in _providers.clash()) is found
