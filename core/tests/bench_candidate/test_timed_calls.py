"""Timed calls of real processes: each sees what the judge wrote; nothing it tells is believed."""

from __future__ import annotations

import os
import signal
import time
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench import memory
from flashinfer_bench.bench.executors.base import (
    Attachment,
    CandidateCrashed,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
    Release,
    Round,
)
from flashinfer_bench.bench.executors.frozen import why_not
from flashinfer_bench.tensors import allocate_outputs, dtype_name, poison, tensor_to_bytes

stops = pytest.mark.skipif(why_not() is not None, reason=f"here {why_not()}")

N = 3000
ADD = "def run(x, y):\n    return x + y\n"
ADD_INTO = "def run(x, y, z):\n    z.copy_(x + y)\n"
ZEROS, ONES = torch.zeros(N), torch.ones(N)


def run(line):
    return f"import ctypes, os, time, torch\ndef run(x, y):\n    {line}\n"


def any_bits():
    """Return floats of any bits: infinite, subnormal, and what is no number, too."""
    return torch.randint(-(2**31), 2**31, (N,), dtype=torch.int32).view(torch.float32)


def bits(value):
    return (value.dtype, value.shape, bytes(tensor_to_bytes(value)[2]))


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def same(left, right):
    if is_tensor(left):
        return bits(left) == bits(right)
    return type(left) is type(right) and left == right


class Turn(Release):
    """Writes the inputs of a slot, poisons its outputs, and keeps what is there at the answer."""

    def __init__(self, views, values, stopped, hooks):
        self.views, self.values = views, values
        self.stopped, self.hooks = stopped, hooks

    def prepare(self):
        self.hooks.get("prepare", int)()

    def fill(self):
        tensors = list(filter(is_tensor, self.values))
        for view, value in zip(self.views, tensors, strict=False):
            view.copy_(value)
        self.outputs = self.views[len(tensors) :]
        for output in self.outputs:
            poison(output)
        self.hooks.get("fill", int)()

    def before(self):
        self.hooks.get("before", int)()

    def last(self):
        self.hooks.get("last", int)()

    def after(self):
        self.hooks.get("after", int)()

    def answered(self, addresses):
        self.addresses = list(addresses)
        self.at_answer = [output.clone() for output in self.outputs]
        self.hooks.get("answered", int)()


class Turns(Release):
    """The judge's side of calls in both slots."""

    def __init__(self, sets, values):
        self.turns = [Turn(*each, False, {}) for each in zip(sets, values, strict=True)]

    def fill(self):
        for turn in self.turns:
            turn.fill()

    def answered(self, addresses):
        for turn in self.turns:
            turn.answered(addresses)


class Range:
    """A candidate that has mapped two slots, and the judge's side of them."""

    def __init__(self, candidate, definition, inputs):
        self.candidate, self.definition, self.inputs = candidate, definition, inputs
        self.attach()

    def attach(self, **changes):
        tensors = [*filter(is_tensor, self.inputs), *allocate_outputs(self.definition, {"n": N})]
        kinds = [(one.shape, dtype_name(one.dtype)) for one in tensors]
        ends = list(accumulate((memory.size_of(*kind) for kind in kinds * 2), initial=0))
        self.room, page, half = memory.Memory(ends[-1]), memory.page(), len(kinds)
        at = zip(ends, kinds * 2, strict=False)
        views = [memory.tensor_at(self.room.tensor, start, *kind) for start, kind in at]
        self.sets, starts = (views[:half], views[half:]), (ends[:half], ends[half:-1])
        told = {"page": page, "memory": self.room, "inputs": self.inputs, "places": starts}
        attachment = Attachment(**{**told, "axes": {"n": N}, **changes})
        self.candidate.attach(attachment, timeout_s=30)

    def fire(self, slot=0, values=None, *, stopped=False, timeout_s=30.0, hooks=(), **how):
        """Make a call on new values, unless some are given."""
        values = values or [any_bits() if one is ZEROS else one for one in self.inputs]
        self.turn = Turn(self.sets[slot], values, stopped, dict(hooks))
        return self.candidate.fire(slot, timer="cpu", timeout_s=timeout_s, release=self.turn, **how)

    def fire_round(self, *, gated=False, patience_s=30.0, **how):
        """Make a call in each slot, in one exchange, on new values."""
        self.turn = Turns(self.sets, [[any_bits() for _ in self.inputs] for _ in self.sets])
        calls = Round((0, 1), gated=gated, touch=False, patience_s=patience_s)
        told = {"timer": "cpu", "timeout_s": 30.0, "release": self.turn, **how}
        return self.candidate.fire_round(calls, **told)

    def collect(self):
        return self.candidate.collect(timeout_s=30)

    def exchange(self, *call, **how):
        """Return what one call saw, and what it returned."""
        self.fire(*call, **how)
        return self.turn.values, self.collect()

    def works(self, slot=0):
        """Whether a call gives the sum of its inputs."""
        (x, y), (got,) = self.exchange(slot)
        return same(got, x + y)

    def fire_put(self, values, **how):
        """Make a call on inputs that are put."""
        self.candidate.put_inputs(0, values, {"n": N}, timeout_s=30)
        return self.candidate.fire(0, timer="cpu", timeout_s=30, **how)


