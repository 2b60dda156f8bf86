"""The MCP server: tools, resources and prompts about a dataset or a service."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar, Union
from urllib.parse import quote

import mcp_types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict

from fib_agents.evaluations import Call, Device, Evaluated, LocalJudge, RemoteJudge, Tell
from flashinfer_bench import __version__
from flashinfer_bench.cli.output import to_plain
from flashinfer_bench.data import BuildSpec, Definition, Solution, Trace, Workload
from flashinfer_bench.errors import CapabilityError, ConfigError, DataError, FibError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

MAX_SOLUTION_CHARS = 2_000_000
"""Longer sources are refused."""

_MAX_SOURCE_CHARS = 60_000
_MAX_TEXT_CHARS = 12_000
_MAX_FEEDBACK_CHARS = 120_000
_MAX_ROWS = 100

INSTRUCTIONS = """\
Write GPU kernels and have them judged. list_definitions and get_definition tell what to compute; a
prompt for each language tells how a solution is written and what the judge checks. evaluate builds
a solution, checks it against the reference and times it, and returns what to correct or improve.
profile and memcheck look into one call; compare decides which of two solutions is faster.
"""

_T = TypeVar("_T")

# ------------------------------------------------------------------------------- inputs, outputs


class SourceInput(BaseModel):
    """One file of a solution."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(description="Relative to the solution's folder: main.cu")
    content: str = Field(description="Its text.")


