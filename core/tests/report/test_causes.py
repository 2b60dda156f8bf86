"""The line of a log that says what went wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report import cause
from flashinfer_bench.report.causes import NO_LOG


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", NO_LOG),
        (" \n\t\n", NO_LOG),
        ("no answer within 300 s", "no answer within # s"),
        ("first\nTraceback (most recent call last):\n  File 'x', line 3\nValueError: bad 7\ndone",
         "ValueError: bad #"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried 2.50 GiB",
         "torch.OutOfMemoryError: CUDA out of memory. Tried # GiB"),
        ("KeyError: 'a'\n\nDuring handling of the above:\n\nRuntimeError: at 0x7f00aB",
         "RuntimeError: at #"),
        ("cc x.cu\nkernel.cu(31): error: identifier foo\nx.cu(40): error: more\n2 errors detected",
         "kernel.cu(#): error: identifier foo"),
        ("nvcc fatal : unknown option", "nvcc fatal : unknown option"),
        ("worker was killed by SIGKILL\nlast words", "worker was killed by SIGKILL"),
        ("\x1b[31mValueError\x1b[0m: red", "ValueError: red"),
        ("saw h64_v2 and v1.2.3", "saw h64_v2 and v1.2.3"),
    ],
)  # fmt: skip
def test_causes(log, line):
    assert cause(log) == line


def test_equal_failures_look_equal():
    logs = [f"RuntimeError: bad value {n} at 0x{n:x}" for n in range(20)]
    assert len({cause(log) for log in logs}) == 1


@given(st.text())
def test_any_log_has_a_cause_of_one_short_line(log):
    line = cause(log)
    assert 1 <= len(line) <= 160
    assert len(line.splitlines()) == 1


def test_endless_lines_take_no_time():
    assert len(cause("error " * 200_000)) <= 160
    assert len(cause("e" * 2_000_000)) <= 160
