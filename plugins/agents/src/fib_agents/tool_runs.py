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
from pathlib import Path
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Union

from fib_agents import leash, target
from flashinfer_bench.bench.candidate.folders import remove_folder
from flashinfer_bench.bench.candidate.processes import kill, kill_group, tree_of
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.executors.launch import command, environment
from flashinfer_bench.data import Definition, Solution, TraceSet, Workload
from flashinfer_bench.data.json_codec import dict_to_dataclass, load_json_file, parse_json
from flashinfer_bench.errors import CapabilityError, ConfigError, FibError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from flashinfer_bench.bench.sandbox import Level

MAX_OUTPUT = 1 << 20
"""Bytes of a tool's output that are kept: half from its beginning, half from its end."""

MAX_LOG = 4000
"""Characters of a tool's output that a record keeps."""

CAPABILITY_CODES = (
    *("tool_missing", "no_permission", "unsupported_version", "no_device", "sandbox_refused"),
    *("not_buildable_here", "no_executor"),
)
"""Codes of problems of the machine, not of the solution."""

_BUILD_TIMEOUT_S = 300.0
_MAX_RECORD = 1 << 16
_LAST_WORDS_S = 1.0
_LOOK_S = 0.02
_VERSION = re.compile(r"\bVersion (\d{4}(?:\.\d+)+)")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")

SolutionLike = Union[Solution, Path, str]
WorkloadLike = Union[Workload, Path, str]
DatasetLike = Union[TraceSet, Path, str, None]


@dataclass(frozen=True)
class Problem:
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
    """Carries a `Problem` to the function that records it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def error(code: str, message: str, hint: str = "", log: str = "") -> ToolError:
    """Return the exception for a problem."""
    return ToolError(Problem(code, message, hint, log[-MAX_LOG:]))


@dataclass(frozen=True)
class Held:
    """What confined a solution.

    Attributes
    ----------
    applied : tuple of str
        Names of the measures that held.
    missing : dict of str to str
        The others, and why they did not.
    """

    applied: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


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
    sandbox : Held
        What confined the solution, in the last run.
    problem : Problem, optional
        Why there is no result, or only a part of one.
    """

    version: int = 1
    tool: str = ""
    tool_version: str = ""
    definition: str = ""
    solution: str = ""
    workload: str = ""
    device: str = ""
    sandbox: Held = field(default_factory=Held)
    problem: Optional[Problem] = None

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
    return path if isinstance(name, Path) or path.suffix == ".json" or path.is_file() else None


def _solution(given: SolutionLike, dataset: TraceSet) -> Solution:
    if isinstance(given, Solution):
        return given
    if (path := _file(given)) is not None:
        return load_json_file(Solution, _existing(path))
    found = dataset.get_solution(str(given))
    if found is None:
        names = (one.name for group in dataset.solutions.values() for one in group)
        raise UnknownNameError.of("solution", [str(given)], names)
    return found


def _workload(given: WorkloadLike, definition: str, dataset: TraceSet) -> Workload:
    if isinstance(given, Workload):
        return given
    if (path := _file(given)) is not None:
        data = parse_json(_existing(path).read_bytes(), path=path)
        if isinstance(data, dict) and isinstance(data.get("workload"), dict):  # a trace
            data = data["workload"]
        return dict_to_dataclass(Workload.upgrade(data, definition), Workload)
    every = {one.workload.uuid: one.workload for one in dataset.workloads.get(definition, ())}
    if given in every:
        return every[str(given)]
    found = [one for uuid, one in every.items() if uuid.startswith(str(given))]
    if len(found) != 1 or not given:
        raise UnknownNameError.of(f"workload of {definition}", [str(given)], every)
    return found[0]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="name a JSON file, or a record by name")
    return path


def checked_sandbox(level: Optional[str]) -> Level:
    """Return a level of confinement; None stands for that of ``fib run``.

    Raises
    ------
    ConfigError
        If it is not ``off``, ``auto`` or ``strict``.
    """
    given = {} if level is None else {"sandbox": level}
    return BenchmarkConfig.default(**given).sandbox


