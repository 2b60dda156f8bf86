"""The commands of this plugin answer from the index: they never read a dataset's traces."""

from __future__ import annotations

import pytest

from flashinfer_bench.data import TraceSet, trace_set

COMMANDS = [
    ["scores"],
    ["coverage"],
    ["regressions", "--since", "2026-02-01", "--improvements", "--solutions", "alice_double"],
]


@pytest.fixture
def dataset(maker):
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.workload("triple", op_type="gemm")
    maker.trace("bob_triple", "triple", hardware="NVIDIA H200", status="TIMEOUT", log="Error: no")
    maker.trace("gone", hardware="NVIDIA H200")
    samples = [0.9, 1.0, 1.1, 1.2]
    for solution, latency in (("alice_double", 5.0), ("baseline_double", 1.0)):
        maker.trace(solution, latency_ms=latency, timestamp="2026-03-01", samples_ms=samples)
    return maker.root


@pytest.fixture
def answer(fib, monkeypatch):
    """Runs a command, with the traces in memory or without any way to read them."""
    original = TraceSet.from_path.__func__

    def refuse(*_):
        raise AssertionError("the traces were read")

    def touched(cls, *args, **options):
        opened = original(cls, *args, **options)
        assert opened.traces is not None
        return opened

    def run(*command, in_memory):
        with monkeypatch.context() as patch:
            if in_memory:
                patch.setattr(TraceSet, "from_path", classmethod(touched))
            else:
                patch.setattr(trace_set, "load_traces", refuse)
            return fib("report", *command)

    return run


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_traces_are_read_and_the_answer_is_the_same(answer, dataset, command):
    line = [*command, "--local", dataset, "--json"]
    found, expected = (answer(*line, in_memory=flag) for flag in (False, True))
    assert (found.exit_code, found.output) == (expected.exit_code, expected.output)
    assert found.exit_code in (0, 1)
    assert found.stdout