@pytest.fixture
def range_of(bench, definition_of, solution_of):
    def start(code, *, dps=False, values=(ZEROS, ZEROS), **definition):
        candidate, made = bench.spawn(), definition_of(**definition)
        candidate.load(made, solution_of(code, dps=dps), timeout_s=30)
        return Range(candidate, made, list(values))

    return start


class TestRoundTrip:
    @pytest.mark.parametrize("stopped", [False, True])
    @pytest.mark.parametrize(("code", "dps"), [(ADD, False), (ADD_INTO, True)])
    def test_each_call_is_made_on_what_was_written_for_it(self, range_of, code, dps, stopped):
        place = range_of(code, dps=dps)
        for slot in (0, 1, 1, 0, 1):
            (x, y), (got,) = place.exchange(slot, stopped=stopped)
            assert same(got, x + y)
            assert not dps or same(place.turn.at_answer[0], x + y)

    def test_inputs_of_any_kind_come_bit_for_bit(self, range_of):
        values = [ZEROS, torch.randperm(N), torch.rand(N) > 0.5, torch.rand(N, 0).half(), 2.5]
        kinds = {"x": "float32", "i": "int64", "m": "bool", "e": "float16"}
        inputs = {name: {"shape": ["n"], "dtype": dtype} for name, dtype in kinds.items()}
        inputs["s"] = {"shape": None, "dtype": "float32"}
        reference = "def run(x, i, m, e, s):\n    return "
        place = range_of(
            f"{reference}x.clone(), i.clone(), m.clone(), e.clone(), s\n",
            values=values,
            inputs=inputs,
            reference=f"{reference}x\n",
        )
        for slot in (0, 1):
            seen, got = place.exchange(slot)
            assert all(map(same, got, seen))
            assert len(got) == len(seen)

    def test_what_is_written_last_counts(self, range_of):
        place, later = range_of(ADD), any_bits()
        _, (got,) = place.exchange(hooks={"last": lambda: place.turn.views[0].copy_(later)})
        assert same(got, later + place.turn.values[1])

    def test_memory_that_is_attached_takes_the_place_of_what_was(self, range_of, descriptors):
        place = range_of(ADD)
        place.attach()
        before = descriptors(place.candidate.pid)
        for _ in range(3):
            place.attach()
            assert place.works(1)
        assert descriptors(place.candidate.pid) == before

    def test_inputs_that_were_put_are_others(self, range_of):
        place, put = range_of(ADD), [any_bits(), any_bits()]
        assert place.works()
        place.fire_put(put)
        assert same(place.collect()[0], put[0] + put[1])
        assert place.works()


OUTPUTS = {
    "column": "x.reshape(-1, 10)[:, 3]",
    "transposed": "x.reshape(30, 100).T",
    "expanded": "x[:5].expand(4, 5)",
    "input itself": "x",
    "empty": "x[:0].reshape(0, 3)",
    "scalar tensor": "x[17]",
    "int": "41",
    "float": "0.1",
    "bool": "True",
    "mask": "x > y",
    "fp8": "x.to(torch.float8_e4m3fn)",
    "bf16": "x.bfloat16().reshape(30, 100).T",
    "conjugate": "torch.complex(x, y).conj()",
    "negated": "torch.complex(x, y).conj().imag",
    "parameter": "torch.nn.Parameter(x + y)",
}


