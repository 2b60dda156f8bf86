"""The MCP server, as the SDK's own client sees it: a process on stdio, and one on HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.client.client import Client

from fib_agents import mcp_server
from fib_agents.evaluations import Call, Datasets, LocalJudge, RemoteJudge
from fib_tests.scaled_add import DEFINITION
from fib_tests.serving import NAME, UUIDS, make_dataset, solution

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)

SETTINGS = {"warmup_runs": 1, "iterations": 3, "num_trials": 1}
QUICK = ["--warmup-runs", "1", "--iterations", "3", "--num-trials", "1", "--device", "cpu"]
FIB = [sys.executable, "-m", "flashinfer_bench"]
FOREVER = "def run(x, y, scale):\n    while True:\n        pass\n"
LOUD = (
    "import os, sys\n"
    'print(\'{"jsonrpc": "2.0"}\', flush=True)\n'
    "def run(x, y, scale):\n"
    "    print('not a message')\n"
    "    os.write(1, b'not one either\\n')\n"
    "    os.system('echo nor this')\n"
    "    return (x + y) * scale\n"
)
WRONG = "def run(x, y, scale):\n    out = (x + y) * scale\n    out[-1] = 0\n    return out\n"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """One definition, two workloads and one solution, without traces."""
    return make_dataset(tmp_path / "dataset", UUIDS[:2])


@pytest.fixture
def talk(dataset: Path) -> Callable[..., Any]:
    """Return a function that lets a coroutine talk with a server on stdio."""

    def run(conversation: Callable[[Client], Awaitable[Any]]) -> Any:
        command = [*FIB[1:], "mcp", *QUICK, "--local", str(dataset)]
        server = StdioServerParameters(command=FIB[0], args=command, env=dict(os.environ))
        return converse(server, conversation)

    return run


@pytest.fixture
def talk_here(dataset: Path) -> Callable[..., Any]:
    """Return a function that lets a coroutine talk with a server in this process."""

    def run(
        conversation: Callable[[Client], Awaitable[Any]], *, save: bool = True, mode: str = "auto"
    ) -> Any:
        judge = LocalJudge(Datasets([dataset], save=save), ["cpu"], SETTINGS)
        try:
            return converse(mcp_server.AgentServer(judge).server, conversation, mode)
        finally:
            judge.close()

    return run


def converse(
    server: Any, conversation: Callable[[Client], Awaitable[Any]], mode: str = "auto"
) -> Any:
    """Have a coroutine talk with a server."""

    async def main() -> Any:
        async with Client(server, mode=mode) as client:  # type: ignore[arg-type]
            return await conversation(client)

    return asyncio.run(asyncio.wait_for(main(), 170))


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool, and return its structured result."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool, and return the error that it tells."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


def flat(source: str, name: str = "mine", **changes: Any) -> dict[str, Any]:
    """Return a solution in the short form."""
    return {
        "name": name,
        "definition": NAME,
        "language": "python",
        "entry_point": "main.py::run",
        "destination_passing_style": False,
        "sources": {"main.py": source},
        **changes,
    }


def test_an_agent_reads_what_there_is(talk: Callable[..., Any]) -> None:
    async def conversation(client: Client) -> None:
        assert client.server_info.name == "flashinfer-bench"
        tools = {one.name: one for one in (await client.list_tools()).tools}
        assert set(tools) == {
            *("list_definitions", "get_definition", "list_solutions", "get_solution"),
            *("leaderboard", "evaluate", "compare", "profile", "memcheck"),
        }
        for tool in tools.values():
            assert 20 < len(tool.description) < 300
            assert tool.output_schema["type"] == "object"
            assert "ctx" not in tool.input_schema["properties"]
        assert tools["get_definition"].annotations.read_only_hint
        listed = await ask(client, "list_definitions")
        assert [one["name"] for one in listed["definitions"]] == [NAME]
        assert (await ask(client, "list_definitions", op_type="gemm"))["total"] == 0
        found = await ask(client, "get_definition", name=NAME)
        assert found["definition"]["reference"] == DEFINITION["reference"]
        assert [one["axes"] for one in found["workloads"]] == [{"tokens": 1}, {"tokens": 2}]
        solutions = await ask(client, "list_solutions", definition=NAME)
        assert [one["name"] for one in solutions["solutions"]] == ["first"]
        whole = await ask(client, "get_solution", name="first")
        assert whole["solution"]["sources"][0]["content"] == DEFINITION["reference"]
        assert (await ask(client, "leaderboard", definition=NAME))["rows"] == []
        assert not (await ask(client, "memcheck", solution="first"))["clean"]  # no program, no GPU
        long = {"solution": flat("x = 1\n", name="n" * 300)}
        assert "at most 200 characters" in await refused(client, "evaluate", **long)

        formats = {str(one.uri): one for one in (await client.list_resources()).resources}
        assert len(formats) == 4
        for uri in formats:
            text = (await client.read_resource(uri)).contents[0].text
            assert json.loads(text)["properties"]
        templates = (await client.list_resource_templates()).resource_templates
        assert len(templates) == 2
        source = await client.read_resource("fib://solutions/first/main.py")
        assert source.contents[0].text == DEFINITION["reference"]
        record = await client.read_resource("fib://solutions/first")
        assert json.loads(record.contents[0].text)["name"] == "first"
        for uri in ("first/other.py", "nobody", "first/..%2F..%2Fsecret", "first//etc/passwd"):
            with pytest.raises(MCPError, match=r"no file|no solution|Unknown resource"):
                await client.read_resource(f"fib://solutions/{uri}")

        prompts = {one.name for one in (await client.list_prompts()).prompts}
        assert prompts == {
            f"{one}_kernel" for one in ("cuda", "triton", "cute_style", "tilelang", "python")
        }
        for name in prompts:
            prompt = await client.get_prompt(name, {"definition": NAME})
            assert DEFINITION["reference"].strip() in prompt.messages[0].content.text
        with pytest.raises(MCPError, match="no definition is called"):
            await client.get_prompt("cuda_kernel", {"definition": "nothing"})

    talk(conversation)


def test_torch_is_imported_only_to_evaluate() -> None:
    code = (
        "import sys; from fib_agents.mcp_server import AgentServer, LocalJudge;"
        "from fib_agents.evaluations import Datasets;"
        "AgentServer(LocalJudge(Datasets([]), ['cpu'], {})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_solutions_are_evaluated(talk: Callable[..., Any], dataset: Path) -> None:
    async def conversation(client: Client) -> None:
        steps: list[tuple[float, Any, str]] = []

        async def progress(done: float, total: Any, message: str) -> None:
            steps.append((done, total, message))

        given = {"solution": flat(LOUD)}
        result = await client.call_tool("evaluate", given, progress_callback=progress)
        found = result.structured_content
        assert found["status"] == "PASSED", found
        assert (found["passed"], found["workloads"], found["saved"]) == (2, 2, True)
        assert found["latency_ms"] > 0
        assert re.fullmatch("mine_[0-9a-f]{8}", found["solution"])
        assert len(found["feedback"]) == 2
        amounts = [done for done, _, _ in steps]
        assert amounts == sorted(set(amounts))
        assert len(amounts) == 4
        assert all(done <= total for done, total, _ in steps)
        assert "(1 of 2): building" in steps[0][2]
        assert "checked and timed: PASSED" in steps[1][2]

        wrong = await ask(client, "evaluate", solution=flat(WRONG), workloads=["five"])
        assert (wrong["status"], wrong["passed"]) == ("INCORRECT_NUMERICAL", 0)
        assert wrong["feedback"][0]["status"] == "INCORRECT_NUMERICAL"
        assert wrong["feedback"][0]["likely_causes"], wrong["feedback"]
        given = {"solution": flat(WRONG), "workloads": ["five"], "diagnose": False}
        quick = await ask(client, "evaluate", **given)
        assert not quick["feedback"][0].get("likely_causes")
        broken = await ask(client, "evaluate", solution=flat("def run(:\n"))
        assert broken["status"] == "COMPILE_ERROR"
        again = await ask(client, "evaluate", solution="first", workloads=["two"])
        assert (again["solution"], again["workloads"]) == ("first", 1)
        whole = solution("whole", author="ann", source="def run(x, y, scale):\n    return 1 / 0\n")
        error = await ask(client, "evaluate", solution=whole, workloads=["two"])
        assert error["status"] == "RUNTIME_ERROR"

        board = await ask(client, "leaderboard", definition=NAME)
        assert found["solution"] in [one["solution"] for one in board["rows"]]
        listed = await ask(client, "list_solutions", definition=NAME)
        authors = {one["name"]: one["author"] for one in listed["solutions"]}
        assert authors[found["solution"]] == "agent"
        assert authors[error["solution"]] == "ann"

    talk(conversation)
    traces = (dataset / "traces" / "op" / f"{NAME}.jsonl").read_text().splitlines()
    assert len(traces) == 2 + 1 + 1 + 2 + 1 + 1
    assert len(list((dataset / "solutions" / "agent").rglob("*.json"))) == 3


def test_mistakes_are_told_and_survived(talk_here: Callable[..., Any]) -> None:
    async def conversation(client: Client) -> None:
        assert "no definition is called 'no'" in await refused(client, "get_definition", name="no")
        assert "first" in await refused(client, "get_solution", name="firs")
        told = await refused(client, "evaluate", solution="../../etc/passwd")
        assert "no solution is called" in told
        told = await refused(client, "evaluate", solution=flat("x = 1", definition="no"))
        assert "no definition is called" in told
        given = {"solution": flat("x = 1"), "workloads": ["never"]}
        assert "no workload is called 'never'" in await refused(client, "evaluate", **given)
        assert "entry" in await refused(
            client, "evaluate", solution=flat("x = 1", entry_point="other.py::run")
        )
        both = flat("x = 1", spec={"language": "python"})
        assert "and spec are given" in await refused(client, "evaluate", solution=both)
        assert "baseline" in await refused(
            client, "evaluate", solution=flat("x = 1", author="baseline")
        )
        outside = flat("x = 1", sources={"../main.py": "x = 1"})
        assert "without '..'" in await refused(client, "evaluate", solution=outside)
        misspelt = flat("x = 1", langage="python")
        assert "langage" in await refused(client, "evaluate", solution=misspelt)
        assert "solution" in await refused(client, "evaluate")
        assert "limit" in await refused(client, "list_definitions", limit=10**9)
        huge = flat("#" * 20_000_000)
        assert "allowed are 2,000,000" in await refused(client, "evaluate", solution=huge)
        assert "nonsense" in await refused(client, "nonsense")
        assert (await ask(client, "list_definitions"))["total"] == 1

    talk_here(conversation)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_cancelled_evaluation_ends(talk_here: Callable[..., Any], mode: str) -> None:
    async def conversation(client: Client) -> None:
        began = asyncio.Event()

        async def progress(done: float, total: Any, message: str) -> None:
            began.set()

        def evaluate(source: str) -> asyncio.Task[Any]:
            given = {"solution": flat(source), "workloads": ["two"]}
            call = client.call_tool("evaluate", given, progress_callback=progress)
            return asyncio.create_task(call)

        endless = evaluate(FOREVER)
        await began.wait()
        waiting = evaluate(FOREVER + "#")  # in the queue
        await asyncio.sleep(0.5)
        for one in (waiting, endless):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
        begin = time.monotonic()
        found = await ask(client, "evaluate", solution="first", workloads=["two"])
        assert found["status"] == "PASSED"
        assert time.monotonic() - begin < 30

    talk_here(conversation, mode=mode)


def test_without_saving_the_dataset_is_as_it_was(
    talk_here: Callable[..., Any], dataset: Path
) -> None:
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}

    async def conversation(client: Client) -> None:
        found = await ask(client, "evaluate", solution=flat(DEFINITION["reference"]))
        assert found["saved"] is False
        assert found["status"] == "PASSED"
        name = found["solution"]
        assert (await ask(client, "get_solution", name=name))["solution"]["name"] == name
        board = await ask(client, "leaderboard", definition=NAME)
        assert [one["solution"] for one in board["rows"]] == [name]
        again = await ask(client, "evaluate", solution=name, workloads=["two"])
        assert again["solution"] == name

    talk_here(conversation, save=False)
    after = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    assert after == before


def test_two_solutions_are_compared(talk_here: Callable[..., Any]) -> None:
    async def conversation(client: Client) -> None:
        slow = "def run(x, y, scale):\n    for _ in range(200):\n        z = (x + y) * scale\n"
        made = await ask(client, "evaluate", solution=flat(f"{slow}    return z\n"))
        given = {"baseline": "first", "candidate": made["solution"], "workloads": ["two"]}
        found = await ask(client, "compare", **given, max_seconds=20)
        assert found["verdict"] == "slower", found
        assert found["comparisons"][0]["ratio"] > 1
        assert "nobody" in await refused(client, "compare", baseline="first", candidate="nobody")

    talk_here(conversation)


@pytest.mark.parametrize("tool", ["profile", "memcheck"])
def test_tools_of_a_gpu_say_what_is_missing(talk_here: Callable[..., Any], tool: str) -> None:
    async def conversation(client: Client) -> None:
        found = await ask(client, tool, solution="first", workload="two")
        assert found["problem"]["message"]
        assert "no solution is called" in await refused(client, tool, solution="/etc/passwd")

    talk_here(conversation)


def test_what_a_service_does_not_offer_is_told() -> None:
    async def conversation(client: Client) -> None:
        for tool in ("profile", "memcheck"):
            problem = (await ask(client, tool, solution="first"))["problem"]
            assert problem["code"] == "not_offered"
            assert f"does not {tool}" in problem["message"]
            assert f"run 'fib {tool}'" in problem["hint"]
        told = await refused(client, "compare", baseline="first", candidate="second")
        assert "run 'fib compare'" in told

    service: Any = object()  # nothing is asked of it
    converse(mcp_server.AgentServer(RemoteJudge(service)).server, conversation)


def test_a_client_that_goes_away_ends_the_server(dataset: Path) -> None:
    command = [*FIB, "mcp", *QUICK, "--local", str(dataset)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    out, _ = process.communicate(b"this is no message\n", timeout=30)
    assert process.returncode == 0
    for line in out.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server(dataset: Path, by: signal.Signals) -> None:
    command = [*FIB, "mcp", *QUICK, "--local", str(dataset)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "method": "ping", "id": 1}\n')
        process.stdin.flush()
        assert b"jsonrpc" in process.stdout.readline()
        process.send_signal(by)
        assert process.wait(10) == -by


@pytest.fixture
def url(dataset: Path) -> Iterator[str]:
    """A server on HTTP, which keeps everything in memory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = ["--local", str(dataset), "--no-save", "--http", "--port", str(port)]
    command = [*FIB, "mcp", *QUICK, *where]
    process = subprocess.Popen(command)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.TransportError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def test_http(url: str) -> None:
    async def main() -> None:
        async with Client(url) as client:
            steps: list[str] = []

            async def progress(done: float, total: Any, message: str) -> None:
                steps.append(message)

            given = {"solution": flat(DEFINITION["reference"]), "workloads": ["two"]}
            result = await client.call_tool("evaluate", given, progress_callback=progress)
            assert result.structured_content["status"] == "PASSED"
            assert result.structured_content["saved"] is False
            assert len(steps) == 2
            endless = asyncio.create_task(
                client.call_tool("evaluate", {"solution": flat(FOREVER), "workloads": ["two"]})
            )
            await asyncio.sleep(2)
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
            assert (await ask(client, "evaluate", solution="first"))["status"] == "PASSED"
            assert "no solution" in await refused(client, "evaluate", solution="nobody")

    asyncio.run(asyncio.wait_for(main(), 150))
    for header in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        headers = {"Accept": "application/json, text/event-stream", **header}
        answer = httpx.post(
            url, json={"jsonrpc": "2.0", "method": "ping", "id": 1}, headers=headers
        )
        assert answer.status_code in (403, 421)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--http", "--host", "0.0.0.0"], "--host 0.0.0.0 is not an address of this machine"),
        (["--server", "http://127.0.0.1:9", "--iterations", "3"], "--iterations cannot be used"),
        (["--server", "ftp://127.0.0.1"], "is not a URL"),
        (["--local", "/nowhere"], "/nowhere does not exist"),
    ],
)
def test_wrong_options(arguments: list[str], told: str) -> None:
    done = subprocess.run([*FIB, "mcp", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert done.stdout == ""


def test_an_address_that_is_taken(dataset: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ["--local", str(dataset), "--http", "--port", str(taken.getsockname()[1])]
        command = [*FIB, "mcp", *QUICK, *where]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot be listened on" in done.stderr
    assert "serving MCP" not in done.stderr


@pytest.mark.parametrize("tool", ["profile", "memcheck"])
@pytest.mark.parametrize("ends", ["cancel", "close", "lost"])
def test_tools_of_a_gpu_are_stopped(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, tool: str, ends: str
) -> None:
    began, given = threading.Event(), {}

    def run(solution: Any, workload: Any, *, stop: threading.Event, **options: Any) -> Any:
        given.update(options)
        began.set()
        given["stopped"] = stop.wait(20)
        return {}

    module = "ncu" if tool == "profile" else "sanitizer"
    monkeypatch.setattr(f"fib_agents.{module}.{tool}", run)
    judge = LocalJudge(Datasets([dataset]), ["cpu"], {})
    server = mcp_server.AgentServer(judge)

    class Lost:
        async def report_progress(self, *step: Any) -> None:
            raise ConnectionError

    async def main() -> None:
        if ends == "lost":
            judge.begin = partial(_telling, judge.begin)  # type: ignore[method-assign]
            with pytest.raises(ConnectionError):
                await getattr(server, tool)(Lost(), "first")
            return
        async with Client(server.server) as client:
            call = asyncio.create_task(client.call_tool(tool, {"solution": "first"}))
            assert await asyncio.to_thread(began.wait, 20)
            if ends == "close":
                await asyncio.to_thread(judge.close)
                assert given["stopped"]
            else:
                call.cancel()
            with suppress(asyncio.CancelledError):
                await call

    asyncio.run(main())
    judge.close()
    if ends != "lost":  # there, it may have ended before it began
        assert given["sandbox"] == "auto"
        assert given["stopped"]
    assert not judge._current


def _telling(begin: Any, work: Any, tell: Any) -> Any:
    def working(call: Any, device: Any) -> Any:
        call.tell(1, 2, "it is going on")
        return work(call, device)

    return begin(working, tell)


def test_long_texts_are_cut() -> None:
    found = mcp_server.bounded({"a": ["x" * 100, float("nan"), 1.5]}, 60)
    assert "x\n… 40 characters left out …\nx" in found["a"][0]
    assert len(found["a"][0]) == 60
    assert found["a"][1:] == ["nan", 1.5]


def test_a_call_that_is_cancelled_before_it_begins_does_nothing() -> None:
    call: Call[None] = Call(lambda call, device: pytest.fail("it ran"), lambda *step: None)
    call.cancel()
    call.run(None)  # type: ignore[arg-type]
    assert call.outcome.cancelled()
