"""``fib profile`` and ``fib memcheck``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from flashinfer_bench.cli import options, run_options
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import option
from flashinfer_bench.cli.output import Column, emit_document, set_up_logging, table, talk
from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from fib_agents.ncu import KernelProfile, Profile
    from fib_agents.sanitizer import SanitizerReport
    from fib_agents.tool_runs import Job, ToolProblem
    from flashinfer_bench.data import TraceSet

profile_app = typer.Typer(name="profile", add_completion=False, rich_markup_mode=None)
memcheck_app = typer.Typer(name="memcheck", add_completion=False, rich_markup_mode=None)

_WIDTH = 76


def _tools() -> tuple[str, ...]:
    from fib_agents.sanitizer import TOOLS

    return TOOLS


Solution = Annotated[str, typer.Argument(metavar="SOLUTION", help="Its name, or its JSON file.")]
Workload = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="The beginning of its uuid, or a JSON file.")
]
Device = Annotated[
    Optional[str],
    option(
        "--device",
        metavar="DEVICE",
        help="cuda or cuda:N. Default: the first GPU.",
        callback=run_options.known_device,
    ),
]
Save = Annotated[
    Optional[Path], option("--save", metavar="DIR", help="Keep what the tool wrote, in DIR.")
]


def _timeout(default: str) -> Any:
    return option("--timeout", metavar="S", min=1, help=f"Time limit in seconds{default}")


@profile_app.command("profile")
def profile(
    solution: Solution,
    workload: Workload,
    local: options.OneLocal = None,
    device: Device = None,
    sandbox: run_options.Sandbox = None,
    kernel: Annotated[
        Optional[str],
        option("--kernel", metavar="NAME", help="Only kernels of this name, or regex:..."),
    ] = None,
    calls: Annotated[
        int, option("--calls", metavar="N", min=1, help="Profiled calls. Default: 1.")
    ] = 1,
    timeout: Annotated[float, _timeout(" of ncu. Default: 120.")] = 120.0,
    ncu: Annotated[str, option("--ncu", metavar="PATH", help="Default: ncu, from PATH.")] = "ncu",
    save: Save = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Profile the kernels of a solution on a workload with Nsight Compute.

    It shows for each kernel what limits it, why warps wait, and what the rules of Nsight Compute
    advise. Exits with 1 if the solution cannot be profiled, and with 4 if this machine lacks
    something.
    """
    from fib_agents import ncu as tool

    set_up_logging(log_level)
    job, dataset = _chosen(solution, workload, local)
    found = tool.profile(
        job.solution,
        job.workload,
        dataset=dataset,
        device=device,
        sandbox=sandbox,
        timeout=timeout,
        ncu=ncu,
        kernel_name=kernel,
        calls=calls,
        save=_made(save),
    )
    code = _exit_code(found.problem, ExitCode.OK, shown=bool(found.kernels) or as_json)
    if as_json:
        emit_document(profile=found.as_dict())
    else:
        table("Kernels", _KERNELS, found.kernels)
        for one in found.kernels:
            _tell_kernel(one)
        _tell_sandbox(found)
        _tell(found.problem)
    raise typer.Exit(code)


