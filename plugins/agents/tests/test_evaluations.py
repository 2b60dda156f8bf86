"""Datasets as agents use them, calls that end, and evaluations by a service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import pytest

from fib_agents.diagnosis import _Worker
from fib_agents.evaluations import Call, CallCancelled, Datasets, LocalJudge, RemoteJudge
from fib_agents.feedback import settings_of
from fib_agents.mcp_server import result_of
from fib_tests.scaled_add import DEFINITION
from fib_tests.serving import (
    NAME,
    UUIDS,
    add_solution,
    append_traces,
    make_dataset,
    solution,
    trace,
)
from fib_tests.threads import eventually
from flashinfer_bench.data import Definition, Solution, Trace
from flashinfer_bench.errors import (
    CapabilityError,
    ConfigError,
    ConflictError,
    StorageError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)

QUICK = {"warmup_runs": 1, "iterations": 3, "num_trials": 1}
FOREVER = "def run(x, y, scale):\n    while True:\n        pass\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset."""
    return make_dataset(tmp_path / "dataset", UUIDS[:2])


def record(name: str = "mine", **changes: str) -> Solution:
    """Make a solution."""
    return Solution.model_validate(solution(name, **changes))


class TestDatasets:
    def test_what_others_add_is_found(self, root: Path) -> None:
        datasets = Datasets([root])
        assert [one.name for one in datasets.solutions(NAME)] == ["first"]
        add_solution(root, solution("second"))
        assert datasets.solution("second").name == "second"
        assert len(datasets.solutions(NAME)) == 2
        with pytest.raises(UnknownNameError, match="'third'"):
            datasets.solution("third")

    def test_a_name_belongs_to_one_content(self, root: Path) -> None:
        datasets = Datasets([root])
        first, second = datasets.add(record()), datasets.add(record(source="def run(): ...\n"))
        assert first.name != second.name
        assert datasets.add(first) == first == datasets.add(record())
        assert len(list((root / "solutions").rglob("mine_*.json"))) == 2

    def test_nobody_becomes_the_baseline_or_leaves_the_folder(self, root: Path) -> None:
        datasets = Datasets([root])
        with pytest.raises(ConfigError, match="'baseline' is not allowed"):
            datasets.add(record(author="baseline"))
        datasets.add(record("../../../x", author="../../.."))
        assert {one.name for one in root.parent.iterdir()} == {"dataset"}

    def test_files_are_not_overwritten(self, root: Path) -> None:
        datasets = Datasets([root])
        datasets.listed()
        mine = Datasets([root]).add(record())  # by another process
        assert datasets.add(record()) == mine
        (path,) = (root / "solutions").rglob("mine_*.json")
        changed = {**json.loads(path.read_text()), "sources": solution(source="x = 1")["sources"]}
        path.write_text(json.dumps(changed), encoding="utf-8")
        for others in (Datasets([root]), self._unread(root, path)):
            with pytest.raises(ConflictError, match="has another solution 'mine_"):
                others.add(record())
        assert json.loads(path.read_text()) == changed

    @staticmethod
    def _unread(root: Path, path: Path) -> Datasets:
        datasets, text = Datasets([root]), path.read_text()
        path.unlink()
        datasets.listed()
        path.write_text(text, encoding="utf-8")
        return datasets

    def test_a_folder_that_cannot_be_made(self, root: Path) -> None:
        (root / "solutions" / "eve").write_text("", encoding="utf-8")
        with pytest.raises(StorageError, match=r"solutions/eve/.*cannot be written") as caught:
            Datasets([root]).add(record(author="eve"))
        assert "--no-save" in str(caught.value.hint)

    def test_a_definition_whose_file_has_gone(self, root: Path) -> None:
        datasets = Datasets([root], save=False)
        datasets.add(record())
        (root / "definitions" / "op" / f"{NAME}.json").rename(root / "elsewhere.json")
        with pytest.raises(UnknownNameError, match="no definition is called"):
            datasets.solutions(NAME)
        assert datasets.listed() == []
        (root / "elsewhere.json").rename(root / "definitions" / "op" / f"{NAME}.json")
        assert len(datasets.solutions(NAME)) == 2

    def test_definitions_in_two_datasets(self, root: Path, tmp_path: Path) -> None:
        with pytest.raises(ConflictError, match=rf"'{NAME}' is in .*dataset and in .*other"):
            Datasets([root, make_dataset(tmp_path / "other")]).listed()

    def test_the_leaderboard_is_that_of_reports(self, root: Path) -> None:
        append_traces(root, trace("first"), trace("second", latency=0.5))
        rows = Datasets([root]).leaderboard(NAME)
        assert [(one["rank"], one["solution"], one["latency_ms"]) for one in rows] == [
            ("1", "second", 0.5),
            ("2", "first", 1.0),
        ]


