"""The pages: what they show and escape, and how they keep up in a real browser."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from fib_serve import pages
from fib_serve.app import create_app
from fib_serve.pages import difference, duration
from fib_serve.records import Role, TaskStatus
from fib_serve.service import ServeSettings
from fib_tests.cli import clean_environment, maker  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI

    from fib_serve.store import Store
    from fib_tests.browser import Browser
    from fib_tests.dataset_maker import DatasetMaker

HOSTILE = "<script>pwned=1</script>"
REASON = "RuntimeError: the size of tensor a (8) must match the size of tensor b (4)"
LOG = f"call: {REASON}\n--- output ---\nTraceback <b>x</b>"
SOLUTION = {
    "name": "sent",
    "definition": "double",
    "author": "carol",
    "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(x):\n    return 2 * x\n"}],
}


def trace(status: str = "PASSED", log: str = "") -> dict[str, Any]:
    speed = {"latency_ms": 0.0123, "reference_latency_ms": 0.03, "speedup_factor": 2.44}
    evaluation: dict[str, Any] = {
        "status": status,
        "log": log,
        "environment": {"hardware": "Test CPU"},
        "timestamp": "2026-01-02T00:00:00",
    }
    if status == "PASSED":
        evaluation |= {"performance": speed, "correctness": {}}
    return {"evaluation": evaluation}


@pytest.fixture
def root(maker: DatasetMaker) -> Any:  # noqa: F811
    maker.sound()
    maker.definition("empty")
    maker.solution(HOSTILE, author=f"mallory {HOSTILE}", file="hostile")
    for uuid, size in (("w1", 16), ("w2", 32)):
        maker.trace(HOSTILE, uuid=uuid, latency_ms=0.9, axes={"N": size})
    return maker.root


@pytest.fixture
def app(root: Any) -> FastAPI:
    settings = ServeSettings(dataset=root, hidden=frozenset({"w2"}))
    return create_app(settings, workers=False)


@pytest.fixture
def store(app: FastAPI) -> Store:
    found: Store = app.state.service.store
    return found


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://127.0.0.1", follow_redirects=False) as one:
        yield one


def submit(store: Store, name: str = "sent_01", **changes: Any) -> str:
    given: dict[str, Any] = {
        "owner": "carol",
        "definition": "double",
        "solution": SOLUTION | {"name": name},
        "solution_name": name,
        "workloads": ["w1", "w2"],
        "key": name,
    }
    return store.submit(**given | changes).id


def text(page: str) -> str:
    """Return what a page shows, without its tags and superfluous space."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", re.sub(r"(?s)<head>.*</head>", "", page)))


# ---------------------------------------------------------------------------------- leaderboard


def test_the_overall_leaderboard_has_a_section_for_each_definition(client):
    page = client.get("/ui").text
    assert page.count('<tr class="section">') == 2
    assert "alice_" in page
    assert "/ui/solutions/alice_double" in page
    assert "/ui/solutions/baseline_double" not in page
    assert "empty no results" in text(page)
    assert "double 3 solutions" in text(page)


def test_a_definition_ranks_its_solutions_with_units_and_dates(client):
    page = client.get("/ui/definitions/double").text
    rows = re.findall(r"<tr><td data-label=\"Rank\".*?</tr>", page, re.DOTALL)
    assert text(rows[0]).split()[:3] == ["1", "alice_double", "500"]
    assert "500 µs" in text(rows[0])
    assert "4×" in text(rows[0])
    assert "2 of 2" in text(rows[0])
    assert '<time datetime="2026-01-01T00:00:00Z" data-day>1 Jan 2026</time>' in rows[0]
    assert "Test CPU" in text(rows[0])


def test_hidden_workloads_are_listed_for_admins_only(client, store):
    assert "w2" in client.get("/ui/definitions/double").text
    headers = {"Authorization": f"Bearer {store.add_token('r', Role.READER)}"}
    page = client.get("/ui/definitions/double", headers=headers).text
    assert "w1" in page
    assert "<code>w2</code>" not in page


# -------------------------------------------------------------------------- names are untrusted


