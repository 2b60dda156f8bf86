"""Records and datasets to test with, made as a user would make them."""

from __future__ import annotations

import json
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Optional

import pytest

from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = "import torch\n\n\ndef run(a, b):\n    return torch.matmul(a, b.T)\n"


class Make:
    """Makes valid records; keyword arguments replace fields."""

    @staticmethod
    def definition_record(name: str = "gemm_n8_k4", **changes: Any) -> dict[str, Any]:
        record: dict[str, Any] = {
            "name": name,
            "op_type": "gemm",
            "axes": {
                "M": {"type": "var"},
                "N": {"type": "const", "value": 8},
                "K": {"type": "const", "value": 4, "description": "summed over"},
            },
            "inputs": {
                "a": {"shape": ["M", "K"], "dtype": "bfloat16"},
                "b": {"shape": ["N", "K"], "dtype": "bfloat16"},
            },
            "outputs": {"c": {"shape": ["M", "N"], "dtype": "bfloat16"}},
            "reference": REFERENCE,
            "constraints": ["M >= 1"],
        }
        return {**record, **changes}

    @staticmethod
    def solution_record(
        name: str = "alice_v1",
        definition: str = "gemm_n8_k4",
        author: str = "alice",
        spec: Optional[dict[str, Any]] = None,
        **changes: Any,
    ) -> dict[str, Any]:
        record: dict[str, Any] = {
            "name": name,
            "definition": definition,
            "author": author,
            "spec": {
                "language": "python",
                "target_hardware": ["cpu"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
                **(spec or {}),
            },
            "sources": [{"path": "main.py", "content": REFERENCE}],
        }
        return {**record, **changes}

    @staticmethod
    def workload_record(uuid: str = "w1", m: int = 2, **changes: Any) -> dict[str, Any]:
        inputs = {"a": {"type": "random"}, "b": {"type": "random"}}
        return {"axes": {"M": m}, "inputs": inputs, "uuid": uuid, **changes}

    @staticmethod
    def evaluation_record(
        status: str = "PASSED",
        latency_ms: float = 1.0,
        speedup: float = 2.0,
        error: float = 1e-3,
        **changes: Any,
    ) -> dict[str, Any]:
        record: dict[str, Any] = {
            "status": status,
            "environment": {"hardware": "NVIDIA H200", "libs": {"torch": "2.13.0"}},
            "timestamp": "2026-05-01T10:00:00",
            "log": "fine",
        }
        if status in ("PASSED", "INCORRECT_NUMERICAL"):
            record["correctness"] = {"max_relative_error": error, "max_absolute_error": error}
        if status == "PASSED":
            record["performance"] = {
                "latency_ms": latency_ms,
                "reference_latency_ms": latency_ms * speedup,
                "speedup_factor": speedup,
            }
        return {**record, **changes}

    @classmethod
    def trace_record(
        cls,
        solution: Optional[str] = "alice_v1",
        definition: str = "gemm_n8_k4",
        uuid: str = "w1",
        m: int = 2,
        **evaluation: Any,
    ) -> dict[str, Any]:
        return {
            "definition": definition,
            "workload": cls.workload_record(uuid, m),
            "solution": solution,
            "evaluation": None if solution is None else cls.evaluation_record(**evaluation),
        }

    @classmethod
    def definition(cls, name: str = "gemm_n8_k4", **changes: Any) -> Definition:
        return Definition(**cls.definition_record(name, **changes))

    @classmethod
    def solution(cls, *args: Any, **changes: Any) -> Solution:
        return Solution(**cls.solution_record(*args, **changes))

    @classmethod
    def workload(cls, *args: Any, **changes: Any) -> Workload:
        return Workload(**cls.workload_record(*args, **changes))

    @classmethod
    def trace(cls, *args: Any, **changes: Any) -> Trace:
        return Trace(**cls.trace_record(*args, **changes))

    @classmethod
    def trace_set(
        cls, *traces: Trace, authors: tuple[str, ...] = ("baseline", "alice")
    ) -> TraceSet:
        """Return a set in memory: one definition, a solution ``<author>_v1`` of each author."""
        definition = cls.definition()
        solutions = [cls.solution(f"{author}_v1", author=author) for author in authors]
        return TraceSet(
            definitions={definition.name: definition},
            solutions={definition.name: solutions},
            traces={definition.name: list(traces)},
        )

    @classmethod
    def run(
        cls,
        author: str,
        ms: float = 1.0,
        *,
        uuid: str = "w1",
        status: str = "PASSED",
        definition: str = "gemm_n8_k4",
    ) -> Trace:
        """Return a trace of the solution ``<author>_v1``."""
        return cls.trace(f"{author}_v1", definition, uuid=uuid, status=status, latency_ms=ms)

    @classmethod
    def two_definitions(
        cls,
        *runs: tuple[str, str, float],
        authors: tuple[str, ...] = ("baseline", "alice", "bob"),
    ) -> TraceSet:
        """Definitions ``a`` and ``b`` of types ``type_a`` and ``type_b``; a solution an author.

        Each of `runs` is an author, a definition and a latency.
        """
        names = ("a", "b")
        trace_set = TraceSet(
            definitions={name: cls.definition(name, op_type=f"type_{name}") for name in names},
            solutions={
                name: [cls.solution(f"{author}_{name}", name, author) for author in authors]
                for name in names
            },
        )
        for author, name, ms in runs:
            trace = cls.trace(f"{author}_{name}", name, latency_ms=ms)
            trace_set.traces.setdefault(name, []).append(trace)
        return trace_set


class DatasetWriter:
    """Writes files of a dataset, well-formed or not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)

    def json(self, path: str, record: Any) -> Path:
        return self.text(path, record if isinstance(record, str) else json.dumps(record, indent=2))

    def lines(self, path: str, *records: Any) -> Path:
        return self.text(path, "".join(json.dumps(record) + "\n" for record in records))

    def text(self, path: str, text: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture(scope="session")
def new_writer() -> type[DatasetWriter]:
    return DatasetWriter


@pytest.fixture
def writer(tmp_path: Path) -> DatasetWriter:
    return DatasetWriter(tmp_path / "dataset")


@pytest.fixture
def dataset(writer: DatasetWriter, make: type[Make]) -> Path:
    """A small dataset on disk: one definition, two solutions, two workloads, three traces."""
    writer.json("definitions/gemm/gemm_n8_k4.json", make.definition_record())
    for author in ("baseline", "alice"):
        record = make.solution_record(f"{author}_v1", author=author)
        writer.json(f"solutions/{author}/gemm/gemm_n8_k4/{author}_v1.json", record)
    writer.lines(
        "workloads/gemm/gemm_n8_k4.jsonl",
        make.trace_record(None, uuid="w1", m=2),
        make.trace_record(None, uuid="w2", m=16),
    )
    writer.lines(
        "traces/gemm/gemm_n8_k4.jsonl",
        make.trace_record("baseline_v1", uuid="w1", latency_ms=3.0, speedup=1.0),
        make.trace_record("alice_v1", uuid="w1", latency_ms=1.5, speedup=2.0),
        make.trace_record("alice_v1", uuid="w2", m=16, status="TIMEOUT"),
    )
    return writer.root


class Python:
    """Runs scripts in processes of their own."""

    @staticmethod
    def start(script: str, *args: Any, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", dedent(script), *map(str, args)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    @staticmethod
    def finish(process: subprocess.Popen[bytes], code: int = 0) -> str:
        """Wait for the end of a process, check its exit code, return its output."""
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, err.decode()
        return out.decode()

    @classmethod
    def run(cls, script: str, *args: Any, code: int = 0) -> str:
        return cls.finish(cls.start(script, *args), code)


@pytest.fixture(scope="session")
def python() -> type[Python]:
    return Python
