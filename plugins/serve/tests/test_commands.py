"""``fib serve`` with its tokens and backups, and ``fib submit`` against a server that is played."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fib_serve.records import Role, TaskStatus
from fib_serve.store import Store
from fib_tests.cli import clean_environment, fib, maker  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fib_tests.dataset_maker import DatasetMaker

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-a-server.md"
SECRET = "fib_played"
PASSED = {
    "status": "PASSED",
    "environment": {"hardware": "played"},
    "timestamp": "2026-01-01T00:00:00Z",
    "correctness": {},
    "performance": {"latency_ms": 0.5, "reference_latency_ms": 1.0, "speedup_factor": 2.0},
}
FAILED = {
    "status": "RUNTIME_ERROR",
    "environment": {"hardware": "played"},
    "timestamp": "2026-01-01T00:00:00Z",
    "log": "call: ZeroDivisionError: division by zero (main.py:2)",
}


def trace(uuid: str, evaluation: dict[str, Any]) -> dict[str, Any]:
    return {
        "definition": "double",
        "workload": {"uuid": uuid, "axes": {"N": 4}, "inputs": {"x": {"type": "random"}}},
        "solution": "alice_double_01",
        "evaluation": evaluation,
    }


HIDDEN = {"workload": {"uuid": "hidden"}, "evaluation": {"status": "INCORRECT_NUMERICAL"}}


class PlayedServer:
    """Accepts everything, and tells the same verdicts of each task."""

    def __init__(
        self, traces: list[dict[str, Any]], status: str = "completed", **last: str
    ) -> None:
        self.traces, self.status, self.last = traces, status, last
        self.error = None if status == "completed" else "no verdict on 1 of 2 workloads: no CUDA"
        self.refusal: tuple[int, str] | None = None
        self.cut_after = -1  # the events that one stream has, before the server goes away
        self.accepted: list[dict[str, Any]] = []
        self.told: dict[str, int] = {}
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        played = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                played.get(self)

            def do_POST(self) -> None:
                played.post(self)

        ThreadingHTTPServer.daemon_threads = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def restart(self) -> None:
        self.close()
        time.sleep(0.3)
        self.open()

    def answer(self, to: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        to.send_response(status)
        to.send_header("Content-Length", str(len(data)))
        to.end_headers()
        to.wfile.write(data)

    def post(self, to: BaseHTTPRequestHandler) -> None:
        body = json.loads(to.rfile.read(int(to.headers["Content-Length"])))
        if self.refusal is not None:
            self.answer(to, {"detail": self.refusal[1]}, self.refusal[0])
            return
        body["token"] = to.headers.get("Authorization")
        self.accepted.append(body)
        name = f"{body['solution']['name']}_01"
        task = f"t{len(self.accepted)}"
        self.told[task] = 0
        self.answer(to, {"task_id": task, "normalized_solution_name": name})

    def get(self, to: BaseHTTPRequestHandler) -> None:
        parts = to.path.partition("?")[0].strip("/").split("/")
        if parts[0] == "definitions":
            self.answer(to, [{"uuid": "w1"}, {"uuid": "w2"}])
        elif parts[-1] == "events":
            self.stream(to, parts[1])
        else:
            told = self.told[parts[1]]
            ended = told > len(self.traces)
            self.answer(
                to,
                {
                    "task_id": parts[1],
                    "status": self.status if ended else "running",
                    "definition": "double",
                    "solution": "alice_double_01",
                    "traces": self.traces[:told],
                    "error": self.error if ended else None,
                },
            )

    def stream(self, to: BaseHTTPRequestHandler, task: str) -> None:
        to.send_response(200)
        to.end_headers()
        number = int(to.headers.get("Last-Event-ID", 0))
        while number <= len(self.traces):
            if number == self.cut_after:
                self.cut_after = -1
                threading.Thread(target=self.restart, daemon=True).start()
                return
            number += 1
            self.told[task] = number
            kind, data = "evaluated", {}
            if number > len(self.traces):
                kind, data = self.status, self.last
            to.wfile.write(f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode())
            to.wfile.flush()


@pytest.fixture
def play() -> Iterator[Any]:
    """Start a played server."""
    started: list[PlayedServer] = []

    def start(*evaluations: dict[str, Any], **options: Any) -> PlayedServer:
        traces = [
            one if "evaluation" in one else trace(f"w{number}", one)
            for number, one in enumerate(evaluations, 1)
        ]
        started.append(PlayedServer(traces, **options))
        return started[-1]

    yield start
    for one in started:
        with suppress(OSError):
            one.close()


@pytest.fixture
def dataset(maker: DatasetMaker) -> Path:  # noqa: F811
    maker.definition()
    return maker.root


def database(dataset: Path) -> Path:
    return dataset / "serve" / "serve.sqlite3"


# ------------------------------------------------------------------ tokens and backups


def test_a_token_is_shown_once_and_can_be_revoked(fib, dataset):  # noqa: F811
    added = fib("serve", "token", "add", "ann", "--role", "admin", "--local", dataset)
    assert added.exit_code == 0
    assert added.stdout.startswith("fib_")
    secret = added.stdout.strip()
    fib("serve", "token", "add", "bob", "--expires", "2d", "--local", dataset)
    store = Store(database(dataset))
    token = store.verify(secret)
    assert token is not None
    assert (token.name, token.role) == ("ann", Role.ADMIN)
    bob = store.tokens()[1]
    assert bob.role is Role.SUBMITTER
    assert bob.expires is not None
    assert 1.9 * 86400 < bob.expires - time.time() < 2.1 * 86400
    listed = fib("serve", "token", "list", "--local", dataset, "--json")
    assert [one["state"] for one in json.loads(listed.stdout)["tokens"]] == ["valid", "valid"]
    assert secret not in listed.output
    assert fib("serve", "token", "revoke", "ann", "--local", dataset).exit_code == 0
    assert store.verify(secret) is None
    store.close()
    again = fib("serve", "token", "revoke", "ann", "--local", dataset)
    assert again.exit_code == 2
    assert "valid tokens: bob" in again.stderr
    listed = fib("serve", "token", "list", "--database", database(dataset))
    assert [line.split("\t")[:3] for line in listed.stdout.splitlines()] == [
        ["name", "role", "state"],
        ["ann", "admin", "revoked"],
        ["bob", "submitter", "valid"],
    ]


def commands_of(title: str, folder: Path) -> list[str]:
    """Return the blocks of commands below a title of the page, with folders of the test."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [one.replace("/srv/", f"{folder}/").replace("$(date +%F)", "today") for one in blocks]