def test_text_of_users_is_never_markup(client, store):
    task = submit(store, HOSTILE, owner=f"eve {HOSTILE}")
    store.claim("cpu")
    store.record(task, "w1", trace("RUNTIME_ERROR", f"call: {HOSTILE}"))
    name = "%3Cscript%3Epwned%3D1%3C%2Fscript%3E"
    for place in (
        "", "/definitions/double", f"/solutions/{name}", f"/tasks/{task}", "/queue", f"/{name}",
        f"/tasks/{name}", f"/sign-in?next={name}",
    ):  # fmt: skip
        page = client.get(f"/ui{place}").text
        assert HOSTILE not in page, place
        assert page.startswith("<!DOCTYPE html>"), place
    body = {"solution": f'{{"name": "</textarea>{HOSTILE}"'}
    page = client.post("/ui/submit", data=body).text
    assert HOSTILE not in page
    assert "&lt;/textarea&gt;" in page


def test_pages_have_no_inline_scripts_or_styles(client, store):
    task = submit(store)
    for place in ("", "/definitions/double", "/solutions/alice_double", f"/tasks/{task}", "/queue"):
        page = client.get(f"/ui{place}").text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page), place
        assert re.findall(r"<script[^>]*>", page) == re.findall(r"<script src=[^>]*>", page)


# ------------------------------------------------------------------------------------- solution


def test_a_solution_shows_its_sources_history_and_difference_to_the_best(client):
    page = client.get("/ui/solutions/baseline_double").text
    shown = text(page)
    assert "def run(x):" in shown
    assert page.count('<span class="mark"></span>passed') == 2
    assert "Lines with − are only in alice_double" in shown
    assert "No difference." in shown
    assert "It is the best solution" in client.get("/ui/solutions/alice_double").text


def test_a_difference_has_context_and_is_refused_for_long_texts():
    before = "\n".join(f"line {number}" for number in range(20))
    found = difference(before, before.replace("line 10", "changed"))
    assert found is not None
    assert [kind for kind, _ in found] == ["gap", *["same"] * 3, "removed", "added", *["same"] * 3]
    assert difference("x\n" * 10_000, "y\n" * 10_000) is None


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [(None, "–"), (1.5, "1.5 ms"), (0.0123, "12.3 µs"), (2e-5, "20 ns"), (12_345, "12.3 s")],
)
def test_a_latency_has_its_unit(milliseconds, told):
    assert duration(milliseconds) == told


# ----------------------------------------------------------------------------------------- task


def test_a_task_tells_its_position_its_stage_and_the_reason_of_a_failure(client, store):
    first, second = submit(store), submit(store, "sent_02")
    assert "1 before it in the queue" in text(client.get(f"/ui/tasks/{second}").text)
    store.claim("cpu")
    store.record(first, "w1", trace("RUNTIME_ERROR", LOG))
    store.stage(first, "w2", "checking")
    page = client.get(f"/ui/tasks/{first}").text
    shown = text(page)
    assert "running: 1 of 2 workloads" in shown
    assert REASON in shown
    assert "Traceback &lt;b&gt;x&lt;/b&gt;" in page
    assert "checking" in shown
    assert 'http-equiv="refresh"' in page
    store.record(first, "w2", trace())
    store.finish(first, TaskStatus.COMPLETED)
    page = client.get(f"/ui/tasks/{first}").text
    assert "12.3 µs" in text(page)
    assert 'http-equiv="refresh"' not in page


def test_of_a_hidden_workload_submitters_see_the_verdict_alone(client, store):
    task = submit(store)
    store.claim("cpu")
    store.record(task, "w2", trace("RUNTIME_ERROR", LOG))
    assert REASON in client.get(f"/ui/tasks/{task}").text
    headers = {"Authorization": f"Bearer {store.add_token('carol', Role.SUBMITTER)}"}
    page = client.get(f"/ui/tasks/{task}", headers=headers).text
    assert "hidden workload" in page
    assert "runtime error" in page
    assert REASON not in page
    assert "w2" not in page
    assert "N=32" not in page


