"""Runs the files of suites in a pytest of their own, once, and reads what became of each test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import pytest

from fib_tests.cli import fib as fib

HERE = Path(__file__).parent


@dataclass
class Outcome:
    """What became of one test class: messages by test."""

    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)


def run_suites(folder: Path) -> list[tuple[str, ...]]:
    """Return file, class, test, outcome and message of each test."""
    report = folder / "report.xml"
    options = ["-q", "--tb=short", "--import-mode=importlib", "--override-ini=addopts="]
    options += ["--override-ini=filterwarnings=error", "--override-ini=timeout=300"]
    for plugin in ("randomly", "cacheprovider", "logging", "xdist"):
        options += ["-p", f"no:{plugin}"]
    options += [f"--junitxml={report}", f"--basetemp={folder / 'temp'}"]
    env = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    path = os.pathsep.join(filter(None, [str(HERE), env.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, sorted(HERE.glob("run_*.py"))), *options],
        env={**env, "PYTHONPATH": path, "FIB_PROBE_TIMEOUT_S": "0.5"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    return [_read(test) for test in ET.parse(report).iter("testcase")]


def _read(test: ET.Element) -> tuple[str, ...]:
    module, _, name = test.get("classname", "").rpartition(".Test")
    owner = (module.rpartition(".")[2], name)
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = test.find(tag)
        if found is not None:
            text = found.text if outcome == "failed" else found.get("message")
            return *owner, test.get("name", ""), outcome, text or ""
    return *owner, test.get("name", ""), "passed", ""


@pytest.fixture(scope="session")
def outcomes_of(tmp_path_factory):
    """Return a function from a file of suites to the outcome of each of its classes."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # which all workers share

    def outcomes(file):
        folder = base / "conformance-kit"
        kept = folder / "outcomes.json"
        with filelock.FileLock(base / "conformance-kit.lock"):
            if not kept.exists():
                folder.mkdir(exist_ok=True)
                kept.write_text(json.dumps(run_suites(folder)))
        found = defaultdict(Outcome)
        for module, owner, test, outcome, message in json.loads(kept.read_text()):
            if module == file:
                getattr(found[owner], outcome)[test] = message
        return dict(found)

    return outcomes
