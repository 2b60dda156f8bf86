"""The service over HTTP: its API, and the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import sqlite3
import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional

import uvicorn
from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import StreamingResponse

from fib_serve.access import SECURITY_HEADERS, Gate, error_document, is_loopback, require
from fib_serve.notifier import is_final
from fib_serve.pages import router as pages
from fib_serve.records import Event, Role, Task, TaskStatus, Token
from fib_serve.service import EvaluateBody, ServeSettings, Service, told_fields
from fib_serve.store import Store
from flashinfer_bench import __version__
from flashinfer_bench.errors import ConfigError, FibError, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["ApiServer", "ServeSettings", "Service", "create_app", "run_server"]

_logger = logging.getLogger(__name__)
_HEARTBEAT_S = 15.0
_MAX_WAIT_S = 3600.0
_MAX_BATCH = 1_000
_CLOSING_S = 5
_CONNECTIONS = 2_000
_SWITCH_S = 0.0005


class BatchBody(BaseModel):
    """What ``POST /tasks/batch`` takes."""

    task_ids: Annotated[list[str], Field(max_length=_MAX_BATCH)]
    timeout: Annotated[float, Field(ge=0, le=_MAX_WAIT_S)] = 0.0


def create_app(
    settings: ServeSettings, store: Optional[Store] = None, *, workers: bool = True
) -> FastAPI:
    """Return the application of a service.

    Parameters
    ----------
    settings : ServeSettings
        What it is about.
    store : Store, optional
        Its database; by default the one that the settings name.
    workers : bool
        Whether it evaluates; without workers it only accepts tasks.

    Raises
    ------
    DatasetNotFoundError
        If there is no such dataset.
    StorageError
        If the database cannot be used.
    """
    service = Service(settings, store or Store(settings.database_file))

    @contextlib.asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        try:
            await service.start(workers=workers)
            yield
        finally:
            await service.stop()
            if store is None:
                service.store.close()

    app = FastAPI(
        title="FlashInfer-Bench", version=__version__, lifespan=live, docs_url=None, redoc_url=None
    )
    app.state.service = service
    _handle_errors(app)
    _add_routes(app, service)
    app.include_router(pages)
    app.add_middleware(Gate, store=service.store, settings=settings, requests=service.requests)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Last-Event-ID"],
        )
    return app


# ------------------------------------------------------------------------------------ errors


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(StarletteHTTPException)
    async def refuse(request: Request, error: StarletteHTTPException) -> Response:
        document = error_document(error.status_code, str(error.detail))
        return JSONResponse(document, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def explain(request: Request, error: RequestValidationError) -> Response:
        told = told_fields(error.errors())
        return JSONResponse(error_document(422, told), 422)

    @app.exception_handler(FibError)
    async def tell(request: Request, error: FibError) -> Response:
        status = 503 if isinstance(error, StorageError) else 400
        return JSONResponse(error_document(status, error.message, error.hint), status)

    @app.exception_handler(sqlite3.Error)
    async def wait(request: Request, error: sqlite3.Error) -> Response:
        _logger.error("%s %s: database: %s", request.method, request.url.path, error)
        told = "the database cannot be used at the moment; try again"
        return JSONResponse(error_document(503, told), 503, {"Retry-After": "5"})

    @app.exception_handler(Exception)
    async def admit(request: Request, error: Exception) -> Response:
        told = "the service made a mistake; its log says which"
        return JSONResponse(error_document(500, told), 500, SECURITY_HEADERS)


# ------------------------------------------------------------------------------------ routes

Reader = Annotated[Token, Depends(require(Role.READER))]
Submitter = Annotated[Token, Depends(require(Role.SUBMITTER))]
Admin = Annotated[Token, Depends(require(Role.ADMIN))]
Timeout = Annotated[float, Query(ge=0, le=_MAX_WAIT_S)]


def _add_routes(app: FastAPI, service: Service) -> None:
    _add_dataset_routes(app, service)
    _add_leaderboard_routes(app, service)
    _add_task_routes(app, service)

    @app.get("/")
    async def root(request: Request) -> Response:
        """Tell what this is; browsers are led to the pages."""
        if _prefers_html(request.headers.get("accept", "")):
            return RedirectResponse("/ui", 307)
        endpoints = sorted(
            f"{method} {path}"
            for path, operations in app.openapi()["paths"].items()
            for method in map(str.upper, operations)
        )
        document = {"name": app.title, "version": __version__, "endpoints": endpoints}
        return JSONResponse(document)

    @app.get("/health")
    def health() -> dict[str, Any]:
        """Tell whether tasks are being evaluated."""
        return service.health()

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics(token: Reader) -> Response:
        """Tell numbers to Prometheus."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(service.metrics(), media_type=kind)

    @app.post("/shutdown")
    async def shutdown(token: Admin) -> dict[str, str]:
        """End the service; tasks stay in the queue."""
        if service.shut_down is None:
            raise HTTPException(409, "this server was not started by 'fib serve': end its process")
        asyncio.get_running_loop().call_later(0.1, service.shut_down)
        return {"status": "shutting down"}

    @app.get("/events")
    async def events(request: Request, token: Reader) -> Response:
        """Stream what happens to all tasks from now on, or since ``Last-Event-ID``."""
        after = _last_event(request)
        if after is None:
            after = await asyncio.to_thread(service.store.last_event)
        return _stream(service, token, after, None)


