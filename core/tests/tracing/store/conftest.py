"""A dataset to record into, and processes that do."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

PREAMBLE = Path(__file__).with_name("preamble.py")


@pytest.fixture(scope="session")
def calls() -> Any:
    """The module `preamble`: definitions, and what makes recorded calls."""
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("fib_tests_store_preamble", PREAMBLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path, calls: Any) -> Path:
    """A dataset with two definitions and nothing else."""
    root = tmp_path / "dataset"
    for definition in calls.DEFINITIONS.values():
        path = (
            root
            / "definitions"
            / definition.op_type
            / f"{definition.name.replace('/', '%2F')}.json"
        )
        path.parent.mkdir(parents=True)
        path.write_text(definition.model_dump_json())
    return root


@pytest.fixture
def store(root: Path, calls: Any) -> Any:
    """A store on that dataset."""
    from flashinfer_bench.tracing.store import Store

    return Store(root, calls.DEFINITIONS)


class Child:
    """Runs scripts, after the preamble, in processes of their own."""

    @staticmethod
    def start(
        script: str, *args: Any, prefix: Sequence[str] = (), **options: Any
    ) -> subprocess.Popen[bytes]:
        start = f"import sys\nfrom pathlib import Path\nexec(Path({str(PREAMBLE)!r}).read_text())\n"
        start += "from flashinfer_bench.tracing.store import *\nroot = Path(sys.argv[1])\n"
        command = [*prefix, sys.executable, "-c", start + dedent(script), *map(str, args)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    @staticmethod
    def finish(process: subprocess.Popen[bytes], code: int = 0) -> str:
        out, err = process.communicate(timeout=100)
        assert process.returncode == code, err.decode()
        return out.decode()

    @classmethod
    def run(cls, script: str, *args: Any, code: int = 0, **options: Any) -> str:
        return cls.finish(cls.start(script, *args, **options), code)


@pytest.fixture(scope="session")
def child() -> type[Child]:
    return Child


@pytest.fixture(scope="session")
def records() -> Any:
    """Reads the workloads of a dataset as plain JSON, without help from the project."""

    def read(root: Path, name: str = "*") -> list[dict[str, Any]]:
        files = sorted((root / "workloads").glob(f"*/{name}.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    return read
