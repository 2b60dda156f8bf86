"""Profiles: what is read of ncu's pages, what limits a kernel, and what can go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fib_agents import (
    flashinfer_bench_list_ncu_options,
    flashinfer_bench_run_ncu,
    profile,
)
from fib_agents.ncu import KernelProfile, limit_of, read_launches, summarise
from fib_agents.tool_runs import ToolError, build, read_text, run_bounded, select, short_name
from fib_tests.agent_tools import *  # noqa: F403
from fib_tests.agent_tools import DONE, RAISED

DATA = Path(__file__).parent / "data"
RAW, DETAILS = ((DATA / f"ncu_{page}.csv").read_text() for page in ("raw", "details"))

GEMM = "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT"
TIME = "gpu__time_duration.sum"

pytestmark = pytest.mark.torch


@pytest.fixture
def ncu(program) -> str:
    return program(DATA / "fake_ncu.py")


@pytest.fixture
def run(dataset, ncu):
    def call(solution: str = "good", **options):
        options = {"dataset": dataset, "device": "cpu", "ncu": ncu, **options}
        return profile(solution, "two", **options)

    return call


# ---------------------------------------------------------------------------------------- pages


def test_kernels_of_a_report_with_their_limits() -> None:
    kernels = {one.name: one for one in summarise(read_launches(RAW, DETAILS))}
    assert {name: one.limit for name, one in kernels.items()} == {
        GEMM: "tensor cores",
        "pointer_chase": "latency",
        "large_copy": "bandwidth",
        "chase_setup": "compute",
        "tiny": "launch",
    }
    copy, gemm = kernels["large_copy"], kernels[GEMM]
    assert (copy.launches, copy.grid, copy.block) == (1, "2112 x 1 x 1", "512 x 1 x 1")
    assert copy.time_us == pytest.approx(533.056)
    assert copy.dram_bytes_per_s == pytest.approx(3.990e12, rel=1e-3)
    assert (copy.dram_percent, copy.tensor_percent, copy.waves) == (82.92, 0, 4)
    assert copy.stalls["long_scoreboard"] == pytest.approx(0.9861)
    assert (gemm.tensor_percent, gemm.occupancy_percent) == (97.0, 14.77)
    assert gemm.theoretical_occupancy_percent == 18.75
    assert (gemm.registers, gemm.shared_bytes, gemm.waves) == (168, 188636, 1)
    assert [*gemm.stalls][:2] == ["gmma", "long_scoreboard"]
    first = gemm.advice[0]
    assert (first.rule, first.kind, first.speedup_percent) == ("IssueSlotUtilization", "OPT", 5.142)
    assert "TheoreticalOccupancy" in {one.rule for one in gemm.advice}
    # Of both processes' launch 0, and not about what was not collected.
    assert "SOLBottleneck" in {one.rule for one in copy.advice}
    assert not any("optional metric" in one.text for one in (*copy.advice, *gemm.advice))
    assert sum(one.share or 0 for one in kernels.values()) == pytest.approx(1, abs=1e-3)


def test_launches_of_the_same_kernel_are_one() -> None:
    launches = read_launches(RAW, DETAILS)
    slower = [
        one._replace(metrics={**one.metrics, TIME: 2 * one.metrics[TIME]}) for one in launches
    ]
    kernels = {one.name: one for one in summarise([*launches, *slower])}
    assert kernels["tiny"].launches == 2
    assert kernels["tiny"].time_us == pytest.approx(1.5 * 1.888)
    assert kernels["tiny"].registers == 16


def test_torn_pages_lose_only_what_is_torn() -> None:
    whole = {one.kernel for one in read_launches(RAW, DETAILS)}
    for cut in range(0, len(RAW), 97):
        assert {one.kernel for one in read_launches(RAW[:cut], DETAILS[:cut])} <= whole, cut


def test_other_columns_units_and_order() -> None:
    text = (
        'warning\n"ID","Kernel Name","gpu__time_duration.sum","x__y.sum","Grid Size"\n'
        '"","","nsecond","byte",""\n"7","k(int)","1,250,500","3","(2, 3, 4)"\n"8","",""\n'
        '"9","other","n/a","nan",""\n'
    )
    one, other = read_launches(text)
    assert other.metrics == {}
    assert one.metrics == {TIME: pytest.approx(1250.5e-6), "x__y.sum": 3}
    assert one.grid == "2 x 3 x 4"
    (kernel,) = summarise([one])
    assert (kernel.limit, kernel.shared_bytes) == (None, None)
    assert kernel.time_us == pytest.approx(1250.5)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void a::scale<float, (int)4>(float *, int)", "a::scale"),
        ("void at::native::(anonymous namespace)::sum<at::X<1>>(T1 *)", "at::native::sum"),
        ("_attn_fwd", "_attn_fwd"),
        ("tiny(float *)", "tiny"),
        ("<<<", "<<<"),
        ("x" * 1000, "x" * 100),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


KERNEL = KernelProfile("k", "k", 1, "1 x 1 x 1", "1 x 1 x 1", time_us=100.0, waves=4.0)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"dram_percent": 85, "compute_percent": 30}, "bandwidth"),
        ({"memory_percent": 80, "dram_percent": 5, "compute_percent": 70}, "bandwidth"),
        ({"memory_percent": 50, "compute_percent": 82, "tensor_percent": 3}, "compute"),
        ({"memory_percent": 78, "compute_percent": 75, "tensor_percent": 75}, "tensor cores"),
        ({"memory_percent": 90, "compute_percent": 75, "tensor_percent": 65}, "bandwidth"),
        ({"memory_percent": 20, "compute_percent": 20}, "latency"),
        ({"memory_percent": 20, "compute_percent": 20, "time_us": 4, "waves": 0.1}, "launch"),
        ({"memory_percent": 20, "compute_percent": 20, "time_us": 4}, "latency"),
        ({"memory_percent": 20, "compute_percent": 20, "time_us": 2}, "launch"),
        ({"memory_percent": 90, "compute_percent": 20, "time_us": 2}, "bandwidth"),
        ({}, None),
    ],
)
def test_limits(changes: dict, limit: str) -> None:
    assert limit_of(replace(KERNEL, **changes))[0] == limit


# ------------------------------------------------------------------------------------- whole runs


def test_a_profile_runs_the_solution_and_is_json(run, tmp_path) -> None:
    found = run(save=tmp_path)
    assert found.problem is None, found.problem
    names = [GEMM, "pointer_chase", "large_copy", "chase_setup", "tiny"]
    assert [one.name for one in found.kernels] == names
    assert found.tool_version == "2025.3.1.0"
    assert "fib_agents.target" in " ".join(found.command)
    assert found.sandbox.applied or found.sandbox.missing
    record = json.loads(json.dumps(found.as_dict()))
    assert record["version"] == 1
    assert record["kernels"][1]["limit"] == "latency"
    assert (tmp_path / "raw.csv").read_text().startswith('"ID"')


@pytest.mark.parametrize(
    ("solution", "code", "text"),
    [
        ("raises", "call_failed", "ValueError: not today"),
        ("no_syntax", "build_failed", "main.py:1"),
        ("dies", "crashed", "during stage 'call'"),
        ("liar", "crashed", "during stage"),
        ("pipe", "crashed", "during stage 'inputs'"),
        ("unknown", "invalid_request", "no solution is called 'unknown'"),
    ],
)
def test_a_solution_that_fails(run, monkeypatch, solution, code, text) -> None:
    monkeypatch.setenv("FAKE_MODE", "none")
    found = run(solution)
    assert found.problem is not None
    assert (found.problem.code, text in found.problem.message) == (code, True), found.problem


@pytest.mark.parametrize(
    ("mode", "code"),
    [
        ("none", "no_kernels"),
        ("permission", "no_permission"),
        ("garbage", "no_kernels"),
        ("old", "unsupported_version"),
    ],
)
def test_what_ncu_refuses(run, monkeypatch, mode, code) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    monkeypatch.setenv("FAKE_OUTCOME", DONE)
    found = run()
    assert found.problem is not None
    assert found.problem.code == code
    if code == "no_permission":
        assert "NVreg_RestrictProfilingToAdminUsers" in found.problem.hint


def test_strict_needs_all_measures(run) -> None:
    found = run(sandbox="strict")
    assert found.problem is None or found.problem.code in ("sandbox_refused", "no_executor")
    assert run(sandbox="tight").problem.code == "invalid_request"


def test_no_program_and_no_device(run) -> None:
    missing = run(ncu="no-such-ncu")
    assert (missing.problem.code, missing.solution, missing.workload) == (
        *("tool_missing", "good", "two"),
    )
    absent = run(device="cuda:77").problem
    assert absent.code == "no_device"
    assert "cpu" not in absent.hint  # where there are no kernels to look at


def test_what_is_no_plain_file_is_not_read(tmp_path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    read = {path.name: read_text(path, 3) for path in tmp_path.iterdir()}
    assert read == {"file": "tex", "link": "", "folder": "", "pipe": ""}


def test_huge_output_is_cut(run, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "huge")
    monkeypatch.setenv("FAKE_OUTCOME", DONE)
    found = run()
    assert found.kernels
    assert len(found.log) <= 4000


def test_a_run_without_end_is_killed_with_all_that_it_started(run, monkeypatch) -> None:
    mark = f"fib-test-{time.monotonic_ns()}"
    monkeypatch.setenv("FAKE_MODE", "hang")
    monkeypatch.setenv("MARK", mark)
    found = run(timeout=2)
    assert found.problem.code == "timeout"
    assert not left_of(mark)


def left_of(mark: str) -> str:
    return subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True).stdout


def await_that(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_is_stopped_from_another_thread(run, monkeypatch) -> None:
    mark, stop, found = f"fib-test-{time.monotonic_ns()}", threading.Event(), []
    monkeypatch.setenv("FAKE_MODE", "hang")
    monkeypatch.setenv("MARK", mark)
    running = threading.Thread(target=lambda: found.append(run(stop=stop)))
    running.start()
    await_that(lambda: left_of(mark))
    stop.set()
    running.join(5)
    assert found[0].problem.code == "interrupted"
    assert not left_of(mark)
    assert run(stop=stop).problem.code == "interrupted"


def test_a_build_is_stopped_from_another_thread(dataset, monkeypatch) -> None:
    from flashinfer_bench.bench import backends, builds, plan

    ended, stop = threading.Event(), threading.Event()

    class Builds:
        def __init__(self, *_, **__) -> None:
            threading.Timer(0.1, stop.set).start()

        def compile(self, _) -> None:
            assert ended.wait(60)

    monkeypatch.setattr(plan, "compiles_ahead", lambda *_: True)
    monkeypatch.setattr(backends, "make_executor", lambda *_: SimpleNamespace(close=ended.set))
    monkeypatch.setattr(builds, "BuildAhead", Builds)
    with pytest.raises(ToolError, match="stopped on request"):
        build(select("good", "two", dataset), device="cpu", sandbox="off", stop=stop)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_ends_with_who_started_it(number) -> None:
    mark = f"fib-test-{time.monotonic_ns()}"
    never = "import time; time.sleep(600)"
    inner = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {never!r}, {mark!r}])"
    script = (
        "import sys; from fib_agents.tool_runs import run_bounded\n"
        f"run_bounded([sys.executable, '-c', {inner!r}], timeout_s=600)"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        await_that(lambda: len(left_of(mark).split()) >= 4)
        parent.send_signal(number)
    await_that(lambda: not left_of(mark))


def test_the_folder_is_removed_however_deep(run, tmp_path) -> None:
    found = run("deep", folder=tmp_path / "made")
    assert found.problem is None, found.problem
    assert not [*(tmp_path / "made").iterdir()]
    assert not [*(tmp_path / "cache").glob("**/candidates/*/*")]


def test_the_end_of_output_is_kept() -> None:
    script = "print('begin'); print('x' * 5_000_000); print('end')"
    ran = run_bounded(["python3", "-c", script], timeout_s=60, limit=2000)
    assert len(ran.output) < 2200
    assert ran.output.startswith("begin")
    assert ran.output.endswith("end\n")
    assert "bytes left out" in ran.output
    assert run_bounded(["/no/such"], timeout_s=1).exit_code == 127


# ------------------------------------------------------------------------------------------- text


def test_text_for_agents(dataset, ncu, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_OUTCOME", DONE)
    options = {"device": "cpu", "trace_set_path": str(dataset), "ncu_path": ncu}
    text = flashinfer_bench_run_ncu("good", "two", **options)
    assert "Section: GPU Speed Of Light" in text
    assert flashinfer_bench_run_ncu("good", "two", max_lines=1, **options).splitlines() == [
        "[4242] python3.12@127.0.0.1",
        "[2 more lines]",
    ]
    monkeypatch.setenv("FAKE_MODE", "none")
    monkeypatch.setenv("FAKE_OUTCOME", RAISED)
    assert flashinfer_bench_run_ncu("good", "two", **options).startswith("ERROR: ValueError")
    assert flashinfer_bench_run_ncu("nobody", "two", **options).startswith("ERROR: no solution")
    wrong = {**options, "ncu_path": "no-such-ncu"}
    assert flashinfer_bench_run_ncu("good", "two", **wrong).startswith("ERROR: there is no program")
    assert flashinfer_bench_list_ncu_options(ncu).count("detailed") == 2
    assert flashinfer_bench_list_ncu_options("no-such-ncu").startswith("ERROR:")