@memcheck_app.command("memcheck", cls=options.GreedyCommand)
def memcheck(
    solution: Solution,
    workload: Workload,
    local: options.OneLocal = None,
    tools: Annotated[
        Optional[list[str]],
        option(
            "--tool",
            "--tools",
            metavar="NAME...",
            autocompletion=_tools,
            help="Of memcheck, racecheck, initcheck and synccheck. Default: all.",
        ),
    ] = None,
    device: Device = None,
    sandbox: run_options.Sandbox = None,
    timeout: Annotated[float, _timeout(" of each tool. Default: 300.")] = 300.0,
    sanitizer: Annotated[
        str, option("--sanitizer", metavar="PATH", help="Default: compute-sanitizer, from PATH.")
    ] = "compute-sanitizer",
    save: Save = None,
    as_json: options.AsJson = False,
    log_level: options.LogLevel = None,
) -> None:
    """Look for invalid accesses, races and uninitialised reads with compute-sanitizer.

    Exits with 0 if nothing is found, with 1 if something is or the solution cannot be checked, and
    with 4 if this machine lacks something.
    """
    from fib_agents import sanitizer as tool

    set_up_logging(log_level)
    job, dataset = _chosen(solution, workload, local)
    found = tool.memcheck(
        job.solution,
        job.workload,
        tools=tools or tool.TOOLS,
        dataset=dataset,
        device=device,
        sandbox=sandbox,
        timeout=timeout,
        sanitizer=sanitizer,
        save=_made(save),
    )
    otherwise = ExitCode.OK if found.clean else ExitCode.FINDINGS
    code = _exit_code(found.problem, otherwise, shown=bool(found.checks) or as_json)
    if as_json:
        emit_document(report=found.as_dict())
    else:
        if found.findings:
            table("Findings", _FINDINGS, found.findings)
        if found.left_out:
            talk(f"… and {found.left_out} more findings")
        ran = ", ".join(
            f"{one.tool} {one.findings} in {one.seconds:.1f} s"
            if one.problem is None
            else f"{one.tool} {one.problem.code}"
            for one in found.checks
        )
        talk(f"findings: {ran}")
        _tell_sandbox(found)
        for check in found.checks:
            _tell(check.problem, f"error: {check.tool}: ")
    raise typer.Exit(otherwise if found.findings else code)


def _chosen(solution: str, workload: str, local: Optional[Path]) -> tuple[Job, TraceSet]:
    """Return what is named, and a dataset with no more than its definition."""
    from fib_agents.tool_runs import select
    from flashinfer_bench.data import TraceSet

    job = select(solution, workload, local)
    return job, TraceSet(job.root, {job.definition.name: job.definition})


def _made(folder: Optional[Path]) -> Optional[Path]:
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--save: {folder} cannot be made: {error.strerror}") from None
    return folder


def _exit_code(problem: Optional[ToolProblem], otherwise: ExitCode, *, shown: bool) -> ExitCode:
    """Return the exit code; raise what makes the whole command fail if nothing else is shown."""
    from fib_agents.tool_runs import CAPABILITY_CODES

    if problem is None:
        return otherwise
    if problem.code not in ("invalid_request", *CAPABILITY_CODES):
        return ExitCode.FINDINGS
    is_wrong = problem.code == "invalid_request"
    if not shown:
        raise (ConfigError if is_wrong else CapabilityError)(
            problem.message, hint=problem.hint or None
        )
    return ExitCode.USAGE if is_wrong else ExitCode.CAPABILITY


def _tell(problem: Optional[ToolProblem], start: str = "error: ") -> None:
    from fib_agents.tool_runs import told_problem

    if problem is not None:
        talk(told_problem(problem, start))


def _tell_sandbox(found: Profile | SanitizerReport) -> None:
    if found.sandbox.missing:
        names = ", ".join(found.sandbox.missing)
        talk(f"note: missing in the sandbox: {names}; --json has the reasons")


def _tell_kernel(one: KernelProfile) -> None:
    import textwrap

    talk(f"{one.name}: {one.limit or 'unknown limit'} ({one.reason})")
    told = [f"{name} {share:.0%}" for name, share in one.stalls.items()]
    lines = [f"waits: {', '.join(told)}"] if told else []
    for each in one.advice:
        gain = f" (up to {each.speedup_percent:.0f} %)" if each.speedup_percent else ""
        lines.append(f"- {each.text}{gain}")
    for line in lines:
        for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  "):
            talk(f"  {part}")


_KERNELS = (
    Column("kernel", "name"),
    *(Column(name, name) for name in ("limit", "launches", "time_us", "share")),
    *(Column(f"{one}_%", f"{one}_percent") for one in ("dram", "compute", "tensor", "occupancy")),
    Column("registers", "registers"),
    *(Column(name, name, people=False) for name in ("shared_bytes", "grid", "block")),
)
_FINDINGS = tuple(
    Column(name, name) for name in ("tool", "kind", "kernel", "place", "count", "message")
)
