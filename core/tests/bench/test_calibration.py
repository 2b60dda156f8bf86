"""Ceilings: what they say, how they are kept, and how passes over probes converge."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.calibration import (
    Ceilings,
    ceilings_path,
    list_ceilings,
    load_ceilings,
    store_ceilings,
)
from flashinfer_bench.bench.calibration.passes import Probe, best_of_passes, ceilings_of
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
)


class TestBandwidth:
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
    def test_is_the_best_at_that_size_or_above(self, nbytes: int, rate: float) -> None:
        assert CEILINGS.bandwidth(nbytes) == rate

    def test_nothing_measured_is_no_limit(self) -> None:
        assert Ceilings("cpu", "x").bandwidth(5) == math.inf

    @given(MANY, st.integers(0, 1 << 42), st.integers(0, 1 << 42))
    def test_larger_sets_are_never_faster(self, ceilings: Ceilings, a: int, b: int) -> None:
        small, large = sorted((a, b))
        assert ceilings.bandwidth(small) >= ceilings.bandwidth(large) > 0
        assert small / ceilings.bandwidth(small) <= large / ceilings.bandwidth(large)


class TestPeak:
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
    def test_is_that_of_the_fastest_type_that_may_do(
        self, dtypes: tuple[str, ...], rate: float
    ) -> None:
        assert CEILINGS.peak(*dtypes) == rate

    def test_a_wider_type_may_be_the_faster_one(self) -> None:
        slow_small = replace(CEILINGS, flops_per_s={"int8": 1e9, "bfloat16": 4e12})
        assert slow_small.peak("int8") == 4e12


class TestMerging:
    def test_the_better_figures_stay(self) -> None:
        earlier = replace(
            CEILINGS, bytes_per_s={MIB: 3e11}, flops_per_s={"float32": 2e12}, call_ms=2e-4
        )
        merged = CEILINGS.merged(earlier)
        assert merged.bytes_per_s[MIB] == 3e11
        assert merged.bytes_per_s[64 * MIB] == 5e10
        assert merged.flops_per_s == {"float32": 2e12, "bfloat16": 4e12, "int8": 8e12}
        assert merged.call_ms == 1e-4

    @given(MANY, MANY)
    def test_never_lowers_a_ceiling(self, one: Ceilings, other: Ceilings) -> None:
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

    def test_a_second_look_that_finds_nothing_better_settles(self) -> None:
        busy = replace(CEILINGS, settled=False)
        assert busy.merged(busy).settled
        faster = replace(busy, flops_per_s={**busy.flops_per_s, "float32": 1.2e12})
        assert not faster.merged(busy).settled
        assert busy.merged(faster).settled
        assert not busy.merged(replace(busy, bytes_per_s={MIB: 1e9})).settled
        assert not busy.merged(Ceilings("cpu", "x", settled=False)).settled


class TestRecords:
    @given(MANY)
    def test_round_trip(self, ceilings: Ceilings) -> None:
        text = json.dumps(ceilings.to_json())
        assert Ceilings.from_json(json.loads(text)) == ceilings

    @pytest.mark.parametrize(
        ("field", "value", "told"),
        [
            ("bytes_per_s", {}, "no table"),
            ("bytes_per_s", {"-5": 1.0}, "no number of bytes"),
            ("bytes_per_s", {"0": 1.0}, "no number of bytes"),
            ("bytes_per_s", {"9" * 30: 1.0}, "no number of bytes"),
            ("bytes_per_s", {"5": -1.0}, "not positive"),
            ("bytes_per_s", {"5": math.inf}, "not positive"),
            ("bytes_per_s", {"5": math.nan}, "not positive"),
            ("bytes_per_s", {"5": "fast"}, "no number"),
            ("bytes_per_s", {str(n): 1.0 for n in range(1, 999)}, "no table"),
            ("flops_per_s", None, "no table"),
            ("flops_per_s", {"float32": True}, "no number"),
            ("flops_per_s", {"float32": 10**400}, "not positive"),
            ("call_ms", 0, "not positive"),
            ("call_ms", None, "no number"),
            ("hardware", 5, "no short text"),
            ("hardware", "x" * 1000, "no short text"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, field: str, value: Any, told: str) -> None:
        with pytest.raises(ValueError, match=told):
            Ceilings.from_json({**CEILINGS.to_json(), field: value})

    @given(st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))  # fmt: skip  # noqa: E501
    def test_anything_else_is_refused(self, record: Any) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - any of its messages
            Ceilings.from_json(record)

    def test_only_the_truth_is_settled(self) -> None:
        assert not Ceilings.from_json({**CEILINGS.to_json(), "settled": "yes"}).settled


class TestStore:
    def test_what_is_stored_is_found(self, cache_folder: Path) -> None:
        assert load_ceilings("cpu", CEILINGS.hardware) is None
        path = store_ceilings(CEILINGS)
        assert path.parent == cache_folder / "calibration"
        assert load_ceilings("cpu", CEILINGS.hardware) == CEILINGS
        assert list_ceilings() == [(path, CEILINGS)]

    def test_what_is_stored_later_is_found_by_the_same_process(self) -> None:
        store_ceilings(CEILINGS)
        assert load_ceilings("cpu", CEILINGS.hardware) == CEILINGS
        other = replace(CEILINGS, call_ms=0.5)
        store_ceilings(other)
        assert load_ceilings("cpu", CEILINGS.hardware) == other

    def test_equal_devices_share_and_others_do_not(self) -> None:
        gpu = replace(CEILINGS, device="cuda:0", hardware="A GPU")
        store_ceilings(gpu)
        assert load_ceilings("cuda:1", "A GPU") == gpu
        assert load_ceilings("cuda", "A GPU") == gpu
        assert load_ceilings("cuda:0", "Another GPU") is None
        assert load_ceilings("cpu", "A GPU") is None

    @pytest.mark.parametrize("what", ["_machine", "torch_version"])
    def test_another_machine_or_torch_has_its_own(
        self, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store_ceilings(CEILINGS)
        other = ("another CPU", "host") if what == "_machine" else "0.1"
        monkeypatch.setattr(f"flashinfer_bench.bench.calibration.store.{what}", lambda: other)
        assert load_ceilings("cpu", CEILINGS.hardware) is None
        assert list_ceilings() == []

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[]",
            b"null",
            b'{"format": 2}',
            b'{"format": 1, "ceilings": {}}',
            b'{"format": 2, "ceilings": {}}',
            b"[" * 100_000,
            json.dumps({"format": 2, "ceilings": {**CEILINGS.to_json(), "call_ms": -1}}).encode(),
            json.dumps({"format": 1, "ceilings": CEILINGS.to_json()}).encode(),
            json.dumps({"format": 99, "ceilings": CEILINGS.to_json()}).encode(),
        ],
    )
    def test_a_damaged_file_is_ignored_with_one_warning(
        self, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
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

    def test_a_file_about_another_device_is_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        stored = store_ceilings(replace(CEILINGS, hardware="Other"))
        stored.rename(ceilings_path("cpu", CEILINGS.hardware))
        assert load_ceilings("cpu", CEILINGS.hardware) is None
        assert "'Other'" in caplog.text
        assert list_ceilings() == []

    def test_a_folder_in_its_place(self, caplog: pytest.LogCaptureFixture) -> None:
        ceilings_path("cpu", CEILINGS.hardware).mkdir(parents=True)
        assert load_ceilings("cpu", CEILINGS.hardware) is None
        with pytest.raises(StorageError):
            store_ceilings(CEILINGS)

    def test_a_cache_that_cannot_be_written(self, cache_folder: Path) -> None:
        cache_folder.parent.mkdir(exist_ok=True)
        cache_folder.write_text("a file")
        with pytest.raises(StorageError):
            store_ceilings(CEILINGS)
        assert load_ceilings("cpu", CEILINGS.hardware) is None

    def test_readers_never_see_half_of_it(self) -> None:
        path = store_ceilings(CEILINGS)
        before = path.stat().st_ino
        store_ceilings(CEILINGS)
        assert path.stat().st_ino != before  # another file took its name
        assert [each.name for each in path.parent.iterdir()] == [path.name]


# ------------------------------------------------------------------------------------ passes


class Clock:
    """Goes on by `step` at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def series(*rates: float) -> Callable[[], float]:
    """Return a measurement that gives these rates in turn, then the last one again and again."""
    left: Iterator[float] = iter(rates)

    def rate() -> float:
        return next(left, rates[-1])

    return rate