def _prefers_html(accept: str) -> bool:
    """Return whether HTML is asked for before JSON, and not just anything."""
    weights = {"text/html": 0.0, "application/json": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        if kind in weights:
            weights[kind] = 1.0
            for parameter in parameters:
                if parameter.startswith("q="):
                    with contextlib.suppress(ValueError):
                        weights[kind] = float(parameter[2:])
    return weights["text/html"] > weights["application/json"]


def _add_dataset_routes(app: FastAPI, service: Service) -> None:
    catalog = service.catalog

    @app.get("/definitions")
    def definitions(token: Reader) -> list[dict[str, Any]]:
        """List the definitions."""
        listed = {"name", "op_type", "description"}
        return [one.model_dump(include=listed) for one in catalog.definitions()]

    @app.get("/definitions/{name:path}/workloads")
    def workloads(name: str, token: Reader) -> list[dict[str, Any]]:
        """List the workloads of a definition."""
        if catalog.definition(name) is None:
            raise _no_definition(name)
        seen = (one for one in catalog.workloads(name) if service.may_see(token, one.uuid))
        return [one.model_dump(mode="json") for one in seen]

    @app.get("/definitions/{name:path}")
    def definition(name: str, token: Reader) -> dict[str, Any]:
        """Return a definition."""
        found = catalog.definition(name)
        if found is None:
            raise _no_definition(name)
        return found.model_dump(mode="json")

    @app.get("/workloads/{uuid}")
    def workload(uuid: str, token: Reader) -> dict[str, Any]:
        """Return a workload, and the name of its definition."""
        found = catalog.workload(uuid) if service.may_see(token, uuid) else None
        if found is None:
            raise HTTPException(404, f"there is no workload {uuid!r}")
        return {"definition": found[0], **found[1].model_dump(mode="json")}


def _add_leaderboard_routes(app: FastAPI, service: Service) -> None:
    catalog = service.catalog

    @app.get("/solutions/{name:path}")
    def solution(name: str, token: Reader) -> dict[str, Any]:
        """Return a solution that has been evaluated."""
        found = catalog.solution(name)
        if found is None:
            raise HTTPException(404, f"there is no solution {name!r}; GET /leaderboard lists them")
        return found.model_dump(mode="json")

    @app.get("/leaderboard")
    async def leaderboard(
        request: Request, token: Reader, definition: Optional[str] = None
    ) -> Response:
        """Rank the solutions of a definition, or of all."""
        if not catalog.ready:
            await asyncio.to_thread(catalog.refresh)
        found = catalog.rendered(definition)
        if found is None:
            assert definition is not None
            if await asyncio.to_thread(catalog.definition, definition) is not None:
                found = catalog.rendered(definition)
            if found is None:
                raise _no_definition(definition)
        headers = {"ETag": found.etag, "Vary": "Accept-Encoding"}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        content = found.plain
        if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            content = found.packed
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type="application/json")


def _no_definition(name: str) -> HTTPException:
    return HTTPException(404, f"there is no definition {name!r}; GET /definitions lists them")


def _add_task_routes(app: FastAPI, service: Service) -> None:
    @app.post("/evaluate")
    def evaluate(body: Annotated[EvaluateBody, Body()], token: Submitter) -> dict[str, Any]:
        """Submit a solution."""
        task = service.submit(
            token, body.solution, body.workload_uuids, priority=body.priority, force=body.force
        )
        return {"task_id": task.id, "normalized_solution_name": task.solution}

    @app.get("/tasks")
    def tasks(
        token: Reader,
        owner: Optional[str] = None,
        status: Optional[TaskStatus] = None,
        definition: Optional[str] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        before: Annotated[Optional[float], Query(ge=0, allow_inf_nan=False)] = None,
    ) -> list[dict[str, Any]]:
        """List tasks without their traces, the newest first."""
        found = service.store.tasks(
            owner=owner, status=status, definition=definition, limit=limit, before=before
        )
        return [service.told(one, token, with_traces=False) for one in found]

    @app.get("/tasks/{task_id}")
    async def task(task_id: str, token: Reader, timeout: Timeout = 0.0) -> dict[str, Any]:
        """Return a task, once it is finished or `timeout` seconds have passed."""
        (found,) = await service.wait([task_id], token, timeout)
        return await asyncio.to_thread(service.told, found, token)

    @app.post("/tasks/batch")
    async def batch(body: Annotated[BatchBody, Body()], token: Reader) -> list[dict[str, Any]]:
        """Return several tasks, once all are finished or `timeout` seconds have passed."""
        found = await service.wait(body.task_ids, token, body.timeout)
        return await asyncio.to_thread(lambda: [service.told(one, token) for one in found])

    @app.post("/tasks/{task_id}/cancel")
    def cancel(task_id: str, token: Submitter) -> dict[str, Any]:
        """End a task."""
        return service.told(service.cancel(task_id, token), token)

    @app.post("/tasks/{task_id}/retry")
    def retry(task_id: str, token: Submitter) -> dict[str, Any]:
        """Have a task that failed, or was cancelled, evaluated once more."""
        return service.told(service.retry(task_id, token), token)

    @app.get("/tasks/{task_id}/events")
    async def events(request: Request, task_id: str, token: Reader) -> Response:
        """Stream what happens to a task until it is finished."""
        found = await asyncio.to_thread(service.task, task_id, token)
        after = _last_event(request)
        if after is not None and found.status.final:
            left = await asyncio.to_thread(service.store.events, after, task=task_id, limit=1)
            if not left:
                return Response(status_code=204)  # so that a browser does not connect again
        return _stream(service, token, after or 0, found)


