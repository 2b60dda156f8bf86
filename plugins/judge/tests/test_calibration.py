"""Ceilings: what they say, how they are kept, and how passes over probes converge."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fib_judge.calibration import (
    Ceilings,
    ceilings_path,
    list_ceilings,
    load_ceilings,
    store_ceilings,
)
from fib_judge.calibration.passes import Probe, best_of_passes

KIB, MIB = 1 << 10, 1 << 20
CEILINGS = Ceilings(
    device="cpu",
    hardware="A CPU (4 cores)",
    bytes_per_s={16 * KIB: 1e10, MIB: 2e11, 64 * MIB: 5e10, 256 * MIB: 6e10},
    flops_per_s={"float32": 1e12, "bfloat16": 4e12, "int8": 8e12},
    call_ms=1e-4,
    torch="9.9",
    created="2026-01-01T00:00:00Z",
)
WITHOUT_TORCH = {name: one for name, one in CEILINGS.to_json().items() if name != "torch"}
RATES = st.floats(min_value=1.0, max_value=1e18)
MANY = st.builds(
    Ceilings,
    device=st.sampled_from(["cpu", "cuda:0"]),
    hardware=st.text(max_size=20),
    bytes_per_s=st.dictionaries(st.integers(1, 1 << 40), RATES, min_size=1, max_size=8),
    flops_per_s=st.dictionaries(st.sampled_from(["float32", "int8"]), RATES, min_size=1),
    call_ms=st.floats(min_value=1e-9, max_value=1e3),
    torch=st.just("2.0"),
    created=st.just("now"),
    settled=st.booleans(),
    process_ms=st.floats(0.0, 1.0),
    process_share=st.floats(0.0, 1.0),
)


@pytest.mark.parametrize(
    ("nbytes", "rate"),
    [
        (0, 2e11),  # smaller sets than any that was measured: the best of all
        (16 * KIB, 2e11),  # a launch costs so much that a larger set shows more
        (MIB, 2e11),
        (64 * MIB - 1, 2e11),  # between two steps the smaller one counts
        (64 * MIB, 6e10),
        (256 * MIB, 6e10),
        (1 << 40, 6e10),  # beyond the ladder its end counts
    ],
)
def test_bandwidth_is_the_best_at_that_size_or_above(nbytes, rate):
    assert CEILINGS.bandwidth(nbytes) == rate


@pytest.mark.parametrize(
    ("dtypes", "rate"),
    [
        (("float32",), 4e12),  # 16 bits may do within the tolerance
        (("bfloat16",), 8e12),
        (("float16", "float32"), 8e12),
        (("int8",), 8e12),
        (("float8_e4m3fn",), 8e12),  # as wide as one that was measured
        (("float64",), math.inf),  # its units may be faster than all that was measured
        (("float4_e2m1",), math.inf),
        (("int64",), math.inf),
        ((), math.inf),
    ],
)
def test_peak_is_that_of_the_fastest_type_that_may_do(dtypes, rate):
    assert CEILINGS.peak(*dtypes) == rate


@given(MANY, MANY)
def test_merging_never_lowers_a_ceiling(one, other):
    sizes = one.bytes_per_s  # both have the same ladder
    rates = [*other.bytes_per_s.values()]
    other = replace(
        other, bytes_per_s={size: rates[i % len(rates)] for i, size in enumerate(sizes)}
    )
    merged = one.merged(other)
    for size in sizes:
        assert merged.bandwidth(size) >= max(one.bandwidth(size), other.bandwidth(size))
    assert not one.exceeds(merged)
    assert merged.call_ms <= min(one.call_ms, other.call_ms)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bytes_per_s", {}),
        ("bytes_per_s", {"0": 1.0}),
        ("bytes_per_s", {"9" * 30: 1.0}),
        ("bytes_per_s", {"5": -1.0}),
        ("bytes_per_s", {"5": math.inf}),
        ("bytes_per_s", {"5": math.nan}),
        ("bytes_per_s", {str(n): 1.0 for n in range(1, 999)}),
        ("flops_per_s", None),
        ("flops_per_s", {"float32": True}),
        ("flops_per_s", {"float32": 10**400}),
        ("call_ms", 0),
        ("hardware", 5),
        ("hardware", "x" * 1000),
    ],
)
def test_records_what_makes_no_sense_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        Ceilings.from_json({**CEILINGS.to_json(), field: value})


class TestStore:
    @pytest.mark.parametrize("what", ["_machine", "torch_version"])
    def test_another_machine_or_torch_has_its_own(self, what, monkeypatch):
        store_ceilings(CEILINGS)
        other = ("another CPU", "host") if what == "_machine" else "0.1"
        monkeypatch.setattr(f"fib_judge.calibration.{what}", lambda: other)
        assert load_ceilings("cpu", CEILINGS.hardware) is None
        assert list_ceilings() == []

    @pytest.mark.parametrize(
        "content",
        [
            b"{",
            b"\xff\xfe",
            b"[]",
            b'{"format": 2}',
            b"[" * 100_000,
            json.dumps({"format": 2, "ceilings": {**CEILINGS.to_json(), "call_ms": -1}}).encode(),
            json.dumps({"format": 2, "ceilings": WITHOUT_TORCH}).encode(),
            json.dumps({"format": 1, "ceilings": CEILINGS.to_json()}).encode(),
        ],
    )
    def test_a_damaged_file_is_ignored_with_one_warning(self, content, caplog):
        path = ceilings_path("cpu", CEILINGS.hardware)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        assert load_ceilings("cpu", CEILINGS.hardware) is None
        assert load_ceilings("cpu", CEILINGS.hardware) is None
        assert list_ceilings() == []
        (record,) = caplog.records
        assert str(path) in record.message
        assert "fib calibrate" in record.message
        store_ceilings(CEILINGS)
        assert load_ceilings("cpu", CEILINGS.hardware) == CEILINGS


# ------------------------------------------------------------------------------------ passes


class Clock:
    """Goes on by `step` at each look."""

    def __init__(self, step=0.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


def series(*rates):
    """Return a measurement that gives these rates in turn, then the last one again and again."""
    left = iter(rates)

    def rate():
        return next(left, rates[-1])

    return rate


class TestPasses:
    def test_end_when_nothing_gets_better(self):
        probes = [
            Probe(("bytes", MIB), series(1e9, 5e9, 2e9)),
            Probe(("flops", "float32"), series(1.0, 1.0, 3.0, 2.0)),
        ]
        best = best_of_passes(probes, budget_s=1.0, clock=Clock())
        assert best.rates == {("bytes", MIB): 5e9, ("flops", "float32"): 3.0}
        assert (best.settled, best.passes) == (True, 4)

    def test_time_that_is_up_leaves_it_unsettled(self):
        def faster():
            faster.rate *= 2
            return float(faster.rate)

        faster.rate = 1.0
        best = best_of_passes([Probe(("bytes", 5), faster)], budget_s=10.0, clock=Clock(1.0))
        assert not best.settled
        assert 2 <= best.passes <= 12

    @pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, TypeError, MemoryError])
    def test_what_the_device_cannot_do_is_left_out(self, error):
        calls = []

        def fails():
            calls.append(1)
            raise error("not for 'Half'")

        probes = [Probe(("flops", "float16"), fails), Probe(("flops", "float32"), series(1.0))]
        assert best_of_passes(probes, budget_s=1.0, clock=Clock()).rates == {
            ("flops", "float32"): 1.0
        }
        assert len(calls) == 1
