"""Staged, fired and collected calls of real processes: each sees exactly what was drawn for it."""

from __future__ import annotations

import os
import random
import signal
import textwrap

import pytest
import torch

from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateFailed,
)
from flashinfer_bench.bench.executors.frozen import why_not
from flashinfer_bench.data import RandomInput, Workload
from flashinfer_bench.tensors import allocate_outputs, tensor_to_bytes
from flashinfer_bench.tensors.vary import Variation, draw_variation, freedoms, varied

N = 3000
ADD = "def run(x, y):\n    return x + y\n"
ADD_INTO = "def run(x, y, z):\n    z.copy_(x + y)\n"
INPUTS = [torch.randn(N), torch.randn(N)]


def same_bits(left, right):
    if not isinstance(left, torch.Tensor):
        return left == right
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    return bytes(tensor_to_bytes(left)[2]) == bytes(tensor_to_bytes(right)[2])


def body(text: str, arguments: str = "x, y") -> str:
    return f"def run({arguments}):\n" + textwrap.indent(textwrap.dedent(text), "    ")


class Range:
    """One candidate with one input set, and the judge's view of it."""

    def __init__(self, candidate, definition, inputs, *, random_inputs=True):
        self.candidate, self.inputs = candidate, inputs
        source = RandomInput() if random_inputs else None
        given = {name: source for name in definition.inputs if source is not None}
        workload = Workload.model_construct(axes={"n": N}, inputs=given, uuid="w")
        self.free = freedoms(definition, workload, inputs)
        candidate.put_inputs(0, inputs, {"n": N}, ways=[f.way for f in self.free], timeout_s=30)
        self.rng = random.Random(7)

    def draw(self) -> Variation:
        return draw_variation(self.free, self.inputs, 0, self.rng)

    def seen(self, variation):
        return varied(self.free, self.inputs, variation)

    def stage(self, variation):
        return self.candidate.stage(variation, timeout_s=30)

    def fire(self, variation, timeout_s=30.0):
        return self.candidate.fire(variation, timer="cpu", timeout_s=timeout_s)

    def shoot(self):
        """Return what one call saw, and what it returned."""
        variation = self.draw()
        self.stage(variation)
        self.fire(variation)
        return self.seen(variation), self.candidate.collect(timeout_s=30)

    def changed(self):
        return self.candidate.changed_inputs(timeout_s=30)


@pytest.fixture
def range_of(bench, definition_of, solution_of):
    def start(code, *, dps=False, inputs=INPUTS, random_inputs=True, **definition):
        candidate, made = bench.spawn(), definition_of(**definition)
        candidate.load(made, solution_of(code, dps=dps), timeout_s=30)
        return Range(candidate, made, inputs, random_inputs=random_inputs)

    return start


class TestRoundTrip:
    @pytest.mark.parametrize(("code", "dps"), [(ADD, False), (ADD_INTO, True)])
    def test_the_outputs_are_those_of_what_was_drawn(self, range_of, code, dps):
        place = range_of(code, dps=dps)
        for _ in range(5):
            (x, y), (got,) = place.shoot()
            assert same_bits(got, x + y)

    def test_what_the_call_sees_is_bit_for_bit_what_the_judge_computes(self, range_of):
        place = range_of("def run(x, y):\n    return x.clone(), y.clone()\n")
        for _ in range(5):
            seen, got = place.shoot()
            assert all(same_bits(*pair) for pair in zip(got, seen, strict=True))

    def test_addresses_move(self, range_of):
        code = "def run(x, y, z):\n    print(x.data_ptr(), y.data_ptr(), z.data_ptr())\n"
        place = range_of(code, dps=True)
        for _ in range(8):
            place.shoot()
        rows = [line.split() for line in place.candidate.log().splitlines()]
        for column in zip(*rows, strict=True):
            assert len(set(column)) >= 4
            assert all(int(address) % 64 == 0 for address in column)


