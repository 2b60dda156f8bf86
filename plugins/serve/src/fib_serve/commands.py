"""``fib serve``: run the service, its tokens and backups. ``fib submit``: send it solutions."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from fib_serve.records import Role, TaskStatus
from flashinfer_bench import env
from flashinfer_bench.cli import options
from flashinfer_bench.cli.datasets import dataset_roots
from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.options import GreedyCommand, command_group, option
from flashinfer_bench.cli.output import (
    Column,
    document_of,
    emit,
    emit_document,
    printable,
    set_up_logging,
    table,
    talk,
    tell_counts,
)
from flashinfer_bench.cli.run_options import known_device, with_settings
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fib_serve.client import Client, Submitted, TaskView
    from fib_serve.records import Token
    from fib_serve.store import Store
    from flashinfer_bench.bench.observers import RunObserver
    from flashinfer_bench.data import Solution, Trace

serve_app = typer.Typer(name="serve", add_completion=False, rich_markup_mode=None)
token_app = command_group("token", "Add, list and revoke the tokens that requests need.")
serve_app.add_typer(token_app)
submit_app = typer.Typer(name="submit", add_completion=False, rich_markup_mode=None)

_EVERYWHERE = "0.0.0.0"
_AGE = re.compile(r"(\d+)\s*([mhdw])", re.IGNORECASE | re.ASCII)
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def _flag(flag: str, metavar: str, help: str, **details: Any) -> Any:
    return option(flag, metavar=metavar, help=help, **details)


_HIDDEN = "Uuids of workloads of which submitters see the verdict alone, one in a line."
_DEVICES = "One worker each: cuda:0,cuda:1. Default: GPUs, else CPU."
_FILE = _flag("--database", "FILE", "Default: serve/serve.sqlite3 in the dataset.")
Database = Annotated[Optional[Path], _FILE]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name, and that of its tasks.")]
_ORIGIN = _flag("--cors", "ORIGIN", "Let pages from there use it. Repeatable.")
_PENDING = _flag("--max-pending", "N", "Unfinished tasks of each token. Default: 1000.", min=1)
_REQUESTS = _flag("--requests-per-minute", "N", "Of each token. Default: 600.", min=1)
_PUBLIC = option("--public", help="Serve other machines; this needs a token to exist.")


@serve_app.callback(invoke_without_command=True)
@with_settings
def serve(
    ctx: typer.Context,
    local: options.OneLocal = None,
    devices: Annotated[
        Optional[str], _flag("--devices", "DEVICE", _DEVICES, callback=known_device)
    ] = None,
    host: Annotated[
        Optional[str], _flag("--host", "ADDRESS", "Default: 127.0.0.1; --public: 0.0.0.0.")
    ] = None,
    port: Annotated[int, _flag("--port", "N", "Default: 8000.", min=0, max=65535)] = 8000,
    public: Annotated[bool, _PUBLIC] = False,
    database: Database = None,
    hidden: Annotated[Optional[Path], _flag("--hidden", "FILE", _HIDDEN)] = None,
    cors: Annotated[Optional[list[str]], _ORIGIN] = None,
    max_pending: Annotated[Optional[int], _PENDING] = None,
    requests_per_minute: Annotated[Optional[int], _REQUESTS] = None,
    *,
    log_level: Annotated[Optional[str], options.log_level("INFO")] = None,
    **settings: Any,
) -> None:
    """Judge solutions that are submitted over HTTP; keep a queue and a leaderboard.

    It serves this machine alone unless --public is given. As long as there is no token, everyone on
    this machine is its admin. Results go to the dataset like those of 'fib run', whose settings are
    options here, too; the sandbox is strict by default where the system offers that.
    """
    if ctx.invoked_subcommand is not None:
        if local or database:
            hint = f"write it after the subcommand: fib serve {ctx.invoked_subcommand} ..."
            raise ConfigError("--local and --database belong to the subcommand", hint=hint)
        return
    level = set_up_logging(log_level, default="INFO")
    root = _root(local)
    device = settings.pop("device")  # the name that it has for 'fib run'
    benchmark = {name: value for name, value in settings.items() if value is not None}
    limits: dict[str, Any] = {
        "max_pending": max_pending,
        "requests_per_minute": requests_per_minute,
    }
    from fib_serve.app import ServeSettings, run_server
    from flashinfer_bench.bench import BenchmarkConfig

    BenchmarkConfig.default(**benchmark)  # a worker would find a wrong value only later
    run_server(
        ServeSettings(
            dataset=root,
            devices=_devices(devices or device),
            host=host or (_EVERYWHERE if public else "127.0.0.1"),
            port=port,
            public=public,
            database=database,
            benchmark=benchmark,
            hidden=_uuids(hidden),
            cors=tuple(cors or ()),
            log_level=level,
            **{name: value for name, value in limits.items() if value is not None},
        )
    )


def _root(local: Optional[Path]) -> Path:
    (root,) = dataset_roots([local] if local else None)
    if not (root / "definitions").is_dir():
        hint = "name a dataset with --local; 'fib init' makes one"
        raise DatasetNotFoundError(f"{root} has no folder definitions", hint=hint)
    return root


def _devices(given: Optional[str]) -> tuple[str, ...]:
    """Return the devices that are named, else all visible GPUs, else the CPU."""
    from flashinfer_bench.bench.backends import likely_devices

    return tuple(likely_devices(given or None))


def _uuids(file: Optional[Path]) -> frozenset[str]:
    if file is None:
        return frozenset()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        hint = "name a text file with a uuid in each line"
        raise ConfigError(f"--hidden: cannot read {file}: {error}", hint=hint) from None
    return frozenset(text for line in lines if (text := line.partition("#")[0].strip()))


# ------------------------------------------------------------------ tokens and backups


def _store(local: Optional[Path], database: Optional[Path], *, make: bool = False) -> Store:
    """Open the database that a subcommand is about; `make` it if there is none."""
    from fib_serve.store import Store, database_of

    file = database or database_of(_root(local))
    if not (make or file.exists()):
        hint = "it is made by the first 'fib serve', or 'fib serve token add'"
        raise ConfigError(f"the database {file} does not exist", hint=hint)
    return Store(file)


def _expiry(text: Optional[str]) -> Optional[float]:
    if text is None:
        return None
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time; write it as 90m, 12h, 30d or 4w")
    return time.time() + float(found[1]) * _SECONDS[found[2].lower()]


_ROLE = option("--role", help="reader reads, submitter also submits, admin does everything.")
_EXPIRES = _flag("--expires", "TIME", "After which it is worthless: 12h, 30d, 4w.")


@token_app.command("add")
def add_token(
    name: Name,
    role: Annotated[Role, _ROLE] = Role.SUBMITTER,
    expires: Annotated[Optional[str], _EXPIRES] = None,
    local: options.OneLocal = None,
    database: Database = None,
) -> None:
    """Add a token and print its secret, which is not shown again.

    A server that is running takes it at once.
    """
    until = _expiry(expires)
    with closing(_store(local, database, make=True)) as store:
        emit(store.add_token(name, role, until))
    talk(f"note: {printable(name)} is {role.value}; the secret is not shown again")


def _state(token: Token) -> str:
    if token.revoked is not None:
        return "revoked"
    return "expired" if token.expires and token.expires <= time.time() else "valid"


def _utc(seconds: Optional[float]) -> Optional[str]:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")


_TOKENS = (
    Column("name", "name"),
    Column("role", "role.value"),
    Column("state", _state),
    Column("created", lambda token: _utc(token.created)),
    Column("expires", lambda token: _utc(token.expires)),
    Column("revoked", lambda token: _utc(token.revoked)),
)


@token_app.command("list")
def list_tokens(
    as_json: options.AsJson = False, local: options.OneLocal = None, database: Database = None
) -> None:
    """List the tokens, without their secrets."""
    with closing(_store(local, database)) as store:
        tokens = store.tokens()
    if as_json:
        emit_document(tokens=[document_of(_TOKENS, one) for one in tokens])
    else:
        table("Tokens", _TOKENS, tokens)


@token_app.command("revoke")
def revoke_token(name: Name, local: options.OneLocal = None, database: Database = None) -> None:
    """Make a token worthless; a server that is running refuses it at once."""
    with closing(_store(local, database)) as store:
        revoked = store.revoke(name)
        valid = [one.name for one in store.tokens() if one.revoked is None]
    if not revoked:
        hint = f"valid tokens: {', '.join(valid) or 'none'}"
        raise ConfigError(f"no valid token is called {name!r}", hint=hint)
    talk(f"note: {printable(name)} is revoked{'' if valid else '; there is no other token'}")


@serve_app.command("backup")
def back_up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    local: options.OneLocal = None,
    database: Database = None,
) -> None:
    """Copy the database of tasks and tokens, also while the server is running.

    To restore it, stop the server and put the copy in the database's place.
    """
    if file.exists():
        raise ConfigError(f"{file} exists already", hint="name a new file")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"no folder {file.parent}", hint="create it first")
    with closing(_store(local, database)) as store:
        with suppress(OSError):  # an impossible path, which the copy reports
            file.touch(mode=0o600)
        store.backup(file)
    emit(str(file))


# ------------------------------------------------------------------ submitting


_PATHS = typer.Argument(metavar="FILE|FOLDER", help="Solutions as JSON, or folders of them.")
_TOKEN = _flag("--token", "TOKEN", "Default, and safer: $FIB_SERVE_TOKEN.")
_WAIT = option("--wait", help="Show the progress, then results and reasons.")
_FORCE = option("--force", help="Evaluate again even if the server knows the results.")
_PRIORITY = _flag("--priority", "N", "Higher ones come first; for admins.")
_STRICT = option("--strict", help="With --wait: exit with 1 if any evaluation does not pass.")


@submit_app.command("submit", cls=GreedyCommand)
def submit(
    files: Annotated[list[Path], _PATHS],
    server: Annotated[str, _flag("--server", "URL", "The server: http://127.0.0.1:8000.")],
    token: Annotated[Optional[str], _TOKEN] = None,
    wait: Annotated[bool, _WAIT] = False,
    workloads: options.Workloads = None,
    force: Annotated[bool, _FORCE] = False,
    priority: Annotated[int, _PRIORITY] = 0,
    strict: Annotated[bool, _STRICT] = False,
    as_json: options.AsJson = False,
    log_level: Annotated[Optional[str], options.log_level("INFO")] = None,
) -> None:
    """Submit solutions to a server of 'fib serve'.

    With --wait, exit codes are those of 'fib run': 0 if everything was evaluated and, under
    --strict, passed; 1 if a task has no verdict; 4 if the server cannot be reached, or its machine
    lacks something that a solution needs.
    """
    level = set_up_logging(log_level, default="INFO")
    found = list(_solutions(files))
    from fib_serve.client import Client

    with Client(server, token or env.serve_token()) as client:
        session = SubmitSession(client, level)
        session.submit(found, workloads or None, force=force, priority=priority)
        if wait:
            session.follow()
            session.sum_up()
    session.show(as_json=as_json, waited=wait)
    raise typer.Exit(session.exit_code(strict=strict))


def _solutions(paths: Sequence[Path]) -> Iterator[tuple[Path, Solution]]:
    """Yield the solutions in files and folders."""
    from flashinfer_bench.data import Solution, layout
    from flashinfer_bench.data.json_codec import load_json_file

    for path in paths:
        files = [path]
        if path.is_dir():
            if (path / "solution.json").is_file() and (path / "sources").is_dir():
                hint = f"pack it first: fib solution pack {path} -o {path.name}.json"
                raise ConfigError(f"{path} is a folder of source files", hint=hint)
            inner = path / layout.SOLUTIONS
            files = layout.files(inner if inner.is_dir() else path, ".json")
        if not files or not files[0].exists():
            what = "has no JSON files" if path.is_dir() else "does not exist"
            raise ConfigError(f"{path} {what}", hint="name JSON files of solutions")
        for file in files:
            yield file, load_json_file(Solution, file)


@dataclass
class _Sent:
    """A file that was submitted, and what became of it."""

    file: Path
    definition: str
    accepted: Submitted
    view: Optional[TaskView] = None
    traces: list[Trace] = field(default_factory=list)
    code: str = ""

    @property
    def passed(self) -> list[Trace]:
        """The evaluations that passed."""
        return [one for one in self.traces if one.is_successful()]

    def statuses(self) -> Counter[str]:
        """Count the evaluations by status."""
        return Counter(one.evaluation.status.value for one in self.traces if one.evaluation)

    def mean(self, name: str) -> Optional[float]:
        """Return the geometric mean over the workloads that passed and tell their times."""
        from fib_report.scores import geometric_mean

        speeds = [one.evaluation.performance for one in self.passed if one.evaluation]
        return geometric_mean([getattr(one, name) for one in speeds if one is not None])

    def failures(self) -> list[dict[str, str]]:
        """Return why evaluations failed."""
        from fib_report.causes import reason_of

        return [
            {"workload": one.workload.uuid, "status": run.status.value, "reason": reason_of(run)}
            for one in self.traces
            if (run := one.evaluation) is not None and not one.is_successful()
        ]


def _verdicts(sent: _Sent) -> str:
    told = sent.statuses()
    if len(told) == 1:
        return next(iter(told))
    assert sent.view is not None
    counts = ", ".join(f"{count} {status}" for status, count in told.items())
    return counts or sent.view.status.value


def _json(name: str, value: Any) -> Column:
    return Column(name, value, people=False, programs=False, json=True)


_ACCEPTED = (
    Column("file", "file", people=False),
    Column("definition", "definition"),
    Column("solution", "accepted.solution"),
    Column("task_id", "accepted.task_id", people=False),
)
_RESULTS = (
    *_ACCEPTED,
    _json("task_status", "view.status.value"),
    _json("error", "view.error"),
    Column("workloads", lambda sent: len(sent.traces)),
    _json("passed", lambda sent: len(sent.passed)),
    Column("status", _verdicts),
    Column("geomean_ms", lambda sent: sent.mean("latency_ms")),
    Column("speedup", lambda sent: sent.mean("speedup_factor")),
    _json("failures", lambda sent: sent.failures()),
)


class SubmitSession:
    """Submits solutions, and shows what becomes of them as ``fib run`` does.

    Parameters
    ----------
    client : Client
        The server.
    level : str
        Log level.
    """

    def __init__(self, client: Client, level: str) -> None:
        from fib_report.run_addition import Reasons
        from flashinfer_bench.cli.progress import make_progress

        self._client = client
        self._begin = time.monotonic()
        self._sent: list[_Sent] = []
        self._workloads: Optional[Sequence[str]] = None
        self._reasons = Reasons(hint=f"{client.url}/ui shows log and source of each")
        progress = make_progress(quiet=level not in ("DEBUG", "INFO"))
        self._observers: list[RunObserver] = [*progress, self._reasons]
        self.interrupted = False

    def submit(
        self,
        solutions: Sequence[tuple[Path, Solution]],
        workloads: Optional[Sequence[str]],
        *,
        force: bool,
        priority: int,
    ) -> None:
        """Submit solutions; an error says how far it came, and which file it is about."""
        from fib_serve.client import ServerError

        self._workloads = workloads
        for file, solution in solutions:
            try:
                accepted = self._client.submit(solution, workloads, priority, force)
            except ServerError as error:
                if self._sent:
                    talk(
                        f"note: {len(self._sent)} of {len(solutions)} were submitted; submitting "
                        "all of them again evaluates none twice"
                    )
                error.message = f"{file}: {error.message}"
                raise
            self._sent.append(_Sent(file, solution.definition, accepted))

    def follow(self) -> None:
        """Show what happens to the tasks, until all have ended or Ctrl-C."""
        self._tell("started", self._total())
        try:
            for sent in self._sent:
                self._follow(sent)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._tell("finished")

    def _total(self) -> int:
        if self._workloads:
            return len(self._workloads) * len(self._sent)
        counts: dict[str, int] = {}
        for sent in self._sent:
            if sent.definition not in counts:
                of = self._client.task(sent.accepted.task_id).workloads
                if of is None:  # a server of the first release, which hides none
                    of = len(self._client.workloads(sent.definition))
                counts[sent.definition] = of
        return sum(counts[sent.definition] for sent in self._sent)

    def _tell(self, what: str, *values: Any) -> None:
        for observer in self._observers:
            getattr(observer, what)(*values)

    def _follow(self, sent: _Sent) -> None:
        from fib_serve.client import ServerFailed, ServerUnreachable
        from flashinfer_bench.data import Workload

        task = sent.accepted.task_id
        for event in self._client.events(task):
            if event.kind == "stage":
                workload = Workload.model_construct(
                    axes={}, inputs={}, uuid=str(event.data.get("workload"))
                )
                names = sent.definition, workload, sent.accepted.solution
                self._tell("evaluation_started", *names)
            elif event.kind == "evaluated":
                with suppress(ServerFailed, ServerUnreachable):  # the next look shows it, too
                    self._show_new(sent, self._client.task(task))
            elif event.kind == "failed":
                sent.code = event.data.get("code", "")
        self._show_new(sent, self._client.wait(task))

    def _show_new(self, sent: _Sent, view: TaskView) -> None:
        sent.view = view
        for trace in view.evaluated()[len(sent.traces) :]:
            sent.traces.append(trace)
            self._tell("evaluation_finished", trace)

    def sum_up(self) -> None:
        """Print to stderr how many evaluations there were, why some failed, and what has none."""
        statuses: Counter[str] = sum((sent.statuses() for sent in self._sent), Counter())
        tell_counts("evaluations", statuses, self._begin, interrupted=self.interrupted)
        for sent in self._sent:
            if sent.view is not None and sent.view.status in _WITHOUT:
                told = f"{sent.view.status.value}: {sent.view.error or 'no reason is told'}"
                talk(f"{printable(f'{sent.file}: {told}')}")
        if self.interrupted:
            talk("hint: the server goes on; submitting the same files again shows the results")
        self._reasons.sum_up()

    def show(self, *, as_json: bool, waited: bool) -> None:
        """Print a table or JSON to stdout."""
        columns = _RESULTS if waited else _ACCEPTED
        rows = [one for one in self._sent if one.view is not None or not waited]
        if as_json:
            tasks = [document_of(columns, one) for one in rows]
            emit_document(server=self._client.url, interrupted=self.interrupted, tasks=tasks)
        else:
            table("Results" if waited else "Submitted", columns, rows)

    def exit_code(self, *, strict: bool) -> ExitCode:
        """Return the exit code, as of ``fib run``."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        failed = any(len(sent.passed) < len(sent.traces) for sent in self._sent)
        without = [sent for sent in self._sent if sent.view and sent.view.status in _WITHOUT]
        if (strict and failed) or any(sent.code != "capability" for sent in without):
            return ExitCode.FINDINGS
        return ExitCode.CAPABILITY if without else ExitCode.OK


_WITHOUT = (TaskStatus.FAILED, TaskStatus.CANCELLED)