class TestOutputs:
    @pytest.mark.parametrize("name", OUTPUTS)
    def test_of_every_kind(self, range_of, name):
        """Where they begin is told when the call is answered: without gaps, and not moved later."""
        place = range_of(run(f"return {OUTPUTS[name]}"))
        place.fire(values=[torch.randn(N), torch.randn(N)])
        wanted = eval(
            OUTPUTS[name], {"torch": torch, **dict(zip("xy", place.turn.values, strict=True))}
        )
        (shown,), (where,) = place.candidate.returned(), place.candidate.places()
        (got,) = place.collect()
        assert same(got, wanted)
        if is_tensor(wanted):
            assert (shown.is_meta, shown.shape, shown.dtype) == (True, wanted.shape, wanted.dtype)
            assert where == (place.turn.addresses[0], wanted.numel() * wanted.element_size())
        else:
            assert place.turn.addresses[0] == memory.word_of(wanted)

    def test_of_a_mapping_are_told_in_the_order_declared(self, range_of):
        outputs = {name: {"shape": ["n"], "dtype": "float32"} for name in "abc"}
        place = range_of(run("return {'c': x + y, 'a': x - y, 'b': x * y}"), outputs=outputs)
        pieces, look = [], place.candidate.peeker([0, 40], 4)
        hooks = {"answered": lambda: pieces.extend(map(look, place.turn.addresses[:3]))}
        (x, y), got = place.exchange(values=[ONES, torch.randn(N)], hooks=hooks)
        assert all(map(same, got, (x - y, x * y, x + y)))
        assert [address for address, _ in place.candidate.places()] == place.turn.addresses[:3]
        if why_not() is None:
            assert pieces == [bits(one[[0, 10]])[2] for one in got]

    def test_any_bits_in_a_mask_are_true_or_false(self, range_of):
        code = run("return torch.arange(8, dtype=torch.uint8).view(torch.bool)")
        _, (got,) = range_of(code).exchange()
        assert got.view(torch.uint8).tolist() == [0] + [1] * 7

    @pytest.mark.parametrize(
        "text", ["object()", "x.to_sparse()", "2**80", "Lazy(x)", "[x] * 300", "{'q': x}"]
    )
    def test_what_cannot_be_sent_is_the_solution_s_failure(self, range_of, text):
        place = range_of(run(f"return {text}") + "class Lazy(torch.Tensor): pass\n")
        with pytest.raises(CandidateFailed):
            place.fire()
        assert place.candidate.alive

    @pytest.mark.parametrize("dtype", ["float32", "bool", "int32", "float8_e4m3fn"])
    def test_what_is_not_written_is_poison(self, range_of, dtype):
        code = "def run(x, y, z):\n    x[0] == 1 and z.fill_(1)\n"
        place = range_of(code, dps=True, outputs={"z": {"shape": ["n"], "dtype": dtype}})
        (expected,) = allocate_outputs(place.definition, {"n": N})
        assert not same(place.exchange(values=[ONES, ONES])[1][0], expected)
        assert same(place.exchange(values=[ZEROS, ONES])[1][0], expected)
        for _ in range(2):
            place.fire_put(place.inputs)
            assert same(place.collect()[0], expected)


THREAD = """
import threading, time
def later(x, y, z):
    time.sleep(1)
    z.copy_(x + y)
def count(y):
    while True:
        y[0] += 1
def run(*args):
    threading.Thread(target={what}, daemon=True).start()
"""


