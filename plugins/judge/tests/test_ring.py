"""Calls in the judge's memory, by real processes: what came after the answer does not count."""

import random
import time
from types import SimpleNamespace

import pytest
import torch

from fib_judge.ring import DeviceTurns
from fib_judge.timed import Course
from flashinfer_bench.bench.calls import Attempt
from flashinfer_bench.bench.evaluators import DefaultEvaluator, Trial
from flashinfer_bench.bench.measurement import DeviceBaseline
from flashinfer_bench.bench.pool import Worker
from flashinfer_bench.bench.sandbox import Sandbox
from flashinfer_bench.bench.transport.deadline import Deadline

SIZES = 64, 40_000  # elements: the process is stopped while more than 64 KiB are filled in
STYLES = pytest.mark.parametrize("dps", [False, True], ids=["returns", "writes"])
LATE = "outputs were still written after the answer"
LATE_S, SETTLED_S = 0.4, 1.0
"""From the answer until something comes late, and until the judge looks."""


@pytest.fixture
def made(bench, definition_of, solution_of, problems, session, settings):
    """``made(source)``: a function that makes courses of a size; one process has loaded a solution.

    What it is to compute is ``z = x + y``, unless the definition is another.
    """
    courses = []

    def make(source, *, dps=False, **definition):
        described, solution = definition_of(**definition), solution_of(source, dps=dps)
        worker = Worker(bench.spawn(), Sandbox("off"), "cpu")
        worker.load(described, solution, timeout_s=30)

        def course_of(n, values=None):
            inputs = [torch.zeros(n), torch.zeros(n)] if values is None else values
            baseline = DeviceBaseline(
                *(described, problems.workload(n=n), solution, DefaultEvaluator(), settings()),
                root=None,
                device="cpu",
                seed=0,
                trials=(Trial(0, 0, inputs, []),),
            )
            attempt = Attempt(session(timer="cpu"), solution, baseline, worker, Deadline(60))
            drawn = SimpleNamespace(
                packed=lambda number: None, written=set(), draw=lambda values: values
            )  # each is its own number
            courses.append(Course(attempt, drawn, random.Random(5)))
            return courses[-1]

        return course_of

    yield make
    for course in courses:
        course.close()


def call(course, values, *, settled_s=0.0):
    """Make a call, and return its outputs and what is wrong with it."""
    course.fire(values, secured=True)
    time.sleep(settled_s)
    return course.outputs(), course.turn.problem()


def draws(n, count):
    return [[torch.randn(n), torch.randn(n)] for _ in range(count)]


HONEST = {
    "contiguous": ("x + y", lambda x, y: x + y),
    "in place on a copy": ("x.clone().add_(y)", lambda x, y: x + y),
    "a column": ("torch.stack([x + y, x], 1)[:, 0]", lambda x, y: x + y),
    "expanded": ("(x[0] + y[0]).expand(len(x))", lambda x, y: (x[0] + y[0]).expand(len(x))),
    "its input": ("x", lambda x, y: x),
    "a part of its inputs": ("y.view(-1)[:]", lambda x, y: y),
    "a parameter": ("torch.nn.Parameter(x + y)", lambda x, y: x + y),
    "conjugated": ("torch.complex(x, y).conj().imag", lambda x, y: -y),
}
OTHERS = {
    "transposed": (["n", "2"], "torch.stack([x, y]).t()", lambda x, y: torch.stack([x, y], 1)),
    "a number": (None, "float(x[0])", lambda x, y: x[0]),
    "without dimensions": (None, "x[0] + y[0]", lambda x, y: x[0] + y[0]),
}
SEVERAL = {"a": {"shape": ["n"], "dtype": "float32"}, "b": {"shape": ["2"], "dtype": "float32"}}


def assert_honest(course_of, expected):
    for n in SIZES:
        course = course_of(n)
        for values in draws(n, 6):  # more than there are slots
            outputs, problem = call(course, values)
            assert problem is None
            for one, right in zip(outputs, expected(*values), strict=True):
                torch.testing.assert_close(torch.as_tensor(one), right)


def returning(result):
    return f"import torch\ndef run(x, y):\n    return {result}"


