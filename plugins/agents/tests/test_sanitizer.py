"""Findings of compute-sanitizer: what is read of its text, and what can go wrong."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest

from fib_agents import flashinfer_bench_run_sanitizer, memcheck
from fib_agents.sanitizer import TOOLS, merged, read_findings, with_line_info
from fib_tests.agent_tools import *  # noqa: F403
from fib_tests.agent_tools import DONE, RAISED
from fib_tests.scaled_add import solution_of

DATA = Path(__file__).parent / "data"

pytestmark = pytest.mark.torch


def findings(tool: str, text: str | None = None):
    return merged(read_findings(text or (DATA / f"{tool}.txt").read_text(), tool, ["main.cu"]))


@pytest.fixture
def sanitizer(program) -> str:
    return program(DATA / "fake_sanitizer.py")


@pytest.fixture
def run(dataset, sanitizer):
    def call(solution: str = "good", **options):
        options = {"dataset": dataset, "device": "cpu", "sanitizer": sanitizer, **options}
        return memcheck(solution, "two", **options)

    return call


# --------------------------------------------------------------------------------------- messages


def test_invalid_accesses() -> None:
    written, misaligned, freed, far, shared = findings("memcheck")
    assert (written.kind, written.kernel, written.place) == (
        *("out of bounds", "write_past_end", "main.cu:17"),
    )
    assert (written.access, written.bytes, written.space) == ("write", 4, "global")
    assert (written.thread, written.block) == ("(96,0,0)", "(0,0,0)")
    assert written.address == "0x7f7ee2812160"
    assert written.count == 2
    assert "nearest allocation" in written.message
    assert (misaligned.kind, misaligned.kernel) == ("misaligned", "misaligned_store")
    assert (misaligned.line, misaligned.bytes) == (33, 8)
    assert (freed.kind, freed.kernel) == ("out of bounds", "use_of_freed")
    assert (far.kind, far.kernel, far.access) == ("out of bounds", "read_far_past_end", "read")
    assert (shared.kernel, shared.place, shared.space) == ("shared_overrun", "main.cu:44", "shared")
    assert (shared.kind, shared.address) == ("out of bounds", "0x40580")


def test_races() -> None:
    found = findings("racecheck")
    assert [(one.kernel, one.access, one.severity) for one in found] == [
        ("two_writers", "write", "error"),
        ("write_after_read", "read", "error"),
        ("no_barrier_in_reduction", "write", "error"),
        ("no_barrier_in_reduction", "write", "warning"),
        ("no_barrier_in_reduction", "read", "warning"),
        ("no_barrier_before_read", "write", "error"),
    ]
    assert {one.kind for one in found} == {"race"}
    assert (found[1].place, found[1].other) == ("main.cu:69", "write at main.cu:70")
    # One line of the message for each of two places, of the same line in the source.
    assert (found[2].place, found[2].other) == ("main.cu:60", "read at main.cu:60")
    assert [one.count for one in found] == [446, 1024, 576, 172, 8, 1024]


def test_uninitialised_reads_and_barriers() -> None:
    read, *others = findings("initcheck")
    assert (read.kind, read.kernel, read.place) == (
        *("uninitialised read", "adds_to_output", "main.cu:85"),
    )
    kernels = ["reads_scratch", "reads_second_half", "reads_odd_too"]
    assert [one.kernel for one in others] == kernels
    assert (read.access, read.bytes, read.count) == ("read", 4, 3)
    assert (read.thread, read.address) == ("(64,0,0)", "0x7f484c801100")
    mask, warp, branch, branches = findings("synccheck")
    assert (branches.kind, branches.kernel) == ("barrier", "barrier_in_both_branches")
    assert (branches.line, branches.count) == (118, 3)
    assert (branch.kernel, branch.line) == ("barrier_in_branch", 108)
    assert "Divergent thread(s) in warp" in branches.message
    # It is in a header of CUDA's; the place is where the solution calls that.
    assert (mask.kernel, mask.place) == ("mask_without_caller", "main.cu:129")
    assert (warp.kernel, warp.place) == ("warp_barrier_in_branch", "main.cu:138")
    assert mask.message.endswith("Invalid arguments. In sm_30_intrinsics.hpp:110.")


def test_places_outside_of_the_solution() -> None:
    text = (DATA / "synccheck.txt").read_text()
    mask, *_ = merged(read_findings(text, "synccheck", ["other.cu"]))
    assert (mask.kernel, mask.place) == ("mask_without_caller", "sm_30_intrinsics.hpp:110")


def test_messages_without_line_information() -> None:
    text = (
        "========= Invalid __local__ read of size 16 bytes\n=========     at k<int>(T1 *)+0x90\n"
        "========= Something new about a kernel\n=========     by thread (1,2,3) in block (4,5,6)\n"
        "=========     at other(int)+0x10\n"
    )
    first, second = findings("memcheck", text)
    assert (first.kernel, first.place, first.kind) == ("k", "", "invalid access")
    assert (second.kernel, second.kind, second.block) == ("other", "other", "(4,5,6)")


def test_messages_about_no_kernel() -> None:
    text = (
        "========= Uninitialized access to 0x7f00 on access by cudaMemcpy source\n"
        "========= Error: Target application terminated before first instrumented API call\n"
        "========= Error: couldn't find exit code.\n"
    )
    (one,) = findings("initcheck", text)
    assert (one.kind, one.kernel) == ("other", "")


def test_names_of_files_become_paths() -> None:
    text = "========= Invalid __global__ read of size 4 bytes\n=========     at k()+0x9 in {}:3\n"
    sources = ["main.cu", "a/b.cu", "a/c.cu", "d/c.cu"]
    for told, path in {"b.cu": "a/b.cu", "c.cu": "c.cu", "y.h": "y.h"}.items():
        (one,) = read_findings(text.format(told), "memcheck", sources)
        assert one.place == f"{path}:3"


@pytest.mark.parametrize("tool", TOOLS)
def test_damaged_text_is_no_error(tool: str) -> None:
    text = (DATA / f"{tool}.txt").read_text()
    generator = random.Random(1)
    for _ in range(200):
        damaged = list(text)
        for _ in range(20):
            damaged[generator.randrange(len(damaged))] = generator.choice("\n =(0)\x00é")
        findings(tool, "".join(damaged)[generator.randrange(len(damaged)) :] or "-")


def test_line_information_is_asked_for_once() -> None:
    spec = {"language": "cuda", "target_hardware": ["cuda"], "entry_point": "main.cu::run"}
    plain = solution_of({"main.cu": "x"}, **spec)
    asked = with_line_info(plain)
    assert asked.spec.compile_options.cuda_cflags == ["-lineinfo"]
    assert "destination_passing_style" not in asked.spec.model_fields_set
    assert with_line_info(asked) is asked
    python = {**spec, "language": "python", "entry_point": "main.py::run"}
    assert with_line_info(solution_of({"main.py": "x"}, **python)).spec.compile_options is None


# ------------------------------------------------------------------------------------- whole runs


def test_a_clean_solution(run) -> None:
    report = run(tools=["memcheck"])
    assert report.clean, report
    assert report.sandbox.applied or report.sandbox.missing
    assert [one.tool for one in report.checks] == ["memcheck"]
    assert json.loads(json.dumps(report.as_dict()))["clean"] is True


def test_findings_of_all_tools(run, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FAKE_MODE", "findings")
    monkeypatch.setenv("FAKE_OUTCOME", DONE)
    report = run(save=tmp_path)
    assert not report.clean
    assert [one.tool for one in report.checks] == [*TOOLS]
    assert [one.tool for one in report.findings] == [
        *["memcheck"] * 5,
        *["racecheck"] * 6,
        *["initcheck"] * 4,
        *["synccheck"] * 4,
    ]
    assert report.problem is None
    assert (tmp_path / "racecheck.txt").exists()
    # A call that fails because of what was found is no problem of its own.
    monkeypatch.setenv("FAKE_OUTCOME", RAISED)
    assert run(tools=["memcheck"]).problem is None


@pytest.mark.parametrize(
    ("outcome", "mode", "code"),
    [
        (RAISED, "good", "call_failed"),
        (RAISED.replace("call", "build"), "good", "build_failed"),
        ('{"stage": "call"}', "good", "crashed"),
        (DONE, "silent", "unreadable_report"),
        (DONE, "unsupported", "unsupported_version"),
    ],
)
def test_what_can_go_wrong(run, monkeypatch, outcome, mode, code) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    monkeypatch.setenv("FAKE_OUTCOME", outcome)
    report = run(tools=["initcheck"])
    assert report.problem is not None
    assert report.problem.code == code
    assert not report.clean


def test_what_a_solution_leaves_does_not_matter_to_the_next_tool(run) -> None:
    report = run("folder", tools=["memcheck", "initcheck"])
    assert [one.problem.code for one in report.checks] == ["crashed", "crashed"]


def test_a_stopped_check(run) -> None:
    stop = threading.Event()
    stop.set()
    assert run(stop=stop).problem.code == "interrupted"


def test_text_for_agents(dataset, sanitizer, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_MODE", "findings")
    monkeypatch.setenv("FAKE_OUTCOME", DONE)
    options = {"trace_set_path": str(dataset), "sanitizer_path": sanitizer, "device": "cpu"}
    text = flashinfer_bench_run_sanitizer("good", "two", sanitizer_types=["memcheck"], **options)
    assert text.startswith("memcheck:\n========= COMPUTE-SANITIZER")
    options["sanitizer_types"] = ["racecheck"]
    short = flashinfer_bench_run_sanitizer("good", "two", max_lines=3, **options)
    assert len(short.splitlines()) == 4
    wrong = {**options, "sanitizer_types": ["x"]}
    text = flashinfer_bench_run_sanitizer("good", "two", **wrong)
    assert text.startswith("ERROR: no tool of compute-sanitizer: x")
    monkeypatch.setenv("FAKE_MODE", "good")
    monkeypatch.setenv("FAKE_OUTCOME", '{"stage": "call"}')
    text = flashinfer_bench_run_sanitizer("good", "two", **options)
    assert text.startswith("ERROR: racecheck:")
