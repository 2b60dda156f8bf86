"""Run a tool of NVIDIA's on a solution: what both `ncu` and `sanitizer` need.

The solution is compiled beforehand in a confined process, so that no compiler runs under the tool.
The tool and everything that it starts form one process group, which is killed as a whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Union

from fib_agents import leash, target
from flashinfer_bench.bench import backends, builds, plan
from flashinfer_bench.bench.candidate.folders import remove_folder
from flashinfer_bench.bench.candidate.processes import kill, kill_group, tree_of
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.executors.base import Confinement
from flashinfer_bench.bench.executors.launch import command, environment
from flashinfer_bench.bench.executors.log import LogPipe
from flashinfer_bench.bench.locks import device_lock
from flashinfer_bench.bench.sandbox import Level, Sandbox, writable_folders
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
from flashinfer_bench.data.json_codec import dict_to_dataclass, load_json_file, parse_json
from flashinfer_bench.errors import CapabilityError, ConfigError, FibError, UnknownNameError
from flashinfer_bench.plugins import default_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MAX_OUTPUT = 1 << 20
"""Bytes of a tool's output that are kept: half from its beginning, half from its end."""

MAX_LOG = 4000
"""Characters of a tool's output that a record keeps."""

MAX_MESSAGE = 600
"""Characters of what a tool says that a message keeps."""

CAPABILITY_CODES = (
    *("tool_missing", "no_permission", "unsupported_version", "no_device", "sandbox_refused"),
    *("not_buildable_here", "no_executor"),
)
"""Codes of problems of the machine, not of the solution."""

_BUILD_TIMEOUT_S = 300.0
_CODES = {"confine": "sandbox_refused", "build": "build_failed", "call": "call_failed"}
_MAX_RECORD = 1 << 16
_LOOK_S = 0.02
_VERSION = re.compile(r"\bVersion (\d{4}(?:\.\d+)+)")
_ARGUMENTS = re.compile(r"<[^<>]*>")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")

SolutionLike = Union[Solution, Path, str]
WorkloadLike = Union[Workload, Path, str]
DatasetLike = Union[TraceSet, Path, str, None]


@dataclass(frozen=True)
class ToolProblem:
    """Why a tool has no result, or only a part of one.

    Attributes
    ----------
    code : str
        ``tool_missing``, ``unsupported_version``, ``no_permission``, ``no_device``, ``busy``,
        ``invalid_request``, ``sandbox_refused``, ``inputs_failed``, ``not_buildable_here``,
        ``other_device``, ``build_failed``, ``call_failed``, ``crashed``, ``timeout``,
        ``interrupted``, ``no_kernels`` or ``unreadable_report``.
    message : str
        What happened.
    hint : str
        What to do next; may be empty.
    log : str
        What a compiler or the process printed; may be empty.
    """

    code: str
    message: str
    hint: str = ""
    log: str = ""


class ToolError(Exception):
    """Carries a `ToolProblem`, of these parts, to the function that records it."""

    def __init__(self, code: str, message: str, hint: str = "", log: str = "") -> None:
        super().__init__(message)
        self.problem = ToolProblem(code, message, hint, log[-MAX_LOG:])


@dataclass(frozen=True)
class ToolReport:
    """What a tool has found; each tool adds its own.

    Attributes
    ----------
    version : int
        Version of this record.
    tool, tool_version : str
        Name and version of the program; the version is empty if it is not known.
    definition, solution, workload, device : str
        What was looked at, where.
    sandbox : Confinement
        What confined the solution, in the last run.
    problem : ToolProblem, optional
        Why there is no result, or only a part of one.
    """

    version: int = 1
    tool: str = ""
    tool_version: str = ""
    definition: str = ""
    solution: str = ""
    workload: str = ""
    device: str = ""
    sandbox: Confinement = field(default_factory=Confinement)
    problem: Optional[ToolProblem] = None

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found


class Job(NamedTuple):
    """A solution with the workload that it is called on."""

    definition: Definition
    solution: Solution
    workload: Workload
    root: Optional[Path] = None

    @property
    def about(self) -> dict[str, Any]:
        """The names of its parts, as records have them."""
        names = self.definition.name, self.solution.name, self.workload.uuid
        return dict(zip(("definition", "solution", "workload"), names, strict=True))