class TestHonest:
    @pytest.mark.parametrize("name", HONEST)
    def test_whatever_its_output_is(self, name, made):
        result, expected = HONEST[name]
        assert_honest(made(returning(result)), lambda x, y: [expected(x, y)])

    @pytest.mark.parametrize("name", OTHERS)
    def test_other_shapes(self, name, made):
        shape, result, expected = OTHERS[name]
        outputs = {"z": {"shape": shape, "dtype": "float32"}}
        assert_honest(made(returning(result), outputs=outputs), lambda x, y: [expected(x, y)])

    @pytest.mark.parametrize("result", ["[x + y, x[:2]]", "{'b': x[:2], 'a': x + y}"])
    def test_several_outputs(self, result, made):
        course_of = made(returning(result), outputs=SEVERAL)
        assert_honest(course_of, lambda x, y: [x + y, x[:2]])

    def test_written_where_it_is_told(self, made):
        source = "import torch\ndef run(x, y, z):\n    torch.add(x, y, out=z)"
        assert_honest(made(source, dps=True), lambda x, y: [x + y])

    @STYLES
    def test_of_nothing(self, dps, made):
        course = made("def run(x, y, *z):\n    return None if z else x + y", dps=dps)(0)
        outputs, problem = call(course, *draws(0, 1))
        assert (outputs[0].shape, problem) == ((0,), None)

    def test_other_types_and_a_scalar(self, made):
        inputs = {
            "x": {"shape": ["n"], "dtype": "bfloat16"},
            "i": {"shape": ["n"], "dtype": "int64"},
            "s": {"shape": None, "dtype": "float32"},
        }
        source = "def run(x, i, s):\n    return x[i].float() * s"
        x, i = torch.randn(64).bfloat16(), torch.randperm(64)
        course = made(source, inputs=inputs, reference=source)(64, [x, i, 2.5])
        outputs, problem = call(course, [x, i, 2.5])
        assert outputs[0].equal(x[i].float() * 2.5)
        assert problem is None


STARTS = {
    "a thread": """
import threading
def start(work):
    threading.Thread(target=work).start()
""",
    "a child": """
import os
def start(work):
    if os.fork() == 0:
        work()
        os._exit(0)
""",
}
LATER = f"""
import mmap, time, torch
torch.set_num_threads(1)  # a child has none of the others
def run(x, y, *z):
    room = torch.frombuffer(mmap.mmap(-1, 4 * len(x)), dtype=torch.float32)
    out = z[0] if z else room.fill_(0.5)
    def work():
        time.sleep({LATE_S})
        torch.add(x, y, out=out)
    start(work)
    return None if z else out
"""
ANSWERS = """
import sys, time, torch
from flashinfer_bench.bench import memory
def run(x, y, *z):
    out, other = z[0] if z else torch.full_like(x, 0.5), torch.zeros_like(x)
    frame = sys._getframe()
    while "words" not in frame.f_locals:
        frame = frame.f_back
    words = frame.f_locals["words"]
    words[memory.ADDRESSES] = {address}
    words[memory.DONE] = words[memory.GO]
    time.sleep(0.2)
    torch.add(x, y, out=out)
    return None if z else {result}
"""


