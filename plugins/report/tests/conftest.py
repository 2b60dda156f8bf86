import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fib_tests.browser import *  # noqa: F403
from fib_tests.cli import *  # noqa: F403
from fib_tests.records import *  # noqa: F403
from fib_tests.results import *  # noqa: F403

AXE = "axe-core@4.10.3"


@pytest.fixture
def two_definitions(maker):
    """A sound dataset, with a second definition that another author has solved, and no runs."""
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple", op_type="gemm")
    return maker


@pytest.fixture(scope="session")
def axe():
    """The text of axe-core, which looks for violations of accessibility rules in a page."""
    folder = Path(os.environ.get("FIB_AXE", Path(__file__).parents[3] / ".nox" / "axe"))
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists() and shutil.which("npm"):
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund"]
        subprocess.run([*command, AXE], check=False, timeout=120, capture_output=True)
    if not script.exists():
        pytest.skip(f"{AXE} is not installed: npm install --prefix {folder} {AXE}")
    return script.read_text()