# ------------------------------------------------------------------------------------ events


def _last_event(request: Request) -> Optional[int]:
    told = request.headers.get("last-event-id", "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) < 19 else None


def _stream(service: Service, token: Token, after: int, task: Optional[Task]) -> Response:
    return StreamingResponse(
        _lines(service, token, after, task),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _lines(
    service: Service, token: Token, after: int, task: Optional[Task]
) -> AsyncIterator[bytes]:
    """Yield the events after one: those in the database, then those that happen."""
    wanted = None if task is None else task.id
    # A task that shares results has the evaluations of another one as its own.
    tasks = (None,) if task is None else tuple({task.id, task.duplicate_of or task.id})
    store, last = service.store, after
    with service.notifier.subscribed(*tasks) as events:
        yield b": connected\n\n"
        while some := await asyncio.to_thread(store.events, last, task=wanted):
            for event in some:
                last = event.id
                yield _line(service, token, event)
        if wanted is not None:
            now = await asyncio.to_thread(store.task, wanted)
            if now is None or now.status.final:
                return
        while True:
            found = await events.next(_HEARTBEAT_S)
            if found is None:
                if events.closed:
                    return
                yield b": still there\n\n"
            elif found.id > last:
                is_mine = wanted is None or found.task == wanted
                if is_mine or found.kind in ("started", "stage", "evaluated"):
                    last = found.id
                    yield _line(service, token, found)
                if wanted is not None and is_mine and is_final(found):
                    return


def _line(service: Service, token: Token, event: Event) -> bytes:
    data = json.dumps(service.shown(event, token))
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n".encode()


# ------------------------------------------------------------------------------------ server


class ApiServer(uvicorn.Server):
    """A server whose endless answers end when it is told to."""

    def __init__(self, app: FastAPI) -> None:
        self._service: Service = app.state.service
        settings = self._service.settings
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_level=settings.log_level.lower(),
                server_header=False,
                lifespan="on",
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=_CLOSING_S,
            )
        )
        self._service.shut_down = self.end

    async def startup(self, sockets: Optional[list[socket.socket]] = None) -> None:
        """Begin; what is wrong with the service is raised as it is, not just logged."""
        try:
            await self._service.start()
            await super().startup(sockets)
        except BaseException:
            await self._service.stop()
            raise

    def end(self) -> None:
        """Stop, from within the event loop or a signal handler."""
        self.should_exit = True
        self._service.notifier.close()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop because of a signal."""
        super().handle_exit(sig, frame)
        self._service.notifier.close()


def run_server(settings: ServeSettings) -> None:
    """Run a service until it is told to end.

    Parameters
    ----------
    settings : ServeSettings
        What it is about.

    Raises
    ------
    ConfigError
        If other machines could reach it without a token, its address is taken, another server uses
        the database, or its devices are not of one kind.
    StorageError
        If the database cannot be used.
    """
    if not settings.public and not is_loopback(settings.host):
        raise ConfigError(
            f"other machines could reach {settings.host!r}; that has to be asked for",
            hint="give --public, or listen on 127.0.0.1",
        )
    no_token = ConfigError(
        "a public service needs a token, and there is none",
        hint="make one: fib serve token add NAME --role admin",
    )
    if settings.public and not settings.database_file.exists():  # `Store` would make it
        raise no_token
    store = Store(settings.database_file)
    if settings.public and all(one.revoked is not None for one in store.tokens()):
        raise no_token
    # Ranking in a thread must not keep the event loop waiting for as long as the default, 5 ms.
    sys.setswitchinterval(_SWITCH_S)
    app = create_app(settings, store)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    address = (settings.host, settings.port)
    try:
        listening = socket.create_server(address, family=family, backlog=_CONNECTIONS)
    except OSError as error:
        raise ConfigError(
            f"{settings.host}:{settings.port} cannot be listened on: {error.strerror or error}",
            hint="choose another --port or --host",
        ) from error
    # asyncio does this for sockets of its own only; without it head and body of an answer are 40 ms
    # apart. Accepted connections inherit it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = ApiServer(app)
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()
        store.close()
    supervisor = app.state.service.supervisor
    if supervisor is not None and supervisor.problem is not None:
        raise supervisor.problem