OUTPUTS = {
    "column": ("x.reshape(-1, 10)[:, 3]", lambda x, y: x.reshape(-1, 10)[:, 3]),
    "transposed": ("x.reshape(30, 100).T", lambda x, y: x.reshape(30, 100).T),
    "steps": ("x.reshape(30, 100)[::7, 5:60:3]", lambda x, y: x.reshape(30, 100)[::7, 5:60:3]),
    "expanded": ("x[:5].expand(4, 5)", lambda x, y: x[:5].expand(4, 5)),
    "input itself": ("x", lambda x, y: x),
    "empty": ("x[:0].reshape(0, 3)", lambda x, y: x[:0].reshape(0, 3)),
    "scalar tensor": ("x[17]", lambda x, y: x[17]),
    "int": ("41", lambda x, y: 41),
    "float": ("0.1", lambda x, y: 0.1),
    "bool": ("True", lambda x, y: True),
    "mask": ("x > y", lambda x, y: x > y),
    "fp8": ("x.to(torch.float8_e4m3fn)", lambda x, y: x.to(torch.float8_e4m3fn)),
    "bf16": ("x.bfloat16().reshape(30, 100).T", lambda x, y: x.bfloat16().reshape(30, 100).T),
    "conjugate": ("torch.complex(x, y).conj()", lambda x, y: torch.complex(x, y).conj()),
    "negated": (
        "torch.complex(x, y).conj().imag",
        lambda x, y: torch.complex(x, y).conj().imag,
    ),
    "complex128": (
        "torch.complex(x, y).to(torch.complex128)[::2]",
        lambda x, y: torch.complex(x, y).to(torch.complex128)[::2],
    ),
    "parameter": ("torch.nn.Parameter(x + y)", lambda x, y: x + y),
}


class TestOutputs:
    @pytest.mark.parametrize("name", OUTPUTS)
    def test_of_every_kind(self, range_of, name):
        text, expected = OUTPUTS[name]
        place = range_of(f"import torch\ndef run(x, y):\n    return {text}\n")
        seen, (got,) = place.shoot()
        assert same_bits(got, expected(*seen))

    def test_what_is_far_larger_than_declared_comes_without_data(self, range_of):
        _, (got,) = range_of("def run(x, y):\n    return x[:1].expand(2**40)\n").shoot()
        assert (got.device.type, tuple(got.shape)) == ("meta", (2**40,))

    def test_any_bits_in_a_mask_are_true_or_false(self, range_of):
        code = """
            import torch
            def run(x, y):
                return torch.arange(8, dtype=torch.uint8).view(torch.bool)
        """
        _, (got,) = range_of(textwrap.dedent(code)).shoot()
        assert got.tolist() == [False] + [True] * 7
        assert got.view(torch.uint8).max() == 1

    @pytest.mark.parametrize("text", ["object()", "x.to_sparse()", "2**80", "Lazy(x)"])
    def test_what_cannot_be_sent_is_the_solution_s_failure(self, range_of, text):
        code = f"import torch\nclass Lazy(torch.Tensor): pass\ndef run(x, y):\n    return {text}\n"
        place = range_of(code)
        with pytest.raises(CandidateFailed):
            place.shoot()
        assert place.candidate.alive

    @pytest.mark.parametrize("dtype", ["float32", "bool", "int32", "float8_e4m3fn"])
    def test_what_is_not_written_is_poison(self, range_of, dtype):
        outputs = {"z": {"shape": ["n"], "dtype": dtype}}
        place = range_of("def run(x, y, z):\n    pass\n", dps=True, outputs=outputs)
        expected = allocate_outputs(definition_with(outputs), {"n": N})[0]
        for _ in range(2):
            _, (got,) = place.shoot()
            assert same_bits(got, expected)

    def test_outputs_of_the_call_before_are_gone(self, range_of):
        code = "calls = []\ndef run(x, y, z):\n    calls or z.fill_(1)\n    calls.append(1)\n"
        place = range_of(code, dps=True)
        assert place.shoot()[1][0].eq(1).all()
        assert place.shoot()[1][0].isnan().all()


def definition_with(outputs):
    from flashinfer_bench.data import Definition

    return Definition.model_validate(
        {
            "name": "d",
            "op_type": "e",
            "axes": {"n": {"type": "var"}},
            "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
            "outputs": outputs,
            "reference": "def run(x):\n    return x\n",
        }
    )


class TestInputs:
    def test_scalars_and_what_only_moves(self, bench, definition_of, solution_of):
        made = definition_of(
            inputs={
                "x": {"shape": ["n"], "dtype": "float32"},
                "i": {"shape": ["n"], "dtype": "int64"},
                "s": {"shape": None, "dtype": "float32"},
            },
            reference="def run(x, i, s):\n    return x[i] * s\n",
        )
        candidate = bench.spawn()
        candidate.load(made, solution_of("def run(x, i, s):\n    return x[i] * s\n"), timeout_s=30)
        values = [torch.randn(N), torch.randperm(N), 2.5]
        place = Range(candidate, made, values, random_inputs=False)
        assert [free.way for free in place.free] == ["columns", "move", "fixed"]
        for _ in range(4):
            (x, i, s), (got,) = place.shoot()
            assert torch.equal(i, values[1])
            assert same_bits(got, x[i] * s)
        assert place.changed() == []

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_changed_one_is_named(self, range_of, number):
        place = range_of(body(f"(x, y)[{number}][5] += 1\nreturn x + y"))
        place.shoot()
        assert place.changed() == [number]