class TestCheats:
    @STYLES
    @pytest.mark.parametrize("who", STARTS)
    def test_what_writes_on_after_the_answer(self, who, dps, made):
        course_of = made(STARTS[who] + LATER, dps=dps)
        for n in SIZES:
            (values,) = draws(n, 1)
            outputs, problem = call(course_of(n), values, settled_s=SETTLED_S)
            assert outputs[0].equal(values[0] + values[1])
            assert problem == LATE

    @pytest.mark.parametrize(
        ("address", "dps"),
        [("0", True), *((one, False) for one in ("out.data_ptr()", "other.data_ptr()", "0", "7"))],
    )
    def test_an_answer_of_its_own_that_comes_early(self, address, dps, made):
        course_of = made(ANSWERS.format(address=address, result="out"), dps=dps)
        for n in SIZES:
            (values,) = draws(n, 1)
            outputs, problem = call(course_of(n), values)
            assert outputs[0].equal(values[0] + values[1])
            assert problem == LATE

    def test_a_number_that_is_told_after_the_answer(self, made):
        source = ANSWERS.format(address="memory.word_of(0.5)", result="float(x[0])")
        course = made(source, outputs={"z": {"shape": None, "dtype": "float32"}})(64)
        (values,) = draws(64, 1)
        assert call(course, values) == ([float(values[0][0])], LATE)

    @pytest.mark.parametrize("result", [HONEST["a column"][0], HONEST["expanded"][0]])
    def test_gaps_that_are_left_where_nobody_looks(self, result, made):
        """Processes of their own accord return tensors without."""
        module = "flashinfer_bench.bench.candidate.timed_calls"
        patch = f"import {module} as timed_calls\ntimed_calls._dense = lambda one: one\n"
        course = made(patch + returning(result))(64)
        assert call(course, *draws(64, 1))[1] == LATE

    @STYLES
    @pytest.mark.parametrize("change", ["y.zero_()", "x[len(x) // 2 :] = 0"])
    def test_an_input_that_is_overwritten(self, change, dps, made):
        source = f"""
def run(x, y, *z):
    found = x + y
    {change}
    return z[0].copy_(found) if z else found
"""
        course_of = made(source, dps=dps)
        for n in SIZES:
            (values,) = draws(n, 1)
            outputs, problem = call(course_of(n), values)
            assert outputs[0].equal(values[0] + values[1])
            assert problem == "an input was overwritten"

    def test_outputs_that_are_left_as_they_are(self, made):
        """What an earlier call has written there is gone."""
        course = made("def run(x, y, z):\n    x[0] < 0 or z.copy_(x + y)", dps=True)(64)
        for number, values in enumerate(draws(64, 8)):
            values[0][0] = 1 if number < 4 else -1
            (output,), _ = call(course, values)
            assert output.isnan().all() == (number >= 4)


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_gpu_is_given(made, monkeypatch, count):
    """Its writing needs no GPU: some words come last, and until then others of them lie there."""
    ring = made("def run(x, y):\n    return x + y\n")(5_000).ring
    monkeypatch.setattr(ring, "wait", lambda: None)
    flushed = []
    monkeypatch.setattr(ring, "flush", lambda: flushed.append(True))
    for again in range(4):
        values = [[torch.randn(5_000), torch.randn(5_000)] for _ in range(count)]
        packed = list(map(ring.packed, values))
        turns = DeviceTurns(ring, packed, random.Random(again), secured=True)
        turns.fill()
        for slot, given in enumerate(packed):
            room = ring.room(slot)
            other = (room != given).view(-1, 4).any(1)
            assert 2_000 < int(other.sum()) <= 2 * 2_500
            words = room.view(torch.int32), given.view(torch.int32)
            assert sorted(words[0].tolist()) == sorted(words[1].tolist())
            assert all(output.isnan().all() for output in ring.parts(slot)[1])
        turns.before()
        turns.last()
        for slot, given in enumerate(packed):
            assert ring.room(slot).equal(given)
            assert all(map(torch.equal, ring.parts(slot)[0], values[slot]))
            ring.parts(slot)[1][0].copy_(values[slot][0] + values[slot][1])
        turns.answered([])
        ring.parts(0)[0][1][7] = 1.0
        ring.parts(0)[1][0].zero_()
        turns.after()
        for slot, part in enumerate(turns.parts):
            changed = ({1}, "an input was overwritten") if slot == 0 else (set(), None)
            assert (part.overwritten(), part.problem()) == changed
            (output,) = part.outputs
            assert output.equal(values[slot][0] + values[slot][1])
    assert len(flushed) == 4  # caches are to be cold


def test_a_gpu_may_be_given_nothing(made, monkeypatch):
    ring = made("def run(x, y):\n    return x + y\n")(0).ring
    monkeypatch.setattr(ring, "wait", lambda: None)
    monkeypatch.setattr(ring, "flush", lambda: None)
    packed = [ring.packed([torch.zeros(0), torch.zeros(0)]) for _ in range(3)]
    turns = DeviceTurns(ring, packed, random.Random(0), secured=True)
    for step in (turns.fill, turns.before, turns.last, lambda: turns.answered([]), turns.after):
        step()
    for part in turns.parts:
        assert [tuple(output.shape) for output in part.outputs] == [(0,)]
        assert part.problem() is None
