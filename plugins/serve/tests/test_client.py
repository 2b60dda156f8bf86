"""The clients: what they ask, what they make of answers, and how long they keep trying."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import fib_serve
from fib_serve.client import (
    AsyncClient,
    Client,
    RequestRefused,
    ServerError,
    ServerFailed,
    ServerUnreachable,
)
from fib_serve.records import TaskStatus
from fib_tests.scaled_add import DEFINITION, solution_of
from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "http://judge.test/fib"
SECRET = "fib_a-secret"
TASK = {
    "task_id": "t1",
    "status": "running",
    "definition": "scaled_add_h8",
    "solution": "mine_0a1b",
    "traces": [],
    "error": None,
}
SOLUTION = solution_of(
    {"main.py": "def run(x, y, scale):\n    return (x + y) * scale\n"},
    language="python",
    target_hardware=["cpu"],
    entry_point="main.py::run",
)


class Answers:
    """Plays the service: answers by method and path, the last one of each for ever."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[httpx.Request] = []
        self._answers = {key: list(given) for key, given in answers.items()}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        left = self._answers[request.url.path.removeprefix("/fib/").replace("/", "_")]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return httpx.Response(
                answer.status_code, headers=answer.headers, content=answer.content
            )
        return httpx.Response(200, json=answer)

    def client(self, **options: Any) -> Client:
        return Client(URL, SECRET, transport=httpx.MockTransport(self), **options)

    def waiting(self, use: Callable[[AsyncClient], Any], **options: Any) -> Any:
        """Use the other client in the same way."""

        async def go() -> Any:
            transport = httpx.MockTransport(self)
            async with AsyncClient(URL, SECRET, transport=transport, **options) as client:
                found = use(client)
                if hasattr(found, "__aiter__"):
                    return [one async for one in found]
                return await found

        return asyncio.run(go())


def failed(status: int, detail: Any = "no", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"detail": detail}, headers=named)


