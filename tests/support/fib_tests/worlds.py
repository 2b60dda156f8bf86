"""Libraries and adapters made of real files, for tests of patching and installing."""

from __future__ import annotations

import itertools
import sys
import textwrap
from functools import partial
from typing import TYPE_CHECKING

import pytest

from fib_tests.routed_library import Runtime
from flashinfer_bench.plugins import AdapterSpec, Catalog
from flashinfer_bench.routing import PatchManager
from flashinfer_bench.routing.installation import Installation
from flashinfer_bench.routing.patch_points import Router

if TYPE_CHECKING:
    from pathlib import Path

_numbers = itertools.count()

ADAPTER = """
import functools
from flashinfer_bench.routing import Adapter, PatchSpec

CALLS = []
MADE = []

def known(original):
    import inspect
    names = list(inspect.signature(original).parameters)
    return None if names[0] in ("x", "self") else f"its first parameter is {names[0]}"

class Counting(Adapter):
    SPECS = ()
    LATE = ()

    def __init__(self):
        MADE.append(type(self).__name__)

    def targets(self):
        return self.SPECS

    def late_targets(self):
        return self.LATE

    def make_wrapper(self, spec, orig):
        @functools.wraps(orig)
        def wrapper(*args, **kwargs):
            CALLS.append(spec.name)
            return orig(*args, **kwargs)
        return wrapper
"""

LIBRARY = """
__version__ = "1.2.3"

def scale(x, factor=2.0):
    return x * factor

def shift(x):
    return x + 1

class Wrapper:
    def plan(self, size):
        self.size = size
    begin = plan
    def run(self, x):
        return x * self.size

class Derived(Wrapper):
    pass
"""


class World:
    """A folder on `sys.path`, with modules whose names no other test uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"p1world{next(_numbers)}"
        self.router = Router()
        self.manager = PatchManager()
        self.records: list[AdapterSpec] = []
        self.discoveries = 0
        self._made: list[Installation] = []

    def write(self, name: str, code: str) -> str:
        """Write a module, ``a.b`` into a package; return its full name."""
        full = f"{self.prefix}_{name}"
        parts = full.split(".")
        path = self.folder.joinpath(*parts)
        for parent in list(path.relative_to(self.folder).parents)[:-1]:
            package = self.folder / parent
            if (self.folder / f"{parent}.py").exists():
                package.mkdir(exist_ok=True)
                (self.folder / f"{parent}.py").rename(package / "__init__.py")
        path.with_suffix(".py").parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(textwrap.dedent(code))
        return full

    def library(self, name: str = "lib", more: str = "") -> str:
        """Write the library; return its name."""
        return self.write(name, LIBRARY + textwrap.dedent(more))

    def adapter(self, *specs: str, name: str = "one", late: str = "()", **fields) -> str:
        """Write and register an adapter with these PatchSpecs (code); return its module."""
        body = f"\nclass Mine(Counting):\n    SPECS = ({''.join(f'{s}, ' for s in specs)})\n"
        module = self.write(f"adapter_{name}", ADAPTER + body + f"    LATE = {late}\n")
        targets = fields.pop("targets", None) or [spec.split('"')[1] for spec in specs]
        self.records.append(
            AdapterSpec(name=f"test.{name}", targets=targets, factory=f"{module}:Mine", **fields)
        )
        return module

    def catalog(self) -> Catalog:
        self.discoveries += 1
        return Catalog.of(*self.records)

    def install(self, connect: bool = True) -> Installation:
        """Return an installation, connected with the router."""
        made = Installation(self.router, self.manager, self.catalog)
        self._made.append(made)
        if connect:
            self.router.on_use(made.update)
        return made

    def states(self, installation: Installation) -> dict[str, str]:
        """Return the states by the last part of the path."""
        return {s.path.rpartition(".")[2]: s.state for s in installation.statuses()}

    def close(self) -> None:
        self.router.clear()
        self.manager.unpatch_all()
        for name in [name for name in sys.modules if name.startswith(self.prefix)]:
            del sys.modules[name]


def patch_spec(path: str, definitions: str = "", kind: str = "function", more: str = "") -> str:
    """Return the code of a PatchSpec."""
    patterns = f', definitions=("{definitions}",)' if definitions else ""
    return f'PatchSpec("{path}", "{kind}", "{path.rpartition(".")[2]}"{patterns}{more})'


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder for libraries and adapters of a test's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def spec():
    """Returns the code of a PatchSpec."""
    return patch_spec


@pytest.fixture
def runtime():
    """Makes a runtime that is active for some definitions, and takes no call."""
    return partial(Runtime, None)