class TestPasses:
    def test_end_when_nothing_gets_better(self) -> None:
        probes = [
            Probe(("bytes", MIB), series(1e9, 5e9, 2e9)),
            Probe(("flops", "float32"), series(1.0, 1.0, 3.0, 2.0)),
        ]
        best = best_of_passes(probes, budget_s=1.0, clock=Clock())
        assert best.rates == {("bytes", MIB): 5e9, ("flops", "float32"): 3.0}
        assert (best.settled, best.passes) == (True, 4)

    def test_there_are_three_at_least(self) -> None:
        best = best_of_passes([Probe(("bytes", 5), series(1.0))], budget_s=1.0, clock=Clock())
        assert (best.settled, best.passes) == (True, 3)

    def test_a_small_set_that_is_slower_than_a_larger_one_need_not_settle(self) -> None:
        # Its ceiling is that of the larger one anyway.
        probes = [
            Probe(("bytes", 5), series(1.0, 2.0, 4.0, 8.0, 16.0)),
            Probe(("bytes", 50), series(100.0)),
        ]
        assert best_of_passes(probes, budget_s=1.0, clock=Clock()).passes == 3

    def test_time_that_is_up_leaves_it_unsettled(self) -> None:
        def faster() -> float:
            faster.rate *= 2  # type: ignore[attr-defined]
            return float(faster.rate)  # type: ignore[attr-defined]

        faster.rate = 1.0  # type: ignore[attr-defined]
        best = best_of_passes([Probe(("bytes", 5), faster)], budget_s=10.0, clock=Clock(1.0))
        assert not best.settled
        assert 2 <= best.passes <= 12

    def test_the_first_pass_is_whole_however_long_it_takes(self) -> None:
        probes = [Probe(("bytes", size), series(float(size))) for size in range(1, 50)]
        best = best_of_passes(probes, budget_s=1.0, clock=Clock(1.0))
        assert len(best.rates) == 49
        assert not best.settled

    @pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, TypeError, MemoryError])
    def test_what_the_device_cannot_do_is_left_out(self, error: type[Exception]) -> None:
        calls = []

        def fails() -> float:
            calls.append(1)
            raise error("not for 'Half'")

        probes = [Probe(("flops", "float16"), fails), Probe(("flops", "float32"), series(1.0))]
        assert best_of_passes(probes, budget_s=1.0, clock=Clock()).rates == {
            ("flops", "float32"): 1.0
        }
        assert len(calls) == 1

    def test_a_bug_is_not_hidden(self) -> None:
        def wrong() -> float:
            raise AttributeError("no such thing")

        with pytest.raises(AttributeError):
            best_of_passes([Probe(("bytes", 1), wrong)], budget_s=1.0, clock=Clock())

    @pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
    def test_rates_that_make_no_sense_do_not_count(self, rate: float) -> None:
        probes = [Probe(("bytes", 1), series(rate, 5.0))]
        assert best_of_passes(probes, budget_s=1.0, clock=Clock()).rates == {("bytes", 1): 5.0}

    def test_progress_goes_from_none_to_all(self) -> None:
        told: list[float] = []
        probes = [Probe(("bytes", 1), series(1.0))]
        best_of_passes(probes, budget_s=50.0, clock=Clock(0.5), on_progress=told.append)
        assert told == sorted(told)
        assert 0 <= told[0] < 0.1
        assert told[-1] == 1.0

    def test_the_shortest_call_is_the_one_of_the_fastest_way(self) -> None:
        rates = {("call", "a"): 1e3, ("call", "b"): 4e3, ("bytes", 8): 5.0}
        found = ceilings_of(rates)
        assert found.call_ms == 0.25
        assert found.bytes_per_s == {8: 5.0}
