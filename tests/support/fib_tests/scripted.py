"""Tiny problems, and a scripted stand-in for candidate processes.

`FakeCandidate` runs a solution's source in the test's own process. Its sources may raise ``Crash``,
``Hang`` or ``Misbehave``, which stand for what a real process would do, and may set its clocks:
``SAMPLES`` are the latencies that are told, in turn; the judge's clock shows ``OVERHEAD_MS`` more,
and ``HIDDEN_MS`` on top (a number, or a function of the number of the call). ``VERSION`` is that of
the timer.
A line such as ``# compile: storage`` says how compiling one in the language ``compiled`` ends.
The real executors are tested with the same problems in ``core/tests/bench/test_real_*.py``.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import threading
import traceback
from dataclasses import dataclass, field
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from flashinfer_bench.bench import memory
from flashinfer_bench.bench.calls import Attempt
from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluators import DefaultEvaluator, Trial
from flashinfer_bench.bench.executors.base import (
    Candidate,
    CandidateCrashed,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
    Compiled,
    Confinement,
    Executor,
    Loaded,
    TimedCall,
)
from flashinfer_bench.bench.measurement import DeviceBaseline
from flashinfer_bench.bench.pool import Worker, WorkerPool
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.bench.session import Session
from flashinfer_bench.bench.timing.wall import WallClockTimer
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.data import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    Environment,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)
from flashinfer_bench.errors import RunnerFatalError
from flashinfer_bench.plugins import BuilderSpec, Catalog, EvaluatorSpec, MeasurementSpec, TimerSpec
from flashinfer_bench.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashinfer_bench.bench.executors.base import Attachment, Release


STEADY = "SAMPLES = [5.00, 5.02, 4.99, 5.01, 5.03, 4.98, 5.00]\n"


def steady(factor: float, text: str = "") -> str:
    """Return a solution whose latencies are about 5 ms times `factor`."""
    source = "def run(x):\n    return x + x\n"
    return f"{STEADY}SAMPLES = [{factor} * s for s in SAMPLES]\n{text}{source}"


class Crash(BaseException):
    """Stands for the end of the process."""


class Hang(BaseException):
    """Stands for no answer in time."""


class Misbehave(BaseException):
    """Stands for a broken protocol."""


class FakeCandidate(Candidate):
    """Does in this process what a real one does in another; tells `events` about everything."""

    def __init__(
        self, pid: int, events: list[tuple[Any, ...]], gates: Mapping[str, threading.Event]
    ) -> None:
        self.pid = pid
        self._events = events
        self._gates = gates
        self._dead = False
        self._printed = ""
        self._space: dict[str, Any] = {}
        self._inputs: dict[int, list[Any]] = {}
        self._attached: list[list[Any]] = []
        self._outputs: list[Any] = []
        self._calls = self._fired = 0

    def _do(self, stage: Any, work: Callable[[], Any]) -> Any:
        if self._dead:
            raise CandidateCrashed("gone", stage=stage, exit_code=None)
        try:
            return work()
        except Crash:
            self._dead = True
            raise CandidateCrashed("was killed by SIGSEGV", stage=stage, exit_code=-11) from None
        except Hang:
            self._dead = True
            raise CandidateTimeout("no answer", stage=stage) from None
        except Misbehave:
            self._dead = True
            raise CandidateMisbehaved("bad frame", stage=stage) from None
        except CandidateFailed:
            raise
        except Exception as error:  # noqa: BLE001 - as the candidate does
            text = "".join(traceback.format_exception_only(error))
            raise CandidateFailed(
                str(error), stage=stage, kind=type(error).__name__, traceback=text
            ) from None

    def compile(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Compiled:
        assert timeout_s > 0
        self._events.append(("compile", self.pid, solution.name))
        gate = self._gates.get(solution.name)
        while gate is not None and not gate.wait(0.01) and not self._dead:
            pass
        found = re.search("# compile: (.*)", solution.sources[0].content)
        self._do("compile", lambda: found and self._end_as_told(found[1]))
        self._events.append(("compiled", self.pid, solution.name))
        return Compiled("fake", fresh=True)

    def _end_as_told(self, how: str) -> None:
        if how in ("build", "capability", "storage"):
            raise CandidateFailed(
                f"{how} error", stage="compile", kind="K", traceback=f"{how} log", about=how
            )
        raise {"hang": Hang, "crash": Crash}[how]

    def load(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Loaded:
        self._events.append(("load", self.pid, solution.name))
        assert not self._space, "a process holds one solution"
        self._space = {"Crash": Crash, "Hang": Hang, "Misbehave": Misbehave, "print": self._print}
        entry = solution.get_entry_source()
        assert entry is not None
        self._do("load", lambda: exec(entry.content, self._space))
        return Loaded(solution.spec.destination_passing_style, 0.25)

    def _print(self, text: str) -> None:
        self._printed += f"{text}\n"

    def put_inputs(
        self,
        slot: int,
        inputs: Sequence[Any],
        axes: Any,
        *,
        timeout_s: float,
    ) -> None:
        assert timeout_s > 0
        self._events.append(("inputs", self.pid, slot, dict(axes)))
        clones = [x.clone() if hasattr(x, "clone") else x for x in inputs]
        self._do("inputs", lambda: self._inputs.__setitem__(slot, clones))

    def call(self, slot: int, *, timeout_s: float) -> list[Any]:
        assert timeout_s > 0
        self._calls += 1
        self._events.append(("call", self.pid, slot))
        result = self._do("call", lambda: self._space["run"](*self._inputs[slot]))
        return list(result) if isinstance(result, tuple) else [result]

    def attach(self, attachment: Attachment, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self._events.append(("attach", self.pid, len(attachment.places)))
        room = attachment.memory.tensor
        self._attached = []
        for places in attachment.places:
            starts = iter(places)
            self._attached.append(
                [
                    memory.tensor_at(room, next(starts), x.shape, dtype_name(x.dtype))
                    if hasattr(x, "clone")
                    else x
                    for x in attachment.inputs
                ]
            )

    def fire(
        self,
        slot: int,
        *,
        timer: str,
        timeout_s: float,
        release: Release | None = None,
        cold: bool = False,
        empty: bool | None = None,
    ) -> TimedCall:
        assert timeout_s > 0
        version = self._space.get("VERSION", WallClockTimer.version)
        overhead = self._milliseconds("OVERHEAD_MS", 0.01)
        if empty is not None:
            assert release is not None
            release.prepare()
            release.fill()
            release.before()
            release.last()
            release.answered([])
            release.after()
            return TimedCall(0.0, overhead, overhead, 0.0, 0.0, timer, version)
        self._events.append(("fire", self.pid, slot, timer))
        inputs = self._inputs[slot] if release is None else self._attached[slot]
        if release is not None:
            release.prepare()
            release.fill()
            release.before()
            release.last()
        self._do("time", self._space.get("on_time", lambda: None))
        result = self._do("time", lambda: self._space["run"](*inputs))
        self._outputs = list(result) if isinstance(result, tuple) else [result]
        if release is not None:
            addresses = [address for address, _ in filter(None, self.places())]
            addresses += [0] * (memory.MOST_OUTPUTS - len(addresses))
            release.glance(addresses)
            release.answered(addresses)
            release.after()
        samples = self._space.get("SAMPLES", [2.0])
        sample = float(samples[self._fired % len(samples)])
        wall = sample + overhead + self._milliseconds("HIDDEN_MS", 0.0)
        self._fired += 1
        notes = tuple(self._space.get("NOTES", ()))
        return TimedCall(sample, wall, wall, 0.0, 0.0, timer, version, notes)

    def places(self) -> list[tuple[int, int] | None]:
        return [
            (x.data_ptr(), x.numel() * x.element_size()) if hasattr(x, "data_ptr") else None
            for x in self._outputs
        ]

    def peeker(self, starts: Sequence[int], nbytes: int) -> Callable[[int], bytes]:
        def at(address: int) -> bytes:
            return b"".join(ctypes.string_at(address + start, nbytes) for start in starts)

        return at

    def _milliseconds(self, name: str, default: float) -> float:
        value = self._space.get(name, default)
        return float(value(self._fired) if callable(value) else value)

    def collect(self, *, timeout_s: float, call: int = 0) -> list[Any]:
        assert timeout_s > 0
        self._events.append(("collect", self.pid))
        self._do("time", self._space.get("on_collect", lambda: None))
        return [x.clone() if hasattr(x, "clone") else x for x in self._outputs]

    def rest(self, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self._events.append(("rest", self.pid))

    def log(self) -> str:
        return self._printed

    @property
    def alive(self) -> bool:
        return not self._dead

    def close(self) -> None:
        if not self._dead or ("close", self.pid) not in self._events:
            self._events.append(("close", self.pid))
        self._dead = True


class FakeExecutor(Executor):
    """Starts fake candidates; `broken` makes it fail for good."""

    name = "fake"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.events: list[tuple[Any, ...]] = []
        self.broken = False
        self.started = self.closed = 0
        self.gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        self.started += 1

    def spawn(self) -> FakeCandidate:
        if self.broken:
            raise RunnerFatalError("no process can be started")
        with self._lock:
            pid = 1000 + sum(event[0] == "spawn" for event in self.events)
            self.events.append(("spawn", pid))
        return FakeCandidate(pid, self.events, self.gates)

    def close(self) -> None:
        self.closed += 1

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        """Return the events of one kind, without its name."""
        return [event[1:] for event in self.events if event[0] == kind]

    def fired(self, calls: int, settling: int, pid: int | None = None) -> bool:
        """Return whether so many calls were timed, and at most `settling` more after each look."""
        fired, looks = (
            [event for event in self.of(kind) if pid in (None, event[0])]
            for kind in ("fire", "collect")
        )
        return 0 <= len(fired) - calls <= settling * len(looks)


@dataclass
class Problems:
    """Makes definitions, workloads, solutions and whole datasets of the smallest kind."""

    reference: str = "def run(x):\n    return x * 2"
    numbers: Any = field(default_factory=itertools.count)

    def definition(self, name: str = "double", **changes: Any) -> Definition:
        values: dict[str, Any] = {
            "name": name,
            "op_type": "elementwise",
            "axes": {"n": AxisVar(), "k": AxisConst(value=3)},
            "inputs": {"x": TensorSpec(shape=["n", "k"], dtype="float32")},
            "outputs": {"y": TensorSpec(shape=["n", "k"], dtype="float32")},
            "reference": self.reference,
        }
        return Definition(**{**values, **changes})

    def solution(
        self, source: str, name: str = "", definition: str = "double", **spec: Any
    ) -> Solution:
        values: dict[str, Any] = {
            "language": "python",
            "target_hardware": ["cpu", "cuda"],
            "entry_point": "main.py::run",
            "destination_passing_style": False,
        }
        return Solution(
            name=name or f"solution_{next(self.numbers)}",
            definition=definition,
            author="tests",
            spec=BuildSpec(**{**values, **spec}),
            sources=[SourceFile(path="main.py", content=dedent(source))],
        )

    def good(self, name: str = "good", definition: str = "double") -> Solution:
        return self.solution("def run(x):\n    return x + x", name, definition)

    def compiled(self, name: str, how: str = "", definition: str = "double") -> Solution:
        """Make a solution that is compiled ahead; `how` it fails, if it does."""
        source = "def run(x):\n    return x + x\n" + (f"# compile: {how}\n" if how else "")
        return self.solution(source, name, definition, language="compiled")

    def workload(self, n: int = 4, uuid: str = "", **inputs: Any) -> Workload:
        return Workload(
            axes={"n": n},
            inputs=inputs or {"x": RandomInput()},
            uuid=uuid or f"w{next(self.numbers)}",
        )

    def dataset(
        self,
        *solutions: Solution,
        root: Any = None,
        workloads: int = 1,
        definitions: Sequence[Definition] = (),
    ) -> TraceSet:
        used = list(definitions) or [self.definition()]
        return TraceSet(
            root=root,
            definitions={item.name: item for item in used},
            solutions={
                item.name: [s for s in solutions if s.definition == item.name] for item in used
            },
            workloads={
                item.name: [
                    Trace(definition=item.name, workload=self.workload(uuid=f"{item.name}-{index}"))
                    for index in range(workloads)
                ]
                for item in used
            },
        )


class Apart(Sandbox):
    """Seems to keep solutions apart, so that all get the same checks."""

    def confine(self, *process: Any, **options: Any) -> Confinement:
        return Confinement(("landlock-files", "network-namespace"))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keep locks and builds of a test to itself."""
    folder = tmp_path / "fib-cache"
    monkeypatch.setenv("FIB_CACHE_PATH", str(folder))
    # Solutions of tests leave notes beside it.
    monkeypatch.setenv("FIB_SANDBOX_WRITABLE", str(tmp_path))
    return folder


