"""Routed calls while the interpreter is torn down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import fib_tests

ADAPTER = """
    import sys
    sys.path.insert(0, {folder!r})
    from flashinfer_bench.routing.routes import Understood, UnroutableError, route_calls
    from flashinfer_bench.routing.patch_points import router
    from fib_tests.routed_library import Library, Runtime, ScaleRoute, negative

    def fail(ending=sys.is_finalizing):
        return ending() and 1 // 0

    def refuse(ending=sys.is_finalizing, error=UnroutableError):
        if ending():
            raise error("no more")

    class Forgetful(ScaleRoute):
        def understand(self, input, weight):
            return Understood({understand}, (input, weight, 1e-6))

        def deliver(self, understood, result):
            return {deliver}

    class Late:
        '''Calls a patched function when it goes: after everything else has gone.'''

        def __init__(self):
            self.function = route_calls(Forgetful(), Library().function())
            self.ending, self.write = sys.is_finalizing, sys.__stdout__.write
            self.flush = sys.__stdout__.flush

        def __del__(self):
            self.write(f"{{self.ending()}} {{self.function([1.0, 2.0], 3)}}")
            self.flush()

    {enable}
    late = Late()
    print(late.function([1.0, 2.0], 3))
    import builtins
    # What is still held in the end loses its globals before this does.
    builtins.held = [*sys.modules.values()]
    builtins.late = late
"""

WORKS = {"understand": '"scale_h2"', "deliver": "result"}
ENABLE = 'router.push(Runtime(negative, "scale_h2"))'


def run(**code: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(fib_tests.__file__).parents[1])
    text = dedent(ADAPTER).format(**{"folder": folder, "enable": ENABLE, **WORKS, **code})
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "code",
    [
        {"understand": 'fail() or "scale_h2"'},
        {"understand": 'refuse() or "scale_h2"'},
        {"deliver": "fail() or result"},
        {"deliver": "refuse() or result"},
    ],
)
def test_an_adapter_that_is_gone_is_not_told_of(code):
    done = run(**code)
    assert done.stdout == "[-1.0, -2.0]\nTrue [3.0, 6.0]", done.stderr
    assert done.stderr == ""


def test_a_watcher_that_is_gone_is_not_told_of():
    watching = "router.observe(lambda *_: fail()) and router.clear()"
    done = run(deliver="result", understand='"scale_h2"', enable=watching)
    assert done.stdout == "[3.0, 6.0]\nTrue [3.0, 6.0]", done.stderr
    assert done.stderr == ""
