from __future__ import annotations

import pytest

from flashinfer_bench.bench.executors.exits import describe_exit


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-6, "was killed by signal 6 (SIGABRT)"),
        (-9, "was killed by signal 9 (SIGKILL; perhaps memory ran out)"),
        (-40, "was killed by signal 40 (a real-time signal)"),
        (None, "ended for an unknown reason"),
    ],
)
def test_describe_exit(code, words):
    assert describe_exit(code) == words