# --------------------------------------------------------------------------- what is to be run


def select(solution: SolutionLike, workload: WorkloadLike, dataset: DatasetLike = None) -> Job:
    """Find a solution, its workload and its definition.

    Parameters
    ----------
    solution : Solution, Path or str
        The record, its JSON file, or its name in the dataset.
    workload : Workload, Path or str
        The record; a JSON file of it, or of a trace that has it; or its uuid in the dataset, of
        which the beginning is enough.
    dataset : TraceSet, Path or str, optional
        Default: as of the command line, ``FIB_DATASET_PATH`` or the one of the current folder.

    Raises
    ------
    UnknownNameError
        If the dataset has no such record.
    DataError
        If a file is not a valid record.
    DatasetNotFoundError
        If there is no dataset.
    """
    if not isinstance(dataset, TraceSet):
        from flashinfer_bench.cli.datasets import dataset_roots

        (root,) = dataset_roots([Path(dataset)] if dataset is not None else None)
        dataset = TraceSet.from_path(root, on_error="collect")
    found = _solution(solution, dataset)
    definition = dataset.definitions.get(found.definition)
    if definition is None:
        raise UnknownNameError.of("definition", [found.definition], dataset.definitions)
    chosen = _workload(workload, found.definition, dataset)
    return Job(definition, found, chosen, dataset.root and dataset.root.absolute())


def _file(name: Union[Path, str]) -> Optional[Path]:
    path = Path(name)
    if path.is_file():
        return path
    if isinstance(name, Path) or path.suffix == ".json":
        hint = "name a JSON file, or a record by name"
        raise ConfigError(f"there is no file {path}", hint=hint)
    return None


def _solution(given: SolutionLike, dataset: TraceSet) -> Solution:
    if isinstance(given, Solution):
        return given
    if (path := _file(given)) is not None:
        return load_json_file(Solution, path)
    found = dataset.get_solution(str(given))
    if found is None:
        names = (one.name for group in dataset.solutions.values() for one in group)
        raise UnknownNameError.of("solution", [str(given)], names)
    return found


def _workload(given: WorkloadLike, definition: str, dataset: TraceSet) -> Workload:
    if isinstance(given, Workload):
        return given
    if (path := _file(given)) is not None:
        data = parse_json(path.read_bytes(), path=path)
        if isinstance(data, dict) and isinstance(data.get("workload"), dict):  # a trace
            data = data["workload"]
        return dict_to_dataclass(Workload.upgrade(data, definition), Workload)
    every = {one.workload.uuid: one.workload for one in dataset.workloads.get(definition, ())}
    found = [uuid for uuid in every if given and uuid.startswith(str(given))]
    if given not in every and len(found) != 1:
        raise UnknownNameError.of("workload", [str(given)], every)
    return every[str(given) if given in every else found[0]]


# ----------------------------------------------------------------------------------- the tool


def find_tool(name: str, package: str) -> str:
    """Return the path of a program: as given, in ``PATH``, or in the CUDA toolkit.

    Raises
    ------
    ToolError
        If there is none.
    """
    toolkit = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda", "bin", name)
    found = shutil.which(name) or (shutil.which(str(toolkit)) if os.sep not in name else None)
    if found is None:
        raise ToolError(
            "tool_missing",
            f"there is no program {name!r} in PATH or in {toolkit.parent}",
            f"install {package}, which is part of the CUDA toolkit, or name its path",
        )
    return str(Path(found).absolute())


def version_of(tool: str, oldest: str, stop: Optional[Event] = None) -> str:
    """Return the version of a tool: ``2025.3.1.0``.

    Raises
    ------
    ToolError
        If it does not tell one, or it is older than `oldest`; or `stop` is set.
    """
    ran = run_bounded([tool, "--version"], timeout_s=60, stop=stop)
    found = _VERSION.search(ran.output)
    if found is None or [*map(int, found[1].split("."))] < [*map(int, oldest.split("."))]:
        raise ToolError(
            "unsupported_version",
            f"{tool} has version {found[1] if found else '?'}; {oldest} or later is needed",
            "install the one of a newer CUDA toolkit",
            "" if found else ran.output,
        )
    return found[1]