def test_what_the_page_says_of_backups_works_while_the_database_is_in_use(fib, maker, tmp_path):  # noqa: F811
    tools = {"fib": f'exec {sys.executable} -m flashinfer_bench "$@"', "sudo": "exec true"}
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(script: str) -> None:
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    back_up, restore = commands_of("Back up and restore", tmp_path / "srv")
    maker.definition()
    (tmp_path / "srv" / "fib").mkdir(parents=True)
    dataset = maker.root.rename(tmp_path / "srv" / "fib" / "dataset")
    secret = fib("serve", "token", "add", "ann", "--local", dataset).stdout.strip()
    store = Store(database(dataset))
    task = store.submit(
        owner="ann",
        definition="double",
        solution={"name": "a"},
        solution_name="a_01",
        workloads=["w1"],
        key="k",
    )
    run(back_up)
    copy = tmp_path / "srv" / "fib-backup" / "today" / "serve.sqlite3"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    store.cancel(task.id)
    store.revoke("ann")
    store.close()
    run(restore)
    store = Store(database(dataset))
    found = store.task(task.id)
    assert found is not None
    assert found.status is TaskStatus.PENDING
    assert store.verify(secret) is not None
    assert store.claim("cpu") is not None
    store.close()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("--local D token list", "belong to the subcommand | fib serve token ..."),
        ("token list --local nope", "nope has no folder definitions | fib init"),
        ("token add x --local D --expires 3", "'3' is not a time; write it as 90m, 12h"),
        ("token add x --local D --role king", "'king' is not one of 'reader'"),
        ("token revoke x --local D", "serve/serve.sqlite3 does not exist | token add"),
        ("backup D/new --local D", "serve/serve.sqlite3 does not exist | fib serve"),
        ("backup D/definitions/op/double.json --local D", "exists already | name a new file"),
        ("backup D/nope/x --local D", "no folder D/nope | create it first"),
        ("--local nope", "nope has no folder definitions"),
        ("--local D --host 0.0.0.0", "other machines could reach '0.0.0.0' | --public"),
        ("--local D --public", "needs a token | fib serve token add"),
        ("--local D --devices gpu", "no device 'gpu' | did you mean cuda?"),
        ("--local D --iterations 0", "iterations | (got 0)"),
        ("--local D --sandbox open", "sandbox | 'strict' (got 'open')"),
        ("--local D --port 99999", "'--port'"),
        ("--local D --hidden D/none", "--hidden: cannot read D/none | a uuid in each line"),
    ],
)
def test_what_serve_refuses(fib, dataset, command: str, told: str):  # noqa: F811
    done = fib("serve", *command.replace("D", str(dataset)).split())
    assert done.exit_code == 2, done.output
    for part in told.replace("D/", f"{dataset}/").split(" | "):
        assert part in done.stderr
    assert not (dataset.parent / "nope").exists()


