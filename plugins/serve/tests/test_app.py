"""Tests of the API: what it accepts, tells and streams."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import httpx
import pytest
from fastapi.testclient import TestClient

from fib_serve.app import run_server
from fib_serve.client import Client, RequestRefused
from fib_serve.records import Role, TaskStatus
from fib_tests.scaled_add import run_in_child
from fib_tests.serving import NAME, add_solution, append_traces, solution, trace
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fib_serve.service import ServeSettings
    from fib_serve.store import Store

WRONG = "def run(x, y, scale):\n    return x\n"


def submit(client: TestClient, source: Optional[str] = None, **body: Any) -> str:
    answer = client.post("/evaluate", json={"solution": solution(source=source), **body})
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["task_id"]
    return found


def evaluate(store: Store, task_id: str, *workloads: str) -> None:
    """Do what a worker does with the only task that waits."""
    task = store.claim("cpu")
    assert task is not None
    assert task.id == task_id
    for uuid in workloads or task.workloads:
        store.record(task.id, uuid, trace(task.solution, uuid))
    store.finish(task.id, TaskStatus.COMPLETED)


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [one for one in text.splitlines() if one.startswith("data: ")]
    return [json.loads(one[6:]) for one in lines]


def leaderboard(client: TestClient, **params: str) -> list[dict[str, Any]]:
    client.app.state.service.catalog.refresh()  # type: ignore[attr-defined]
    found: list[dict[str, Any]] = client.get("/leaderboard", params=params).json()
    return found


# ----------------------------------------------------------------------------------- dataset


def test_the_root_is_for_programs_and_for_browsers(client: TestClient) -> None:
    told = client.get("/").json()
    assert told["name"] == "FlashInfer-Bench"
    assert "POST /evaluate" in told["endpoints"]
    accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    assert client.get("/", headers={"Accept": accept}).headers["location"] == "/ui"


def test_definitions_and_workloads(client: TestClient) -> None:
    listed = [{"name": NAME, "op_type": "op", "description": None}]
    assert client.get("/definitions").json() == listed
    assert client.get(f"/definitions/{NAME}").json()["op_type"] == "op"
    found = client.get(f"/definitions/{NAME}/workloads").json()
    assert [one["uuid"] for one in found] == ["two", "five", "secret"]
    assert client.get("/workloads/two").json()["definition"] == NAME
    assert client.get("/solutions/first").json()["author"] == "ann"


@pytest.mark.parametrize(
    "path",
    [
        "/definitions/other",
        "/definitions/other/workloads",
        "/workloads/other",
        "/solutions/other",
        "/tasks/other",
        "/tasks/other/events",
        "/leaderboard?definition=other",
        "/nowhere",
    ],
)
def test_what_is_not_there(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


def test_what_was_added_to_the_dataset_is_found(client: TestClient, dataset: Path) -> None:
    assert client.get("/solutions/first").status_code == 200
    time.sleep(0.3)  # an unknown name is looked for at most so often
    add_solution(dataset, solution("second"))
    assert client.get("/solutions/second").status_code == 200


def test_damaged_files_are_left_out(make_client: Callable[..., TestClient], dataset: Path) -> None:
    add_solution(dataset, solution("broken", spec={}))
    append_traces(dataset, trace("first"), {"definition": NAME})
    client = make_client()
    assert [one["solution"] for one in leaderboard(client)] == ["first"]
    assert client.get("/solutions/broken").status_code == 404


# ------------------------------------------------------------------------------- leaderboard


def test_the_leaderboard_ranks(client: TestClient, dataset: Path) -> None:
    for name, latency in (("slow", 3.0), ("fast", 1.0), ("same", 1.0), ("failed", None)):
        add_solution(dataset, solution(name, author=f"author of {name}"))
        append_traces(dataset, trace(name, "two", latency), trace(name, "five", latency))
    append_traces(dataset, trace("forgotten", "two", 0.1))
    rows = leaderboard(client)
    assert [(one["solution"], one["rank"], one["tied"]) for one in rows] == [
        ("fast", 1, True),
        ("same", 1, True),
        ("slow", 3, False),
        ("forgotten", None, False),  # on fewer workloads
        ("failed", None, False),
    ]
    assert rows[0]["author"] == "author of fast"
    assert rows[0]["speedup"] == pytest.approx(2.0)
    assert rows[2]["latency_ms"] == pytest.approx(3.0)
    assert (rows[4]["workloads"], rows[4]["passed"], rows[4]["latency_ms"]) == (2, 0, None)
    assert leaderboard(client, definition=NAME) == rows


def test_results_from_memory_have_no_rank(client: TestClient, dataset: Path) -> None:
    append_traces(
        dataset,
        trace("honest", latency=2.0),
        trace("doubtful", latency=0.5, integrity={"replayable": True}),
        trace("disputed", latency=0.5, integrity={"disputed": "clock"}),
    )
    rows = {one["solution"]: one for one in leaderboard(client)}
    assert {name: one["rank"] for name, one in rows.items()} == {
        "honest": 1,
        "doubtful": None,
        "disputed": None,
    }
    assert rows["doubtful"]["replayable"] == rows["disputed"]["disputed"] == 1


def test_the_leaderboard_follows_the_dataset(client: TestClient, dataset: Path) -> None:
    append_traces(dataset, trace("a", latency=2.0))
    first = leaderboard(client)
    assert leaderboard(client) == first
    append_traces(dataset, trace("b", latency=1.0))
    assert [one["solution"] for one in leaderboard(client)] == ["b", "a"]
    append_traces(dataset, trace("a", latency=0.5))  # the latest counts
    assert [one["solution"] for one in leaderboard(client)] == ["a", "b"]


def test_an_unchanged_leaderboard_is_not_sent_again(client: TestClient, dataset: Path) -> None:
    append_traces(dataset, trace("first"))
    leaderboard(client)
    known = client.get("/leaderboard").headers["etag"]
    assert client.get("/leaderboard", headers={"If-None-Match": known}).status_code == 304
    append_traces(dataset, trace("second"))
    leaderboard(client)
    assert client.get("/leaderboard", headers={"If-None-Match": known}).status_code == 200


# ------------------------------------------------------------------------------------- tasks


def test_a_task_from_submission_to_result(client: TestClient, store: Store) -> None:
    answer = client.post("/evaluate", json={"solution": solution(), "workload_uuids": ["five"]})
    assert answer.json()["normalized_solution_name"].startswith("mine_")
    task_id = answer.json()["task_id"]
    told = client.get(f"/tasks/{task_id}").json()
    assert (told["status"], told["position"], told["traces"]) == ("pending", 0, [])
    assert client.get("/health").json()["queue_size"] == 1
    evaluate(store, task_id)
    told = client.get(f"/tasks/{task_id}").json()
    assert (told["status"], told["definition"], told["error"]) == ("completed", NAME, None)
    assert [one["workload"]["uuid"] for one in told["traces"]] == ["five"]
    assert told["traces"][0]["solution"] == told["solution"]
    assert client.post(f"/tasks/{task_id}/cancel").status_code == 409
    assert client.post(f"/tasks/{task_id}/retry").status_code == 409


def test_the_same_content_is_evaluated_once_unless_forced(client: TestClient, store: Store) -> None:
    first = submit(client)
    evaluate(store, first)
    again = client.get(f"/tasks/{submit(client)}").json()
    assert (again["status"], again["duplicate_of"], len(again["traces"])) == ("completed", first, 3)
    assert client.get(f"/tasks/{submit(client, force=True)}").json()["status"] == "pending"


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        (422, b"{", "JSON"),
        (422, b"", "body"),
        (422, b'"\\ud800"', "body"),
        (422, b"[1]", "body"),
        (422, {"solution": 1}, "solution"),
        (422, {"solution": {"name": "x"}}, "solution"),
        (422, {"solution": solution(source=" ")}, "empty"),
        (422, {"solution": solution("\ud800")}, "solution"),
        (400, {"solution": solution(definition="\0")}, "no definition"),
        (422, {"solution": solution(spec={"language": "\ud800"})}, "solution"),
        (422, {"solution": {"\ud800": 1}, "force": "\ud800"}, "force"),
        (400, b'{"solution": ' + b"9" * 5000 + b"}", "body"),
        (422, {"solution": solution(), "workload_uuids": "two"}, "workload_uuids"),
        (422, {"solution": solution(), "priority": 1e300}, "priority"),
        (400, {"solution": solution(definition="other")}, "no definition 'other'"),
        (400, {"solution": solution(), "workload_uuids": ["two", "other"]}, "workload 'other'"),
        (400, {"solution": solution(), "workload_uuids": []}, "workloads"),
    ],
)
def test_bad_submissions(
    client: TestClient, store: Store, status: int, body: Any, word: str
) -> None:
    told = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/evaluate", content=told, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert word in answer.json()["detail"]
    assert not store.tasks()


def test_deeply_nested_json_is_refused(client: TestClient) -> None:
    nested = b'{"solution": {"sources": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    answer = client.post("/evaluate", content=nested, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/evaluate", 405),
        ("DELETE", "/tasks", 405),
        ("GET", "/tasks?limit=0", 422),
        ("GET", "/tasks?limit=99999999999999999999", 422),
        ("GET", "/tasks?before=nan", 422),
        ("GET", "/tasks?status=odd", 422),
        ("GET", "/tasks/x?timeout=-1", 422),
        ("GET", "/tasks/x?timeout=nan", 422),
        ("GET", "/tasks/%00", 404),
        ("GET", "/definitions/..%2F..%2Fetc", 404),
    ],
)
def test_bad_requests(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_tasks_are_listed(client: TestClient, store: Store) -> None:
    first, second = submit(client), submit(client, WRONG)
    client.post(f"/tasks/{second}/cancel")

    def ids(**params: Any) -> list[str]:
        return [one["task_id"] for one in client.get("/tasks", params=params).json()]

    assert ids() == [second, first]
    assert ids(status="cancelled") == ids(limit=1) == [second]
    assert ids(owner="nobody") == []


def test_waiting_ends_when_the_task_does(client: TestClient, store: Store) -> None:
    task_id, other = submit(client), submit(client, WRONG)
    began = time.monotonic()
    assert client.get(f"/tasks/{task_id}?timeout=0.2").json()["status"] == "pending"
    assert time.monotonic() - began >= 0.2
    threading.Timer(0.2, evaluate, (store, task_id)).start()
    assert client.get(f"/tasks/{task_id}?timeout=30").json()["status"] == "completed"
    threading.Timer(0.2, evaluate, (store, other)).start()
    found = client.post("/tasks/batch", json={"task_ids": [other, task_id], "timeout": 30}).json()
    assert [(one["task_id"], one["status"]) for one in found] == [
        (other, "completed"),
        (task_id, "completed"),
    ]
    assert client.post("/tasks/batch", json={"task_ids": ["odd"]}).status_code == 404


def test_events_of_a_task(client: TestClient, store: Store) -> None:
    task_id = submit(client)
    threading.Timer(0.2, evaluate, (store, task_id, "two", "five")).start()
    text = client.get(f"/tasks/{task_id}/events").text
    kinds = [one["kind"] for one in events_of(text)]
    assert kinds == ["submitted", "started", "evaluated", "evaluated", "completed"]
    assert events_of(text)[2]["latency_ms"] == 1.0
    ids = [int(one[4:]) for one in text.splitlines() if one.startswith("id: ")]
    rest = client.get(f"/tasks/{task_id}/events", headers={"Last-Event-ID": str(ids[3])}).text
    assert [one["kind"] for one in events_of(rest)] == ["completed"]
    ended = client.get(f"/tasks/{task_id}/events", headers={"Last-Event-ID": str(ids[4])})
    assert ended.status_code == 204
    shared = submit(client)
    kinds = [one["kind"] for one in events_of(client.get(f"/tasks/{shared}/events").text)]
    assert kinds == ["started", "evaluated", "evaluated", "submitted", "completed"]


def test_of_hidden_workloads_only_admins_see_more_than_the_verdict(
    client: TestClient, store: Store
) -> None:
    task_id = submit(client)
    evaluate(store, task_id)
    asked = (f"/tasks/{task_id}", f"/tasks/{task_id}/events", f"/definitions/{NAME}/workloads")
    assert all("secret" in client.get(path).text for path in asked)
    assert client.get("/workloads/secret").status_code == 200
    told = {"Authorization": f"Bearer {store.add_token('eve', Role.SUBMITTER)}"}
    assert not any("secret" in client.get(path, headers=told).text for path in asked)
    assert client.get("/workloads/secret", headers=told).status_code == 404
    hidden = client.get(f"/tasks/{task_id}", headers=told).json()["traces"][2]
    assert hidden == {"workload": {"uuid": "hidden"}, "evaluation": {"status": "PASSED"}}
    event = events_of(client.get(f"/tasks/{task_id}/events", headers=told).text)[4]
    assert set(event) == {"task_id", "kind", "at", "workload", "status"}
    body = {"solution": solution(), "workload_uuids": ["secret"]}
    assert client.post("/evaluate", json=body, headers=told).status_code == 400


# ------------------------------------------------------------------------------------- server


def test_metrics(client: TestClient, store: Store) -> None:
    evaluate(store, task_id := submit(client))
    client.get(f"/tasks/{task_id}/events")
    until = time.monotonic() + 20
    passed = 'fib_serve_evaluations_total{status="PASSED"} 3\n'
    while passed not in (text := client.get("/metrics").text) and time.monotonic() < until:
        time.sleep(0.05)
    assert passed in text
    assert 'fib_serve_tasks{status="completed"} 1\n' in text
    assert "count 1" in text
    assert 'fib_serve_requests_total{status="200"}' in text
    assert "fib_serve_workers_up 0\n" in text


def test_without_workers_the_service_is_degraded(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "degraded", "workers": [], "queue_size": 0}


_SERVE = """
import json, sys
from pathlib import Path
import typer
from fastapi.testclient import TestClient
import fib_serve.client, fib_serve.commands, fib_serve.keys, fib_serve.supervisor
from fib_serve.app import ServeSettings, create_app
from flashinfer_bench.cli.main import app as cli