class Ran(NamedTuple):
    """A program that has ended.

    Attributes
    ----------
    exit_code : int, optional
        As of a shell: 128 plus its number after a signal; None if it was killed after the timeout.
    output : str
        What it and its children printed, without the middle if that was too much.
    seconds : float
        How long it ran.
    """

    exit_code: Optional[int]
    output: str
    seconds: float

    @property
    def log(self) -> str:
        """The end of the output."""
        return self.output[-MAX_LOG:]

    def problem(self, code: str, message: str, hint: str) -> ToolProblem:
        """Return a problem with the end of the output."""
        return ToolProblem(code, message[:MAX_MESSAGE], hint, self.log)


def run_bounded(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    cwd: Optional[Path] = None,
    env: Optional[Mapping[str, str]] = None,
    limit: int = MAX_OUTPUT,
    stop: Optional[Event] = None,
) -> Ran:
    """Run a program in a process group of its own, of which nothing is left afterwards.

    The group is killed, too, when this process ends, however it does; see `fib_agents.leash`.

    Parameters
    ----------
    arguments : sequence of str
        The command line.
    timeout_s : float
        Seconds after which all of it is killed.
    cwd : Path, optional
        Its current folder.
    env : mapping, optional
        Its environment.
    limit : int
        Bytes of output that are kept.
    stop : threading.Event, optional
        When it is set, all of it is killed.

    Raises
    ------
    ToolError
        If `stop` is set.
    """
    began = time.monotonic()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            command(leash.__name__, theirs.fileno(), *arguments),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        assert process.stdout is not None
        reading = os.dup(process.stdout.fileno())  # the log closes its own
        with process.stdout, closing(LogPipe(reading, head=limit // 2, tail=limit // 2)) as log:
            try:
                until, look = Deadline(timeout_s), os.WEXITED | os.WNOHANG | os.WNOWAIT
                while not (ended := os.waitid(os.P_PID, process.pid, look)) and not until.expired:
                    check_stop(stop)
                    wait([log.fileno()] if log.fileno() >= 0 else [], _LOOK_S)
                    log.drain()
            finally:
                # The process itself is not waited for yet, so its number is not another's.
                for pid in [*tree_of(process.pid)]:
                    kill(pid)
                kill_group(process.pid)
                process.wait()
            log.drain()
            return Ran(process.returncode if ended else None, log.text(), time.monotonic() - began)


def check_stop(stop: Optional[Event]) -> None:
    """Raise a `ToolError` if an event is set."""
    if stop is not None and stop.is_set():
        raise ToolError("interrupted", "stopped on request")


# -------------------------------------------------------------------------- a solution under it


@dataclass(frozen=True)
class Prepared:
    """A solution that is ready to run under a tool.

    Attributes
    ----------
    folder : Path
        Private; removed afterwards.
    command : list of str
        Runs the solution; to be put after that of the tool.
    environment : dict of str to str
        Environment of both.
    """

    folder: Path
    command: list[str]
    environment: dict[str, str]

    def held(self) -> Confinement:
        """Return what confined the solution."""
        record = _record(self.folder / target.SANDBOX)
        applied, missing = record.get("applied"), record.get("missing")
        return Confinement(
            tuple(map(str, applied)) if isinstance(applied, list) else (),
            {str(k): str(v) for k, v in missing.items()} if isinstance(missing, dict) else {},
        )

    def problem(self, ran: Ran, tool: str) -> Optional[ToolProblem]:
        """Return what went wrong with the solution, if it did."""
        record = _record(self.folder / target.OUTCOME)
        stage = record.get("stage") if record.get("stage") in target.STAGES else target.STAGES[0]
        if ran.exit_code is None:
            told = f"{tool} did not end within {ran.seconds:.0f} s; stage: {stage}"
            hint = "give it more time, choose a smaller workload, or fewer kernels"
            return ran.problem("timeout", told, hint)
        if "message" in record:
            kind, message, hint, log = (
                str(record.get(name, "")) for name in ("kind", "message", "hint", "log")
            )
            code = _CODES.get(str(stage), "inputs_failed")
            return ToolProblem(code, f"{kind}: {message}"[:MAX_LOG], hint, log[-MAX_LOG:])
        if stage != "done":
            told = f"the process ended during stage {stage!r}; {tool} exited with {ran.exit_code}"
            return ran.problem("crashed", told, "see its output in the log")
        return None


def _record(file: Path) -> dict[str, Any]:
    """Return a small JSON object that an untrusted process may have written."""
    try:
        found = json.loads(_content(file, _MAX_RECORD))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _content(file: Path, limit: int) -> bytes:
    """Return at most `limit` bytes of a file; nothing if it is a link, a pipe or not there."""

    def opened(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)

    with suppress(OSError), open(file, "rb", opener=opened) as stream:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream.read(limit)
    return b""


class ToolRun:
    """A tool, the solution that it looks at, and where.

    Parameters
    ----------
    program : str
        Name or path of the tool.
    job : Job
        The solution and its workload.
    device : str, optional
        Default: the first GPU.
    sandbox : str, optional
        ``off``, ``auto`` or ``strict``; default: as of ``fib run``.
    folder : Path, optional
        Where temporary files go.
    stop : threading.Event, optional
        When it is set, what runs is killed, and a `ToolError` is raised.

    Attributes
    ----------
    device, version : str
        Which GPU it is, and the version of the tool.

    Raises
    ------
    ToolError, FibError
        If there is no such program or device, or no such level.
    """

    package: ClassVar[str]
    oldest: ClassVar[str]

    def __init__(
        self,
        program: str,
        job: Job,
        device: Optional[str],
        sandbox: Optional[str],
        folder: Optional[Path],
        stop: Optional[Event] = None,
    ) -> None:
        self.job, self._folder, self._stop = job, folder, stop
        given = {} if sandbox is None else {"sandbox": sandbox}
        self._level = BenchmarkConfig.default(**given).sandbox
        self.program = find_tool(program, self.package)
        try:
            self.device = backends.choose_devices(device or "cuda")[0]
        except CapabilityError as failed:
            hint = f"{self.package} needs an NVIDIA GPU; nvidia-smi lists those of this machine"
            raise ToolError("no_device", failed.message, hint) from None
        self.version = version_of(self.program, self.oldest, stop)

    def build(self) -> None:
        """Compile the solution; see `build`."""
        build(self.job, device=self.device, sandbox=self._level, stop=self._stop)

    @contextmanager
    def started(
        self,
        *,
        seed: int,
        warmup: int = 0,
        calls: int,
        variables: Optional[Mapping[str, str]] = None,
    ) -> Iterator[Prepared]:
        """Make what is needed to run a solution that was built once; see `target.Request`."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        request = target.Request(
            **self.job._asdict(),
            device=self.device,
            seed=seed,
            warmup=warmup,
            calls=calls,
            sandbox=self._level,
        )
        place = Path(tempfile.mkdtemp(prefix="fib-tool-", dir=self._folder)).resolve()
        try:
            (place / target.WORK).mkdir()
            (place / target.REQUEST).write_text(request.model_dump_json(), encoding="utf-8")
            variables = {**environment(place / target.WORK, self.device), **(variables or {})}
            yield Prepared(place, command(target.__name__, place), variables)
        finally:
            remove_folder(place)
            self._tidy()

    def _tidy(self) -> None:
        """Remove what the sandbox of the solution has left, which has ended by force."""
        if self._level == "off":
            return
        Sandbox(self._level).tidy()
        for folder in map(Path, writable_folders(self.job.definition, self.job.solution)[:1]):
            with suppress(OSError):  # something is in there
                folder.rmdir()
                remove_folder(folder.parent)

    def run(self, ready: Prepared, arguments: Sequence[str], deadline: float) -> Ran:
        """Run the tool until `deadline`, of `time.monotonic`; hold the lock of the device."""

        def give_up() -> bool:
            check_stop(self._stop)
            return time.monotonic() > deadline

        with device_lock(self.device, give_up) as held:
            if not held:
                told = f"another process has measured on {self.device} all the time"
                raise ToolError("busy", told, "wait for it, or use another device")
            left, env = max(deadline - time.monotonic(), 1.0), ready.environment
            return run_bounded(
                arguments, timeout_s=left, cwd=ready.folder, env=env, stop=self._stop
            )


def build(job: Job, *, device: str, sandbox: Level, stop: Optional[Event] = None) -> None:
    """Compile a solution in a confined process, if its language is compiled.

    Raises
    ------
    ToolError
        If it cannot be built, or `stop` is set.
    """
    check_stop(stop)
    catalog = default_catalog()
    hindrance = plan.obstacle(job.solution, catalog, device)
    if hindrance is not None:
        kind, reason = hindrance
        code = "not_buildable_here" if kind == "capability" else "other_device"
        raise ToolError(code, reason)
    if not plan.compiles_ahead(job.solution, catalog, device):
        return
    confines = Sandbox(sandbox, catalog)
    try:
        with (
            closing(backends.make_executor(catalog, device)) as executor,
            _calls(executor.close, stop),
        ):
            made = builds.BuildAhead(
                (), executor, jobs=1, timeout_s=_BUILD_TIMEOUT_S, overlap=False, sandbox=confines
            ).compile(plan.Build(job.definition, job.solution))
    except FibError as failed:
        check_stop(stop)
        raise ToolError("no_executor", failed.message, failed.hint or "") from None
    finally:
        confines.tidy()
    check_stop(stop)
    if made.error is not None:
        code = "not_buildable_here" if made.state == "unavailable" else "build_failed"
        raise ToolError(code, made.reason, made.error.hint or "", made.log)


@contextmanager
def _calls(work: Callable[[], None], stop: Optional[Event]) -> Iterator[None]:
    """Call `work` in another thread if `stop` is set during the body of a ``with`` statement."""
    over = Event()

    def watch(stop: Event) -> None:
        while not over.wait(_LOOK_S):
            if stop.is_set():
                work()
                return

    watcher = Thread(target=watch, args=(stop,), daemon=True)
    if stop is not None:
        watcher.start()
    try:
        yield
    finally:
        over.set()


# ---------------------------------------------------------------------------------- kernel names


def short_name(kernel: str) -> str:
    """Return the name of a kernel without result, template arguments and parameters.

    Parameters
    ----------
    kernel : str
        A demangled name: ``void a::scale<float, (int)4>(float *, int)``.

    Returns
    -------
    str
        ``a::scale``; at most 100 characters.
    """
    text, inner = "", _ANONYMOUS.sub("", kernel.strip().removeprefix("void "))
    while inner != text:  # the innermost arguments first
        text, inner = inner, _ARGUMENTS.sub("", inner)
    text = text.partition("(")[0]
    name = text.rpartition(" ")[2].replace("::::", "::").removeprefix("::")
    return (name or kernel.strip())[:100]


def read_text(file: Path, limit: int) -> str:
    """Return at most `limit` bytes of a text file; nothing if there is none."""
    return _content(file, limit).decode("utf-8", "replace")


FAILURES = (ToolError, FibError, OSError)
"""What becomes a `ToolProblem`."""


def problem_of(failed: Exception) -> ToolProblem:
    """Return the problem for one of `FAILURES`."""
    if isinstance(failed, ToolError):
        return failed.problem
    if isinstance(failed, FibError):
        code = "no_device" if isinstance(failed, CapabilityError) else "invalid_request"
        return ToolProblem(code, failed.message, failed.hint or "")
    return ToolProblem("crashed", f"{type(failed).__name__}: {failed}")


def told_problem(problem: ToolProblem, start: str = "ERROR: ") -> str:
    """Return a problem as text, by default one that begins with ``ERROR:``."""
    lines = [f"{start}{problem.message}"]
    lines += [f"hint: {problem.hint}"] if problem.hint else []
    lines += [problem.log] if problem.log else []
    return "\n".join(lines)


def first_lines(text: str, count: Optional[int]) -> str:
    """Return the first lines of a text, and how many there are more."""
    lines = text.splitlines()
    if count is None or len(lines) <= count:
        return text
    kept = lines[: max(count, 0)]
    return "\n".join([*kept, f"[{len(lines) - len(kept)} more lines]"])
