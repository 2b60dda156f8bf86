import json
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


UNPACKED = "![...document.querySelectorAll('#view pre, #view p')].some(p => p.innerText === '…')"


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page at an address; nothing may go wrong in it, and nothing be asked for."""
    path = tmp_path / "shown.html"

    def run(page, fragment=""):
        path.write_text(page, encoding="utf-8")
        browser.open(path, fragment)
        browser.wait(UNPACKED)
        return browser

    yield run
    assert browser.problems == []
    assert browser.requests == [path.as_uri()] or not path.exists()
    assert browser.run("window.pwned") is None


@pytest.fixture
def visit(browser):
    """Goes to a view of the page that is shown."""

    def run(view):
        browser.run(f"location.hash = {json.dumps(f'#/{view}')}")
        browser.wait(f"document.body.dataset.view === '{view.split('/')[0].split('?')[0]}'")
        browser.wait(UNPACKED)

    return run
