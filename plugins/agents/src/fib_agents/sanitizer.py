"""Look for invalid accesses, races and wrong barriers of a solution with compute-sanitizer.

Its text is read, which goes to a file of its own: nothing is in it that the solution prints. The
messages are described in the Compute Sanitizer documentation.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_agents import tool_runs
from fib_agents.tool_runs import MAX_LOG, DatasetLike, SolutionLike, ToolProblem, WorkloadLike
from flashinfer_bench.data import CompileOptions
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from threading import Event

    from flashinfer_bench.data import Solution

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
"""The tools of compute-sanitizer, in the order in which they run."""

OLDEST = "2024.1"
"""The oldest version of compute-sanitizer that is used; earlier ones name places differently."""

MAX_FINDINGS = 50
PRINT_LIMIT = 10_000
"""How many messages a tool prints: each thread that makes a mistake has one."""

PADDING = 1 << 16
"""Bytes after each allocation, so that an overrun does not hit the next one unseen."""

# With torch's own allocator tensors share allocations.
VARIABLES = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

_MAX_REPORT = 8 << 20
_MAX_TEXT = 300
_MARK = "========="
_ACCESS = re.compile(
    r"(?P<kind>Invalid|Uninitialized) (?:__(?P<space>\w+?)__ )?(?:memory )?"
    r"(?P<access>read|write|atomic)\w*(?: of size (?P<bytes>\d+))?"
)
_RACE = re.compile(
    r"(?P<severity>\w+): Race reported between (?P<access>Read|Write|Atomic) access at "
    r"(?P<place>.+)"
)
_OTHER = re.compile(
    r"and (?P<access>Read|Write|Atomic) access at (?P<place>.+?)(?: \[(?P<hazards>\d+) hazards?\])?"
)
_THREAD = re.compile(r"by thread (?P<thread>\([\d,]+\)) in block (?P<block>\([\d,]+\))")
_ADDRESS = re.compile(r"(?:Address|Access (?:at|to)) (?P<address>0x[0-9a-fA-F]+)(?P<what>.*)")
_FRAME = re.compile(r"(?:at|Device Frame:) (?P<place>.+)")
# kernel(float *)+0x90 in main.cu:12
_PLACE = re.compile(r"(?P<kernel>.+)\+0x[0-9a-fA-F]+(?: in (?P<file>[^:]+?)(?::(?P<line>\d+))?)?")
_WITHOUT_KERNEL = re.compile(r"Uninitialized access|Host API memory access error")
_TOOL_FAILED = re.compile(
    rf"{_MARK} ((?:Internal Sanitizer Error|Error: Failed|Error: No attachable|Error: Unable"
    r"|Unable to find).*|Error: .*(?:not supported|injection).*|Device not supported.*)"
)
_SUMMARY = re.compile(rf"{_MARK} (?:ERROR|RACECHECK) SUMMARY:")


@dataclass(frozen=True)
class Finding:
    """Something wrong that a kernel does; equal ones are one, with their number.

    Attributes
    ----------
    tool : str
        ``memcheck``, ``racecheck``, ``initcheck`` or ``synccheck``.
    kind : str
        ``out of bounds``, ``misaligned``, ``invalid access``, ``race``, ``uninitialised read``,
        ``barrier`` or ``other``.
    message : str
        What the tool says, at most 300 characters.
    kernel : str
        Short name of the kernel; empty if it is not known, as `file`.
    file : str
        Path of the source in the solution, or as the compiler saw it.
    line : int, optional
        Line in the source, from 1; known if the code was compiled with line information.
    thread, block : str
        Of the first one: ``(31,0,0)``.
    address : str
        Of the first one: ``0x7f0000000400``.
    access : str
        ``read``, ``write`` or ``atomic``; or empty.
    space : str
        ``global``, ``shared`` or ``local``; or empty.
    bytes : int, optional
        Size of the access.
    other : str
        Of a race: the other access, such as ``read at main.cu:22``.
    severity : str
        ``error`` or ``warning``.
    count : int
        How many there were, as far as they were printed.
    """

    tool: str
    kind: str
    message: str
    kernel: str = ""
    file: str = ""
    line: Optional[int] = None
    thread: str = ""
    block: str = ""
    address: str = ""
    access: str = ""
    space: str = ""
    bytes: Optional[int] = None
    other: str = ""
    severity: str = "error"
    count: int = 1

    @property
    def place(self) -> str:
        """``main.cu:12``; empty if it is not known."""
        return f"{self.file}:{self.line}" if self.line is not None else self.file


@dataclass(frozen=True)
class Check:
    """One tool that ran.

    Attributes
    ----------
    tool : str
        Its name.
    seconds : float
        How long it took.
    findings : int
        How many different findings it has.
    command : tuple of str
        Its command line.
    problem : ToolProblem, optional
        Why it has no result, or only a part of one.
    log : str
        The end of what the solution and the tool printed (untrusted text).
    """

    tool: str
    seconds: float
    findings: int
    command: tuple[str, ...] = ()
    problem: Optional[ToolProblem] = None
    log: str = ""


@dataclass(frozen=True)
class SanitizerReport(tool_runs.ToolReport):
    """What `memcheck` found; see also `fib_agents.tool_runs.ToolReport`.

    Attributes
    ----------
    checks : tuple of Check
        The tools that ran.
    findings : tuple of Finding
        At most 50.
    left_out : int
        How many further findings there are.
    """

    tool: str = "compute-sanitizer"
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()
    left_out: int = 0

    @property
    def clean(self) -> bool:
        """Whether all tools ran to the end and found nothing."""
        return not self.findings and self.problem is None

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {**super().as_dict(), "clean": self.clean}


def memcheck(
    solution: SolutionLike,
    workload: WorkloadLike,
    *,
    tools: Sequence[str] = TOOLS,
    dataset: DatasetLike = None,
    device: Optional[str] = None,
    sandbox: Optional[str] = None,
    timeout: float = 300.0,
    sanitizer: str = "compute-sanitizer",
    seed: int = 0,
    folder: Optional[Path] = None,
    save: Optional[Path] = None,
    stop: Optional[Event] = None,
) -> SanitizerReport:
    """Look for invalid accesses, races, uninitialised reads and wrong barriers of a solution.

    It is compiled with line information, and called once under each tool.

    Parameters
    ----------
    solution, workload, dataset
        See `fib_agents.tool_runs.select`.
    tools : sequence of str
        Which tools, of `TOOLS`.
    device : str, optional
        Default: the first GPU.
    sandbox : str, optional
        ``off``, ``auto`` or ``strict``; default: as of ``fib run``.
    timeout : float
        Seconds that each tool may take, without the time to compile the solution.
    sanitizer : str
        Name or path of the program.
    seed : int
        Seed of random inputs.
    folder : Path, optional
        Where temporary files go.
    save : Path, optional
        An existing folder for the texts of the tools.
    stop : threading.Event, optional
        When another thread sets it, what runs is killed; the problem is then ``interrupted``.

    Returns
    -------
    SanitizerReport
        Whatever goes wrong is its `problem`; nothing is raised.
    """
    found = SanitizerReport(device=device or "")
    try:
        chosen, job = _known(tools), tool_runs.select(solution, workload, dataset)
        found = replace(found, **job.about)
        job = job._replace(solution=with_line_info(job.solution))
        run = _Run(sanitizer, job, device, sandbox, folder, stop)
        found = replace(found, tool_version=run.version, device=run.device)
        sources = [one.path for one in job.solution.sources]
        every: list[Finding] = []
        run.build()
        for tool in chosen:
            # Each tool has a folder of its own, so that it sees nothing that others have left.
            with run.started(seed=seed, calls=1, variables=VARIABLES) as ready:
                command, ran, text = run.check(ready, tool, timeout)
                new = merged(read_findings(text, tool, sources))
                problem, held = problem_with(ready, ran, text, tool, bool(new)), ready.held()
            every += new
            took = round(ran.seconds, 2)
            check = Check(tool, took, len(new), tuple(command), problem, ran.log)
            found = replace(
                found,
                sandbox=held,
                checks=(*found.checks, check),
                findings=tuple(every[:MAX_FINDINGS]),
                left_out=max(len(every) - MAX_FINDINGS, 0),
                problem=found.problem or problem,
            )
            if save is not None:
                (save / f"{tool}.txt").write_text(text, encoding="utf-8")
    except tool_runs.FAILURES as failed:
        found = replace(found, problem=tool_runs.problem_of(failed))
    return found


# Drivers and torch make calls that fail by design.
_MEMCHECK = ("--padding", str(PADDING), "--report-api-errors", "no")


class _Run(tool_runs.ToolRun):
    """Runs of compute-sanitizer."""

    package, oldest = "Compute Sanitizer", OLDEST

    def check(
        self, ready: tool_runs.Prepared, tool: str, timeout: float
    ) -> tuple[list[str], tool_runs.Ran, str]:
        """Run one tool; return its command line, the run, and what the tool wrote."""
        log = ready.folder / f"{tool}.txt"
        command = [
            *(self.program, "--tool", tool, "--log-file", str(log)),
            *("--print-limit", str(PRINT_LIMIT), "--show-backtrace", "device"),
            *("--target-processes", "application-only"),
            *(_MEMCHECK if tool == "memcheck" else ()),
            *ready.command,
        ]
        ran = self.run(ready, command, time.monotonic() + timeout)
        return command, ran, tool_runs.read_text(log, _MAX_REPORT)


def _known(tools: Iterable[str]) -> list[str]:
    chosen = list(dict.fromkeys(tools))
    if not chosen or not set(chosen).issubset(TOOLS):
        unknown = ", ".join(one for one in chosen if one not in TOOLS)
        hint = f"allowed: {', '.join(TOOLS)}"
        raise ConfigError(f"no tool of compute-sanitizer: {unknown}", hint=hint)
    return chosen


def with_line_info(solution: Solution) -> Solution:
    """Return a solution that is compiled with ``-lineinfo``, if it has CUDA files.

    Its build is another one in the cache. The flag does not change the code of kernels.
    """
    if not any(source.path.endswith(".cu") for source in solution.sources):
        return solution
    options = solution.spec.compile_options or CompileOptions()
    if {"-lineinfo", "--generate-line-info", "-G"} & {*options.cuda_cflags}:
        return solution
    changed = options.model_copy(update={"cuda_cflags": [*options.cuda_cflags, "-lineinfo"]})
    spec = solution.spec.model_copy(update={"compile_options": changed})
    return solution.model_copy(update={"spec": spec})


def problem_with(
    ready: tool_runs.Prepared, ran: tool_runs.Ran, text: str, tool: str, found: bool
) -> Optional[ToolProblem]:
    """Return why a tool has no result, or only a part of one."""
    of_solution = ready.problem(ran, tool)
    if of_solution is not None and of_solution.code == "timeout":
        return of_solution
    if failed := _TOOL_FAILED.search(text) or _TOOL_FAILED.search(ran.output):
        code = "unsupported_version" if "not supported" in failed[1] else "crashed"
        hint = "install the compute-sanitizer of the CUDA version that nvidia-smi shows"
        if code == "crashed":
            hint = "if you trust the solution, try --sandbox off"
        return ran.problem(code, f"compute-sanitizer: {failed[1]}", hint)
    if of_solution is not None:
        if of_solution.code == "crashed":
            of_solution = replace(of_solution, log=f"{text}\n{ran.log}"[-MAX_LOG:])
        # A kernel that is stopped for what was found makes the call fail, too.
        return None if found and of_solution.code in ("call_failed", "crashed") else of_solution
    if not _SUMMARY.search(text) and not found:
        message = f"{tool} exited with {ran.exit_code} and wrote no summary"
        return ran.problem("unreadable_report", message, "see its output in the log")
    return None


# ------------------------------------------------------------------------------ reading its text


class _Place(NamedTuple):
    kernel: str
    file: str = ""
    line: Optional[int] = None

    @classmethod
    def of(cls, text: str) -> _Place:
        found = _PLACE.fullmatch(text.strip())
        if found is None:
            return cls(text.strip())
        line = found["line"]
        return cls(found["kernel"], found["file"] or "", int(line) if line else None)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line is not None else self.file


def read_findings(text: str, tool: str, sources: Sequence[str] = ()) -> Iterator[Finding]:
    """Read the messages of a tool; lines that are not its own, and unknown ones, are passed over.

    Parameters
    ----------
    text : str
        What compute-sanitizer has written.
    tool : str
        Name of the tool.
    sources : sequence of str
        Paths of the sources; the tool tells only names of files.

    Yields
    ------
    Finding
        One for each message.
    """
    for head, body in _messages(text):
        found = _race(head, body, tool) or _error(head, body, tool, sources)
        if found is not None:
            same = [one for one in sources if one.rpartition("/")[2] == found.file]
            yield replace(found, file=same[0]) if len(same) == 1 else found


def _messages(text: str) -> list[tuple[str, list[str]]]:
    """Return the first line of each message, and the indented ones that follow."""
    messages: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        told = line.removeprefix(_MARK)
        if told.startswith("     ") and line != told and messages:
            messages[-1][1].append(told.strip())
        elif line != told:
            messages.append((told.strip(), []))
    return messages


def _race(head: str, body: Sequence[str], tool: str) -> Optional[Finding]:
    found = _RACE.match(head)
    if found is None:
        return None
    place = _Place.of(found["place"])
    others = [match for line in body if (match := _OTHER.fullmatch(line))]
    seen = [f"{one['access'].lower()} at {_Place.of(one['place'])}" for one in others]
    return Finding(
        tool,
        "race",
        _text([head, *body]),
        kernel=tool_runs.short_name(place.kernel),
        file=place.file,
        line=place.line,
        access=found["access"].lower(),
        space="shared",  # racecheck looks at no other
        other=", ".join(dict.fromkeys(seen))[:200],
        severity="error" if found["severity"] == "Error" else "warning",
        count=sum(int(one["hazards"] or 1) for one in others) or 1,
    )


def _error(head: str, body: Sequence[str], tool: str, sources: Sequence[str]) -> Optional[Finding]:
    frames = [_Place.of(found["place"]) for line in body if (found := _FRAME.match(line))]
    if not frames and not _WITHOUT_KERNEL.match(head):
        return None
    # Functions that are inlined come first, those of CUDA's headers too; the kernel is the last.
    own = {one.rpartition("/")[2] for one in sources}
    places = [one for one in frames if one.line is not None] or frames or [_Place("")]
    place = next((one for one in places if one.file in own), places[0])
    access, thread, where = (_first(one, (head, *body)) for one in (_ACCESS, _THREAD, _ADDRESS))
    about = [line for line in body if _ADDRESS.match(line) or line.startswith("and ")]
    told = _text([head, *about] if frames else [head, *body])
    kind = "barrier" if head.startswith("Barrier error") else "other"
    if access is not None:
        kind = "uninitialised read" if access["kind"] == "Uninitialized" else "invalid access"
        for known in ("misaligned", "out of bounds"):
            kind = known if where is not None and known in where["what"] else kind
    return Finding(
        tool,
        kind,
        told if place == places[0] else f"{told[:200]} In {places[0]}."[:_MAX_TEXT],
        kernel=tool_runs.short_name(frames[-1].kernel) if frames else "",
        file=place.file,
        line=place.line,
        thread=thread["thread"] if thread else "",
        block=thread["block"] if thread else "",
        address=where["address"] if where else "",
        access=access["access"] if access else "",
        space=(access["space"] or "") if access else "",
        bytes=int(access["bytes"]) if access and access["bytes"] else None,
    )


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> Optional[re.Match[str]]:
    return next((found for line in lines if (found := pattern.match(line))), None)


def _text(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())[:_MAX_TEXT]


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Combine findings that differ only in thread, block and address; the first one is kept."""
    found: dict[Finding, Finding] = {}
    for one in findings:
        text = "" if one.line is not None else re.sub(r"0x[0-9a-fA-F]+|\d[\d,]*", "#", one.message)
        key = replace(one, thread="", block="", address="", message=text, count=1)
        known = found.get(key)
        found[key] = one if known is None else replace(known, count=known.count + one.count)
    return list(found.values())