def test_owners_and_admins_cancel_and_retry(client, store):
    task = submit(store)
    secret = {
        name: {"Authorization": f"Bearer {store.add_token(name, role)}"}
        for name, role in (
            ("carol", Role.SUBMITTER),
            ("dan", Role.SUBMITTER),
            ("eve", Role.READER),
            ("root", Role.ADMIN),
        )
    }
    for name in ("dan", "eve"):
        answer = client.post(f"/ui/tasks/{task}/cancel", headers=secret[name])
        assert answer.status_code == 403
        assert "<h1>Not allowed</h1>" in answer.text
        assert "Cancel" not in client.get(f"/ui/tasks/{task}", headers=secret[name]).text
    assert "Cancel" in client.get(f"/ui/tasks/{task}", headers=secret["carol"]).text
    answer = client.post(f"/ui/tasks/{task}/cancel", headers=secret["carol"])
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/tasks/{task}")
    assert store.task(task).status is TaskStatus.CANCELLED
    assert client.post(f"/ui/tasks/{task}/retry", headers=secret["root"]).status_code == 303
    assert store.task(task).status is TaskStatus.PENDING
    assert client.post(f"/ui/tasks/{task}/retry", headers=secret["root"]).status_code == 409


def test_the_queue_lists_tasks_in_the_order_in_which_they_are_begun(client, store):
    assert "Nothing waits." in client.get("/ui/queue").text
    for name, owner, priority in (
        ("a1", "ann", 0), ("a2", "ann", 0), ("b1", "bob", 0), ("u1", "ann", 5),
    ):  # fmt: skip
        submit(store, name, owner=owner, priority=priority)
    shown = text(client.get("/ui/queue").text)
    assert sorted(("u1", "a1", "b1", "a2"), key=shown.index) == ["u1", "a1", "b1", "a2"]
    assert "4 pending".replace(" ", "") in shown.replace(" ", "")


# ---------------------------------------------------------------------------- submit and sign in


def test_the_form_submits_like_the_api(client, store):
    answer = client.post("/ui/submit", data={"solution": json.dumps(SOLUTION), "priority": "3"})
    assert answer.status_code == 303
    task = store.task(answer.headers["location"].rpartition("/")[2])
    assert (task.definition, task.owner, task.priority) == ("double", "local", 3)
    assert task.solution.startswith("sent_")


@pytest.mark.parametrize(
    ("solution", "told"),
    [
        ("{", "no JSON"),
        ("[]", ""),
        (json.dumps(SOLUTION | {"definition": "unknown"}), "unknown"),
        (json.dumps({"name": "x"}), "definition"),
        ("", "no JSON"),
    ],
)
def test_what_is_no_solution_comes_back_with_a_reason(client, store, solution, told):
    answer = client.post("/ui/submit", data={"solution": solution})
    assert answer.status_code in (400, 422)
    alert = re.search(r'role="alert">(.*?)</p>', answer.text, re.DOTALL)
    assert alert is not None
    assert told in alert[1]
    assert store.tasks() == []


