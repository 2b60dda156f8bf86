"""What a page carries: columns, logs, distributions, what is told of timings, and names."""

import base64
import itertools
import json
import math
import random
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_report.causes import NO_LOG
from fib_report.page.payload import (
    POINTS,
    TOP,
    Book,
    excerpt,
    pack,
    page_parts,
    shape_of,
    short_solution,
    timing_lines,
    workload_labels,
)
from fib_tests.results import a_result
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report import cause, latest_results
from flashinfer_bench.stats.samples import quantile


def unpacked(data):
    return json.loads(zlib.decompress(base64.b64decode(pack(data))))


def test_the_middle_half_of_the_samples_and_the_best(make_result):
    samples = tuple(float(n) for n in range(101))
    results = [make_result("a_1", latency_ms=2.0, samples_ms=samples), make_result("b_1")]
    data = page_parts(results)["data"]
    runs = data["runs"]
    assert (runs["low"], runs["high"], runs["samples"]) == ([25.0, None], [75.0, None], [101, 0])
    assert {one["solution"]: one["best"] for one in data["scores"]} == {"a_1": False, "b_1": True}


def test_long_curves_are_thinned_and_keep_what_matters(make_result):
    rng = random.Random(0)
    results = [
        make_result(workload=f"w{n}", latency_ms=rng.uniform(0.5, 8.0)) for n in range(3_000)
    ]
    (curve,) = page_parts(results)["data"]["curves"].values()
    assert len(curve) < 300
    assert curve == sorted(curve)
    solved = sum(result.speedup > 1.0 for result in results) / len(results)
    assert [share for p, share in curve if p <= 1.0][-1] == pytest.approx(solved)
    assert curve[0] == (0.0, 1.0)
    assert curve[-1][1] == 0.0


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(PLAIN)
def test_what_is_packed_can_be_unpacked_and_is_no_markup(data):
    assert unpacked(data) == data
    assert re.fullmatch("[A-Za-z0-9+/=]*", pack(data))


@pytest.mark.parametrize(
    ("name", "definition", "short"),
    [
        ("alice_gemm_n8_tiles", "gemm_n8", "alice_…_tiles"),
        ("gemm_n8_tiles", "gemm_n8", "…_tiles"),
        ("gemm_n8", "gemm_n8", "gemm_n8"),
        ("other", "gemm_n8", "other"),
        ("x" * 50, "gemm_n8", "x" * 17 + "…" + "x" * 16),
    ],
)
def test_short_names_of_solutions(name, definition, short):
    assert short_solution(name, definition) == short


def test_workloads_are_named_by_the_axes_that_differ(make_result):
    sizes = enumerate((8, 1, 16))
    results = [make_result(workload=f"w{i}", axes={"B": size, "H": 4}) for i, size in sizes]
    assert list(workload_labels(results).items()) == [("w1", "B=1"), ("w0", "B=8"), ("w2", "B=16")]


def test_each_text_is_kept_once_and_empty_ones_not_at_all():
    book = Book(1_000)
    assert [book.add(log) for log in ("a", "b", "a\n", " ", "", "b")] == [0, 1, 0, -1, -1, 1]
    assert book.texts == ["a", "b"]


def test_both_ends_of_a_long_log_are_kept_and_the_rest_is_told():
    log = "first line\n" + "middle\n" * 5000 + "last line"
    short = excerpt(log, 4_000)
    assert short.startswith("first line\n")
    assert short.endswith("\nlast line")
    assert f"… {len(log) - 4_000:,} characters left out …" in short
    assert len(short) < 4_100


def test_first_all_then_ends_then_nothing():
    rng = random.Random(0)

    def noise():
        text = "".join(map(chr, rng.choices(range(33, 999), k=4_000)))
        return "\n".join(text[start : start + 100] for start in range(0, 4_000, 100))

    book = Book(25_000, full_bytes=20_000)
    places = [book.add(noise()) for _ in range(60)]
    lengths = [len(text) for text in book.texts]
    assert max(lengths[:2]) <= 4_100
    assert min(lengths) < 300
    assert -1 in places
    assert places == sorted(places[: len(lengths)]) + [-1] * (60 - len(lengths))


POSITIVE = st.floats(1e-6, 1e6)


def points_of(text):
    """Return the points of a shape in milliseconds, as the page's script makes them."""
    steps, low, high = text.split(" ")
    ratio = float(high) / float(low)
    levels = itertools.accumulate(ord(step) - ord("0") for step in steps)
    return [float(low) * ratio ** (level / TOP) for level in levels]


@given(st.lists(POSITIVE, min_size=1, max_size=100))
def test_a_point_is_off_by_half_a_level_at_most(samples):
    ordered = wanted = sorted(samples)
    if len(ordered) > POINTS:
        wanted = [quantile(ordered, number / (POINTS - 1)) for number in range(POINTS)]
    half = math.log(ordered[-1] / ordered[0]) / TOP / 2
    for point, expected in zip(points_of(shape_of(samples)), wanted, strict=True):
        assert abs(math.log(point / expected)) <= half + 5.1e-5  # ends have five digits


def test_shapes_get_their_places_until_there_is_no_room():
    rng = random.Random(7)
    book = Book(20_000)
    shapes = [shape_of([rng.lognormvariate(0, 1) for _ in range(90)]) for _ in range(3_000)]
    places = list(map(book.add, shapes))
    kept = len(book.texts)
    assert book.texts == shapes[:kept]
    assert places == [*range(kept), *[-1] * (3_000 - kept)]
    assert 200 < kept < 1_500