def chosen_device(device: Optional[str]) -> str:
    """Return the device to use, by default the first GPU; it must exist.

    Raises
    ------
    CapabilityError
        If there is no such device.
    """
    from flashinfer_bench.bench.backends import choose_devices

    return choose_devices(device or "cuda")[0]


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
        raise error(
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
        raise error(
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
        kept = _Kept(limit)
        reader = Thread(target=kept.read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            while not (ended := _has_ended(process.pid)) and time.monotonic() < began + timeout_s:
                check_stop(stop)
                time.sleep(_LOOK_S)
        finally:
            # The process itself is not waited for yet, so its number is not another's.
            for pid in [*tree_of(process.pid)]:
                kill(pid)
            kill_group(process.pid)
            process.wait()
        reader.join(_LAST_WORDS_S)  # what has escaped may keep the pipe open
        return Ran(process.returncode if ended else None, kept.text(), time.monotonic() - began)


class _Kept:
    """The beginning and the end of a stream of bytes."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head, self._tail, self._left_out = b"", b"", 0

    def read(self, stream: IO[bytes]) -> None:
        with stream:
            while data := stream.read(1 << 16):
                room = self._half - len(self._head)
                self._head += data[:room]
                self._tail += data[max(room, 0) :]
                surplus = max(len(self._tail) - self._half, 0)
                self._tail = self._tail[surplus:]
                self._left_out += surplus

    def text(self) -> str:
        mark = f"\n… {self._left_out} bytes left out …\n" if self._left_out else ""
        return (self._head + mark.encode() + self._tail).decode("utf-8", "replace")


def check_stop(stop: Optional[Event]) -> None:
    """Raise a `ToolError` if an event is set."""
    if stop is not None and stop.is_set():
        raise error("interrupted", "stopped on request")


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


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

    def forget(self) -> None:
        """Remove what an earlier run has left of how it went."""
        for name in (target.SANDBOX, target.OUTCOME):
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)

    def held(self) -> Held:
        """Return what confined the solution."""
        record = _record(self.folder / target.SANDBOX)
        applied, missing = record.get("applied"), record.get("missing")
        return Held(
            tuple(map(str, applied)) if isinstance(applied, list) else (),
            {str(k): str(v) for k, v in missing.items()} if isinstance(missing, dict) else {},
        )

    def problem(self, ran: Ran, tool: str) -> Optional[Problem]:
        """Return what went wrong with the solution, if it did."""
        record = _record(self.folder / target.OUTCOME)
        stage = record.get("stage") if record.get("stage") in target.STAGES else target.STAGES[0]
        if ran.exit_code is None:
            return Problem(
                "timeout",
                f"{tool} did not end within {ran.seconds:.0f} s; stage: {stage}",
                "give it more time, choose a smaller workload, or fewer kernels",
                ran.output[-MAX_LOG:],
            )
        if "message" in record:
            told = {name: str(record.get(name, "")) for name in ("kind", "message", "hint", "log")}
            code = {
                "confine": "sandbox_refused",
                "build": "build_failed",
                "call": "call_failed",
            }.get(str(stage), "inputs_failed")
            message = f"{told['kind']}: {told['message']}"[:MAX_LOG]
            return Problem(code, message, told["hint"], told["log"][-MAX_LOG:])
        if stage != "done":
            return Problem(
                "crashed",
                f"the process ended during stage {stage!r}; {tool} exited with {ran.exit_code}",
                "see its output in the log",
                ran.output[-MAX_LOG:],
            )
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
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return b""
        with os.fdopen(opened, "rb", closefd=False) as stream:
            return stream.read(limit)
    except OSError:
        return b""
    finally:
        os.close(opened)


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

    Raises
    ------
    ToolError, FibError
        If there is no such program or device, or no such level.
    """

    package: ClassVar[str]
    confine_first: ClassVar[bool] = False
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
        self._level = checked_sandbox(sandbox)
        self.program = find_tool(program, self.package)
        self.device = chosen_device(device)
        self._version = version_of(self.program, self.oldest, stop)

    def about(self) -> dict[str, Any]:
        """Return the fields of a record that are known beforehand."""
        return {
            "tool_version": self._version,
            "definition": self.job.definition.name,
            "solution": self.job.solution.name,
            "workload": self.job.workload.uuid,
            "device": self.device,
        }

    @contextmanager
    def started(
        self,
        *,
        seed: int,
        warmup: int = 0,
        calls: int,
        variables: Optional[Mapping[str, str]] = None,
    ) -> Iterator[Prepared]:
        """Build the solution, and make what is needed to run it; see `target.Request`."""
        build(self.job, device=self.device, sandbox=self._level, stop=self._stop)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        root = str(self.job.root) if self.job.root else None
        request = target.Request(
            *(*self.job[:3], self.device, root, seed, warmup, calls, self._level),
            confine_first=self.confine_first,
        )
        place = Path(tempfile.mkdtemp(prefix="fib-tool-", dir=self._folder)).resolve()
        try:
            (place / target.WORK).mkdir()
            (place / target.REQUEST).write_text(request.to_json(), encoding="utf-8")
            variables = {**environment(place / target.WORK, self.device), **(variables or {})}
            yield Prepared(place, command(target.__name__, place), variables)
        finally:
            remove_folder(place)
            self._tidy()

    def _tidy(self) -> None:
        """Remove what the sandbox of the solution has left, which has ended by force."""
        from flashinfer_bench.bench.sandbox import Sandbox, writable_folders

        if self._level == "off":
            return
        Sandbox(self._level).tidy()
        for folder in map(Path, writable_folders(self.job.definition, self.job.solution)[:1]):
            with suppress(OSError):  # something is in there
                folder.rmdir()
                remove_folder(folder.parent)

    def run(self, ready: Prepared, arguments: Sequence[str], deadline: float) -> Ran:
        """Run the tool until `deadline`, of `time.monotonic`; hold the lock of the device."""
        from flashinfer_bench.bench.locks import device_lock

        def give_up() -> bool:
            check_stop(self._stop)
            return time.monotonic() > deadline

        with device_lock(self.device, give_up) as held:
            if not held:
                raise error(
                    "busy",
                    f"another process has measured on {self.device} all the time",
                    "wait for it, or use another device",
                )
            left = max(deadline - time.monotonic(), 1.0)
            env = ready.environment
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
    from flashinfer_bench.bench import plan
    from flashinfer_bench.bench.backends import make_executor
    from flashinfer_bench.bench.builds import BuildAhead
    from flashinfer_bench.bench.sandbox import Sandbox
    from flashinfer_bench.plugins import default_catalog

    catalog = default_catalog()
    hindrance = plan.obstacle(job.solution, catalog, device)
    if hindrance is not None:
        kind, reason = hindrance
        code = "not_buildable_here" if kind == "capability" else "other_device"
        raise error(code, reason)
    if not plan.compiles_ahead(job.solution, catalog, device):
        return
    confines = Sandbox(sandbox, catalog)
    try:
        with closing(make_executor(catalog, device)) as executor, _calls(executor.close, stop):
            made = BuildAhead(
                (), executor, jobs=1, timeout_s=_BUILD_TIMEOUT_S, overlap=False, sandbox=confines
            ).compile(plan.Build(job.definition, job.solution))
    except FibError as failed:
        check_stop(stop)
        raise error("no_executor", failed.message, failed.hint or "") from None
    finally:
        confines.tidy()
    check_stop(stop)
    if made.error is not None:
        code = "not_buildable_here" if made.state == "unavailable" else "build_failed"
        raise error(code, made.reason, made.error.hint or "", made.log)


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
    text, depth = [], 0
    for char in _ANONYMOUS.sub("", kernel.strip().removeprefix("void ")):
        depth += (char == "<") - (char == ">")
        if depth == 0 and char == "(":
            break
        if depth == 0 and char != ">":
            text.append(char)
    name = "".join(text).rpartition(" ")[2].replace("::::", "::").removeprefix("::")
    return (name or kernel.strip())[:100]


def read_text(file: Path, limit: int) -> str:
    """Return at most `limit` bytes of a text file; nothing if there is none."""
    return _content(file, limit).decode("utf-8", "replace")


FAILURES = (ToolError, FibError, OSError)
"""What becomes a `Problem`."""


def problem_of(failed: Exception) -> Problem:
    """Return the problem for one of `FAILURES`."""
    if isinstance(failed, ToolError):
        return failed.problem
    if isinstance(failed, FibError):
        code = "no_device" if isinstance(failed, CapabilityError) else "invalid_request"
        return Problem(code, failed.message, failed.hint or "")
    return Problem("crashed", f"{type(failed).__name__}: {failed}")


def told_error(problem: Problem) -> str:
    """Return a problem as text that begins with ``ERROR:``."""
    lines = [f"ERROR: {problem.message}"]
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
