"""Profile a solution with Nsight Compute, and read what it found.

``ncu`` writes a report file; the same program then prints it as CSV: the page ``raw`` has a row for
each launch and a column for each metric, the page ``details`` has the texts of ncu's rules. The
metrics are described in the Nsight Compute documentation, "Kernel Profiling Guide".
"""

from __future__ import annotations

import csv
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_agents import tool_runs
from fib_agents.tool_runs import MAX_LOG, DatasetLike, SolutionLike, ToolProblem, WorkloadLike

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from threading import Event


OLDEST = "2021.1"
"""The oldest version of ncu that is used; an H200 needs 2022.4."""

SECTIONS = (
    *("SpeedOfLight", "LaunchStats", "Occupancy", "SchedulerStats", "WarpStateStats"),
    *("ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis"),
)
"""Sections that are collected, for their metrics and the advice of their rules."""

_TIME = "gpu__time_duration.sum"
_COLLECTED = {
    "dram_bytes_per_s": "dram__bytes.sum.per_second",
    "l2_bytes_per_s": "lts__t_bytes.sum.per_second",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_percent": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "compute_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
_OF_SECTIONS = {
    "theoretical_occupancy_percent": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
    "waves": "launch__waves_per_multiprocessor",
}
METRICS = (_TIME, *_COLLECTED.values())
"""Metrics that are collected besides those of the sections; every GPU since Volta has them."""

_SECTION_OPTIONS = tuple(part for name in SECTIONS for part in ("--section", name))

MAX_LAUNCHES = 100
MAX_KERNELS = 20
LAUNCH_US = 5.0
"""A shorter kernel that does not fill the GPU once is limited by its launch, in microseconds."""

SHORTEST_US = 2.5
"""An empty kernel takes about as long, in microseconds."""

LATENCY_PERCENT = 60.0
"""Below this share of peak neither compute nor memory is the limit, but latency."""

BALANCED_PERCENT = 10.0
"""Shares of peak that differ by less are taken as equal."""

_MAX_PAGE = 32 << 20
_MAX_STALLS, _MAX_ADVICE, _MAX_TEXT = 5, 8, 600
_LISTING_TIMEOUT_S = 60
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_TENSOR = re.compile(
    r"sm__(?:inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_(?:active|elapsed)"
)
# Of ncu's own messages; what the solution prints is in the same text.
_REFUSALS = (
    (
        re.compile(r"^==ERROR==.*ERR_NVGPUCTRPERM", re.MULTILINE),
        "no_permission",
        "this user may not read the performance counters of the GPU (ERR_NVGPUCTRPERM)",
        "run as root, give the container CAP_SYS_ADMIN, or have an administrator load the driver "
        "with NVreg_RestrictProfilingToAdminUsers=0: https://developer.nvidia.com/ERR_NVGPUCTRPERM",
    ),
    (
        re.compile(
            r"^==(?:ERROR|WARNING)==.*(?:not compatible with Nsight"
            r"|[Pp]rofiling is not supported|[Uu]nsupported (?:GPU|device|driver))",
            re.MULTILINE,
        ),
        "unsupported_version",
        "this version of ncu does not support the GPU or its driver",
        "install Nsight Compute of the CUDA version that nvidia-smi shows",
    ),
)
_TOOL_FAILED = re.compile(r"^==ERROR==(?! The application returned) *(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Advice:
    """What a rule of ncu says about a kernel.

    Attributes
    ----------
    rule : str
        Name of the rule.
    kind : str
        ``OPT`` for an optimisation, ``WRN`` or ``INF``.
    text : str
        Its text, at most 600 characters.
    speedup_percent : float, optional
        What ncu estimates could be gained.
    """

    rule: str
    kind: str
    text: str
    speedup_percent: Optional[float] = None


@dataclass(frozen=True)
class KernelProfile:
    """Launches of one kernel with the same grid and block; figures are means.

    What ncu did not tell is None. Shares are in percent of the peak.

    Attributes
    ----------
    name, full_name : str
        Short name, and the demangled one, at most 500 characters.
    launches : int
        How many were profiled.
    time_us : float, optional
        Microseconds of a launch, at the clock that ncu sets (the base clock), with cold caches.
    share : float, optional
        Its part of the time of all kernels, in [0, 1].
    dram_bytes_per_s, l2_bytes_per_s : float, optional
        Achieved bandwidth, in bytes per second.
    dram_percent : float, optional
        Share of the peak DRAM bandwidth.
    memory_percent : float, optional
        Share of peak of the busiest part of the memory system, caches included.
    compute_percent : float, optional
        Share of peak of the busiest part of the multiprocessors.
    tensor_percent : float, optional
        Utilisation of the tensor pipe while the multiprocessors are active.
    occupancy_percent, theoretical_occupancy_percent : float, optional
        Achieved and theoretical occupancy.
    registers : float, optional
        Registers of a thread.
    shared_bytes : float, optional
        Shared memory of a block, without that of the driver.
    grid, block : str
        ``64 x 1 x 1``.
    waves : float, optional
        How many times the grid fills the GPU.
    limit : str, optional
        ``bandwidth``, ``tensor cores``, ``compute``, ``latency`` or ``launch``; see `limit_of`.
    reason : str
        Why.
    stalls : mapping of str to float
        Top reasons why warps wait, and their shares of all warp states, in [0, 1]; from 0.01.
    advice : tuple of Advice
        What ncu's rules say, the largest estimated gain first.
    """

    name: str
    full_name: str
    launches: int
    grid: str
    block: str
    time_us: Optional[float] = None
    share: Optional[float] = None
    dram_bytes_per_s: Optional[float] = None
    l2_bytes_per_s: Optional[float] = None
    dram_percent: Optional[float] = None
    memory_percent: Optional[float] = None
    compute_percent: Optional[float] = None
    tensor_percent: Optional[float] = None
    occupancy_percent: Optional[float] = None
    theoretical_occupancy_percent: Optional[float] = None
    registers: Optional[float] = None
    shared_bytes: Optional[float] = None
    waves: Optional[float] = None
    limit: Optional[str] = None
    reason: str = ""
    stalls: Mapping[str, float] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True)
class Profile(tool_runs.ToolReport):
    """What `profile` found; see also `fib_agents.tool_runs.ToolReport`.

    Attributes
    ----------
    command : tuple of str
        The command line of ncu.
    kernels : tuple of KernelProfile
        The one that takes the most time first; at most 20.
    left_out : int
        How many further kernels there are.
    log : str
        The end of what was printed (untrusted text).
    """

    tool: str = "ncu"
    command: tuple[str, ...] = ()
    kernels: tuple[KernelProfile, ...] = ()
    left_out: int = 0
    log: str = ""


def profile(
    solution: SolutionLike,
    workload: WorkloadLike,
    *,
    dataset: DatasetLike = None,
    device: Optional[str] = None,
    sandbox: Optional[str] = None,
    timeout: float = 120.0,
    ncu: str = "ncu",
    kernel_name: Optional[str] = None,
    calls: int = 1,
    seed: int = 0,
    folder: Optional[Path] = None,
    save: Optional[Path] = None,
    stop: Optional[Event] = None,
) -> Profile:
    """Profile the kernels of a solution on a workload.

    Parameters
    ----------
    solution, workload, dataset
        See `fib_agents.tool_runs.select`.
    device : str, optional
        Default: the first GPU.
    sandbox : str, optional
        ``off``, ``auto`` or ``strict``; default: as of ``fib run``.
    timeout : float
        Seconds that ncu may take, without the time to compile the solution.
    ncu : str
        Name or path of the program.
    kernel_name : str, optional
        Profile only kernels of this name, or ``regex:...``.
    calls : int
        Calls that are profiled; one call that is not comes before.
    seed : int
        Seed of random inputs.
    folder : Path, optional
        Where temporary files go.
    save : Path, optional
        An existing folder for the two CSV pages.
    stop : threading.Event, optional
        When another thread sets it, what runs is killed; the problem is then ``interrupted``.

    Returns
    -------
    Profile
        Whatever goes wrong is its `problem`; nothing is raised.
    """
    found = Profile(device=device or "")
    try:
        job = tool_runs.select(solution, workload, dataset)
        found = replace(found, **job.about)
        run = _Run(ncu, job, device, sandbox, folder, stop)
        found = replace(found, tool_version=run.version, device=run.device)
        run.build()
        with run.started(seed=seed, warmup=1, calls=calls) as ready:
            deadline = time.monotonic() + timeout
            metrics = [*_SECTION_OPTIONS, "--metrics", ",".join(METRICS)]
            command, ran, report = run.export(ready, metrics, deadline, kernel_name)
            found = replace(found, sandbox=ready.held(), command=tuple(command), log=ran.log)
            if report is None:
                return replace(found, problem=_problem(ran, ready))
            csv_pages = ("--csv", "--print-units", "base")
            pages = {
                one: run.page(ready, report, one, timeout, *csv_pages) for one in ("raw", "details")
            }
            for name, text in pages.items() if save is not None else ():
                Path(save or "", f"{name}.csv").write_text(text, encoding="utf-8")
            kernels = summarise(read_launches(pages["raw"], pages["details"]))
            problem = ready.problem(ran, "ncu")
            if not kernels and problem is None:
                problem = _problem(ran, ready)
            return replace(
                found,
                kernels=tuple(kernels[:MAX_KERNELS]),
                left_out=max(len(kernels) - MAX_KERNELS, 0),
                problem=problem,
            )
    except tool_runs.FAILURES as failed:
        return replace(found, problem=tool_runs.problem_of(failed))


class _Run(tool_runs.ToolRun):
    """A run of ncu."""

    package, oldest = "Nsight Compute", OLDEST

    def export(
        self,
        ready: tool_runs.Prepared,
        arguments: Sequence[str],
        deadline: float,
        kernel: Optional[str],
    ) -> tuple[list[str], tool_runs.Ran, Optional[Path]]:
        """Have ncu write a report file; None in its place if there is none."""
        report = ready.folder / "report.ncu-rep"
        command = [
            *(self.program, "--export", str(report), "--force-overwrite"),
            *("--target-processes", "application-only", "--profile-from-start", "off"),
            *("--launch-count", str(MAX_LAUNCHES)),
            *(("--kernel-name", kernel) if kernel else ()),
            *arguments,
            *ready.command,
        ]
        ran = self.run(ready, command, deadline)
        return command, ran, report if report.is_file() and ran.exit_code is not None else None

    def page(
        self, ready: tool_runs.Prepared, report: Path, page: str, timeout: float, *options: str
    ) -> str:
        """Return a page of a report."""
        ran = tool_runs.run_bounded(
            [self.program, "--import", str(report), "--page", page, *options],
            timeout_s=timeout,
            cwd=ready.folder,
            env=ready.environment,
            limit=_MAX_PAGE,
            stop=self._stop,
        )
        if ran.exit_code != 0:
            raise tool_runs.ToolError(
                "unreadable_report", f"ncu cannot show page {page!r}", "", ran.output
            )
        return ran.output


def _problem(ran: tool_runs.Ran, ready: tool_runs.Prepared) -> ToolProblem:
    """Return why there is no report, or no kernel in it."""
    of_solution = ready.problem(ran, "ncu")
    if of_solution is not None and of_solution.code == "timeout":
        return of_solution
    for pattern, code, message, hint in _REFUSALS:
        if pattern.search(ran.output):
            return ran.problem(code, message, hint)
    if of_solution is not None:
        return of_solution
    if failed := _TOOL_FAILED.search(ran.output):
        hint = "if you trust the solution, try --sandbox off"
        return ran.problem("crashed", f"ncu: {failed[1]}", hint)
    hint = "does it run on the GPU, in this process, and does the name of the kernel match?"
    return ran.problem("no_kernels", "ncu saw no kernel of the solution", hint)


# ------------------------------------------------------------------------------ reading reports


class Launch(NamedTuple):
    """One launch in a report.

    Attributes
    ----------
    kernel, grid, block : str
        Demangled name of the kernel, and its configuration.
    metrics : dict of str to float
        What has a value, in base units: seconds, bytes, percent.
    advice : tuple of Advice
        What rules say about it.
    """

    kernel: str
    grid: str
    block: str
    metrics: dict[str, float]
    advice: tuple[Advice, ...] = ()


def read_launches(raw: str, details: str = "") -> list[Launch]:
    """Read the pages ``raw`` and ``details`` of a report.

    Parameters
    ----------
    raw, details : str
        What ``ncu --import FILE --csv --page PAGE`` has printed. Lines that are not CSV, torn rows
        and missing values are passed over.
    """
    advice: dict[tuple[str, str], dict[tuple[str, str], Advice]] = {}
    for row in _rows(details):
        text = " ".join(row.get("Rule Description", "").split())[:_MAX_TEXT]
        if text and not text.startswith("The optional metric"):
            rule = row.get("Rule Name", "")
            gain = number(row.get("Estimated Speedup", ""))
            told = advice.setdefault(_identity(row), {})
            told.setdefault((rule, text), Advice(rule, row.get("Rule Type", ""), text, gain))
    launches, units = [], dict[str, str]()
    for row in _rows(raw):
        if not row["ID"].isdecimal():
            units = units or row  # below the header, without an ID
            continue
        metrics = {
            name: value * (1e-9 if units.get(name) in ("ns", "nsecond") else 1.0)
            for name, text in row.items()
            if "__" in name and (value := number(text)) is not None
        }
        launches.append(
            Launch(
                row.get("Kernel Name", "")[:500],
                _size(row.get("Grid Size", "")),
                _size(row.get("Block Size", "")),
                metrics,
                tuple(advice.get(_identity(row), {}).values()),
            )
        )
    return [one for one in launches if one.kernel]


def _identity(row: Mapping[str, str]) -> tuple[str, str]:
    return row.get("Process ID", ""), row.get("ID", "")


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a page."""
    lines = text.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if line.startswith(('"ID",', "ID,"))), None)
    if start is None:
        return
    csv.field_size_limit(_MAX_PAGE)
    rows = csv.reader(line.replace("\0", "") for line in lines[start:])
    header = next(rows)
    for row in rows:
        if len(row) == len(header) and row != header:
            yield dict(zip(header, map(str.strip, row), strict=True))


def number(text: str) -> Optional[float]:
    """Return a number as ncu prints it, such as ``1,234.5``; None for ``n/a``, ``nan`` and text."""
    try:
        value = float(text.replace(",", "").removesuffix("%"))
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _size(text: str) -> str:
    """Return ``(64, 1, 1)`` or ``64x1x1`` as ``64 x 1 x 1``."""
    return " x ".join(re.findall(r"\d+", text))


# ------------------------------------------------------------------------------------ summaries


def summarise(launches: Iterable[Launch]) -> list[KernelProfile]:
    """Combine launches of the same kernel, grid and block; the longest in total comes first."""
    groups: dict[tuple[str, str, str], list[Launch]] = {}
    for one in launches:
        groups.setdefault((one.kernel, one.grid, one.block), []).append(one)
    found = [_summary(group) for group in groups.values()]
    times = [(one.time_us or 0.0) * one.launches for one in found]
    if total := sum(times):
        found = [
            replace(one, share=round(time / total, 4))
            for one, time in zip(found, times, strict=True)
        ]
    return sorted(found, key=lambda one: -(one.share or 0.0))


def _summary(group: Sequence[Launch]) -> KernelProfile:
    metrics = {
        name: fmean(one.metrics[name] for one in group if name in one.metrics)
        for name in dict.fromkeys(key for one in group for key in one.metrics)
    }
    figures: dict[str, Any] = {
        field: metrics.get(name) for field, name in (_COLLECTED | _OF_SECTIONS).items()
    }
    shared = [metrics.get(f"launch__shared_mem_per_block_{one}") for one in ("static", "dynamic")]
    advice = {(each.rule, each.text): each for one in group for each in one.advice}
    first = group[0]
    found = KernelProfile(
        name=tool_runs.short_name(first.kernel),
        full_name=first.kernel,
        launches=len(group),
        grid=first.grid,
        block=first.block,
        time_us=metrics[_TIME] * 1e6 if _TIME in metrics else None,
        tensor_percent=max(
            (value for name, value in metrics.items() if _TENSOR.fullmatch(name)), default=None
        ),
        shared_bytes=None if None in shared else sum(filter(None, shared)),
        stalls=_stalls(metrics),
        advice=tuple(
            sorted(advice.values(), key=lambda one: -(one.speedup_percent or 0.0))[:_MAX_ADVICE]
        ),
        **figures,
    )
    limit, reason = limit_of(found)
    return replace(found, limit=limit, reason=reason)


def _stalls(metrics: Mapping[str, float]) -> dict[str, float]:
    matches = ((_STALL.fullmatch(name), value) for name, value in metrics.items())
    states = {found[1]: value for found, value in matches if found is not None}
    total = sum(states.values())
    waiting = sorted(states.items(), key=lambda item: -item[1])
    waiting = [one for one in waiting if one[0] != "selected" and one[1] >= 0.01 * total > 0]
    return {name: round(value / total, 4) for name, value in waiting[:_MAX_STALLS]}


def limit_of(kernel: KernelProfile) -> tuple[Optional[str], str]:
    """Return what limits a kernel, and why.

    Parameters
    ----------
    kernel : KernelProfile
        Its figures.

    Returns
    -------
    limit : str, optional
        The first that holds, None if the figures are missing:
        ``launch``: shorter than 2.5 us, or shorter than 5 us without filling the GPU once, and no
        unit reaches 60 % of its peak;
        ``latency``: neither compute nor memory reaches 60 % of its peak;
        ``tensor cores``: the tensor pipe does, and is within 10 points of the memory system;
        ``bandwidth``: the memory system is at least as busy as the multiprocessors;
        ``compute``: else.
    reason : str
        The figures behind that.

    Notes
    -----
    The thresholds of 60 % and 10 points are those of the rule ``SOLBottleneck`` of Nsight Compute
    (``SpeedOfLight.py`` of its sections). Those in microseconds are ours.
    """
    memory = max(kernel.memory_percent or 0.0, kernel.dram_percent or 0.0)
    compute, tensor = kernel.compute_percent or 0.0, kernel.tensor_percent or 0.0
    if kernel.memory_percent is kernel.dram_percent is kernel.compute_percent is None:
        return None, "ncu tells no throughput"
    told = f"compute {compute:.0f} %, memory {memory:.0f} % of peak"
    busy = max(memory, compute) >= LATENCY_PERCENT
    time_us = kernel.time_us if kernel.time_us is not None else float("inf")
    small = time_us < LAUNCH_US and kernel.waves is not None and kernel.waves < 1
    if not busy and (small or time_us < SHORTEST_US):
        return "launch", f"{time_us:.1f} us; {told}"
    if not busy:
        return "latency", told
    if tensor >= LATENCY_PERCENT and tensor >= memory - BALANCED_PERCENT:
        return "tensor cores", f"tensor pipe {tensor:.0f} %, {told}"
    if memory >= compute:
        dram = kernel.dram_percent or 0.0
        where = "DRAM" if dram >= memory - BALANCED_PERCENT else "caches or shared memory"
        return "bandwidth", f"{told}, of {where}"
    return "compute", told


# ------------------------------------------------------------------------------ for agents: text


def flashinfer_bench_run_ncu(
    solution: SolutionLike,
    workload: WorkloadLike,
    *,
    device: str = "cuda:0",
    trace_set_path: Optional[str] = None,
    set: str = "detailed",
    sections: Optional[list[str]] = None,
    kernel_name: Optional[str] = None,
    page: str = "details",
    ncu_path: str = "ncu",
    timeout: int = 60,
    tmpdir: Optional[str] = None,
    max_lines: Optional[int] = None,
) -> str:
    """Profile a solution on a workload with Nsight Compute, and return its report as text.

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
    set : str
        Set of sections to collect; see flashinfer_bench_list_ncu_options.
    sections : list of str, optional
        Further sections to collect.
    kernel_name : str, optional
        Profile only kernels of this name, or ``regex:...``.
    page : str
        Page of the report: ``details``, ``raw`` or ``source``.
    ncu_path : str
        Name or path of ncu.
    timeout : int
        Seconds that ncu may take.
    tmpdir : str, optional
        Folder for temporary files.
    max_lines : int, optional
        Return at most this many lines.

    Returns
    -------
    str
        The report; or a text that begins with ``ERROR:`` and says what went wrong.
    """
    try:
        place = Path(tmpdir) if tmpdir is not None else None
        job = tool_runs.select(solution, workload, trace_set_path)
        run = _Run(ncu_path, job, device, None, place)
        run.build()
        chosen = ["--set", set, *(part for one in sections or () for part in ("--section", one))]
        with run.started(seed=0, warmup=1, calls=1) as ready:
            deadline = time.monotonic() + timeout
            _, ran, report = run.export(ready, chosen, deadline, kernel_name)
            if report is None:
                return tool_runs.told_problem(_problem(ran, ready))
            return tool_runs.first_lines(run.page(ready, report, page, timeout), max_lines)
    except tool_runs.FAILURES as failed:
        return tool_runs.told_problem(tool_runs.problem_of(failed))


def flashinfer_bench_list_ncu_options(ncu_path: str = "ncu") -> str:
    """Return the sets and sections that Nsight Compute can collect.

    Parameters
    ----------
    ncu_path : str
        Name or path of ncu.

    Returns
    -------
    str
        Its lists; or a text that begins with ``ERROR:`` and says what went wrong.
    """
    try:
        program = tool_runs.find_tool(ncu_path, "Nsight Compute")
    except tool_runs.ToolError as failed:
        return tool_runs.told_problem(failed.problem)
    lists = []
    for option in ("--list-sets", "--list-sections"):
        ran = tool_runs.run_bounded([program, option], timeout_s=_LISTING_TIMEOUT_S)
        if ran.exit_code != 0:
            return f"ERROR: {program} {option} failed: {ran.output[-MAX_LOG:]}"
        lists.append(ran.output.strip())
    return "\n\n".join(lists)