@stops
class TestStandingStill:
    def test_what_was_not_computed_at_the_end_is_not_in_the_outputs(self, range_of):
        place = range_of(THREAD.format(what="later, args=args"), dps=True)
        for _ in range(2):
            assert place.exchange()[1][0].isnan().all()
            stat = Path(f"/proc/{place.candidate.pid}/stat").read_text()
            assert stat.rpartition(")")[2].split()[0] in "Tt"
            assert place.candidate.alive

    @pytest.mark.parametrize("stopped", [True, False])
    def test_while_inputs_are_written(self, range_of, stopped):
        place, still = range_of(THREAD.format(what="count, args=args[1:]") + "    return 1\n"), []
        place.fire(values=[ZEROS, ZEROS])

        def look():
            number = place.turn.views[1][:1]
            before, end = number.item(), time.monotonic() + (0.1 if stopped else 10.0)
            while time.monotonic() < end and number.item() == before:
                time.sleep(0.001)
            still.append(number.item() == before)

        fired = place.fire(values=[ZEROS, ZEROS], stopped=stopped, hooks={"fill": look})
        assert still == [stopped]
        assert (fired.woken_ms > 0) == stopped


class TestClock:
    FORGED = """
from flashinfer_bench.bench.timing.wall import WallClockTimer
honest = WallClockTimer.time_call
def forged(self, *args, **options):
    return 0.001, honest(self, *args, **options)[1]
WallClockTimer.time_call = forged
"""

    @pytest.mark.parametrize("forged", [False, True])
    def test_the_judge_s_is_that_of_the_call_whatever_the_sample(self, range_of, forged):
        place = range_of(self.FORGED * forged + run("time.sleep(0.02); return x"))
        hooks = ("prepare", "fill", "before", "last", "answered", "after")
        sleep = {hook: lambda: time.sleep(0.02) for hook in hooks}
        began = time.perf_counter()
        fired = place.fire(hooks=sleep)
        elapsed = time.perf_counter() - began
        assert (fired.timer, fired.timer_version, fired.sample_ms) == ("cpu", "3", 0)
        assert 40 <= fired.wall_ms <= fired.secured_ms - 20 <= elapsed * 1e3 - 100
        put = place.fire_put(place.inputs)
        assert put.sample_ms == 0.001 if forged else 20 <= put.sample_ms <= put.wall_ms

    @pytest.mark.parametrize("empty", [True, False])
    def test_of_all_but_the_call(self, range_of, empty):
        place = range_of(run("print('call'); return x"))
        assert place.fire(empty=empty).wall_ms > 0
        assert place.candidate.log() == ""
        ((address, _),) = place.candidate.places()
        assert place.turn.addresses[0] == (0 if empty else address)
        place.fire()
        assert set(place.candidate.log().split()) == {"call"}

    def test_a_short_call_is_rehearsed_on_what_lies_there(self, range_of):
        """Not one that took long the last time."""
        place = range_of(run("print(int(x[0])); time.sleep(0.02 * int(x[0] == 1)); return x"))
        place.sets[0][0].fill_(7)
        for number in (1, *[2] * 20):
            place.fire(values=[torch.full((N,), float(number)), ONES])
        said = place.candidate.log().split()
        assert list(dict.fromkeys(said)) == ["7", "1", "2"]
        assert said.count("2") > 20

    def test_caches_are_emptied_on_demand_before_a_call_on_inputs_that_were_put(self, range_of):
        code = """
import flashinfer_bench.bench.candidate.caches as caches
caches.CpuCaches.flush = lambda self: print("flush")
"""
        place = range_of(code + run("print('call'); return x"))
        for cold in (False, True):
            place.fire_put(place.inputs, cold=cold)
        assert place.candidate.log().split() == ["call", "flush", "call"]
        place.fire(cold=True)
        assert "flush" not in place.candidate.log().split()[3:]


LIAR = """
import os, time
import flashinfer_bench.bench.candidate.timed_calls as timed_calls
import flashinfer_bench.bench.transport.messages as wire
from flashinfer_bench.bench import memory
from flashinfer_bench.bench.transport.frames import FrameKind, header_of
true = timed_calls.TimedCalls.fire
def fire(self, timer, subject, inputs, request, page):
    global words, go
    go = request.go
    class Proxy:
        def __getitem__(self, at):
            {get}
            return page[at]
        def __setitem__(self, at, value):
            {set}
            page[at] = value
    words = Proxy() if {proxy} else page
    {before}
    sample, values, places = true(self, timer, subject, inputs, request, words)
    {after}
    return sample, values, places
timed_calls.TimedCalls.fire = fire
def run(x, y):
    if words[memory.GO] == go: {call}
    return x + y
"""


