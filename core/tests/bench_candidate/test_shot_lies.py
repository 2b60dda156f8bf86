"""Processes that lie about what was returned and where it is: solutions that patch the session."""

from __future__ import annotations

import random
import textwrap

import pytest
import torch

from flashinfer_bench.bench.executors.base import CandidateError, CandidateMisbehaved
from flashinfer_bench.bench.executors.frozen import why_not
from flashinfer_bench.data import RandomInput, Workload
from flashinfer_bench.tensors.vary import draw_variation, freedoms

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"here {why_not()}")

INPUTS = [torch.ones(8), torch.zeros(8)]  # whatever happens to signs, the sums are 1 or -1
LIAR = """
import flashinfer_bench.bench.candidate.shots as shots
import flashinfer_bench.bench.transport.messages as wire
true = shots.announce
def announce(value):
    record, place = true(value)
    {lie}
    return record, place
shots.announce = announce
def run(x, y):
    return x + y
"""


@pytest.fixture
def fired(bench, definition_of, solution_of):
    """Return a function that loads source text, and fires one call of it."""

    def fire(code):
        candidate = bench.spawn()
        candidate.load(definition_of(), solution_of(code), timeout_s=30)
        workload = Workload(axes={"n": 8}, inputs=dict.fromkeys("xy", RandomInput()), uuid="w")
        free = freedoms(definition_of(), workload, INPUTS)
        ways = [each.way for each in free]
        candidate.put_inputs(0, INPUTS, {"n": 8}, ways=ways, timeout_s=30)
        variation = draw_variation(free, INPUTS, 0, random.Random(1))
        candidate.stage(variation, timeout_s=30)
        candidate.fire(variation, timer="cpu", timeout_s=30)
        return candidate

    return fire


@pytest.fixture
def lying(fired):
    return lambda lie: fired(LIAR.format(lie=textwrap.dedent(lie).strip()))


def test_nobody_lies(lying):
    assert torch.equal(lying("pass").collect(timeout_s=30)[0].abs(), torch.ones(8))


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("place.address = 0", "readable"),
        ("place.address = 2**62", "readable"),
        ("place.address += 2**40", "readable"),
        ("place.span = 0", "from first"),
        ("place.span = 2**47", "from first"),
        ("place.strides = [2]", "from first"),
        ("place.strides = [2**47]", "from first"),
        ("place.strides = []", "strides"),
        ("place.strides = [1, 1]", "strides"),
        ("record.shape = [9]", "bytes"),
        ("record.shape, record.nbytes = [9], 36", "from first"),
        ("record.shape, place.strides = [2, 4], [1]", "strides"),
        ("record.nbytes = 4", "bytes"),
        ("record.dtype = 'float64'", "bytes"),
        ("record.dtype = 'float33'", "not a tensor"),
        ("record.shape = [2**40] * 20", "not a tensor"),
        ("record.shape, place.strides = [2] * 60, [1] * 60", "bytes"),
        ("place = None", "no address"),
    ],
)
def test_it_is_ended(lying, exists, lie, words):
    candidate = lying(lie)
    with pytest.raises(CandidateMisbehaved, match=words):
        candidate.collect(timeout_s=30)
    assert not candidate.alive
    assert not exists(candidate.pid)


def test_a_wide_spread_needs_no_memory_of_the_judge(lying):
    lie = """record.shape, record.nbytes = [2], 8; place.strides, place.span = [2**38], 2**40 + 4"""
    with pytest.raises(CandidateMisbehaved, match="are allowed"):
        lying(lie).collect(timeout_s=30)


def test_a_giant_comes_without_data_whatever_its_address(lying):
    candidate = lying("record.shape, record.nbytes, place.address = [2**40], 2**42, 1")
    (got,) = candidate.collect(timeout_s=30)
    assert got.is_meta


def test_a_false_address_gives_false_outputs_and_no_more(lying):
    """Memory that it may read is its own: it could have returned that, too."""
    candidate = lying(
        "import torch; global kept; kept = torch.zeros(8); place.address = kept.data_ptr()"
    )
    assert torch.equal(candidate.collect(timeout_s=30)[0], torch.zeros(8))


@pytest.mark.parametrize(
    "change",
    [
        "places = places[:-1]",
        "places = places + places",
        "values = []",
        "values = values * 2",
        "values = values * 300; places = places * 300",
        "sample = -1.0",
        "sample = float('nan')",
        "sample = 1e12",
        "sample = 'fast'",
        "values = [wire.IntValue(1 << 70)]",
    ],
)
def test_an_answer_that_makes_no_sense(fired, change):
    code = f"""
        import flashinfer_bench.bench.candidate.shots as shots
        import flashinfer_bench.bench.transport.messages as wire
        true = shots.Shots.fire
        def fire(self, *arguments):
            sample, values, places = true(self, *arguments)
            {change}
            return sample, values, places
        shots.Shots.fire = fire
        def run(x, y):
            return x + y
    """
    with pytest.raises(CandidateError) as caught:
        fired(textwrap.dedent(code))
    assert isinstance(caught.value, CandidateMisbehaved)


def test_it_cannot_make_its_memory_unreadable(fired):
    """As long as the judge is not an administrator, whom nothing keeps out."""
    code = """
        import ctypes
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        def run(x, y):
            return x + y
    """
    candidate = fired(textwrap.dedent(code))
    try:
        (got,) = candidate.collect(timeout_s=30)
    except CandidateMisbehaved as error:
        assert "unreadable" in str(error)  # noqa: PT017 - either is right
    else:
        assert torch.equal(got.abs(), torch.ones(8))


def test_inputs_that_there_are_not(fired):
    code = """
        import flashinfer_bench.bench.candidate.inputs as inputs
        inputs.InputSet.changed = lambda self: [1, 0, 1, 99]
        def run(x, y):
            return x + y
    """
    assert fired(textwrap.dedent(code)).changed_inputs(timeout_s=30) == [0, 1, 99]