@pytest.fixture(scope="session")
def problems() -> Problems:
    return Problems()


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def settings() -> Callable[..., ResolvedEvalConfig]:
    def make(**changes: Any) -> ResolvedEvalConfig:
        values = {"warmup_runs": 1, "iterations": 4, "num_trials": 2, "rtol": 1e-2, "atol": 1e-2}
        alone = {"interleave_reference": False, "watch": "off"}  # one process, and no surprise
        return ResolvedEvalConfig(**{**values, **alone, **changes})

    return make


@pytest.fixture
def session(executor: FakeExecutor) -> Callable[..., Session]:
    def make(**changes: Any) -> Session:
        """Make a session; what is a setting of a run goes into its settings."""
        own = {name for name in changes if name in BenchmarkConfig.model_fields} - {
            *Session.__dataclass_fields__
        }
        config = {"seed": 11, "timeout_seconds": 30.0, **{key: changes.pop(key) for key in own}}
        values: dict[str, Any] = {
            "device": "cpu",
            "environment": Environment(hardware="a test", libs={"torch": "0"}),
            "config": BenchmarkConfig(**config),
            "timer": "clock",
            "pool": WorkerPool(executor, keep=0, sandbox=Apart("off")),
            "catalog": Catalog.of(),
            "timer_version": WallClockTimer.version,
        }
        return Session(**{**values, **changes})

    return make