def test_options_become_settings(fib, dataset, monkeypatch, tmp_path):  # noqa: F811
    from fib_serve import app

    started: list[Any] = []
    monkeypatch.setattr(app, "run_server", started.append)
    hidden = tmp_path / "hidden"
    hidden.write_text("# those of the final\nw7\n\nw8  # long\n")
    done = fib(
        *("serve", "--local", dataset, "--devices", "cuda:0,cuda:1", "--public", "--port", 0),
        *("--hidden", hidden, "--iterations", 7, "--timeout", 5, "--max-pending", 3),
        *("--sandbox", "auto", "--cors", "https://a", "--cors", "https://b"),
    )
    assert done.exit_code == 0, done.output
    (made,) = started
    assert (made.dataset, made.devices) == (dataset, ("cuda:0", "cuda:1"))
    assert (made.host, made.port, made.public) == ("0.0.0.0", 0, True)
    assert made.benchmark == {"iterations": 7, "timeout_seconds": 5.0, "sandbox": "auto"}
    assert made.hidden == {"w7", "w8"}
    assert (made.cors, made.max_pending) == (("https://a", "https://b"), 3)
    fib("serve", "--local", dataset)
    assert (started[1].host, started[1].public, started[1].benchmark) == ("127.0.0.1", False, {})


# ------------------------------------------------------------------ submitting


@pytest.fixture
def file(maker: DatasetMaker) -> Path:  # noqa: F811
    return maker.solution()


def test_without_wait_the_tasks_are_listed(fib, play, file, monkeypatch):  # noqa: F811
    server = play(PASSED)
    monkeypatch.setenv("FIB_SERVE_TOKEN", SECRET)
    done = fib("submit", file, "--server", server.url, "--workload", "w1", "w2", "--force")
    assert done.exit_code == 0
    row = done.stdout.splitlines()[1].split("\t")
    assert row == [str(file), "double", "alice_double_01", "t1"]
    (sent,) = server.accepted
    assert (sent["workload_uuids"], sent["force"]) == (["w1", "w2"], True)
    assert sent["token"] == f"Bearer {SECRET}"
    assert SECRET not in done.output


def test_waiting_shows_progress_results_and_reasons(fib, play, file):  # noqa: F811
    server = play(PASSED, FAILED, HIDDEN)
    done = fib("submit", file, "--server", server.url, "--wait")
    assert done.exit_code == 0, done.output
    row = dict(zip(*(line.split("\t") for line in done.stdout.splitlines()), strict=True))
    assert row["status"] == "1 PASSED, 1 RUNTIME_ERROR, 1 INCORRECT_NUMERICAL"
    assert (row["workloads"], row["geomean_ms"], row["speedup"]) == ("3", "0.5", "2")
    for line in (
        "2 evaluations to do",
        "[1/2] PASSED double / alice_double_01: 0.5 ms (2x)",
        "ZeroDivisionError: division by zero (main.py:2)",
        "2 failures, by reason:",
        "  1 x RUNTIME_ERROR double / alice_double_01",
        "on a hidden workload, of which only the status is told",
        f"hint: {server.url}/ui shows log and source of each",
    ):
        assert line in done.stderr
    assert "3 evaluations in" in done.stderr
    assert fib("submit", file, "--server", server.url, "--wait", "--strict").exit_code == 1


