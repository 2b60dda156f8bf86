"""Random datasets with faults of every kind, written file by file without help from the project.

Each faulty record is the fastest of its key: whoever takes it by mistake is noticed.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Optional

from tests.apply_faults.channel import solution_source
from tests.apply_faults.problems import SIZES, Problem, random_problem

if TYPE_CHECKING:
    from pathlib import Path

ELSEWHERE = ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "Some other CPU (96 cores)")
FAILED = (
    "INCORRECT_SHAPE",
    "INCORRECT_NUMERICAL",
    "INCORRECT_DTYPE",
    "RUNTIME_ERROR",
    "COMPILE_ERROR",
    "TIMEOUT",
)
ERRORS = (100.0, 0.5, "NaN", "Infinity")
FINE_ERRORS = (*ERRORS, 0.004)  # fine for 16 bits, but not for float32
JUNK = (
    b"",
    b"{",
    b"null",
    b"[1, 2, 3]",
    b"\xff\xfe\x00garbage\x80",
    b'{"definition": "d0", "workload": 7}',
    b'{"definition": 5, "solution": [], "evaluation": {}}',
    b"{" * 2000,
)

#: What is wrong with a record that must not be used.
FAULTS = (
    "hardware",
    "toolchain",
    "status",
    "error",
    "integrity",
    "stale",
    "disproved",
    "orphan",
    "stranger",
    "torn",
    "axes",
    "latency",
)


@dataclass(frozen=True)
class Made:
    """A solution of the dataset.

    Attributes
    ----------
    name, definition : str
        As in its file.
    passing : bool
        Whether it is destination-passing.
    language : str
        Of which no builder is installed, unless it is Python.
    state : str
        Of its file: ``good``, ``torn`` or ``missing``.
    code : str, optional
        In place of a source that says through the channel who runs.
    """

    name: str
    definition: str
    passing: bool = False
    language: str = "python"
    state: str = "good"
    code: Optional[str] = None


@dataclass(frozen=True)
class Record:
    """A trace: one solution on one workload."""

    definition: str
    solution: str
    values: tuple[int, ...]
    latency_ms: Any
    hardware: str
    status: str = "PASSED"
    error: Any = 0.0
    fault: Optional[str] = None
    uuid: str = ""


@dataclass
class World:
    """A dataset, as it is meant."""

    hardware: str
    problems: dict[str, Problem] = field(default_factory=dict)
    solutions: dict[str, Made] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    junk: list[bytes] = field(default_factory=list)

    def recorded(self, definition: str) -> list[tuple[int, ...]]:
        """Return the sizes that have a record, whatever its worth."""
        return sorted({each.values for each in self.records if each.definition == definition})

    def swapped(self, rng: random.Random) -> World:
        """Return the same with other latencies: other solutions win."""
        times = [each.latency_ms for each in self.records if each.fault is None]
        rng.shuffle(times)
        latencies = iter(times)
        records = [
            replace(each, latency_ms=next(latencies)) if each.fault is None else each
            for each in self.records
        ]
        return replace(self, records=records)

    def write(self, root: Path) -> Path:
        """Write the dataset to `root`, in place of what is there."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for problem in self.problems.values():
            place = root / "definitions" / problem.op_type / f"{problem.name}.json"
            _put(place, json.dumps(problem.record()).encode())
        for made in self.solutions.values():
            self._write_solution(root, made)
        for name, problem in self.problems.items():
            self._write_traces(root / "traces" / problem.op_type / f"{name}.jsonl", name)
        return root

    def _write_solution(self, root: Path, made: Made) -> None:
        if made.state == "missing":
            return
        text = json.dumps(solution_record(made, self.problems[made.definition])).encode()
        place = root / "solutions" / "somebody" / "op" / made.definition / f"{made.name}.json"
        _put(place, text[: len(text) // 2] if made.state == "torn" else text)

    def _write_traces(self, place: Path, definition: str) -> None:
        lines = [_line(each, self) for each in self.records if each.definition == definition]
        lines += self.junk
        rng = random.Random(definition)
        rng.shuffle(lines)
        # The last line has no end, as after a crash in the middle of an append.
        _put(place, b"\n".join([*lines, b'{"definition": "' + definition.encode()]))


def solution_record(made: Made, problem: Problem) -> dict[str, Any]:
    """Return a solution as a dataset has it."""
    inputs = [each.name for each in problem.inputs]
    outputs = problem.outputs if made.passing else ()
    file = "main.cpp" if made.language == "cpp" else "main.py"
    code = made.code or solution_source(made.name, problem.name, inputs, outputs)
    return {
        "name": made.name,
        "definition": made.definition,
        "author": "somebody",
        "spec": {
            "language": made.language,
            "target_hardware": ["cpu"],
            "entry_point": f"{file}::run",
            "dependencies": [],
            "destination_passing_style": made.passing,
        },
        "sources": [{"path": file, "content": code}],
    }


def _line(each: Record, world: World) -> bytes:
    problem = world.problems[each.definition]
    axes: dict[str, Any] = dict(zip(problem.variable, each.values, strict=True))
    if each.fault == "axes" and axes:
        axes.pop(next(iter(axes)))
    libs = {"torch": "1.13.1"} if each.fault == "toolchain" else {}
    evaluation: dict[str, Any] = {
        "status": each.status,
        "environment": {"hardware": each.hardware, "libs": libs},
        "timestamp": "2026-01-01T00:00:00",
        "log": "",
    }
    if each.fault == "stale":  # another solution had this name when it was recorded
        evaluation["provenance"] = {"extra": {"solution_hash": "0" * 64}}
    if each.status in ("PASSED", "INCORRECT_NUMERICAL"):
        errors = {"max_relative_error": each.error, "max_absolute_error": each.error}
        if each.fault == "integrity":
            errors["extra"] = {"integrity": {"trust": "full", "rule": "hidden-time"}}
        evaluation["correctness"] = errors
    if each.status == "PASSED":
        evaluation["performance"] = {
            "latency_ms": each.latency_ms,
            "reference_latency_ms": 10.0,
            "speedup_factor": 1.0,
        }
    inputs = {
        one.name: {"type": "random"} if one.axes is not None else {"type": "scalar", "value": 1}
        for one in problem.inputs
    }
    workload = {"axes": axes, "inputs": inputs, "uuid": each.uuid}
    record = {"definition": each.definition, "workload": workload, "solution": each.solution}
    text = json.dumps({**record, "evaluation": evaluation}).encode()
    return text[: len(text) * 2 // 3] if each.fault == "torn" else text


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# ---------------------------------------------------------------------------------- drawing one


def random_world(rng: random.Random, hardware: str, problems: int = 3) -> World:
    """Draw a dataset for the hardware here."""
    world = World(hardware)
    for index in range(problems):
        problem = random_problem(rng, f"d{index}")
        world.problems[problem.name] = problem
        _add_solutions(world, problem, rng)
        _add_records(world, problem, rng)
    world.junk = rng.sample(JUNK, rng.randint(0, len(JUNK)))
    return world


def _add_solutions(world: World, problem: Problem, rng: random.Random) -> None:
    for index in range(rng.randint(1, 4)):
        _add(world, Made(f"{problem.name}_good{index}", problem.name, rng.random() < 0.4))
    _add(world, Made(f"{problem.name}_torn", problem.name, state="torn"))
    _add(world, Made(f"{problem.name}_missing", problem.name, state="missing"))
    if rng.random() < 0.5:
        _add(world, Made(f"{problem.name}_mojo", problem.name, language="mojo"))


def _add(world: World, made: Made) -> None:
    world.solutions[made.name] = made


def _add_records(world: World, problem: Problem, rng: random.Random) -> None:
    count = rng.randint(2, 4) if problem.variable else 1
    sizes = {tuple(rng.choice(SIZES) for _ in problem.variable) for _ in range(count)}
    mine = [each for each in world.solutions.values() if each.definition == problem.name]
    good = [each for each in mine if each.state == "good"]
    for values in sorted(sizes):
        for made in rng.sample(good, rng.randint(rng.random() < 0.8, len(good))):
            for _ in range(rng.choice((1, 1, 3))):  # several workloads share a size
                latency = round(rng.uniform(1.0, 5.0), 1)  # ties are wanted
                _record(world, Record(problem.name, made.name, values, latency, world.hardware))
        for fault in rng.sample(FAULTS, rng.randint(0, len(FAULTS))):
            record = _faulty(world, problem, values, fault, rng)
            _record(world, record)
            if fault == "disproved":  # it passed once, and was found wrong another time
                _record(world, replace(record, status="INCORRECT_NUMERICAL", error=0.5))


def _record(world: World, record: Record) -> None:
    world.records.append(replace(record, uuid=f"w{len(world.records)}"))


def _faulty(
    world: World,
    problem: Problem,
    values: tuple[int, ...],
    fault: str,
    rng: random.Random,
) -> Record:
    """Return a record that is faster than all others, and must not be used."""
    # A name of its own: the good solutions keep their good records.
    name = f"{problem.name}_{fault}{len(world.solutions)}"
    record = Record(problem.name, name, values, rng.uniform(0.1, 0.5), world.hardware, fault=fault)
    if fault == "orphan":
        kind = rng.choice(("torn", "missing", "nowhere"))
        return replace(record, solution=f"{problem.name}_{kind}")
    if fault == "stranger":
        others = [each for each in world.solutions.values() if each.definition != problem.name]
        if others:
            return replace(record, solution=rng.choice(others).name)
        return replace(record, solution="nobody's")
    _add(world, Made(name, problem.name, rng.random() < 0.3))
    changes: dict[str, Any] = {
        "hardware": {"hardware": _other_hardware(world.hardware, rng)},
        "status": {"status": rng.choice(FAILED)},
        "error": {"error": rng.choice(ERRORS if problem.coarse else FINE_ERRORS)},
        "latency": {"latency_ms": rng.choice(("NaN", -1.0, "fast", None))},
    }
    if fault == "axes" and not problem.variable:
        return replace(record, status="TIMEOUT")
    return replace(record, **changes.get(fault, {}))


def _other_hardware(here: str, rng: random.Random) -> str:
    lookalikes = (here + " ", here.upper() + "!", here[:-1], here.replace("(", "(1"))
    return rng.choice((*ELSEWHERE, *(each for each in lookalikes if each != here)))