def test_a_token_opens_the_pages_until_it_is_signed_out(client, store):
    secret = store.add_token("carol", Role.SUBMITTER)
    answer = client.get("/ui/queue")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in?next=/ui/queue")
    form = client.get(answer.headers["location"]).text
    assert 'name="next" value="/ui/queue"' in form
    refused = client.post("/ui/sign-in", data={"token": "fib_wrong", "next": "/ui/queue"})
    assert refused.status_code == 401
    assert "unknown, expired or revoked" in refused.text
    answer = client.post("/ui/sign-in", data={"token": secret, "next": "/ui/queue"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/queue")
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    page = client.get("/ui/queue").text
    assert "carol, submitter" in text(page)
    assert secret not in page
    ours = {"Origin": "http://127.0.0.1"}
    assert client.post("/ui/sign-out", headers=ours).status_code == 303
    assert client.get("/ui/queue").status_code == 303


@pytest.mark.parametrize("place", ["https://evil.test/", "//evil.test", "/ui\\evil", "/uix", ""])
def test_signing_in_leads_to_a_page_of_the_server_only(client, store, place):
    secret = store.add_token("carol", Role.READER)
    answer = client.post("/ui/sign-in", data={"token": secret, "next": place})
    assert answer.headers["location"] == "/ui"


def test_readers_are_told_that_they_cannot_submit(client, store):
    headers = {"Authorization": f"Bearer {store.add_token('r', Role.READER)}"}
    answer = client.get("/ui/submit", headers=headers)
    assert answer.status_code == 403
    assert "submitter" in text(answer.text)


@pytest.mark.parametrize("kind", ["definitions", "solutions", "tasks", "static", "elsewhere"])
def test_what_is_not_there_has_a_page_that_says_so(client, kind):
    answer = client.get(f"/ui/{kind}/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "<h1>Not found</h1>" in answer.text
    assert "nothing" in text(answer.text)


def test_many_who_come_at_once_have_the_leaderboard_rendered_once(client, monkeypatch):
    rendered, made = pages._overall, []

    def slow(*given: Any) -> Any:
        made.append(time.sleep(0.3))
        return rendered(*given)

    monkeypatch.setattr(pages, "_overall", slow)
    with ThreadPoolExecutor(4) as several:
        (text,) = set(several.map(lambda _: client.get("/ui").text, range(4)))
    assert "double" in text
    assert len(made) == 1


# ----------------------------------------------------------------------------- a real browser


@pytest.fixture
def address(app: FastAPI) -> Iterator[str]:
    """A running server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Any]:
    """Opens a page of the server; none may have an error or load anything from elsewhere."""
    browser.problems.clear()
    browser.requests.clear()

    def run(place: str) -> Any:
        browser.call("Page.navigate", url=address + place)
        browser.wait(f"document.readyState === 'complete' && location.href.startsWith('{address}')")
        return browser

    yield run
    browser.call("Page.navigate", url="about:blank")
    browser.wait("location.href === 'about:blank'")
    assert browser.problems == []
    assert all(one.startswith((address, "about:")) for one in browser.requests)


def test_every_page_fits_a_phone_in_both_themes(visit, store):
    task = submit(store, HOSTILE)
    store.claim("cpu")
    store.record(task, "w1", trace("RUNTIME_ERROR", LOG + "x" * 2_000))
    for place in (
        "", "/definitions/double", "/solutions/baseline_double", f"/tasks/{task}", "/queue",
        "/submit", "/sign-in",
    ):  # fmt: skip
        page = visit(f"/ui{place}")
        assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(246, 246, 244)"
        page.size(390)
        page.prefer("dark")
        assert page.run("document.documentElement.scrollWidth") <= 390, place
        assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 18, 20)"
        page.size(1280)
        page.prefer("light")
    assert page.run("window.pwned") is None
    page.click("#theme")
    page.click("#theme")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert visit("/ui").run("document.documentElement.dataset.theme") == "dark"
    page.run("localStorage.clear()")


def test_a_task_is_shown_live_until_it_ends(visit, store, app):
    def tell() -> None:
        app.state.service.notifier.wake()

    task = submit(store)
    page = visit(f"/ui/tasks/{task}")
    shown = "document.querySelector('[data-live]').innerText"
    assert "next in the queue" in page.run(shown)
    store.claim("cpu")
    store.stage(task, "w1", "building")
    tell()
    page.wait(f"{shown}.includes('building')")
    store.record(task, "w1", trace("RUNTIME_ERROR", LOG))
    tell()
    page.wait(f"{shown}.includes('must match the size')")
    page.run("document.querySelector('[data-live] details').open = true")
    store.record(task, "w2", trace())
    store.finish(task, TaskStatus.COMPLETED)
    tell()
    page.wait(f"{shown}.includes('completed')")
    assert page.run("document.querySelector('[data-live] details').open")
    assert page.run("document.querySelector('[data-live]').dataset.live") == ""
    asked = len(page.requests)
    page.run("new Promise(done => setTimeout(done, 1000))")
    assert len(page.requests) == asked


def test_the_queue_is_shown_live(visit, store, app):
    page = visit("/ui/queue")
    submit(store, "just_now_01")
    app.state.service.notifier.wake()
    page.wait("document.body.innerText.includes('just_now_01')")


def test_a_file_is_submitted_through_the_form(visit, store, tmp_path):
    file = tmp_path / "sent.json"
    file.write_text(json.dumps(SOLUTION))
    page = visit("/ui/submit")
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", files=[str(file)], nodeId=node)
    page.wait("document.getElementById('solution').value.includes('double')")
    page.click(".primary")
    page.wait("location.pathname.startsWith('/ui/tasks/') && document.readyState === 'complete'")
    (task,) = store.tasks()
    assert task.solution in page.run("document.body.innerText")
