"""What a service does, whether it is asked through its API or its pages."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Optional

from fastapi import HTTPException
from pydantic import BaseModel, Field

from fib_serve.catalog import DatasetView
from fib_serve.keys import settings_key, task_key
from fib_serve.notifier import Notifier, is_final
from fib_serve.records import HIDDEN, Event, Role, Task, TaskStatus, Token
from fib_serve.store import TooManyTasks, database_of
from flashinfer_bench.data import Solution
from flashinfer_bench.data.json_codec import dict_to_dataclass
from flashinfer_bench.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from markupsafe import Markup

    from fib_serve.store import Store
    from fib_serve.supervisor import Supervisor, WorkerState

_PRIORITIES = 1_000


@dataclass(frozen=True)
class ServeSettings:
    """What a service is about.

    Attributes
    ----------
    dataset : Path
        Folder of the dataset.
    devices : tuple of str
        One worker each.
    host, port
        Where it listens.
    public : bool
        Whether the host may be one that other machines reach.
    database : Path, optional
        The database; by default ``serve/serve.sqlite3`` in the dataset.
    benchmark : dict
        How solutions are evaluated: overrides for `BenchmarkConfig.default`.
    hidden : frozenset of str
        Uuids of workloads of which only admins see more than the verdict.
    max_body_bytes, max_pending, requests_per_minute : int
        Limits for a request, for the unfinished tasks of a token, and for the requests of a token;
        0 requests a minute stand for no limit.
    cors : tuple of str
        Origins whose pages may use the API.
    log_level : str
        Least severe level that is logged.
    """

    dataset: Path
    devices: tuple[str, ...] = ("cpu",)
    host: str = "127.0.0.1"
    port: int = 8000
    public: bool = False
    database: Optional[Path] = None
    benchmark: dict[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    max_body_bytes: int = 4 << 20
    max_pending: int = 1_000
    requests_per_minute: int = 600
    cors: tuple[str, ...] = ()
    log_level: str = "INFO"

    @property
    def database_file(self) -> Path:
        """Where the database is."""
        return self.database or database_of(self.dataset)


class EvaluateBody(BaseModel):
    """What ``POST /evaluate`` takes."""

    solution: dict[str, Any]
    workload_uuids: Optional[list[str]] = None
    priority: Annotated[int, Field(ge=-_PRIORITIES, le=_PRIORITIES)] = 0
    force: bool = False


def told_fields(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return what is wrong with which fields, as text."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in list(errors)[:5])


class Service:
    """What endpoints and pages of a service share; ``app.state.service``.

    Parameters
    ----------
    settings : ServeSettings
        Its settings.
    store : Store
        Its tasks and tokens.
    """

    def __init__(self, settings: ServeSettings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.catalog = DatasetView(settings.dataset)
        self.notifier = Notifier(store, on_final=self.catalog.refresh_soon)
        self.requests: Counter[int] = Counter()
        self.rendered: dict[str, tuple[object, Markup]] = {}  # parts of pages, and of what
        self.supervisor: Optional[Supervisor] = None
        self._started = False
        self.shut_down: Optional[Callable[[], None]] = None
        self._unknown = secrets.token_hex(8)

    async def start(self, *, workers: bool = True) -> None:
        """Begin to evaluate and to watch events, unless that has been done.

        Raises
        ------
        ConfigError
            If another server uses the database.
        """
        if self._started:
            return
        if workers:
            from fib_serve.supervisor import Supervisor

            found = Supervisor(self.store, self.settings, self._on_worker)
            await found.start()
            self.supervisor = found
        await self.notifier.start()
        self.catalog.refresh_soon()
        self._started = True

    async def stop(self) -> None:
        """End the workers and what clients wait for."""
        self._started = False
        if self.supervisor is not None:
            await self.supervisor.stop()
        await self.notifier.stop()

    def wake(self) -> None:
        """Have workers and clients look for what is new."""
        self.notifier.wake()
        if self.supervisor is not None:
            self.supervisor.wake()

    def _on_worker(self) -> None:
        self.notifier.wake()
        if self.supervisor is not None and self.supervisor.problem and self.shut_down is not None:
            self.shut_down()

    @property
    def _workers(self) -> list[WorkerState]:
        return self.supervisor.workers if self.supervisor is not None else []

    def _settings_key(self) -> str:
        known = {one.hardware for one in self._workers}
        # Until workers have told what they run on, results of earlier hardware must not be taken.
        hardware = (
            self._unknown if None in known or not known else ", ".join(sorted(map(str, known)))
        )
        return settings_key(self.settings.benchmark, hardware)

    def submit(
        self,
        token: Token,
        solution: Mapping[str, Any],
        workload_uuids: Optional[Sequence[str]] = None,
        *,
        priority: int = 0,
        force: bool = False,
    ) -> Task:
        """Accept a solution.

        Parameters
        ----------
        token : Token
            Who submits it.
        solution : mapping
            The solution as JSON; its name is made unique by its content, and its author is the
            name of the token, unless that is an admin's.
        workload_uuids : sequence of str, optional
            On what it is evaluated; by default on all workloads of its definition.
        priority : int
            Higher ones are evaluated first; for admins only.
        force : bool
            Whether it is evaluated even if there are results.

        Raises
        ------
        HTTPException
            With the status and the text that tell what is wrong.
        """
        if priority and not token.role.allows(Role.ADMIN):
            raise HTTPException(403, "only an admin may give a priority; leave it out")
        try:
            # An invalid name of a file in it is an error of its own.
            unique = _named(dict_to_dataclass(dict(solution), Solution), token)
        except (DataError, RecursionError) as error:
            raise HTTPException(422, f"the solution is not valid: {error}") from None
        definition = self.catalog.definition(unique.definition)
        if definition is None:
            raise HTTPException(
                400,
                f"there is no definition {unique.definition!r}; GET /definitions lists them",
            )
        there = [one.uuid for one in self.catalog.workloads(unique.definition)]
        wanted = self._chosen(unique.definition, there, workload_uuids, token)
        try:
            task = self.store.submit(
                owner=token.name,
                definition=unique.definition,
                solution=unique.model_dump(mode="json", exclude_none=True),
                solution_name=unique.name,
                workloads=wanted,
                key=task_key(unique, wanted, self._settings_key(), definition),
                priority=priority,
                max_pending=self.settings.max_pending,
                force=force,
            )
        except TooManyTasks as error:
            raise HTTPException(429, str(error.message), {"Retry-After": "10"}) from None
        self.wake()
        return task

    def _chosen(
        self, definition: str, there: list[str], asked: Optional[Sequence[str]], token: Token
    ) -> list[str]:
        if asked is None:
            if not there:
                raise HTTPException(400, f"the definition {definition!r} has no workloads yet")
            return there
        known = {uuid for uuid in there if self.may_see(token, uuid)}
        unknown = [uuid for uuid in asked if uuid not in known]
        if unknown or not asked:
            which = f"no workload {unknown[0]!r}" if unknown else "nothing without workloads"
            where = f"GET /definitions/{definition}/workloads lists them"
            raise HTTPException(400, f"there is {which} of {definition!r}; {where}")
        return list(dict.fromkeys(asked))

    def may_see(self, token: Token, workload: str) -> bool:
        """Return whether someone may see more of a workload than the verdict."""
        return workload not in self.settings.hidden or token.role.allows(Role.ADMIN)

    def task(self, task_id: str, token: Token, *, to_change: bool = False) -> Task:
        """Return a task.

        Raises
        ------
        HTTPException
            404 if there is none; 403 if it is someone else's and is to be changed.
        """
        found = self.store.task(task_id)
        if found is None:
            raise HTTPException(404, f"there is no task {task_id!r}; GET /tasks lists them")
        if to_change and found.owner != token.name and not token.role.allows(Role.ADMIN):
            raise HTTPException(403, f"the task {task_id} is {found.owner}'s, not {token.name}'s")
        return found

    def cancel(self, task_id: str, token: Token) -> Task:
        """End a task; raises as `task` does, and 409 if it is finished."""
        if not self.store.cancel(self.task(task_id, token, to_change=True).id):
            raise HTTPException(409, f"the task {task_id} is finished already")
        self.wake()
        return self.task(task_id, token)

    def retry(self, task_id: str, token: Token) -> Task:
        """Have a task evaluated once more; raises as `task` does, and 409 if that is not due."""
        self.task(task_id, token, to_change=True)
        try:
            found = self.store.retry(task_id)
        except ConfigError as error:
            raise HTTPException(409, f"{error.message}; {error.hint}") from None
        self.wake()
        return found

    def told(self, task: Task, token: Token, *, with_traces: bool = True) -> dict[str, Any]:
        """Return the JSON of a task, with as much of hidden workloads as someone may see."""
        document: dict[str, Any] = {
            "task_id": task.id,
            "status": task.status.value,
            "definition": task.definition,
            "solution": task.solution,
            "error": task.error,
            "owner": task.owner,
            "priority": task.priority,
            "workloads": len(task.workloads),
            "created": task.created,
            "started": task.started,
            "finished": task.finished,
            "duplicate_of": task.duplicate_of,
        }
        if with_traces:
            results = self.store.results(task.id)
            document["position"] = self.store.position(task.id)
            document["traces"] = [
                one.trace if self.may_see(token, one.workload) else _verdict(one.trace)
                for one in results
                if one.trace is not None
            ]
            document["notes"] = [
                {"workload": one.workload, "note": one.note}
                if self.may_see(token, one.workload)
                else {"workload": HIDDEN, "note": None}
                for one in results
                if one.trace is None
            ]
        return document

    def shown(self, event: Event, token: Token) -> dict[str, Any]:
        """Return the JSON of an event, with as much of hidden workloads as someone may see."""
        data = event.data
        if "workload" in data and not self.may_see(token, data["workload"]):
            seen: dict[str, Any] = {
                name: data[name] for name in ("status", "stage") if name in data
            }
            data = {"workload": HIDDEN, **seen}
        return {"task_id": event.task, "kind": event.kind, "at": event.at, **data}

    async def wait(self, task_ids: Iterable[str], token: Token, timeout: float) -> list[Task]:
        """Return tasks, as soon as all are finished, or after `timeout` seconds."""
        wanted, until = list(task_ids), monotonic() + timeout
        with self.notifier.subscribed(*wanted) as events:
            while True:
                found = await asyncio.to_thread(lambda: [self.task(one, token) for one in wanted])
                left = {one.id for one in found if not one.status.final}
                while left and (patience := until - monotonic()) > 0 and not events.closed:
                    event = await events.next(patience)
                    if event is not None and is_final(event):
                        left.discard(event.task)
                if left or all(one.status.final for one in found):
                    return found

    def health(self) -> dict[str, Any]:
        """Return the JSON of ``GET /health``."""
        workers = self._workers
        counts = self.store.counts()
        healthy = bool(workers) and all(one.healthy for one in workers)
        return {
            "status": "ok" if healthy else "degraded",
            "workers": [{"device": one.device, "healthy": one.healthy} for one in workers],
            "queue_size": counts[TaskStatus.PENDING],
        }

    def metrics(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        workers = self._workers
        return "".join(
            [
                _metric("tasks", "gauge", "Tasks by status.", "status", {
                    status.value: count for status, count in self.store.counts().items()
                }),
                _metric("evaluations_total", "counter", "Evaluations since the start.", "status",
                        self.notifier.evaluations),
                _metric("requests_total", "counter", "Answers since the start.", "status",
                        self.requests),
                _metric("workers", "gauge", "Workers.", None, {"": len(workers)}),
                _metric("workers_up", "gauge", "Workers that are healthy.", None,
                        {"": sum(one.healthy for one in workers)}),
                _metric("worker_restarts_total", "counter", "Workers that have ended.", None,
                        {"": sum(one.restarts for one in workers)}),
                "# HELP fib_serve_task_wait_seconds Time until tasks were begun.\n"
                "# TYPE fib_serve_task_wait_seconds summary\n"
                f"fib_serve_task_wait_seconds_sum {self.notifier.waited_s}\n"
                f"fib_serve_task_wait_seconds_count {self.notifier.waits}\n",
            ]
        )  # fmt: skip


def _metric(
    name: str, kind: str, told: str, label: Optional[str], values: Mapping[Any, float]
) -> str:
    name = f"fib_serve_{name}"
    lines = [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
    for value, number in sorted(values.items(), key=lambda item: str(item[0])):
        lines.append(f'{name}{{{label}="{value}"}} {number}' if label else f"{name} {number}")
    return "\n".join(lines) + "\n"


def _verdict(trace: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is told of a trace of a hidden workload."""
    status = ((trace or {}).get("evaluation") or {}).get("status")
    return {"workload": {"uuid": HIDDEN}, "evaluation": {"status": status}}


def _named(solution: Solution, token: Token) -> Solution:
    """Return a solution under the name and by the author that the service knows it by."""
    if not token.role.allows(Role.ADMIN):  # nobody submits in another's name
        solution = solution.model_copy(update={"author": token.name})
    unique = solution.with_unique_name()
    digest = unique.name.removeprefix(solution.name)
    return solution if solution.name.endswith(digest) else unique