@pytest.fixture
def lying(range_of):
    """Return a function that starts a process that does something before, in or after a call."""

    def start(**what):
        told = dict.fromkeys(("before", "call", "after", "get", "set"), "pass")
        return range_of(LIAR.format(**told | what, proxy=not {"get", "set"}.isdisjoint(what)))

    return start


@pytest.mark.parametrize("when", ["before", "call", "after"])
class TestInTheMiddle:
    """Of a call: while the judge waits for the page, or for what follows."""

    def test_silence(self, lying, exists, when):
        place = lying(**{when: "time.sleep(100)"})
        with pytest.raises(CandidateTimeout):
            place.fire(timeout_s=0.5)
        assert not exists(place.candidate.pid)

    def test_death(self, lying, when):
        with pytest.raises(CandidateCrashed, match="code 5") as caught:
            lying(**{when: "os._exit(5)"}).fire()
        assert (caught.value.exit_code, caught.value.stage) == (5, "time")

    def test_failure(self, lying, when):
        place = lying(**{when: "print('said', flush=True); 1 / 0"})
        with pytest.raises(CandidateFailed, match="ZeroDivisionError") as caught:
            place.fire()
        assert (caught.value.stage, place.candidate.log()) == ("time", "said\n")
        assert place.candidate.alive
        assert place.candidate.returned() == place.candidate.places() == []
        if when != "after":
            with pytest.raises(CandidateFailed, match="no fired call"):
                place.collect()

    @pytest.mark.parametrize(
        "data", ["b'junk' * 2**20", "b'FIBC' + b'x' * 8", "b'FIBC' + bytes(8)"]
    )
    def test_garbage(self, lying, exists, when, data):
        place = lying(**{when: f"os.write(3, {data})"})
        with pytest.raises(CandidateMisbehaved):
            place.fire()
        assert not exists(place.candidate.pid)

    def test_a_flood_of_text(self, lying, when):
        """A pipe holds 64 KiB: who writes more waits for the judge to read."""
        place = lying(**{when: "os.write(1, b'text ' * 2**20)"})
        assert place.works()
        assert "left out" in place.candidate.log()


class TestThePage:
    """Words that are not what they should be."""

    @pytest.mark.parametrize(
        "how",
        [
            {"before": "return 0.001, [wire.IntValue(1)], [None]"},
            {"before": "words[memory.SEEN] = words[memory.GO]; return 0.1, [], []"},
            {"set": "if at == memory.DONE: return"},
        ],
    )
    def test_told_of_a_call_without_an_answer(self, lying, exists, how):
        place = lying(**how)
        with pytest.raises(CandidateMisbehaved, match="not answered in the shared page"):
            place.fire()
        assert not exists(place.candidate.pid)

    def test_answered_before_it_was_released(self, lying):
        """The judge takes it at its word: what is there at once is all that there is."""
        place = lying(get="page[memory.DONE] = request.go", call="time.sleep(0.5)")
        began = time.perf_counter()
        fired = place.fire()
        assert fired.wall_ms <= (time.perf_counter() - began - 0.5) * 1e3

    def test_overwritten_by_the_solution(self, lying):
        place = lying(call="words[:] = memoryview(bytes([255]) * 4096).cast('Q')")
        for slot in (0, 1, 0):
            assert place.works(slot)
            assert place.turn.addresses[1:] == [2**64 - 1] * (memory.MOST_OUTPUTS - 1)
            assert place.candidate.peeker([0, 8], 8)(2**64 - 1) is None

    def test_told_of_twice(self, lying):
        code = """
    data = wire.encode(wire.Fired(request.token, "3", sample, values, places))
    os.write(3, header_of(FrameKind.CONTROL, len(data)) + data)
"""
        place = lying(after=code)
        place.fire()
        with pytest.raises(CandidateMisbehaved, match="another request"):
            place.fire()