WATCHED = {
    "nvml": {
        "readings": 31,
        "sm_mhz": [1755, 1980, 1980],
        "idle_sm_mhz": [210, 210, 210],
        "temperature_c": [38, 41, 44],
        "power_w": [310.2, 482.0, 533.9],
        "gpu_percent": [12, 64, 88],
        "states": {"power_cap": 0.06452, "idle": 1},
        "power_limit_w": 700.0,
    },
    "cpu": {"load": [0.5, 0.6, 0.7], "governor": "performance", "steal_share": 0.0},
    "waited_s": 1.5,
}


def test_clocks_throttling_and_load_are_told():
    text = timing_lines(
        {"ended_by": "rule", "outcome": "standard error 0.4%", "cache": "cold", "watched": WATCHED}
    )
    assert text.split("\n") == [
        "ended by: rule",
        "outcome: standard error 0.4%",
        "nvml: SM clock 1980 (1755 to 1980) MHz; SM clock when idle 210 MHz; "
        "temperature 41 (38 to 44) °C; power 482.0 (310.2 to 533.9) W; gpu 64 (12 to 88) %; "
        "states: power cap 6%, idle 100%; power limit 700.0 W",
        "cpu: load 0.6 (0.5 to 0.7); governor performance; steal share 0.0",
        "waited 1.5 s",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["watched", "outcome", "ended_by", "x"]), JSON))
def test_whatever_is_in_a_trace_a_text_comes_out(timing):
    assert isinstance(timing_lines(timing), str)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", NO_LOG),
        (" \n\t\n", NO_LOG),
        ("no answer within 300 s", "no answer within # s"),
        ("first\nTraceback (most recent call last):\n  File 'x', line 3\nValueError: bad 7\ndone",
         "ValueError: bad #"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried 2.50 GiB",
         "torch.OutOfMemoryError: CUDA out of memory. Tried # GiB"),
        ("KeyError: 'a'\n\nDuring handling of the above:\n\nRuntimeError: at 0x7f00aB",
         "RuntimeError: at #"),
        ("cc x.cu\nkernel.cu(31): error: identifier foo\nx.cu(40): error: more\n2 errors detected",
         "kernel.cu(#): error: identifier foo"),
        ("nvcc fatal : unknown option", "nvcc fatal : unknown option"),
        ("worker was killed by SIGKILL\nlast words", "worker was killed by SIGKILL"),
        ("\x1b[31mValueError\x1b[0m: red", "ValueError: red"),
        ("saw h64_v2 and v1.2.3", "saw h64_v2 and v1.2.3"),
    ],
)  # fmt: skip
def test_causes(log, line):
    assert cause(log) == line


@given(st.text())
def test_any_log_has_a_cause_of_one_short_line(log):
    line = cause(log)
    assert 1 <= len(line) <= 160
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("log", ["error " * 200_000, "e" * 2_000_000])
def test_endless_lines_take_no_time(log):
    assert len(cause(log)) <= 160


NAMES = st.sampled_from(["a", "b_a", "c d", "<i>", "&amp;", "ü", "x" * 80, 'q"', "0", "__"])
LATENCY = st.floats(1e-6, 1e5)


@st.composite
def results(draw):
    status = draw(st.sampled_from(list(EvaluationStatus)))
    latency = reference = None
    samples = ()
    if status is EvaluationStatus.PASSED:
        latency = draw(LATENCY)
        reference = draw(st.none() | LATENCY)
        samples = tuple(draw(st.lists(LATENCY, max_size=5)))
    log = draw(st.sampled_from(["", "log", "<b>" * 3000, "\x1b[0m\0"]))
    sizes = draw(st.dictionaries(st.sampled_from("NM"), st.integers(0, 2**40), max_size=2))
    definition, solution = draw(NAMES), draw(NAMES)
    return a_result(
        solution,
        definition=definition,
        op_type=f"type of {definition}",
        author=f"{solution[:1]}'s author",
        language=f"{solution[:1]}++",
        workload=draw(NAMES),
        axes=sizes,
        hardware=draw(st.sampled_from(["cpu", "gpu"])),
        status=status,
        timestamp=draw(st.sampled_from(["2026-01-01", "2026-01-02"])),
        latency_ms=latency,
        reference_latency_ms=reference,
        samples_ms=samples,
        log=log,
        max_absolute_error=draw(st.none() | st.floats(min_value=0.0)),
    )


@given(st.lists(results(), min_size=1, max_size=25).map(latest_results))
def test_everything_can_be_read_back_from_the_columns(found):
    parts = page_parts(found)
    data = unpacked(parts["data"])
    runs = data["runs"]
    assert {len(column) for column in runs.values()} == {len(found)}
    read = set()
    for index, status in enumerate(runs["status"]):
        place, solution, _, author, language = data["solutions"][runs["solution"][index]]
        owner, uuid, *_ = data["workloads"][runs["workload"][index]]
        assert owner == place
        log = parts["logs"][runs["log"][index]] if runs["log"][index] >= 0 else ""
        assert bool(log) == bool(runs["length"][index])
        assert (runs["cause"][index] < 0) == (status == "PASSED")
        definition, device = data["definitions"][place][0], data["devices"][runs["device"][index]]
        read.add((definition, solution, author, language, uuid, device, status))
    assert read == {
        (r.definition, r.solution, r.author, r.language, r.workload, r.hardware, r.status.value)
        for r in found
    }  # fmt: skip