def test_json_has_results_and_reasons(fib, play, file):  # noqa: F811
    done = fib("submit", file, "--server", play(PASSED, FAILED).url, "--wait", "--json")
    told = json.loads(done.stdout)
    (task,) = told["tasks"]
    assert told["schema_version"] == 1
    assert not told["interrupted"]
    assert (task["task_status"], task["workloads"], task["passed"]) == ("completed", 2, 1)
    (failure,) = task["failures"]
    assert failure["workload"] == "w2"
    assert "ZeroDivisionError" in failure["reason"]
    done = fib("submit", file, "--server", play(PASSED).url, "--json")
    assert json.loads(done.stdout)["tasks"][0]["task_id"] == "t1"


def test_a_task_without_a_verdict_is_a_finding(fib, play, file):  # noqa: F811
    done = fib("submit", file, "--server", play(PASSED, status="failed").url, "--wait")
    assert done.exit_code == 1
    assert "failed: no verdict on 1 of 2 workloads: no CUDA" in done.stderr
    server = play(PASSED, status="failed", code="capability")
    assert fib("submit", file, "--server", server.url, "--wait").exit_code == 4


def test_a_server_may_restart_while_it_is_waited_for(fib, play, file):  # noqa: F811
    server = play(PASSED, PASSED)
    server.cut_after = 1
    done = fib("submit", file, "--server", server.url, "--wait")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("PASSED double / alice_double_01: 0.5 ms") == 2


def test_ctrl_c_leaves_the_server_at_work(fib, play, file, monkeypatch):  # noqa: F811
    from fib_serve.client import Client

    def interrupt(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "events", interrupt)
    done = fib("submit", file, "--server", play(PASSED).url, "--wait")
    assert done.exit_code == 130
    assert "submitting the same files again shows the results" in done.stderr


def test_folders_of_solutions(fib, play, maker):  # noqa: F811
    maker.definition()
    maker.solution()
    maker.solution("bob_double", author="bob")
    for folder in (maker.root, maker.root / "solutions"):
        server = play(PASSED)
        done = fib("submit", folder, "--server", server.url, "--wait")
        assert done.exit_code == 0, done.output
        names = sorted(one["solution"]["name"] for one in server.accepted)
        assert names == ["alice_double", "bob_double"]


def test_what_cannot_be_submitted(fib, play, file, tmp_path):  # noqa: F811
    server = play(PASSED)
    sources, empty, broken = tmp_path / "mine", tmp_path / "empty", tmp_path / "broken.json"
    (sources / "sources").mkdir(parents=True)
    (sources / "solution.json").write_text("{}")
    empty.mkdir()
    broken.write_text("{")
    for path, code, told in (
        (sources, 2, "fib solution pack"),
        (empty, 2, "empty has no JSON files"),
        (tmp_path / "nope", 2, "nope does not exist"),
        (broken, 1, "broken.json:1: not valid JSON"),
    ):
        done = fib("submit", file, path, "--server", server.url)
        assert (done.exit_code, told in done.stderr) == (code, True), done.output
    assert server.accepted == []


def test_each_refusal_says_what_to_do(fib, play, file):  # noqa: F811
    server = play(PASSED)
    for status, code, told in (
        (400, 2, "no definition"),
        (401, 2, "FIB_SERVE_TOKEN"),
        (413, 2, "a smaller solution"),
        (500, 4, "the log of the server"),
    ):
        server.refusal = status, "no definition"
        done = fib("submit", file, "--server", server.url, "--token", SECRET)
        assert (done.exit_code, told in done.stderr) == (code, True), done.output
        assert str(file) in done.stderr
        assert SECRET not in done.output