class TestTheEnd:
    """What was not computed when the answer came is not in the outputs."""

    pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"here {why_not()}")

    DEFERRED = """
        import threading, time
        def run(x, y, z):
            def later():
                time.sleep(1)
                z.copy_(x + y)
            threading.Thread(target=later, daemon=True).start()
    """

    def test_a_thread_that_goes_on_is_stopped(self, range_of):
        place = range_of(textwrap.dedent(self.DEFERRED), dps=True)
        variation = place.draw()
        place.stage(variation)
        place.fire(variation)
        assert place.candidate.collect(timeout_s=30)[0].isnan().all()

    def test_the_process_stands_still_until_the_next_request(self, range_of):
        place = range_of(textwrap.dedent(self.DEFERRED), dps=True)
        variation = place.draw()
        place.stage(variation)
        place.fire(variation)
        place.candidate.collect(timeout_s=30)
        with open(f"/proc/{place.candidate.pid}/stat") as stat:  # noqa: PTH123
            assert stat.read().rpartition(")")[2].split()[0] in "Tt"
        assert place.candidate.alive
        assert place.shoot()[1][0].isnan().all()


class TestFailures:
    def test_a_solution_that_raises(self, range_of):
        place = range_of(body("print('said before')\nraise ValueError('its own')"))
        variation = place.draw()
        place.stage(variation)
        with pytest.raises(CandidateFailed, match="ValueError: its own") as caught:
            place.fire(variation)
        assert caught.value.stage == "time"
        assert place.candidate.log() == "said before\n"
        with pytest.raises(CandidateFailed, match="no call has been fired"):
            place.candidate.collect(timeout_s=30)
        assert place.candidate.alive

    def test_one_that_has_died_since(self, range_of, eventually):
        place = range_of(ADD)
        variation = place.draw()
        place.stage(variation)
        place.fire(variation)
        os.kill(place.candidate.pid, signal.SIGKILL)
        assert eventually(lambda: not place.candidate.alive)
        with pytest.raises(CandidateCrashed, match="SIGKILL"):
            place.candidate.collect(timeout_s=30)


class TestClock:
    def test_what_replaces_our_functions_later_is_not_called(self, range_of):
        code = """
            import flashinfer_bench.bench.candidate.session as session
            from flashinfer_bench.bench.transport.channel import Channel
            session.pack = session.partial = Channel.send_packed = None
            def run(x, y):
                return x + y
        """
        assert range_of(textwrap.dedent(code)).shoot()

    def test_the_judge_s_clock_holds_what_the_sample_holds(self, range_of):
        place = range_of(body("import time; time.sleep(0.02); return x"))
        variation = place.draw()
        assert place.stage(variation) > 0
        shot = place.fire(variation)
        assert (shot.timer, shot.timer_version) == ("cpu", "3")
        assert 20 <= shot.sample_ms <= (shot.change_s + shot.wall_s) * 1e3

    def test_work_before_the_call_is_in_the_judge_s_clock(self, range_of):
        """A solution that makes the timer tell too little cannot change what the judge sees."""
        code = """
            import time
            from flashinfer_bench.bench.timing.wall import WallClockTimer
            honest = WallClockTimer.time_call
            def forged(self, *args, **options):
                sample, result = honest(self, *args, **options)
                return 0.001, result
            WallClockTimer.time_call = forged
            def run(x, y):
                time.sleep(0.02)
                return x
        """
        place = range_of(textwrap.dedent(code))
        variation = place.draw()
        place.stage(variation)
        shot = place.fire(variation)
        assert shot.sample_ms == 0.001
        assert shot.change_s + shot.wall_s >= 0.02


def test_caches_are_flushed_before_every_call(range_of):
    """In both modes alike, or their latencies would differ."""
    code = """
        import flashinfer_bench.bench.candidate.caches as caches
        flush = caches.CpuCaches.flush
        def told(self):
            print("flush")
            flush(self)
        caches.CpuCaches.flush = told
        def run(x, y):
            print("call")
            return x
    """
    place = range_of(textwrap.dedent(code))
    for _ in range(4):
        place.shoot()
    assert place.candidate.log().split() == ["flush", "call"] * 4
