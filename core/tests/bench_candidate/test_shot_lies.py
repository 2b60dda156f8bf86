"""Processes that lie about calls and what they return: solutions that patch the session."""

from __future__ import annotations

import random
import textwrap

import pytest
import torch

from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateError,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
)
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
def staged(bench, definition_of, solution_of):
    """Return a function that loads source text, and stages one call of it."""

    def stage(code):
        candidate = bench.spawn()
        candidate.load(definition_of(), solution_of(code), timeout_s=30)
        workload = Workload(axes={"n": 8}, inputs=dict.fromkeys("xy", RandomInput()), uuid="w")
        free = freedoms(definition_of(), workload, INPUTS)
        ways = [each.way for each in free]
        candidate.put_inputs(0, INPUTS, {"n": 8}, ways=ways, timeout_s=30)
        variation = draw_variation(free, INPUTS, 0, random.Random(1))
        candidate.stage(variation, timeout_s=30)
        return candidate, variation

    return stage


@pytest.fixture
def fired(staged):
    """Return a function that loads source text, and fires one call of it."""

    def fire(code):
        candidate, variation = staged(code)
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


TELLER = """
import os, time
import flashinfer_bench.bench.candidate.shots as shots
import flashinfer_bench.bench.transport.messages as wire
from flashinfer_bench.bench.transport.channel import pack
true = shots.Shots.fire
def fire(self, timer, changes, tell, *others):
    packed, never = tell.args
    def say(data):
        tell.func(data, never)
    def told():
        {told}
    answer = true(self, timer, changes, told, *others)
    {after}
    return answer
shots.Shots.fire = fire
def run(x, y):
    {call}
    return x + y
"""


class TestChanged:
    """What is said about the inputs being in place, and when."""

    @pytest.fixture
    def shoot(self, staged):
        """Return a function that fires a call of a process that says what it is told to say."""

        def fire(told="tell()", *, after="pass", call="pass", timeout_s=30.0):
            code = TELLER.format(told=told, after=after, call=call)
            self.candidate, variation = staged(code)
            return self.candidate.fire(variation, timer="cpu", timeout_s=timeout_s)

        return fire

    def test_nobody_lies(self, shoot):
        shot = shoot()
        assert min(shot.change_s, shot.wall_s) > 0
        assert torch.equal(self.candidate.collect(timeout_s=30)[0].abs(), torch.ones(8))

    @pytest.mark.parametrize(
        ("told", "words"),
        [
            ("pass", "Fired came where Changed is due"),
            ("tell(); tell()", "Changed came where Fired is due"),
            ("say(pack(wire.Changed(1)))", "an answer to another request"),
            ("say(pack(wire.Changed(1))); tell()", "an answer to another request"),
            ("tell(); say(pack(wire.Changed(1)))", "an answer to another request"),
            ("say(packed.replace(b'Changed', b'Dhanged'))", "not allowed"),
            ("say(packed.replace(b'C', b'B', 1))", "a frame of kind"),
            ("say(packed.replace(b'FIB', b'FUB'))", "no frame"),
            ("say(packed.replace(b'\"Changed\"', b'\"Done\"   '))", "Done came where Changed"),
            ("say(packed[:20]); os._exit(0)", "inside a frame|exited with code 0"),
        ],
    )
    def test_it_is_ended(self, shoot, exists, told, words):
        with pytest.raises((CandidateMisbehaved, CandidateCrashed), match=words):
            shoot(told)
        assert not self.candidate.alive
        assert not exists(self.candidate.pid)

    def test_said_again_after_the_call(self, shoot):
        """It comes before the answer."""
        with pytest.raises(CandidateMisbehaved, match="Changed came where Fired is due"):
            shoot(after="tell()")

    def test_death_after_it(self, shoot):
        with pytest.raises(CandidateCrashed, match="code 5"):
            shoot("tell(); os._exit(5)")

    @pytest.mark.parametrize(
        "told", ["time.sleep(60)", "tell(); time.sleep(60)", "say(packed[:9]); time.sleep(60)"]
    )
    def test_silence(self, shoot, exists, told):
        with pytest.raises(CandidateTimeout):
            shoot(told, timeout_s=0.5)
        assert not exists(self.candidate.pid)

    @pytest.mark.parametrize("told", ["1 / 0", "tell(); 1 / 0"])
    def test_a_failure_in_place_of_either(self, shoot, told):
        with pytest.raises(CandidateFailed, match="ZeroDivisionError"):
            shoot(told)
        assert self.candidate.alive

    def test_another_spelling(self, shoot):
        """It is a message like any other."""
        shoot("""
        body = packed[12:].replace(b',', b' , ')
        say(packed[:4] + len(body).to_bytes(8, 'little') + body)""")
        assert self.candidate.alive

    @pytest.mark.parametrize(
        ("told", "call"),
        [
            ("time.sleep(0.1); tell(); time.sleep(0.2)", "pass"),
            ("say(packed[:5]); time.sleep(0.1); say(packed[5:]); time.sleep(0.2)", "pass"),
            ("say(packed[:12]); time.sleep(0.1); say(packed[12:])", "time.sleep(0.2)"),
        ],
    )
    def test_it_has_come_when_all_of_it_has(self, shoot, told, call):
        shot = shoot(told, call=call)
        assert shot.change_s >= 0.1
        assert shot.wall_s >= 0.1  # the judge may have been late to hear it

    def test_early_or_late_the_whole_is_what_it_is(self, shoot):
        early = shoot("tell(); time.sleep(0.5)")
        late = shoot("time.sleep(0.5); tell()")
        assert early.change_s + early.wall_s >= 0.5
        assert late.change_s >= 0.5

    def test_an_answer_whose_end_comes_late(self, staged):
        """Its beginning stops no clock."""
        code = """
            import time
            from flashinfer_bench.bench.transport.channel import Channel, pack
            true = Channel.send
            def send(self, message, deadline, blobs=()):
                if type(message).__name__ != "Fired":
                    return true(self, message, deadline, blobs)
                packed = pack(message)
                for part in (packed[:12], packed[12:-1], packed[-1:]):
                    time.sleep(0.05)
                    self.send_packed(part, deadline)
            Channel.send = send
            def run(x, y):
                return x + y
        """
        candidate, variation = staged(textwrap.dedent(code))
        assert candidate.fire(variation, timer="cpu", timeout_s=30).wall_s >= 0.11