# ------------------------------------------------------------------------------ for agents: text


def flashinfer_bench_run_sanitizer(
    solution: SolutionLike,
    workload: WorkloadLike,
    *,
    device: str = "cuda:0",
    trace_set_path: Optional[str] = None,
    sanitizer_types: Optional[list[str]] = None,
    sanitizer_path: str = "compute-sanitizer",
    timeout: int = 300,
    tmpdir: Optional[str] = None,
    max_lines: Optional[int] = None,
) -> str:
    """Check a solution with compute-sanitizer, and return what the tools say as text.

    Parameters
    ----------
    solution : Solution, Path or str
        The solution, or the path of its JSON file.
    workload : Workload, Path or str
        The workload, or the path of its JSON file.
    device : str
        The GPU to use.
    trace_set_path : str, optional
        Folder of the dataset that has the definition.
    sanitizer_types : list of str, optional
        Tools to run, of memcheck, racecheck, initcheck and synccheck; by default all.
    sanitizer_path : str
        Name or path of compute-sanitizer.
    timeout : int
        Seconds that each tool may take.
    tmpdir : str, optional
        Folder for temporary files.
    max_lines : int, optional
        Return at most this many lines.

    Returns
    -------
    str
        The texts of the tools; or a text that begins with ``ERROR:`` and says what went wrong.
    """
    try:
        folder = Path(tmpdir or tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fib-tool-", dir=folder) as saved:
            report = memcheck(
                solution,
                workload,
                tools=TOOLS if sanitizer_types is None else sanitizer_types,
                dataset=trace_set_path,
                device=device,
                timeout=timeout,
                sanitizer=sanitizer_path,
                folder=folder,
                save=Path(saved),
            )
            texts = {
                one.tool: tool_runs.read_text(Path(saved, f"{one.tool}.txt"), _MAX_REPORT)
                for one in report.checks
            }
    except OSError as failed:
        return tool_runs.told_problem(tool_runs.problem_of(failed))
    if report.problem is not None and not report.findings:
        of = next((f"{one.tool}: " for one in report.checks if one.problem is not None), "")
        return tool_runs.told_problem(report.problem, f"ERROR: {of}")
    parts = [f"{tool}:\n{text.strip()}" for tool, text in texts.items()]
    return tool_runs.first_lines("\n\n".join(parts), max_lines)