def attempt_of(
    session: Session,
    executor: FakeExecutor,
    problems: Problems,
    source: str,
    inputs: Sequence[list[Any]],
) -> Attempt:
    """Load a source in a process, and send it input sets."""
    definition, solution = problems.definition(), problems.solution(source)
    baseline = DeviceBaseline(
        definition,
        problems.workload(),
        solution,
        DefaultEvaluator(),
        ResolvedEvalConfig(),
        root=None,
        device="cpu",
        seed=0,
        trials=tuple(Trial(slot, 0, values, []) for slot, values in enumerate(inputs)),
    )
    worker = Worker(executor.spawn(), Sandbox("off"), "cpu")
    worker.load(definition, solution, timeout_s=1.0)
    attempt = Attempt(session, solution, baseline, worker, Deadline(60.0))
    for trial in baseline.trials:
        attempt.put(trial)
    return attempt


@pytest.fixture
def evaluator() -> DefaultEvaluator:
    return DefaultEvaluator()


@pytest.fixture
def catalog() -> Catalog:
    """What an installation with a Python builder would offer, without any plugin."""
    return Catalog.of(
        BuilderSpec(name="python", factory="nowhere:Builder", handles=(("python", "*"),)),
        BuilderSpec(
            name="compiled",
            factory="nowhere:Builder",
            handles=(("compiled", None),),
            compiles=True,
        ),
        BuilderSpec(
            name="only_cuda",
            factory="nowhere:Builder",
            handles=(("gpu_language", None),),
            devices=("cuda",),
        ),
        TimerSpec(
            name="clock",
            factory="flashinfer_bench.bench.timing.wall:WallClockTimer",
            devices=("cpu", "cuda"),
        ),
        EvaluatorSpec(
            name="default",
            factory="flashinfer_bench.bench.evaluators.default:DefaultEvaluator",
        ),
        MeasurementSpec(
            name="basic",
            factory="flashinfer_bench.bench.measurement:BasicMeasurement",
            devices=("cpu", "cuda"),
            priority=0,
        ),
    )