class TestTheMemory:
    def test_everything_overwritten(self, range_of):
        """All that is mapped is the process's to write; the judge writes it anew."""
        place = range_of(run("ctypes.memset(x.data_ptr(), 7, 12032 * 6); return x + y"))
        assert place.room.tensor.numel() - 12032 * 6 < 4096
        for _ in range(2):
            _, (got,) = place.exchange()
            assert same(got, 2 * place.room.tensor[: N * 4].view(torch.float32))
            assert place.room.tensor[: 12032 * 6].eq(7).all()

    def test_unmapped(self, range_of):
        unmap = "ctypes.CDLL(None).munmap(ctypes.c_void_p(x.data_ptr()), 4096)"
        with pytest.raises(CandidateCrashed, match="SIGSEGV"):
            range_of(run(f"{unmap}; return x.sum()")).fire()

    @pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory can be sealed here")
    def test_made_shorter(self, range_of):
        """Else the judge's next look at it would be its end."""
        code = """
import os
def run(x, y):
    for name in os.listdir("/proc/self/fd"):
        try:
            "memfd" in os.readlink(f"/proc/self/fd/{name}") and os.ftruncate(int(name), 0)
        except PermissionError:
            print("refused")
        except FileNotFoundError:
            pass  # that of the list itself
    return x + y
"""
        place = range_of(code)
        place.fire()
        assert place.candidate.log().split().count("refused") >= 2
        assert place.works(1)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"places": [[0, 12032, 2**40]]}, "in a memory of"),
            ({"memory": SimpleNamespace(tensor=torch.empty(2**40, device="meta"))}, "mmap"),
        ],
    )
    def test_that_is_not_as_told(self, range_of, change, words):
        place = range_of(ADD)
        lent = memory.Memory(1)
        if "memory" in change:
            change["memory"].descriptor = lent.descriptor
        with pytest.raises(CandidateFailed, match=words) as caught:
            place.attach(**change)
        assert caught.value.stage == "inputs"
        with pytest.raises(CandidateFailed, match="no memory has been attached for slot 0"):
            place.fire()
        assert place.candidate.alive


