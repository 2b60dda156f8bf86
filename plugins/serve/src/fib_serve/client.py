"""Clients of the service, for programs that wait (`Client`) and for asyncio (`AsyncClient`)."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    Optional,
    ParamSpec,
    TypeVar,
    Union,
)

import httpx

from fib_serve.records import HIDDEN, Event, TaskStatus
from flashinfer_bench.data import (
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Solution,
    Trace,
    Workload,
)
from flashinfer_bench.errors import CapabilityError, ConfigError, FibError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence

_T = TypeVar("_T")
_P = ParamSpec("_P")
_POLL_S = 25.0  # shorter than the time after which reverse proxies give up
_SILENCE_S = 45.0  # the service sends a comment every 15 s
_AGAIN = 3
_LONGEST_PAUSE_S = 300.0
_RESTARTING = (502, 503, 504)


class ServerError(FibError):
    """A request to a service did not succeed.

    Attributes
    ----------
    status : int, optional
        The status code of the answer; None if there was none.
    """

    def __init__(
        self, message: str, *, hint: Optional[str] = None, status: Optional[int] = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ServerUnreachable(ServerError, CapabilityError):
    """There was no answer."""


class ServerFailed(ServerError, CapabilityError):
    """The service cannot answer now, or what answered is something else."""


class RequestRefused(ServerError, ConfigError):
    """The request itself is not allowed: its token, its size or its content."""


@dataclass(frozen=True)
class Submitted:
    """What was accepted.

    Attributes
    ----------
    task_id : str
        The task.
    solution : str
        The solution's name in the dataset, which ends with a digest of its content.
    """

    task_id: str
    solution: str


@dataclass(frozen=True)
class TaskView:
    """A task as the service tells it.

    Attributes
    ----------
    task_id, definition, solution : str
        What is evaluated.
    status : TaskStatus
        Where it is.
    traces : tuple of dict
        The results by now, as JSON; those of hidden workloads have a status alone.
    error : str, optional
        Why it failed.
    owner : str
        Who submitted it.
    position : int, optional
        How many tasks are before it; None unless it is waiting.
    created, started, finished : float, optional
        Seconds since the epoch.
    duplicate_of : str, optional
        The task whose results it shares.
    workloads : int, optional
        On how many workloads it is evaluated.
    """

    task_id: str
    status: TaskStatus
    definition: str
    solution: str
    traces: tuple[dict[str, Any], ...] = ()
    error: Optional[str] = None
    owner: str = ""
    position: Optional[int] = None
    created: Optional[float] = None
    started: Optional[float] = None
    finished: Optional[float] = None
    duplicate_of: Optional[str] = None
    workloads: Optional[int] = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> TaskView:
        """Make it from JSON, of this or another release of the service."""
        known = {name: told[name] for name in cls.__dataclass_fields__ if name in told}
        known["status"] = TaskStatus(told["status"])
        known["traces"] = tuple(told.get("traces") or ())
        return cls(**known)

    def evaluated(self) -> list[Trace]:
        """Return the results as traces; those of hidden workloads have a status and a log alone."""
        return [self._trace(told) for told in self.traces]

    def _trace(self, told: dict[str, Any]) -> Trace:
        if told["workload"]["uuid"] != HIDDEN:
            return Trace.model_validate(told)
        verdict = Evaluation.model_construct(
            status=EvaluationStatus(told["evaluation"]["status"]),
            environment=Environment.model_construct(hardware="", libs={}),
            timestamp="",
            log="on a hidden workload, of which only the status is told",
        )
        workload = Workload.model_construct(axes={}, inputs={}, uuid=HIDDEN)
        return Trace.model_construct(
            definition=self.definition,
            workload=workload,
            solution=self.solution,
            evaluation=verdict,
        )


# ------------------------------------------------------------------ what both clients share


@dataclass(frozen=True)
class _Request(Generic[_T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], _T]
    params: Optional[dict[str, Any]] = None
    body: Optional[dict[str, Any]] = None
    waits: float = 0.0  # seconds that the service may take on purpose


class _Connection:
    """Where the service is, and which requests there are."""

    def __init__(self, url: str, token: Optional[str], timeout: float, patience: float) -> None:
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise ConfigError(f"{url!r} is not a URL: {error}", hint=_URL_HINT) from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"{url!r} is not a URL of http or https", hint=_URL_HINT)
        if parsed.userinfo:
            raise ConfigError("the URL contains a password", hint="give a token instead")
        token = token.strip() if token else None
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError("the token has characters that no token has", hint=_TOKEN_HINT)
        self.url = str(parsed).rstrip("/")
        self.timeout = timeout
        self.patience = patience
        self.options: dict[str, Any] = {
            "base_url": self.url,
            "timeout": timeout,
            "headers": {"Authorization": f"Bearer {token}"} if token else {},
        }

    def sent(self, request: _Request[Any]) -> dict[str, Any]:
        """Return what httpx is to send."""
        return {
            "method": request.method,
            "url": request.path,
            "params": request.params,
            "json": request.body,
            "timeout": httpx.Timeout(self.timeout, read=self.timeout + request.waits),
        }

    def read(self, request: _Request[_T], answer: httpx.Response) -> _T:
        """Return what an answer says."""
        try:
            return request.read(answer.json())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServerFailed(
                f"{self.url}: the answer to {request.method} {request.path} is not that of a "
                f"service of 'fib serve': {type(error).__name__}",
                hint="check the URL, and that client and server are of the same release",
                status=answer.status_code,
            ) from None

    def refuse(self, answer: httpx.Response) -> NoReturn:
        """Raise the error that an answer tells."""
        status, (told, given) = answer.status_code, _detail(answer)
        if status in (301, 302, 303, 307, 308):
            hint = f"use {answer.headers.get('location')!r} as URL"
            raise RequestRefused(f"{self.url} is elsewhere", hint=hint, status=status)
        kind: type[ServerError] = RequestRefused
        hint = _HINTS.get(status, "correct the request")
        if status >= 500 or status == 429:
            kind = ServerFailed
            hint = _HINTS.get(status, "the log of the server says more; try again later")
        raise kind(f"{self.url}: {told} (status {status})", hint=given or hint, status=status)


_URL_HINT = "for example http://127.0.0.1:8000"
_TOKEN_HINT = "tokens begin with fib_; 'fib serve token add' on the server makes one"
_HINTS = {
    401: "give a valid token with --token or FIB_SERVE_TOKEN; 'fib serve token add' makes one",
    403: "ask whoever runs the server for a token with another role",
    404: "check the name; 'GET /definitions' lists what there is",
    413: "submit a smaller solution, or ask whoever runs the server for a higher limit",
    429: "submit again once some of your tasks are finished, or ask for a higher limit",
}


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _rows(told: Any) -> list[dict[str, Any]]:
    rows = told["rows"] if isinstance(told, dict) else told
    return [dict(row) for row in rows]


def _detail(answer: httpx.Response) -> tuple[str, Optional[str]]:
    """Return what is wrong, and the hint of the service if it has one."""
    try:
        document = answer.json()
        told, hint = document["detail"], document.get("hint")
    except (ValueError, LookupError, TypeError, AttributeError):
        return answer.reason_phrase or "no reason is told", None
    return str(told), str(hint) if hint else None


class _Tries:
    """Decides what follows a try: it is done, there is another one after some time, or an error.

    Parameters
    ----------
    connection : _Connection
        Where.
    patience : float
        For how many seconds a service may be away.
    """

    def __init__(self, connection: _Connection, patience: float) -> None:
        self._connection = connection
        self._patience = patience
        self._limited = 0
        self._away = 0
        self._since = 0.0

    def after(self, outcome: Union[httpx.Response, httpx.RequestError]) -> Optional[float]:
        """Return after how many seconds to try again; None if the answer is one to read."""
        if isinstance(outcome, httpx.RequestError):
            if self._is_patient():
                return self._pause()
            url = self._connection.url
            reason = str(outcome) or type(outcome).__name__
            raise ServerUnreachable(
                f"{url} cannot be reached: {reason}",
                hint="check the URL, and that 'fib serve' is running there",
            )
        status = outcome.status_code
        if status == 429 and self._limited < _AGAIN:
            self._limited += 1
            return _retry_after(outcome) or self._limited
        if status in _RESTARTING and self._is_patient():
            return self._pause()
        if status >= 300:
            self._connection.refuse(outcome)
        self.reset()
        return None

    def reset(self) -> None:
        """Take note that the service is there."""
        self._limited = self._away = 0

    def _is_patient(self) -> bool:
        now = time.monotonic()
        if not self._away:
            self._since = now
        self._away += 1
        return now - self._since < self._patience

    def _pause(self) -> float:
        return float(min(0.1 * 2**self._away, 5.0))


def _retry_after(answer: httpx.Response) -> float:
    try:
        seconds = float(answer.headers.get("retry-after", ""))
    except ValueError:  # a date, which this service never sends
        return 0.0
    return min(seconds, _LONGEST_PAUSE_S) if seconds > 0 else 0.0


class _Stream:
    """Reads the lines of a stream of events, and remembers the last one."""

    def __init__(self, task_id: Optional[str], after: int) -> None:
        self._task = task_id
        self.path = "/events" if task_id is None else f"/tasks/{_quoted(task_id)}/events"
        self.last = after
        self._fields: dict[str, str] = {}

    def sent(self, connection: _Connection) -> dict[str, Any]:
        """Return what httpx is to send."""
        self._fields = {}
        headers = {"Accept": "text/event-stream"}
        if self.last:
            headers["Last-Event-ID"] = str(self.last)
        timeout = httpx.Timeout(connection.timeout, read=max(connection.timeout, _SILENCE_S))
        return {"method": "GET", "url": self.path, "headers": headers, "timeout": timeout}

    def event(self, line: str) -> Optional[Event]:
        """Take a line; return the event that it ends, unless that is a known or no event."""
        if line:
            name, _, value = line.partition(":")
            if name:  # else a comment
                value = value.removeprefix(" ")
                before = self._fields.get(name)
                both = name == "data" and before is not None
                self._fields[name] = f"{before}\n{value}" if both else value
            return None
        fields, self._fields = self._fields, {}
        try:
            number, told = int(fields["id"]), json.loads(fields["data"])
        except (LookupError, ValueError):
            return None
        if number <= self.last or not isinstance(told, dict):
            return None
        self.last = number
        kind = fields.get("event", "message")
        task, at = str(told.get("task_id", self._task or "")), float(told.get("at", 0.0))
        data = {key: one for key, one in told.items() if key not in ("task_id", "kind", "at")}
        return Event(number, task, kind, at, data)


# ------------------------------------------------------------------ what can be asked


def _health() -> _Request[dict[str, Any]]:
    """Return the state of the service, its workers and its queue."""
    return _Request("GET", "/health", dict)


def _definitions() -> _Request[list[dict[str, Any]]]:
    """Return name, op_type and description of each definition."""
    return _Request("GET", "/definitions", _rows)


def _definition(name: str) -> _Request[Definition]:
    """Return a definition."""
    return _Request("GET", f"/definitions/{_quoted(name)}", Definition.model_validate)


def _workloads(name: str) -> _Request[list[dict[str, Any]]]:
    """Return the workloads of a definition as JSON, except hidden ones."""
    return _Request("GET", f"/definitions/{_quoted(name)}/workloads", _rows)


def _leaderboard(definition: Optional[str] = None) -> _Request[list[dict[str, Any]]]:
    """Return the ranked solutions of a definition, or of all."""
    params = None if definition is None else {"definition": definition}
    return _Request("GET", "/leaderboard", _rows, params)


def _submit(
    solution: Union[Solution, Mapping[str, Any]],
    workloads: Optional[Sequence[str]] = None,
    priority: int = 0,
    force: bool = False,
) -> _Request[Submitted]:
    """Submit a solution; it is evaluated later.

    Parameters
    ----------
    solution : Solution or mapping
        The solution, or its JSON.
    workloads : sequence of str, optional
        Uuids; by default all workloads of its definition.
    priority : int
        Higher ones are evaluated first; only admins may give one.
    force : bool
        Whether to evaluate it even if the results are known.

    Raises
    ------
    RequestRefused
        If it is not valid, too large, or the token does not allow it.
    ServerUnreachable, ServerFailed
        If the service does not answer, or cannot take more.
    """
    if isinstance(solution, Solution):
        solution = solution.model_dump(mode="json", exclude_none=True)
    body: dict[str, Any] = {
        "solution": solution,
        "workload_uuids": None if workloads is None else list(workloads),
        "priority": priority or None,
        "force": force or None,
    }
    body = {name: value for name, value in body.items() if value is not None}

    def read(told: Any) -> Submitted:
        return Submitted(told["task_id"], told["normalized_solution_name"])

    return _Request("POST", "/evaluate", read, body=body)


def _task(task_id: str, timeout: float = 0.0) -> _Request[TaskView]:
    """Return a task, at the latest after `timeout` seconds, earlier if it has ended."""
    params = {"timeout": timeout} if timeout else None
    return _Request("GET", f"/tasks/{_quoted(task_id)}", TaskView.of, params, waits=timeout)


def _cancel(task_id: str) -> _Request[TaskView]:
    """Cancel a task; one that is being evaluated ends soon after."""
    return _Request("POST", f"/tasks/{_quoted(task_id)}/cancel", TaskView.of)


def _retry(task_id: str) -> _Request[TaskView]:
    """Have a task that failed or was cancelled evaluated again."""
    return _Request("POST", f"/tasks/{_quoted(task_id)}/retry", TaskView.of)


def _sync(make: Callable[_P, _Request[_T]]) -> Callable[Concatenate[Client, _P], _T]:
    """Return the method of `Client` for a request."""

    @wraps(make)
    def ask(self: Client, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return self._do(make(*args, **options))

    return ask


def _async(
    make: Callable[_P, _Request[_T]],
) -> Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]]:
    """Return the method of `AsyncClient` for a request."""

    @wraps(make)
    async def ask(self: AsyncClient, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return await self._do(make(*args, **options))

    return ask


# ------------------------------------------------------------------ the clients


class Client:
    """Talks to a service.

    A request that is limited (429) is repeated up to three times, after the time that the service
    asks for. While waiting for results, a service may be away for `patience` seconds.

    Parameters
    ----------
    url : str
        Where it is: ``http://127.0.0.1:8000``, with a path if a proxy puts it below one.
    token : str, optional
        The secret of ``fib serve token add``.
    timeout : float
        Seconds until a request without an answer fails.
    patience : float
        Seconds that a service may take to restart while its results are waited for.
    transport : httpx.BaseTransport, optional
        What sends requests, for tests.

    Raises
    ------
    ConfigError
        If the URL or the token cannot be one.
    """

    def __init__(
        self,
        url: str,
        token: Optional[str] = None,
        timeout: float = 30.0,
        *,
        patience: float = 60.0,
        transport: Optional[httpx.BaseTransport] = None,
    ) -> None:
        self._connection = _Connection(url, token, timeout, patience)
        self._http = httpx.Client(transport=transport, **self._connection.options)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._connection.url

    def _do(self, request: _Request[_T], patience: float = 0.0) -> _T:
        tries = _Tries(self._connection, patience)
        while True:
            outcome: Union[httpx.Response, httpx.RequestError]
            try:
                outcome = self._http.request(**self._connection.sent(request))
            except httpx.RequestError as error:
                outcome = error
            pause = tries.after(outcome)
            if pause is None and isinstance(outcome, httpx.Response):
                return self._connection.read(request, outcome)
            time.sleep(pause or 0.0)

    health = _sync(_health)
    definitions = _sync(_definitions)
    definition = _sync(_definition)
    workloads = _sync(_workloads)
    leaderboard = _sync(_leaderboard)
    submit = _sync(_submit)
    task = _sync(_task)
    cancel = _sync(_cancel)
    retry = _sync(_retry)

    def wait(self, task_id: str) -> TaskView:
        """Return a task once it has ended, even if the service restarts meanwhile."""
        while True:
            begin = time.monotonic()
            found = self._do(_task(task_id, _POLL_S), self._connection.patience)
            if found.status.final:
                return found
            time.sleep(max(0.0, 0.5 - (time.monotonic() - begin)))  # a service that does not wait

    def events(self, task_id: Optional[str] = None, after: int = 0) -> Iterator[Event]:
        """Yield what happens, until the task has ended, even if the service restarts meanwhile.

        Parameters
        ----------
        task_id : str, optional
            Only what happens to this task; by default everything, without an end.
        after : int
            Begin after the event of this id.
        """
        stream, patience = _Stream(task_id, after), self._connection.patience
        tries = _Tries(self._connection, patience)
        while True:
            pause: Optional[float]
            try:
                with self._http.stream(**stream.sent(self._connection)) as answer:
                    if answer.status_code != 200:
                        answer.read()
                    pause = tries.after(answer)
                    for line in answer.iter_lines() if pause is None else ():
                        event = stream.event(line)
                        if event is not None:
                            yield event
            except httpx.RequestError as error:
                pause = tries.after(error)
            if pause is None and task_id is not None:
                found = self._do(_task(task_id), patience)
                if found.status.final:
                    return
            time.sleep(0.2 if pause is None else pause)


class AsyncClient:
    """Talks to a service, for asyncio; its methods are those of `Client`.

    Parameters
    ----------
    url, token, timeout, patience
        As of `Client`.
    transport : httpx.AsyncBaseTransport, optional
        What sends requests, for tests.
    """

    def __init__(
        self,
        url: str,
        token: Optional[str] = None,
        timeout: float = 30.0,
        *,
        patience: float = 60.0,
        transport: Optional[httpx.AsyncBaseTransport] = None,
    ) -> None:
        self._connection = _Connection(url, token, timeout, patience)
        self._http = httpx.AsyncClient(transport=transport, **self._connection.options)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @property
    def url(self) -> str:
        """Where the service is."""
        return self._connection.url

    async def _do(self, request: _Request[_T], patience: float = 0.0) -> _T:
        tries = _Tries(self._connection, patience)
        while True:
            outcome: Union[httpx.Response, httpx.RequestError]
            try:
                outcome = await self._http.request(**self._connection.sent(request))
            except httpx.RequestError as error:
                outcome = error
            pause = tries.after(outcome)
            if pause is None and isinstance(outcome, httpx.Response):
                return self._connection.read(request, outcome)
            await asyncio.sleep(pause or 0.0)

    health = _async(_health)
    definitions = _async(_definitions)
    definition = _async(_definition)
    workloads = _async(_workloads)
    leaderboard = _async(_leaderboard)
    submit = _async(_submit)
    task = _async(_task)
    cancel = _async(_cancel)
    retry = _async(_retry)

    async def wait(self, task_id: str) -> TaskView:
        """Return a task once it has ended, even if the service restarts meanwhile."""
        while True:
            begin = time.monotonic()
            found = await self._do(_task(task_id, _POLL_S), self._connection.patience)
            if found.status.final:
                return found
            await asyncio.sleep(max(0.0, 0.5 - (time.monotonic() - begin)))

    async def events(self, task_id: Optional[str] = None, after: int = 0) -> AsyncIterator[Event]:
        """Yield what happens: see `Client.events`."""
        stream, patience = _Stream(task_id, after), self._connection.patience
        tries = _Tries(self._connection, patience)
        while True:
            pause: Optional[float]
            try:
                async with self._http.stream(**stream.sent(self._connection)) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                    pause = tries.after(answer)
                    if pause is None:
                        async for line in answer.aiter_lines():
                            event = stream.event(line)
                            if event is not None:
                                yield event
            except httpx.RequestError as error:
                pause = tries.after(error)
            if pause is None and task_id is not None:
                found = await self._do(_task(task_id), patience)
                if found.status.final:
                    return
            await asyncio.sleep(0.2 if pause is None else pause)
