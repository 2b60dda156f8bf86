"""The example of a loop: scripted, killed and resumed, and with a model that misbehaves."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(180)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SCRIPT = EXAMPLES / "kernel_agent"
COMMAND = [str(EXAMPLES / "kernel_agent.py"), "--device", "cpu", "--iterations", "5"]
STATUSES = ["COMPILE_ERROR", "INCORRECT_NUMERICAL", "PASSED", "PASSED"]


def journal(folder: Path) -> list[dict[str, Any]]:
    """Return the whole lines of the journal."""
    path = folder / "kernel-agent.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Return a function that runs the example in this process, in a folder of its own."""
    example = runpy.run_path(COMMAND[0])
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, **changes: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", [*COMMAND, *arguments])
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        try:
            code = example["main"]()
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return call


def test_the_script_walks_from_broken_to_fast_and_survives_a_kill(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    arguments = ["--scripted", str(SCRIPT), "--rounds", "4"]
    command = [sys.executable, *COMMAND, *arguments]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    until = time.monotonic() + 60
    while len(journal(tmp_path)) < 2:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = journal(tmp_path)
    assert 2 <= len(before) < 4
    with (tmp_path / "kernel-agent.jsonl").open("a") as file:
        file.write('{"round": 3, "cand')  # a line that was being written

    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert f"going on after round {len(before)}" in done.stderr
    after = journal(tmp_path)
    assert after[: len(before)] == before
    assert [one["status"] for one in after] == STATUSES
    assert after[3]["latency_ms"] < after[2]["latency_ms"]
    assert "error:" in json.dumps(after[0]["feedback"])
    assert done.stdout.strip() == after[3]["solution"]
    solutions = tmp_path / "kernel-agent.dataset" / "solutions" / "kernel-agent"
    assert len(list(solutions.rglob("*.json"))) == 4

    again = run(*arguments)  # the budget is spent
    assert again.stdout == done.stdout
    assert len(journal(tmp_path)) == 4


@pytest.fixture
def model() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server of chat completions, and the requests that it got."""
    requests: list[dict[str, Any]] = []
    fast = (SCRIPT / "answers" / "03-correct-but-slow.md").read_text(encoding="utf-8")
    answers: list[tuple[int, bytes]] = [
        (500, b"oops"),
        (429, b"{}"),
        (200, b"this is not JSON"),
        (200, b'{"choices": []}'),
        (200, b'{"choices": [{"message": {"content": "x"}}], "usage": ["many"]}'),
        (200, _message("I cannot do that.")),
        (200, _message("```python\n# ../../etc/passwd.py\nx = 1\n```")),
        (0, b""),  # closes the connection
        (200, _message(fast)),
        (200, _message(fast)),
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append({"path": self.path, "key": self.headers["authorization"]})
            requests[-1]["body"] = json.loads(body)
            status, answer = answers[len(requests) - 1]
            if status:
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *told: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", requests
    server.shutdown()
    server.server_close()


def _message(text: str) -> bytes:
    choices = [{"message": {"role": "assistant", "content": text}}]
    return json.dumps({"choices": choices, "usage": {"total_tokens": 100}}).encode()


def test_a_model_that_misbehaves_is_recorded(
    tmp_path: Path, model: tuple[str, list[dict[str, Any]]], run: Callable[..., Any]
) -> None:
    url, requests = model
    dataset = tmp_path / "dataset"
    shutil.copytree(SCRIPT / "dataset", dataset)
    options = ["--local", str(dataset), "--language", "python", "--rounds", "20"]
    options += ["--base-url", url, "--model", "some-model", "--tokens", "400"]
    done = run(*options, OPENAI_API_KEY="secret-key")
    assert done.returncode == 0, done.stderr
    attempts = journal(tmp_path)
    notes = [one["candidate"]["note"] for one in attempts]
    assert [one["status"] for one in attempts] == [
        *(["NO_ANSWER"] * 6),
        "COMPILE_ERROR",
        "NO_ANSWER",
        *(["PASSED"] * 2),
    ]
    assert "answered 500" in notes[0]
    assert "answered 429" in notes[1]
    assert "I cannot do that" in notes[5]
    assert "RemoteProtocolError" in notes[7]
    assert sum(one["candidate"]["tokens"] for one in attempts) == 400  # then it ended
    assert {one["path"] for one in requests} == {"/v1/chat/completions"}
    assert {one["key"] for one in requests} == {"Bearer secret-key"}
    asked = [one["body"]["messages"][0]["content"] for one in requests]
    assert "row_softplus_h64" in asked[0]
    assert "Attempt" not in asked[0]
    assert "Attempt 9: PASSED" in asked[9]
    assert attempts[9]["candidate"]["parents"] == [9]
    assert "secret-key" not in (tmp_path / "kernel-agent.jsonl").read_text()


def test_what_is_missing_is_told(run: Callable[..., Any]) -> None:
    done = run(OPENAI_BASE_URL="", OPENAI_MODEL="")
    assert done.returncode == 2
    assert "give --base-url and --model, or --scripted FOLDER" in done.stderr
    scripted = ["--scripted", str(SCRIPT)]
    for arguments, told in (
        (["--journal", "nowhere/j.jsonl", "--local", str(SCRIPT / "dataset")], "nowhere/j.jsonl"),
        (["--definition", "nothing"], "no definition is called 'nothing'"),
        (["--local", "nowhere"], "no definitions in nowhere"),
    ):
        done = run(*scripted, *arguments)
        assert told in f"{done.returncode} {done.stderr}"


def test_a_journal_that_is_damaged(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "kernel-agent.jsonl").write_text('{"round": 1, "cand\n{"round": 2}\n')
    done = run("--scripted", str(SCRIPT))
    assert "line 1 of kernel-agent.jsonl is no attempt" in done.returncode
    assert (tmp_path / "kernel-agent.jsonl").read_text().count("\n") == 2
