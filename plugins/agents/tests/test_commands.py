"""``fib profile`` and ``fib memcheck``: names and files, tables and JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fib_tests.agent_tools import *  # noqa: F403
from fib_tests.agent_tools import DONE, RAISED
from fib_tests.cli import fib  # noqa: F401 - a fixture
from fib_tests.serving import NAME, solution, workload

DATA = Path(__file__).parent / "data"

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch) -> None:
    """Has the tools pretend that the solution ran."""
    monkeypatch.setenv("FAKE_OUTCOME", DONE)


@pytest.fixture
def profile(fib, dataset, program):  # noqa: F811
    def run(*args, tool: str | None = None):
        ncu = tool or program(DATA / "fake_ncu.py")
        return fib("profile", *args, "--local", dataset, "--device", "cpu", "--ncu", ncu)

    return run


@pytest.fixture
def memcheck(fib, dataset, program):  # noqa: F811
    def run(*args, tool: str | None = None):
        tool = tool or program(DATA / "fake_sanitizer.py")
        return fib("memcheck", *args, "--local", dataset, "--device", "cpu", "--sanitizer", tool)

    return run


def test_a_profile_as_table_and_json(profile, tmp_path) -> None:
    shown = profile("good", "two", "--save", tmp_path / "kept")
    assert shown.exit_code == 0, shown.output
    header, _, second, *_ = shown.stdout.splitlines()
    assert header.split("\t")[:4] == ["kernel", "limit", "launches", "time_us"]
    assert second.split("\t")[:3] == ["pointer_chase", "latency", "1"]
    assert "large_copy: bandwidth (compute 8 %, memory 83 % of peak, of DRAM)" in shown.stderr
    assert "waits: long_scoreboard 98%" in shown.stderr
    assert all(len(line) <= 80 for line in shown.stderr.splitlines() if line.startswith("  "))
    assert (tmp_path / "kept" / "details.csv").exists()
    found = json.loads(profile("good", "two", "--json").stdout)["profile"]
    assert found["solution"] == "good"
    assert [one["limit"] for one in found["kernels"]] == [
        *("tensor cores", "latency", "bandwidth", "compute", "launch")
    ]


def test_files_instead_of_names(profile, tmp_path) -> None:
    files = tmp_path / "mine.json", tmp_path / "trace.json", tmp_path / "workload.json"
    files[0].write_text(json.dumps(solution("elsewhere")))
    files[1].write_text(json.dumps({"definition": NAME, "workload": workload("five")}))
    files[2].write_text(json.dumps(workload("five")))
    for file in files[1:]:
        found = json.loads(profile(files[0], file, "--json").stdout)["profile"]
        assert (found["solution"], found["workload"]) == ("elsewhere", "five")
        assert found["kernels"]


def test_memcheck_as_table_and_json(memcheck, monkeypatch) -> None:
    shown = memcheck("good", "two")
    assert shown.exit_code == 0, shown.output
    assert "memcheck 0 in" in shown.stderr
    monkeypatch.setenv("FAKE_MODE", "findings")
    shown = memcheck("good", "two", "--tools", "memcheck", "racecheck")
    assert shown.exit_code == 1
    assert "memcheck\tout of bounds\twrite_past_end\tmain.cu:17\t2" in shown.stdout
    found = memcheck("good", "two", "--json")
    assert found.exit_code == 1
    report = json.loads(found.stdout)["report"]
    assert (len(report["findings"]), report["clean"]) == (19, False)


def test_exit_codes(profile, memcheck, monkeypatch) -> None:
    assert profile("nobody", "two").exit_code in (2, 5)
    unknown = profile("good", "none")
    assert unknown.exit_code in (2, 5)
    assert "available workloads: " in unknown.stderr
    assert profile("good", "two", "--sandbox", "tight").exit_code == 2
    missing = profile("good", "two", tool="no-such-ncu")
    assert missing.exit_code == 4
    assert memcheck("good", "two", tool="no-such-program").exit_code == 4
    assert memcheck("good", "two", "--tool", "valgrind").exit_code == 2
    monkeypatch.setenv("FAKE_MODE", "none")
    monkeypatch.setenv("FAKE_OUTCOME", RAISED)
    assert profile("good", "two").exit_code == 1
    monkeypatch.setenv("FAKE_MODE", "good")
    shown = memcheck("good", "two", "--tool", "initcheck")
    assert shown.exit_code == 1
    assert "not today" in shown.stderr


def test_no_gpu(fib, dataset, program, monkeypatch) -> None:  # noqa: F811
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    shown = fib(
        *("profile", "good", "two", "--local", dataset, "--ncu", program(DATA / "fake_ncu.py"))
    )
    assert shown.exit_code == 4
    assert "no CUDA device" in shown.output
    assert "hint:" in shown.output