class SolutionInput(BaseModel):
    """A solution: the JSON of the format (with spec), or language and entry_point at the top."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        description="Any name; a digest of the content is appended.", min_length=1, max_length=200
    )
    definition: str = Field(description="Name of the definition that it implements.")
    sources: Union[list[SourceInput], dict[str, str]] = Field(
        description="Files: a list of {path, content}, or an object of texts by path."
    )
    spec: Optional[dict[str, Any]] = Field(None, description="How it is built, as in the format.")
    language: Optional[str] = Field(None, description="python, triton, cuda, cpp or tilelang.")
    entry_point: Optional[str] = Field(None, description="file::symbol, such as main.cu::run")
    binding: Optional[str] = Field(None, description="tvm-ffi (default) or torch, for cuda, cpp.")
    destination_passing_style: Optional[bool] = Field(
        None, description="true: outputs are passed in after the inputs; false: returned."
    )
    target_hardware: Optional[list[str]] = Field(None, description="By default cuda; cpu, ...")
    dependencies: Optional[list[str]] = Field(None, description="cublas, cudnn, cutlass.")
    compile_options: Optional[dict[str, list[str]]] = Field(
        None, description="cflags, cuda_cflags, ldflags, include_paths."
    )
    author: str = Field("agent", description="Who wrote it.", min_length=1, max_length=200)
    description: Optional[str] = Field(None, description="What it does.")


def solution_from(given: SolutionInput) -> Solution:
    """Return the record of a solution that an agent has sent.

    Raises
    ------
    ConfigError
        If it is too large, or says how it is built in two ways or not at all.
    DataError, ValidationError
        If it is not a valid solution.
    """
    sources = given.sources
    if isinstance(sources, dict):
        sources = [SourceInput(path=path, content=text) for path, text in sources.items()]
    size = sum(len(one.content) for one in sources)
    if size > MAX_SOLUTION_CHARS:
        told = f"the sources have {size:,} characters; allowed are {MAX_SOLUTION_CHARS:,}"
        raise ConfigError(told, hint="generate tables at run time, or shorten the sources")
    flat = given.model_dump(include={*BuildSpec.model_fields}, exclude_none=True)
    if given.spec is not None and flat:
        told = f"{', '.join(flat)} and spec are given"
        raise ConfigError(told, hint="put them into spec, or leave spec out")
    if given.spec is None and not {"language", "entry_point"} <= flat.keys():
        hint = "for example language 'cuda', entry_point 'main.cu::run'"
        raise ConfigError("language and entry_point, or spec, are missing", hint=hint)
    named = given.model_dump(include={"name", "definition", "author", "description"})
    spec = given.spec or {"target_hardware": ["cuda", "cpu"], **flat}
    files = [one.model_dump() for one in sources]
    return Solution.model_validate({**named, "spec": spec, "sources": files})


class DefinitionRow(TypedDict):
    """A definition in a list."""

    name: str
    op_type: str
    description: str


class DefinitionList(TypedDict):
    """Some of the definitions."""

    definitions: list[DefinitionRow]
    total: int


class WorkloadRow(TypedDict):
    """A workload of a definition."""

    uuid: str
    axes: dict[str, int]


class DefinitionDetails(TypedDict):
    """A definition with its workloads."""

    definition: dict[str, Any]
    workloads: list[WorkloadRow]
    workloads_total: int


class SolutionRow(TypedDict):
    """A solution in a list."""

    name: str
    author: str
    language: str
    binding: Optional[str]
    description: str


class SolutionList(TypedDict):
    """Some of the solutions of a definition."""

    solutions: list[SolutionRow]
    total: int


class SolutionDetails(TypedDict):
    """A solution, whose long files are cut."""

    solution: dict[str, Any]
    notes: list[str]


class EvaluationResult(TypedDict):
    """What an evaluation has shown."""

    solution: str
    definition: str
    status: str
    workloads: int
    passed: int
    latency_ms: Optional[float]
    speedup: Optional[float]
    saved: bool
    feedback: list[dict[str, Any]]
    notes: list[str]


class LeaderboardResult(TypedDict):
    """The solutions of a definition, the best first."""

    definition: str
    rows: list[dict[str, Any]]
    total: int


class CompareResult(TypedDict):
    """A verdict: whether the candidate is faster, slower, the same, or ambiguous."""

    verdict: Optional[str]
    comparisons: list[dict[str, Any]]


def bounded(value: Any, most: int = _MAX_TEXT_CHARS) -> Any:
    """Return plain JSON whose long texts are cut, and whose numbers are finite."""
    if isinstance(value, str):
        if len(value) <= most:
            return value
        from flashinfer_bench.bench.evaluation import clip

        return clip(value, most)
    if isinstance(value, dict):
        return {str(key): bounded(one, most) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [bounded(one, most) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_input=False)[:8]
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found)
    message, hint = getattr(error, "message", None) or str(error), getattr(error, "hint", None)
    return str(bounded(f"{message}\nhint: {hint}" if hint else message))


_EXPECTED = (FibError, DataError, ValidationError)


@contextmanager
def _telling() -> Iterator[None]:
    """Tell expected errors to the agent; others are logged by the SDK, and told without details."""
    try:
        yield
    except _EXPECTED as error:
        raise ToolError(_problem(error)) from None


async def _follow(ctx: Context[Any, Any], begin: Callable[[Tell], Call[_T]]) -> _T:
    """Begin a call in another thread, tell its progress, and end it if the client cancels."""
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[Optional[tuple[float, Optional[float], str]]] = asyncio.Queue()

    def put(step: Optional[tuple[float, Optional[float], str]]) -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(told.put_nowait, step)

    began = asyncio.ensure_future(asyncio.to_thread(begin, lambda *step: put(step)))
    try:
        with _telling():
            call = await asyncio.shield(began)
    except asyncio.CancelledError:
        began.add_done_callback(_end)
        raise
    call.outcome.add_done_callback(lambda _: put(None))
    try:
        while (step := await told.get()) is not None:
            await ctx.report_progress(*step)
        with _telling():
            return call.outcome.result()
    finally:
        if not call.outcome.done():  # the client has cancelled it, or gone away
            call.cancel()


def _end(began: asyncio.Future[Call[Any]]) -> None:
    if not began.cancelled() and began.exception() is None:
        began.result().cancel()


# ---------------------------------------------------------------------------------------- server

_Limit = Annotated[int, Field(description="Most rows.", ge=1, le=_MAX_ROWS)]
_Offset = Annotated[int, Field(description="Rows to skip.", ge=0)]
_DefinitionName = Annotated[str, Field(description="Name of a definition.")]
_SolutionName = Annotated[str, Field(description="Name of a solution of the dataset.")]
_SolutionArgument = Annotated[
    Union[SolutionInput, str],
    Field(description="The solution, or the name of one that is in the dataset."),
]
_Workload = Annotated[Optional[str], Field(description="Its uuid; by default the first.")]
_Workloads = Annotated[
    Optional[list[str]], Field(description="Uuids of workloads; by default all.", min_length=1)
]
_READS = mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
_RUNS = mcp_types.ToolAnnotations(destructive_hint=False, open_world_hint=False)


class AgentServer:
    """Makes an `MCPServer` about what a judge has.

    Parameters
    ----------
    judge : LocalJudge or RemoteJudge
        Where records come from, and who evaluates.
    level : str
        Log level.
    """

    def __init__(self, judge: Union[LocalJudge, RemoteJudge], level: str = "WARNING") -> None:
        self._judge = judge
        self._records = judge.records
        self.server: MCPServer[Any] = MCPServer(
            "flashinfer-bench",
            title="FlashInfer-Bench",
            version=__version__,
            instructions=INSTRUCTIONS,
            log_level=level,  # type: ignore[arg-type]
        )
        lists = (self.list_definitions, self.list_solutions, self.leaderboard)
        for read in (*lists, self.get_definition, self.get_solution):
            self._add(_telling()(read), _READS)
        for run in (self.evaluate, self.compare, self.profile, self.memcheck):
            self._add(run, _RUNS)
        self._add_resources()
        self._add_prompts()

    def _add(self, tool: Callable[..., Any], annotations: mcp_types.ToolAnnotations) -> None:
        description = " ".join((tool.__doc__ or "").split())
        self.server.add_tool(tool, description=description, annotations=annotations)

    # ------------------------------------------------------------------------------ records

    def list_definitions(
        self,
        op_type: Annotated[Optional[str], Field(description="Only this family.")] = None,
        limit: _Limit = 50,
        offset: _Offset = 0,
    ) -> DefinitionList:
        """List the computations for which kernels can be written: name, family, description."""
        found = [one for one in self._records.listed() if op_type in (None, one["op_type"])]
        rows: list[DefinitionRow] = [
            bounded({**one, "description": one["description"] or ""}, 300)
            for one in found[offset : offset + limit]
        ]
        return {"definitions": rows, "total": len(found)}

    def get_definition(self, name: _DefinitionName) -> DefinitionDetails:
        """Return a definition (axes, inputs, outputs, reference) and the sizes of its workloads."""
        definition = self._records.definition(name)
        workloads = [one.workload for one in self._records.workloads(name)]
        return {
            "definition": bounded(to_plain(definition), _MAX_SOURCE_CHARS),
            "workloads": [
                {"uuid": one.uuid, "axes": dict(one.axes)} for one in workloads[:_MAX_ROWS]
            ],
            "workloads_total": len(workloads),
        }

    def list_solutions(
        self, definition: _DefinitionName, limit: _Limit = 50, offset: _Offset = 0
    ) -> SolutionList:
        """List the solutions of a definition, without their sources."""
        found = self._records.solutions(definition)
        rows: list[SolutionRow] = [
            {
                "name": one.name,
                "author": one.author,
                "language": str(one.spec.language),
                "binding": one.spec.binding and str(one.spec.binding),
                "description": bounded(one.description or "", 300),
            }
            for one in found[offset : offset + limit]
        ]
        return {"solutions": rows, "total": len(found)}

    def get_solution(self, name: _SolutionName) -> SolutionDetails:
        """Return a solution with its sources; long files are cut, and can be read as resources."""
        solution = self._records.solution(name)
        notes = [
            f"{one.path} is cut; read fib://solutions/{quote(name, safe='')}/{quote(one.path)}"
            for one in solution.sources
            if len(one.content) > _MAX_SOURCE_CHARS
        ]
        return {"solution": bounded(to_plain(solution), _MAX_SOURCE_CHARS), "notes": notes}

    def leaderboard(self, definition: _DefinitionName, limit: _Limit = 20) -> LeaderboardResult:
        """Rank the solutions of a definition by the geometric mean of their latencies."""
        rows = self._records.leaderboard(definition)
        return {"definition": definition, "rows": bounded(rows[:limit]), "total": len(rows)}

    # ---------------------------------------------------------------------------- running

    async def evaluate(
        self,
        ctx: Context[Any, Any],
        solution: _SolutionArgument,
        workloads: _Workloads = None,
        diagnose: Annotated[
            bool, Field(description="If outputs are wrong, find out how and where; takes longer.")
        ] = True,
    ) -> EvaluationResult:
        """Build a solution, check it against the reference, and time it.

        Returns a feedback record for each workload. A device evaluates one solution at a time;
        others wait.
        """

        def begin(tell: Tell) -> Call[Evaluated]:
            is_new, record = isinstance(solution, SolutionInput), self._solution(solution)
            return self._judge.evaluate(record, workloads, tell, new=is_new, diagnose=diagnose)

        return await asyncio.to_thread(_telling()(result_of), await _follow(ctx, begin))

    async def compare(
        self,
        ctx: Context[Any, Any],
        baseline: Annotated[str, Field(description="Name of a solution of the dataset.")],
        candidate: Annotated[str, Field(description="Name of another solution.")],
        workloads: _Workloads = None,
        min_effect: Annotated[
            float, Field(description="Smallest difference that counts.", gt=0, lt=1)
        ] = 0.01,
        max_seconds: Annotated[
            float, Field(description="Time limit for each workload.", gt=0, le=300)
        ] = 30.0,
    ) -> CompareResult:
        """Decide whether a solution is faster or slower than another, the same, or ambiguous.

        Calls of both alternate in pairs of fresh processes until the verdict is clear.
        """
        judge = self._judge
        if not isinstance(judge, LocalJudge):
            raise ToolError(_problem(_not_offered("compare")))

        def begin(tell: Tell) -> Call[CompareResult]:
            first, second = judge.records.solution(baseline), judge.records.solution(candidate)
            given = {"min_effect": min_effect, "max_seconds": max_seconds}
            return judge.begin(partial(_compare, judge, (first, second), workloads, given), tell)

        return await _follow(ctx, begin)

    async def profile(
        self, ctx: Context[Any, Any], solution: _SolutionArgument, workload: _Workload = None
    ) -> dict[str, Any]:
        """Profile one call of a solution with Nsight Compute; needs an NVIDIA GPU and ncu."""
        return await self._inspect(ctx, solution, workload, "ncu", "profile")

    async def memcheck(
        self, ctx: Context[Any, Any], solution: _SolutionArgument, workload: _Workload = None
    ) -> dict[str, Any]:
        """Look for invalid accesses and races in a call of a solution with compute-sanitizer.

        Needs an NVIDIA GPU.
        """
        return await self._inspect(ctx, solution, workload, "sanitizer", "memcheck")

    async def _inspect(
        self,
        ctx: Context[Any, Any],
        solution: Union[SolutionInput, str],
        uuid: Optional[str],
        module: str,
        name: str,
    ) -> dict[str, Any]:
        judge = self._judge
        if not isinstance(judge, LocalJudge):
            told = _not_offered(name)
            return {"problem": {"code": "not_offered", "message": told.message, "hint": told.hint}}

        def begin(tell: Tell) -> Call[dict[str, Any]]:
            record = self._solution(solution)
            traces = judge.records.workloads(record.definition, uuid and [uuid])
            if not traces:
                raise ConfigError(f"{record.definition!r} has no workloads")
            workload = traces[0].workload
            trace_set = judge.records.trace_set(record.definition)

            def work(call: Call[dict[str, Any]], device: Device) -> dict[str, Any]:
                run = getattr(import_module(f"fib_agents.{module}"), name)
                # Never strict by default: under these tools CUDA starts before the sandbox.
                level, stop = device.settings.get("sandbox", "auto"), threading.Event()
                options = {"dataset": trace_set, "device": device.name, "sandbox": level}
                with call.stopped_by(stop.set):
                    call.check()
                    found = run(record, workload, stop=stop, **options)
                call.check()
                return bounded(found.as_dict())  # type: ignore[no-any-return]

            return judge.begin(work, tell)

        return await _follow(ctx, begin)

    def _solution(self, given: Union[SolutionInput, str]) -> Solution:
        if isinstance(given, SolutionInput):
            return solution_from(given)
        return self._records.solution(given)

    # ------------------------------------------------------------------ resources and prompts

    def _add_resources(self) -> None:
        models: tuple[type[BaseModel], ...] = (Definition, Solution, Workload, Trace)
        for model in models:
            name = model.__name__.lower()
            self.server.resource(
                f"fib://format/{name}",
                name=f"{name}-format",
                description=f"The format of a {name}: its fields and a JSON schema.",
                mime_type="application/schema+json",
            )(partial(_schema, model))

        @self.server.resource("fib://solutions/{name}", mime_type="application/json")
        def solution(name: str) -> str:
            """Return a solution as JSON, with all of its sources."""
            return self._found(name).to_json()

        @self.server.resource("fib://solutions/{name}/{+path}", mime_type="text/plain")
        def source(name: str, path: str) -> str:
            """Return one source file of a solution."""
            sources = {one.path: one.content for one in self._found(name).sources}
            if path not in sources:
                told = f"{name!r} has no file {path!r}; its files: {', '.join(sources)}"
                raise ResourceNotFoundError(told)
            return sources[path]

    def _found(self, name: str) -> Solution:
        try:
            return self._records.solution(name)
        except _EXPECTED as error:
            raise ResourceNotFoundError(_problem(error)) from None

    def _add_prompts(self) -> None:
        from fib_agents.kernel_prompts import LANGUAGES

        for language, (title, _) in LANGUAGES.items():
            name = f"{language.replace('-', '_')}_kernel"
            description = f"How to write a kernel in {title} for a definition."
            self.server.prompt(name, description=description)(self._prompt(language))

    def _prompt(self, language: str) -> Callable[[str], str]:
        def write(definition: _DefinitionName) -> str:
            from fib_agents.kernel_prompts import prompt_for

            try:
                return prompt_for(self._records.definition(definition), language)
            except _EXPECTED as error:
                raise MCPError(mcp_types.INVALID_PARAMS, _problem(error)) from None

        return write


def _schema(model: type[BaseModel]) -> str:
    return json.dumps(model.model_json_schema(), indent=1)


def _not_offered(command: str) -> CapabilityError:
    hint = f"run 'fib {command}' where dataset and device are, or 'fib mcp --local DATASET' there"
    told = f"this server evaluates with a service, which does not {command}"
    return CapabilityError(told, hint=hint)


def result_of(done: Evaluated) -> EvaluationResult:
    """Return the structured result of an evaluation."""
    from fib_agents.feedback import feedback_among
    from fib_report.scores import geometric_mean
    from flashinfer_bench.data import EvaluationStatus

    if not done.traces:
        told = "; ".join(done.skipped) or "the run ended before it"
        raise CapabilityError(f"{done.solution.name} was not evaluated: {told}")
    feedback: list[dict[str, Any]] = []
    notes, room = list(done.skipped), _MAX_FEEDBACK_CHARS
    runs = [one.evaluation for one in done.traces if one.evaluation is not None]
    for trace, run in zip(done.traces, runs, strict=True):
        uuid = trace.workload.uuid
        # Of a hidden workload of a service no more is known.
        record = {"workload": uuid, "status": run.status.value, "log": bounded(run.log)}
        if run.timestamp:
            more = [*done.earlier, *(one for one in done.traces if one is not trace), trace]
            about, config = done.diagnoses.get(uuid), done.settings.get(uuid)
            found = feedback_among(trace, done.trace_set, more, about, config=config)
            record = json.loads(found.to_json())  # small, and without NaN
        room -= len(json.dumps(record))
        if room < 0 and feedback:
            left = len(runs) - len(feedback)
            notes.append(f"the feedback of {left} workloads is left out")
            break
        feedback.append(record)
    speeds = [one.performance for one in runs if one.performance is not None]
    statuses = [one.status for one in runs]
    wrong = [one for one in statuses if one is not EvaluationStatus.PASSED]
    return {
        "solution": done.solution.name,
        "definition": done.definition.name,
        "status": (wrong or statuses)[0].value,
        "workloads": len(statuses),
        "passed": len(statuses) - len(wrong),
        "latency_ms": geometric_mean([one.latency_ms for one in speeds]),
        "speedup": geometric_mean([one.speedup_factor for one in speeds]),
        "saved": done.saved,
        "feedback": feedback,
        "notes": bounded(notes),
    }


def _compare(
    judge: LocalJudge,
    pair: tuple[Solution, Solution],
    workloads: Optional[list[str]],
    given: dict[str, float],
    call: Call[CompareResult],
    device: Device,
) -> CompareResult:
    try:
        from fib_compare.paired import Comparer, CompareSettings, answer
        from fib_compare.paired.comparer import find_contests
    except ImportError as error:
        hint = "in a clone: pip install ./plugins/compare"
        raise CapabilityError("comparing needs the distribution fib-compare", hint=hint) from error
    from flashinfer_bench.data import TraceSet

    datasets, name = judge.records, pair[0].definition
    solutions: dict[str, list[Solution]] = {}
    for one in pair:
        solutions.setdefault(one.definition, []).append(one)
    definitions = {each: datasets.definition(each) for each in solutions}
    given_workloads = {name: datasets.workloads(name, workloads)}
    trace_set = TraceSet(datasets.root(name), definitions, solutions, given_workloads)
    contests = find_contests(trace_set, pair[0].name, pair[1].name)
    settings = CompareSettings(**given)
    total = given["max_seconds"] * len(contests)
    results: list[Any] = []

    def launched(launches: int, seconds: float) -> None:
        call.check()
        spent = given["max_seconds"] * len(results) + seconds
        call.tell(spent, max(total, spent), f"{launches} launches, {seconds:.1f} s")

    with Comparer(trace_set, device.config, settings) as comparer:
        for result in comparer.run(contests, on_launch=launched):
            call.check()
            results.append(result)
    found = answer(results, min_effect=settings.min_effect, alpha=settings.alpha)
    overall = found.overall.verdict.value if found.overall is not None else None
    return {"verdict": overall, "comparisons": [bounded(_compared(one)) for one in found.results]}


def _compared(result: Any) -> dict[str, Any]:
    comparison, obstacle = result.comparison, result.obstacle
    ratio = comparison.ratio if comparison is not None else None
    return {
        "workload": result.workload,
        "verdict": result.verdict.value if result.verdict is not None else None,
        "ratio": ratio and ratio.estimate,
        "ratio_interval": [ratio.low, ratio.high] if ratio is not None else None,
        "baseline_ms": result.baseline_ms,
        "candidate_ms": result.candidate_ms,
        "why": f"{obstacle.role} {obstacle.kind}: {obstacle.message}" if obstacle else None,
        "notes": list(result.notes),
    }


async def serve_http(server: MCPServer[Any], host: str, listening: socket.socket) -> None:
    """Serve clients on a socket of a loopback address, until the process is told to end."""
    import uvicorn

    # With a loopback address, the SDK refuses other names in Host and Origin.
    app = server.streamable_http_app(host=host)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2)
    await uvicorn.Server(config).serve(sockets=[listening])
