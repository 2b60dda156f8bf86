"""The commands of ``fib report`` answer from the index: they never read a dataset's traces."""

from __future__ import annotations

import re

import pytest

from flashinfer_bench.data import TraceSet, trace_set

COMMANDS = [
    ["summary"],
    ["summary", "--hardware", "h200"],
    ["best"],
    ["best", "--authors", "alice"],
    ["scores"],
    ["scores", "--by-solution"],
    ["scores", "--reference"],
    ["coverage"],
    ["coverage", "--gaps", "--definitions", "double"],
    ["regressions", "--since", "2026-02-01"],
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
@pytest.mark.parametrize("form", [["--json"], ["--format", "csv"]], ids=" ".join)
def test_no_traces_are_read_and_the_answer_is_the_same(answer, dataset, command, form):
    line = [*command, "--local", dataset, *form]
    found, expected = (answer(*line, in_memory=flag) for flag in (False, True))
    assert (found.exit_code, found.output) == (expected.exit_code, expected.output)
    assert found.exit_code in (0, 1)
    assert found.stdout


@pytest.mark.parametrize("command", [["best"], ["summary"], ["coverage"]], ids=" ".join)
def test_nor_are_they_for_names_that_do_not_exist(answer, dataset, command):
    line = [*command, "--definitions", "dubble", "--local", dataset]
    found, expected = (answer(*line, in_memory=flag) for flag in (False, True))
    assert (found.exit_code, found.output) == (expected.exit_code, expected.output)
    assert found.exit_code not in (0, 1)


def test_nor_for_a_dataset_of_traces_alone(answer, maker):
    maker.trace("gone", "lost")
    found = answer("summary", "--local", maker.root, "--json", in_memory=False)
    assert found.exit_code == 0
    assert '"traces": 1' in found.stdout


def test_an_empty_dataset_is_refused_as_ever(answer, maker):
    found = answer("summary", "--local", maker.root, in_memory=False)
    assert found.exit_code not in (0, 1)
    assert "there is nothing in the dataset" in found.output


def test_the_page_is_the_same(answer, dataset, tmp_path):
    pages = []
    for flag in (False, True):
        output = tmp_path / f"{flag}.html"
        found = answer("visualize", "--local", dataset, "-o", output, in_memory=flag)
        assert found.exit_code == 0
        # When it was made is all that may differ.
        pages.append(re.sub(r"at \d{4}-\d\d-\d\d \d\d:\d\d UTC", "", output.read_text()))
    assert pages[0] == pages[1]