class TestTheJudge:
    @pytest.mark.parametrize("stopped", [True, False])
    @pytest.mark.parametrize("hook", ["prepare", "fill", "last"])
    def test_a_process_that_dies_meanwhile(self, range_of, hook, stopped):
        place = range_of(ADD)
        hooks = {hook: lambda: os.kill(place.candidate.pid, signal.SIGKILL)}
        with pytest.raises(CandidateCrashed, match="SIGKILL"):
            place.fire(hooks=hooks, stopped=stopped)

    def test_a_process_that_has_died_since(self, range_of, eventually):
        place = range_of(ADD)
        place.fire()
        os.kill(place.candidate.pid, signal.SIGKILL)
        assert eventually(lambda: not place.candidate.alive)
        assert place.candidate.peeker([0], 8)(place.turn.addresses[0]) is None
        with pytest.raises(CandidateCrashed, match="SIGKILL"):
            place.collect()

    @pytest.mark.parametrize("hook", ["prepare", "fill", "last", "answered"])
    def test_a_failure_of_its_own(self, range_of, hook):
        """Nobody knows then what the process answers next."""
        place = range_of(ADD)
        with pytest.raises(ZeroDivisionError):
            place.fire(hooks={hook: lambda: 1 // 0}, stopped=True)
        assert not place.candidate.alive


@stops
class TestLiesAboutOutputs:
    """What is told of them; nothing of it is believed."""

    @pytest.fixture
    def telling(self, lying):
        def start(lie):
            self.place = lying(
                after=f"(record,), (place,) = values, places; {lie}; places = [place]"
            )
            self.place.fire(values=[ONES, ONES])
            return self.place

        return start

    @pytest.mark.parametrize(
        ("lie", "words"),
        [
            ("place.address = 2**62", "readable"),
            ("place.span = 0", "spans"),
            ("place.strides = [2]", "spans"),
            ("place.strides = [1, 1]", "strides"),
            ("place.strides, place.span = [2**30], 2999 * 2**32 + 4", "are allowed"),
            ("record.shape = [3001]", "bytes"),
            ("record.shape, record.nbytes = [3001], 12004", "spans"),
            ("record.shape, place.strides = [2, 1500], [1]", "strides"),
            ("record.dtype = 'float33'", "not a tensor"),
            ("record.shape = [2**40] * 20", "not a tensor"),
            ("place = None", "whose address"),
        ],
    )
    def test_it_is_ended(self, telling, exists, lie, words):
        with pytest.raises(CandidateMisbehaved, match=words) as caught:
            telling(lie).collect()
        assert caught.value.stage == "time"
        assert not exists(self.place.candidate.pid)

    @pytest.mark.parametrize(
        "change",
        [
            "places = places[:-1]",
            "values = []",
            "values = values * 300; places = places * 300",
            "values = [wire.FloatValue('one')]",
            "values = [wire.IntValue(1 << 70)]",
            "sample = -1.0",
            "sample = float('nan')",
        ],
    )
    def test_an_answer_that_makes_no_sense(self, lying, change):
        place = lying(after=change)
        with pytest.raises(CandidateMisbehaved):
            place.fire()
        assert not place.candidate.alive

    def test_whether_elements_follow_makes_no_difference(self, telling):
        place = telling("record.omitted = False")
        assert [one.is_meta for one in place.candidate.returned()] == [True]
        assert place.collect()[0].eq(2).all()

    def test_what_is_far_larger_than_declared_comes_without_data(self, telling):
        place = telling("record.shape, record.nbytes, place.address = [2**40], 2**42, 1")
        assert place.collect()[0].is_meta

    def test_a_false_address_gives_false_outputs_and_no_more(self, telling):
        """Memory that it may read is its own: it could have returned that, too."""
        place = telling("place.address = inputs.values[0].data_ptr()")
        assert place.turn.addresses[0] != place.candidate.places()[0][0]
        assert place.collect()[0].eq(1).all()

    def test_it_cannot_make_its_memory_unreadable(self, range_of):
        """As long as the judge is not an administrator, whom nothing keeps out."""
        place = range_of(run("ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); return x + y"))
        try:
            assert place.works()  # PR_SET_DUMPABLE
        except CandidateMisbehaved as error:
            assert "unreadable" in str(error)  # noqa: PT017 - either is right


class TestRounds:
    @pytest.mark.parametrize("dps", [False, True])
    def test_calls_follow_one_another(self, range_of, dps):
        place = range_of(ADD_INTO if dps else ADD, dps=dps)
        for _ in range(3):
            calls = place.fire_round()
            assert [(call.shared, call.gated) for call in calls] == [(2, False)] * 2
            assert calls[0].secured_ms == calls[1].secured_ms > sum(c.sample_ms for c in calls) > 0
            for number, turn in enumerate(place.turn.turns):
                x, y = turn.values
                assert same(turn.at_answer[0], x + y)
                (shown,) = place.candidate.returned(number)
                assert (shown.shape, shown.is_meta) == ((N,), True)
                (got,) = place.candidate.collect(timeout_s=30, call=number)
                assert same(got, x + y)

    def test_outputs_are_made_contiguous(self, range_of):
        place = range_of(run("return torch.stack((x + y, x), 1)[:, 0]"))
        place.fire_round()
        (got,) = place.candidate.collect(timeout_s=30, call=1)
        assert got.is_contiguous()
        assert same(place.turn.turns[1].at_answer[0], got)

    def test_who_is_late_is_not_excused_by_what_it_tells(self, range_of):
        place = range_of(ADD)
        for call in place.fire_round(gated=True, patience_s=0.01):
            assert (call.gated, call.enqueued_ms) == (False, 0.0)
        assert not place.candidate.has_gate

    def test_without_calls(self, range_of):
        place = range_of(run("raise ValueError('called')"))
        for empty in (False, True):
            assert len(place.fire_round(empty=empty)) == 2

    def test_a_process_without_a_gate_is_released_in_time(self, range_of):
        place = range_of(ADD)
        for call in place.fire_round(gated=True, patience_s=0.01):
            assert not call.gated
        assert place.works()

    def test_one_raises(self, range_of):
        place = range_of(
            "seen = []\n" + run("seen.append(1); len(seen) == 2 and 1 / 0; return x + y")
        )
        with pytest.raises(CandidateFailed, match="ZeroDivisionError"):
            place.fire_round()
        assert place.works()

    def test_one_ends_the_process(self, range_of):
        with pytest.raises(CandidateCrashed):
            range_of(run("os._exit(3)")).fire_round()
