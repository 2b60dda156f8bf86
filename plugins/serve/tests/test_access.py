"""Tests of who may do what, and of limits."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

from fib_serve.app import ServeSettings, create_app, run_server
from fib_serve.records import Role
from fib_tests.serving import solution
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from fib_serve.store import Store

EVERYONE = ("GET /", "GET /health")
READERS = ("GET /definitions", "GET /leaderboard", "GET /metrics", "GET /tasks", "GET /events")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def secrets(store: Store) -> dict[str, str]:
    """Headers for an account of each role; ``other`` is a second submitter."""
    roles = {"reader": Role.READER, "submitter": Role.SUBMITTER, "admin": Role.ADMIN}
    roles["other"] = Role.SUBMITTER
    return {name: store.add_token(name, role) for name, role in roles.items()}


def test_without_tokens_everyone_on_this_machine_is_an_admin(client: TestClient) -> None:
    answer = client.post("/evaluate", json={"solution": solution(), "priority": 5})
    assert answer.status_code == 200
    task = client.get(f"/tasks/{answer.json()['task_id']}").json()
    assert (task["owner"], task["priority"]) == ("local", 5)


def test_without_tokens_no_other_host_is_served(
    settings: ServeSettings, make_client: Callable[..., TestClient]
) -> None:
    client = make_client(host="0.0.0.0")
    assert client.get("/tasks").status_code == 401
    assert client.post("/shutdown").status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[::", ""])
def test_a_name_that_a_browser_was_misled_with_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/tasks", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1"},
    ],
)
def test_a_page_of_another_site_changes_nothing(
    client: TestClient, store: Store, headers: dict[str, str]
) -> None:
    answer = client.post("/evaluate", json={"solution": solution()}, headers=headers)
    assert answer.status_code == 403
    assert "another site" in answer.json()["detail"]
    assert not store.tasks()


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    "sent", [{}, bearer("fib_wrong"), bearer(""), {"Authorization": "Basic x"}]
)
def test_a_token_is_needed_once_there_is_one(client: TestClient, sent: dict[str, str]) -> None:
    for request in (*READERS, "POST /evaluate", "POST /shutdown", "GET /nowhere", "PUT /health"):
        method, path = request.split()
        answer = client.request(method, path, headers=sent)
        assert answer.status_code == 401, request
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "fib serve token add" in answer.json()["detail"]
    for request in EVERYONE:
        assert client.request(*request.split(), headers=sent).status_code == 200


def test_revoked_and_expired_tokens_are_worthless(client: TestClient, store: Store) -> None:
    kept, lost = store.add_token("kept", Role.READER), store.add_token("lost", Role.READER)
    late = store.add_token("late", Role.READER, expires=time.time() - 1)
    assert client.get("/tasks", headers=bearer(lost)).status_code == 200
    store.revoke("lost")
    assert client.get("/tasks", headers=bearer(lost)).status_code == 401
    assert client.get("/tasks", headers=bearer(late)).status_code == 401
    assert client.get("/tasks", headers=bearer(kept)).status_code == 200
    store.revoke("kept")  # nobody becomes an admin because there is no valid token left
    assert client.get("/tasks").status_code == 401


@pytest.mark.parametrize(
    ("request_line", "allowed"),
    [
        ("GET /tasks", {"reader", "submitter", "admin"}),
        ("POST /evaluate", {"submitter", "admin"}),
        ("POST /shutdown", {"admin"}),
    ],
)
def test_roles(
    client: TestClient, secrets: dict[str, str], request_line: str, allowed: set[str]
) -> None:
    method, path = request_line.split()
    for name in ("reader", "submitter", "admin"):
        status = client.request(method, path, headers=bearer(secrets[name])).status_code
        assert (status != 403) is (name in allowed), name


def test_tasks_of_others_cannot_be_changed(client: TestClient, secrets: dict[str, str]) -> None:
    def ask(who: str, path: str, **body: Any) -> httpx.Response:
        return client.post(path, json=body, headers=bearer(secrets[who]))

    task = ask("submitter", "/evaluate", solution=solution()).json()["task_id"]
    for action in ("cancel", "retry"):
        refused = ask("other", f"/tasks/{task}/{action}")
        assert refused.status_code == 403
        assert "submitter's" in refused.json()["detail"]
    assert client.get(f"/tasks/{task}", headers=bearer(secrets["other"])).status_code == 200
    assert ask("submitter", f"/tasks/{task}/cancel").json()["status"] == "cancelled"
    assert ask("admin", f"/tasks/{task}/retry").json()["status"] == "pending"
    assert ask("submitter", "/evaluate", solution=solution(), priority=1).status_code == 403


def test_a_cookie_reads_and_writes_from_our_pages_only(
    client: TestClient, secrets: dict[str, str]
) -> None:
    cookie = {"Cookie": f"theme=dark; fib_token={secrets['submitter']}"}
    body = {"solution": solution()}
    assert client.get("/tasks", headers=cookie).status_code == 200
    assert client.post("/evaluate", json=body, headers=cookie).status_code == 403
    for ours in ({"Origin": "http://127.0.0.1"}, {"Sec-Fetch-Site": "same-origin"}):
        assert client.post("/evaluate", json=body, headers=cookie | ours).status_code == 200


def test_headers_of_security(client: TestClient) -> None:
    for path in ("/", "/nowhere", "/ui", "/leaderboard"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        # Forms of pages must tell where they are from; nothing tells it to other sites.
        expected = "same-origin" if path == "/ui" else "no-referrer"
        assert headers["referrer-policy"] == expected
        assert "access-control-allow-origin" not in headers
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_other_origins_are_allowed_when_asked_for(make_client: Callable[..., TestClient]) -> None:
    client = make_client(cors=("https://lab.example",))
    answer = client.get("/leaderboard", headers={"Origin": "https://lab.example"})
    assert answer.headers["access-control-allow-origin"] == "https://lab.example"
    answer = client.get("/leaderboard", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_requests_are_limited_for_each_token(make_client: Callable[..., TestClient]) -> None:
    client = make_client(requests_per_minute=2)
    store = client.app.state.service.store  # type: ignore[attr-defined]
    busy, idle = store.add_token("busy", Role.READER), store.add_token("idle", Role.READER)
    statuses = [client.get("/tasks", headers=bearer(busy)).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 200, 429]
    refused = client.get("/tasks", headers=bearer(busy))
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert client.get("/tasks", headers=bearer(idle)).status_code == 200


def test_large_bodies_are_refused_before_they_are_read(
    make_client: Callable[..., TestClient],
) -> None:
    client = make_client(max_body_bytes=1000)

    def chunks() -> Any:
        for _ in range(3):
            yield b" " * 600

    for content in (b" " * 1001, chunks()):
        answer = client.post("/evaluate", content=content)
        assert answer.status_code == 413
        assert "1000 bytes" in answer.json()["detail"]
    assert client.post("/evaluate", json={"solution": solution()}).status_code == 200


def test_unfinished_tasks_are_limited_for_each_owner(
    make_client: Callable[..., TestClient],
) -> None:
    client = make_client(max_pending=2)
    for number in range(2):
        other = solution(source=f"def run(x, y, scale):\n    return {number}\n")
        assert client.post("/evaluate", json={"solution": other}).status_code == 200
    answer = client.post("/evaluate", json={"solution": solution()})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0


def test_a_public_server_needs_a_token(settings: ServeSettings) -> None:
    with pytest.raises(ConfigError, match="asked for"):
        run_server(replace(settings, host="0.0.0.0"))
    with pytest.raises(ConfigError, match="token"):
        run_server(replace(settings, host="0.0.0.0", public=True))
    assert not settings.database_file.parent.exists()


def test_an_address_in_use_is_told(settings: ServeSettings) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="cannot be listened on"),
    ):
        run_server(replace(settings, port=taken.getsockname()[1]))


def test_mistakes_of_the_service_are_not_shown(
    settings: ServeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(settings, workers=False)

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(app.state.service.store, "tasks", fail)
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    answer = client.get("/tasks")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    app.state.service.store.close()


def test_nobody_submits_in_the_name_of_another(
    client: TestClient, store: Store, secrets: dict[str, str]
) -> None:
    for account, author in (("submitter", "submitter"), ("admin", "bob")):
        body = {"solution": solution(author="bob"), "force": True}
        answer = client.post("/evaluate", json=body, headers=bearer(secrets[account]))
        assert answer.status_code == 200, answer.text
        assert store.solution_of(answer.json()["task_id"])["author"] == author


def test_a_name_is_made_unique_once(client: TestClient) -> None:
    first = client.post("/evaluate", json={"solution": solution()}).json()
    again = solution(first["normalized_solution_name"])
    second = client.post("/evaluate", json={"solution": again}).json()
    assert second["normalized_solution_name"] == first["normalized_solution_name"]