class TestCalls:
    def test_an_interrupt_that_comes_too_early_is_repeated(self) -> None:
        began, stopped = threading.Event(), threading.Event()

        def work(call: Call[str], device: object) -> str:
            began.set()
            time.sleep(0.2)
            with call.stopped_by(stopped.set):
                assert stopped.wait(10)
            return "ended"

        call: Call[str] = Call(work, lambda *step: None)  # type: ignore[arg-type]
        thread = threading.Thread(target=call.run, args=(None,))
        thread.start()
        assert began.wait(10)
        call.cancel()
        assert call.outcome.result(10) == "ended"
        thread.join()

    def test_feedback_knows_the_earlier_try_and_the_tolerances(self, root: Path) -> None:
        judge = LocalJudge(Datasets([root], save=False), ["cpu"], QUICK)
        wrong = "def run(x, y, scale):\n    return (x + y) * scale + 1\n"
        found = []
        for source in (wrong, f"{wrong}# again\n"):
            call = judge.evaluate(
                record(source=source), None, lambda *step: None, new=True, diagnose=False
            )
            found.append(result_of(call.outcome.result(60)))
        judge.close()
        first, second = (one["feedback"] for one in found)
        assert all("since_last_try" not in one for one in first)
        for one in second:
            assert one["since_last_try"]["solution"] == found[0]["solution"]
            assert one["since_last_try"]["same_workload"]
            assert "+# again" in one["since_last_try"]["diff"]
        fixed = settings_of(Trace.model_validate(trace("x")), Definition.model_validate(DEFINITION))
        for one in (*first, *second):
            assert one["outputs"][0]["atol"] != fixed.atol

    def test_a_cancelled_diagnosis_ends(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = "import time\ndef run(x, y, scale):\n    time.sleep(600)\n"
        judge = LocalJudge(Datasets([root]), ["cpu"], QUICK)
        device, calling = judge._devices[0], threading.Event()
        wrong = Trace.model_validate(trace("mine", latency=None))
        monkeypatch.setattr(device, "evaluate", lambda *_: ([wrong], ()))
        monkeypatch.setattr("fib_agents.evaluations._is_wrong", lambda one: True)
        make_call = _Worker.call

        def watched(worker: _Worker) -> object:
            if worker.what[1].name.startswith("mine"):
                calling.set()
            return make_call(worker)

        monkeypatch.setattr(_Worker, "call", watched)
        forever = record(source=slow)
        device._subject.hold(forever, [])
        call = judge.evaluate(forever, ["two"], lambda *step: None, new=True, diagnose=True)
        assert calling.wait(60)
        time.sleep(0.3)
        begin = time.monotonic()
        call.cancel()
        with pytest.raises(CallCancelled):
            call.outcome.result(60)
        assert time.monotonic() - begin < 10
        judge.close()

    def test_a_diagnosis_that_fails_takes_nothing_away(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*arguments: object, **options: object) -> None:
            raise NotImplementedError("not for this type")

        monkeypatch.setattr("fib_agents.diagnosis.diagnose", fails)
        judge = LocalJudge(Datasets([root]), ["cpu"], QUICK)
        wrong = record(source="def run(x, y, scale):\n    return (x + y) * scale + 1\n")
        call = judge.evaluate(wrong, ["two"], lambda *step: None, new=True, diagnose=True)
        assert result_of(call.outcome.result(60))["status"] == "INCORRECT_NUMERICAL"
        judge.close()

    def test_one_at_a_time_and_closing_ends_everything(self, root: Path) -> None:
        judge = LocalJudge(Datasets([root]), ["cpu"], QUICK)
        steps: list[str] = []

        def tell(done: float, total: object, message: str) -> None:
            steps.append(message)

        options = {"new": True, "diagnose": False}
        endless = judge.evaluate(record(source=FOREVER), ["two"], tell, **options)
        waiting = judge.evaluate(record("next"), ["two"], tell, **options)
        until = time.monotonic() + 60
        while not steps and time.monotonic() < until:
            time.sleep(0.05)
        assert len(steps) == 1
        assert not waiting.outcome.running()
        judge.close()
        assert waiting.outcome.cancelled()
        with pytest.raises(Exception, match="cancelled"):
            endless.outcome.result(20)


def test_a_service_that_is_away_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fib_agents.evaluations._CANCEL_TRIES", 3)
    monkeypatch.setattr("fib_agents.evaluations._LONGEST_PAUSE_S", 0.05)
    following, back, asked = threading.Event(), threading.Event(), []

    class Away:
        def submit(self, solution: Solution, uuids: object) -> SimpleNamespace:
            return SimpleNamespace(task_id="1", solution=solution.name)

        def task(self, task: str) -> SimpleNamespace:
            return SimpleNamespace(workloads=1)

        def events(self, task: str) -> list[object]:
            following.set()
            assert back.wait(20)
            return []

        def wait(self, task: str) -> None:
            return None

        def cancel(self, task: str) -> None:
            asked.append(task)
            raise CapabilityError("it cannot be reached")

    judge = RemoteJudge(Away())  # type: ignore[arg-type]
    call = judge.evaluate(record(), None, lambda *step: None, new=True, diagnose=False)
    assert following.wait(20)
    call.cancel()
    assert eventually(lambda: len(asked) == 3)
    time.sleep(0.5)
    assert asked == ["1"] * 3
    back.set()
    with pytest.raises(CallCancelled):
        call.outcome.result(20)


_SERVE = """
import json, sys
from pathlib import Path
from fib_serve.app import ServeSettings, run_server
root, port, quick = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
run_server(ServeSettings(root, port=port, benchmark=quick, devices=("cpu",)))
"""


@pytest.fixture
def service(root: Path) -> Iterator[str]:
    """A service of the dataset."""
    pytest.importorskip("fib_serve")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _SERVE, str(root), str(port), json.dumps(QUICK)]
    process = subprocess.Popen(command, env=os.environ.copy())
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            try:
                if httpx.get(f"{url}/health").json()["status"] == "ok":
                    break
            except httpx.TransportError:
                pass
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def test_a_service_evaluates(service: str) -> None:
    from fib_serve.client import Client

    judge = RemoteJudge(Client(service))
    records, steps = judge.records, []
    assert [(one["name"], one["op_type"]) for one in records.listed()] == [(NAME, "op")]
    assert [one.workload.axes for one in records.workloads(NAME)] == [{"tokens": 1}, {"tokens": 2}]
    options = {"new": True, "diagnose": True}
    call = judge.evaluate(record(), None, lambda *step: steps.append(step), **options)
    found = result_of(call.outcome.result(60))
    assert (found["status"], found["workloads"], len(found["feedback"])) == ("PASSED", 2, 2)
    assert found["solution"].startswith("mine_")
    assert steps
    assert eventually(lambda: records.leaderboard(NAME))  # it is read a moment later
    assert records.leaderboard(NAME)[0]["solution"] == found["solution"]
    assert records.solution(found["solution"]).definition == NAME
    with pytest.raises(UnknownNameError, match="submitted here"):
        records.solution("first")
    endless = judge.evaluate(
        record("endless", source=FOREVER), ["two"], lambda *step: None, **options
    )
    time.sleep(2)
    endless.cancel()
    with pytest.raises(Exception, match="cancelled"):
        endless.outcome.result(60)
    again = judge.evaluate(record("again"), ["two"], lambda *step: None, **options)
    assert result_of(again.outcome.result(60))["status"] == "PASSED"
    judge.close()