def stream(*events: tuple[int, str, dict[str, Any]], end: str = "") -> httpx.Response:
    lines = [f"id: {n}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for n, kind, data in events]
    text = ": heartbeat\n\n" + "".join(lines) + end
    return httpx.Response(200, text=text, headers={"Content-Type": "text/event-stream"})


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses, which take no time."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(asyncio, "sleep", pause)
    return pauses


# ------------------------------------------------------------------ requests and answers


def test_the_package_exports_the_clients():
    assert (fib_serve.Client, fib_serve.AsyncClient) == (Client, AsyncClient)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = fib_serve.Nothing


def test_a_submission_has_the_token_and_only_what_was_given():
    answers = Answers(evaluate=[{"task_id": "t1", "normalized_solution_name": "mine_0a1b"}])
    with answers.client() as client:
        accepted = client.submit(SOLUTION)
        client.submit({"name": "raw"}, workloads=["w1"], priority=3, force=True)
    assert (accepted.task_id, accepted.solution) == ("t1", "mine_0a1b")
    plain, full = (json.loads(one.content) for one in answers.asked)
    assert plain == {"solution": SOLUTION.model_dump(mode="json", exclude_none=True)}
    assert full == {
        "solution": {"name": "raw"},
        "workload_uuids": ["w1"],
        "priority": 3,
        "force": True,
    }
    assert {one.headers["authorization"] for one in answers.asked} == {f"Bearer {SECRET}"}
    assert {str(one.url) for one in answers.asked} == {f"{URL}/evaluate"}


READS = {
    "health": ("health", (), {"status": "ok", "workers": [], "queue_size": 0}),
    "definitions": ("definitions", (), [{"name": "a", "description": ""}]),
    "workloads": ("definitions_a_workloads", ("a",), [{"uuid": "w1"}]),
    "leaderboard": ("leaderboard", (), [{"rank": 1}]),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_returned_by_both_clients(name: str):
    path, arguments, told = READS[name]
    answers = Answers(**{path: [told]})
    assert getattr(answers.client(), name)(*arguments) == told
    assert answers.waiting(lambda client: getattr(client, name)(*arguments)) == told


def test_definitions_tasks_and_changes():
    cancelled = {**TASK, "status": "cancelled", "owner": "ann", "of_a_later_release": 1}
    answers = Answers(
        definitions_scaled_add_h8=[DEFINITION],
        tasks_t1=[TASK],
        tasks_t1_cancel=[cancelled],
        tasks_t1_retry=[{**TASK, "status": "pending", "position": 2}],
        leaderboard=[[]],
    )
    client = answers.client()
    assert client.definition("scaled_add_h8").op_type == "op"
    assert client.task("t1", timeout=2).status is TaskStatus.RUNNING
    assert client.cancel("t1").owner == "ann"
    assert client.retry("t1").position == 2
    assert client.leaderboard("scaled add") == []
    assert answers.waiting(lambda one: one.definition("scaled_add_h8")).op_type == "op"
    assert answers.waiting(lambda one: one.cancel("t1")).status is TaskStatus.CANCELLED
    assert answers.waiting(lambda one: one.retry("t1")).status is TaskStatus.PENDING
    queries = [one.url.query.decode() for one in answers.asked]
    assert queries[1] == "timeout=2"
    assert queries[4] == "definition=scaled+add"


def test_names_cannot_leave_their_place_in_the_path():
    answers = Answers(**{"tasks_.._shutdown": [TASK]})
    answers.client().task("../shutdown")
    assert answers.asked[0].url.raw_path == b"/fib/tasks/..%2Fshutdown"


def test_hidden_workloads_have_a_status_alone():
    run = {"workload": {"uuid": "hidden"}, "evaluation": {"status": "RUNTIME_ERROR"}}
    (trace,) = Answers(tasks_t1=[{**TASK, "traces": [run]}]).client().task("t1").evaluated()
    assert trace.evaluation is not None
    assert trace.evaluation.status == "RUNTIME_ERROR"
    assert (trace.definition, trace.workload.uuid) == ("scaled_add_h8", "hidden")
    assert not trace.is_successful()


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("url", ["", "judge", "ftp://judge", "http://", "http://x:port", "//x"])
def test_what_is_no_url(url: str):
    with pytest.raises(ConfigError, match="is not a URL") as caught:
        Client(url)
    assert "http://127.0.0.1:8000" in str(caught.value.hint)


@pytest.mark.parametrize("token", ["fib_a b", "fib_\u00fc", "fib_a\nb"])
def test_what_is_no_token_is_not_repeated(token: str):
    with pytest.raises(ConfigError, match="has characters that no token has") as caught:
        Client(URL, token)
    assert token not in str(caught.value)


HINTED = httpx.Response(409, json={"detail": "it runs", "code": "conflict", "hint": "cancel it"})
REFUSED = [
    (HINTED, RequestRefused, "it runs (status 409)", "cancel it"),
    (failed(400, "no definition 'x'"), RequestRefused, "no definition 'x'", "correct"),
    (failed(401, "no valid token"), RequestRefused, "no valid token", "FIB_SERVE_TOKEN"),
    (failed(403), RequestRefused, "status 403", "another role"),
    (failed(404, "no task"), RequestRefused, "no task", "check the name"),
    (failed(413), RequestRefused, "status 413", "smaller"),
    (
        failed(422, [{"loc": ["body", "solution"], "msg": "Field required"}]),
        *(RequestRefused, "Field required", "correct"),
    ),
    (httpx.Response(500, text="<html>"), ServerFailed, "Internal Server Error", "log of the"),
    (failed(503), ServerFailed, "status 503", "try again later"),
    (
        httpx.Response(308, headers={"Location": "https://judge.test"}),
        *(RequestRefused, "is elsewhere", "https://judge.test"),
    ),
    (httpx.Response(200, text="hello"), ServerFailed, "is not that of", "check the URL"),
    (httpx.Response(200, json=[1]), ServerFailed, "is not that of", "same release"),
    (httpx.ConnectError("refused"), ServerUnreachable, "cannot be reached: refused", "fib serve"),
    (httpx.ReadTimeout(""), ServerUnreachable, "cannot be reached: ReadTimeout", "running there"),
]


@pytest.mark.parametrize(("answer", "kind", "message", "hint"), REFUSED)
def test_each_error_names_the_server_and_what_to_do(
    answer: Any, kind: type[ServerError], message: str, hint: str
):
    answers = Answers(evaluate=[answer])
    with pytest.raises(kind) as caught:
        answers.client().submit({})
    assert message in caught.value.message
    assert URL in caught.value.message
    assert hint in str(caught.value.hint)
    assert SECRET not in str(caught.value)
    assert isinstance(caught.value, (ConfigError, CapabilityError))
    assert len(answers.asked) == 1
    with pytest.raises(kind):
        answers.waiting(lambda client: client.submit({}))


def test_limited_requests_are_repeated_three_times(slept: list[float]):
    limit = failed(429, "slow down", Retry_After="7")
    accepted = {"task_id": "t1", "normalized_solution_name": "n"}
    answers = Answers(evaluate=[limit, limit, limit, accepted])
    assert answers.client().submit({}).task_id == "t1"
    assert slept == [7.0, 7.0, 7.0]
    answers = Answers(evaluate=[limit])
    with pytest.raises(ServerFailed, match="slow down") as caught:
        answers.client().submit({})
    assert caught.value.status == 429
    assert len(answers.asked) == 4
    answers = Answers(evaluate=[limit, accepted])
    assert answers.waiting(lambda client: client.submit({})).task_id == "t1"


@pytest.mark.parametrize("told", ["soon", "-3", "", "1e9", "nan"])
def test_whatever_the_server_asks_for_is_a_sensible_pause(slept: list[float], told: str):
    answers = Answers(health=[failed(429, Retry_After=told), {}])
    answers.client().health()
    assert len(slept) == 1
    assert 0 < slept[0] <= 300


# ------------------------------------------------------------------ waiting


def test_waiting_outlasts_a_restart(slept: list[float]):
    away = [httpx.ConnectError("refused"), failed(502), httpx.ReadError("reset")]
    done = {**TASK, "status": "completed"}
    for wait in (
        lambda answers: answers.client().wait("t1"),
        lambda answers: answers.waiting(lambda client: client.wait("t1")),
    ):
        answers = Answers(tasks_t1=[TASK, *away, TASK, done])
        assert wait(answers).status is TaskStatus.COMPLETED
        assert len(answers.asked) == 6
        assert all(float(one.url.params["timeout"]) > 0 for one in answers.asked)


def test_patience_ends(slept: list[float]):
    answers = Answers(tasks_t1=[httpx.ConnectError("refused")])
    with pytest.raises(ServerUnreachable):
        answers.client(patience=0).wait("t1")
    with pytest.raises(RequestRefused, match="no task"):
        Answers(tasks_t1=[failed(404, "no task")]).client().wait("t1")


def test_events_go_on_where_they_were_cut_off(slept: list[float]):
    first = stream((4, "started", {"worker": "cpu"}), end="id: 5\nevent: evaluated\nda")
    second = stream(
        (4, "started", {}),
        (5, "evaluated", {"task_id": "t1", "kind": "evaluated", "at": 12.5, "status": "PASSED"}),
        (6, "completed", {}),
    )
    for follow in (
        lambda answers: list(answers.client().events("t1", after=3)),
        lambda answers: answers.waiting(lambda client: client.events("t1", after=3)),
    ):
        answers = Answers(
            tasks_t1_events=[first, httpx.ConnectError("refused"), failed(503), second],
            tasks_t1=[TASK, {**TASK, "status": "completed"}],
        )
        found = follow(answers)
        assert [(one.id, one.kind) for one in found] == [
            (4, "started"),
            (5, "evaluated"),
            (6, "completed"),
        ]
        assert found[0].data == {"worker": "cpu"}
        assert found[0].task == "t1"
        assert (found[1].data, found[1].at) == ({"status": "PASSED"}, 12.5)
        asked = [one.headers.get("last-event-id") for one in answers.asked]
        assert [one for one in asked if one] == ["3", "4", "4", "4"]


def test_events_of_all_tasks_do_not_end(slept: list[float]):
    answers = Answers(
        events=[stream((1, "submitted", {"task_id": "a"})), stream((2, "started", {}))]
    )
    events = answers.client().events()
    assert [next(events).id, next(events).id] == [1, 2]


def test_events_that_may_not_be_read():
    with pytest.raises(RequestRefused, match="no valid token"):
        list(Answers(events=[failed(401, "no valid token")]).client().events())