app = create_app(ServeSettings(Path(sys.argv[1])), workers=False)
with TestClient(app, base_url="http://127.0.0.1") as client:
    body = {"solution": json.loads(sys.argv[2])}
    task = client.post("/evaluate", json=body).json()["task_id"]
    for path in ("/leaderboard", "/ui", "/ui/queue", f"/tasks/{task}", f"/ui/tasks/{task}"):
        assert client.get(path).status_code == 200, path
words = ["serve", "token", "list", "--local", sys.argv[1]]
typer.main.get_command(cli)(words, standalone_mode=False)
print(sorted({"torch", "numpy", "pandas"} & sys.modules.keys()))
"""


def test_neither_server_nor_commands_import_torch(dataset: Path) -> None:
    append_traces(dataset, trace("first"))
    *_, imported = run_in_child(_SERVE, str(dataset), json.dumps(solution())).stdout.splitlines()
    assert "torch" not in imported


def test_a_real_server_evaluates_and_shuts_down(start_server: Any, capfd: Any) -> None:
    server = start_server(log_level="WARNING")
    server.wait_for_worker()
    with Client(server.url) as client, httpx.Client(base_url=server.url, timeout=90) as plain:
        assert client.health() == {
            "status": "ok",
            "workers": [{"device": "cpu", "healthy": True}],
            "queue_size": 0,
        }
        good, bad = (
            client.submit(solution(name, source))
            for name, source in (("good", None), ("bad", "def run(x, y, scale):\n    return 1 / 0"))
        )
        events = list(client.events(bad.task_id))
        tasks = [client.wait(one.task_id) for one in (good, bad)]
        assert [one.status for one in tasks] == [TaskStatus.COMPLETED] * 2
        statuses = [{each.evaluation.status for each in one.evaluated()} for one in tasks]
        assert statuses == [{"PASSED"}, {"RUNTIME_ERROR"}]
        kinds = [one.kind for one in events]
        assert (kinds[0], kinds[-1]) == ("submitted", "completed")
        assert kinds.count("evaluated") == tasks[1].workloads == len(tasks[1].traces)
        assert tasks[1].solution == bad.solution
        assert list(client.events(bad.task_id, after=events[-1].id)) == []
        with pytest.raises(RequestRefused, match="finished already"):
            client.cancel(bad.task_id)
        with plain.stream("GET", "/events") as endless:
            assert plain.post("/shutdown").status_code == 200
            assert endless.read() is not None
    assert server.process.wait(30) == 0
    assert " INFO " not in capfd.readouterr().err  # of the server and its worker


def test_unlike_devices_end_the_service(
    settings: ServeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker"
    worker.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "device = sys.argv[sys.argv.index('--device') + 1]\n"
        "print(json.dumps({'ready': {'hardware': f'chip of {device}'}}), flush=True)\n"
        "sys.stdin.read()\n"
    )
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    with pytest.raises(ConfigError) as caught:
        run_server(replace(settings, port=0, devices=("cpu", "cuda:0")))
    assert "cpu is 'chip of cpu'" in caught.value.message
    assert "cuda:0 is 'chip of cuda:0'" in caught.value.message
    assert "one service for each kind" in str(caught.value.hint)


def test_half_sent_requests_harm_nobody(start_server: Any) -> None:
    server = start_server(devices=())
    head = b"POST /evaluate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
    address = ("127.0.0.1", server.settings.port)
    with closing(socket.create_connection(address)) as slow:
        slow.sendall(head)
        with closing(socket.create_connection(address)) as gone:
            gone.sendall(head)
            gone.shutdown(socket.SHUT_WR)
            gone.settimeout(20)
            assert gone.recv(1000) == b""
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert not server.store.tasks()


def test_names_of_the_first_release(dataset: Path, tmp_path: Path) -> None:
    from fib_serve import first_release
    from flashinfer_bench.bench import BenchmarkConfig
    from flashinfer_bench.data import TraceSet

    config = BenchmarkConfig(warmup_runs=2)
    scheduler = first_release.Scheduler(TraceSet.from_path(dataset), config, ["cpu"])
    app = first_release.init_app(scheduler)
    assert app.state.service.settings.benchmark == {"warmup_runs": 2}
    with closing(TestClient(first_release.app, base_url="http://127.0.0.1")) as client:
        assert client.get("/definitions").json()[0]["name"] == NAME
    app.state.service.store.close()
    with pytest.raises(ConfigError, match="from_path"):
        first_release.Scheduler(TraceSet())
    store = first_release.TaskStore(tmp_path / "tasks.sqlite3")
    assert store.tasks() == []
    store.close()
