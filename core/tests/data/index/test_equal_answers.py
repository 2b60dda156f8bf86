"""Whatever is in a dataset, the index gives the answers that the traces in memory give."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.index import TraceIndex, index_file
from flashinfer_bench.data.trace_reader import TraceReader
from flashinfer_bench.errors import FibError

NAMES = ("gemm", "norm")
SOLUTIONS = ("baseline_gemm", "alice_gemm", "bob_gemm", "baseline_norm", "alice_norm", "gone")
BAD_LINES = (
    "{",
    "[]",
    "nonsense",
    '{"definition": "gemm"}',
    '{"definition": "", "workload": {"axes": {}, "inputs": {}, "uuid": "w"}}',
    '{"definition": "gemm", "workload": {"axes": {"M": -1}, "inputs": {}, "uuid": "w"}, '
    '"solution": "alice_gemm", "evaluation": {"status": "TIMEOUT"}}',
    '{"a": "\\ud800"}',
)
errors = st.sampled_from([0.0, 0, 1e-3, 0.01, 0.5, math.inf, math.nan, "NaN", "Infinity", -1.0])
times = st.sampled_from([1.0, 2, 0.5, 0.0, 1e-9, 3.25])
speedups = st.sampled_from([1.0, 2.0, 2, 0.0, 7.5])


@st.composite
def workloads(draw):
    m = draw(st.integers(1, 3))
    record = {"uuid": f"w{m}", "axes": {"M": m}, "inputs": {"a": {"type": "random"}}}
    if draw(st.integers(0, 9)) == 0:
        record["axes"] = {"M": 9}  # another workload of the same name
    if draw(st.integers(0, 9)) == 0:
        del record["uuid"]
    if draw(st.integers(0, 9)) == 0:
        record["inputs"] = {"solution": {"type": "scalar", "value": 1}}
    return record


@st.composite
def evaluations(draw):
    status = draw(
        st.sampled_from(["PASSED"] * 6 + ["INCORRECT_NUMERICAL", "TIMEOUT", "INCORRECT", "ODD"])
    )
    record = {
        "status": status,
        "environment": {"hardware": draw(st.sampled_from(["H200", "B200"])), "libs": {"t": "2"}},
        "timestamp": "2026-01-01T00:00:00",
        "log": draw(st.sampled_from(["", "fine\n", 'é "solution" \\', "\u0000", "{" * 300])),
    }
    if status in ("PASSED", "INCORRECT", "INCORRECT_NUMERICAL"):
        record["correctness"] = {
            "max_relative_error": draw(errors),
            "max_absolute_error": draw(errors),
        }
    if status == "PASSED":
        latency, reference, speedup = draw(times), draw(times), draw(speedups)
        record["performance"] = {
            "latency_ms": latency,
            "reference_latency_ms": reference,
            "speedup_factor": speedup,
        }
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=1)):
        change(record)
    return record


def _old_names(record):
    record["environment"] = {"device": "B200"}
    record["log_file"] = record.pop("log")


CHANGES = (
    _old_names,
    lambda record: record.update(further_key=[1]),
    lambda record: record.pop("timestamp"),
    lambda record: record.pop("log"),
    lambda record: record.update(log=None),
    lambda record: record.update(provenance={"seed": 3, "wall_s": 1.5, "extra": {"a": [1]}}),
    lambda record: record.update(provenance={"seed": "3", "driver": "590"}),
    lambda record: record.update(provenance={"seed": "three"}),
    lambda record: record.update(provenance=None, performance=None),
    lambda record: record.get("correctness", {}).update(extra={"matched": math.nan}),
    lambda record: record.get("correctness", {}).update(extra=None),
    lambda record: record.get("performance", {}).update(samples_ms=[1, 2.5]),
    lambda record: record.get("performance", {}).update(samples_ms=[-1.0]),
    lambda record: record.get("performance", {}).update(samples_ms="f32:AAAAPwAAgD4="),
    lambda record: record.get("performance", {}).update(
        samples_ms=[1, 2, 3], dropped=[[0, 2], [1, 9]], interval_ms=[1, 2], outliers=0
    ),
    lambda record: record.get("performance", {}).update(speedup_interval=[2.0, 1.0]),
    lambda record: record.get("correctness", {}).update(extra={"matched_ratio": 0.5}),
    lambda record: record.get("correctness", {}).update(
        extra={"matched_ratio": 2, "integrity": {"clean": False, "hidden_ms": 10**30}}
    ),
    lambda record: record.update(
        provenance={
            "timer": "cupti",
            "evaluator": "default",
            "timing": {"cache": "cold", "reference": 1},
            "extra": {"solution_hash": "abc"},
        }
    ),
    lambda record: record["environment"].update(hardware=""),
    lambda record: record["environment"].update(libs=None),
    lambda record: record.pop("status"),
    lambda record: record.update(status=record["status"].lower()),
    lambda record: record.update(correctness={}),
    lambda record: record.update(performance={}),
    lambda record: record.get("performance", {}).update(latency_ms="infinity"),
    lambda record: record.get("performance", {}).update(latency_ms=math.inf),
)


@st.composite
def records(draw):
    record = {"definition": draw(st.sampled_from(NAMES)), "workload": draw(workloads())}
    if draw(st.integers(0, 5)) == 0:
        return {**record, **draw(st.sampled_from([{}, {"solution": None}, {"solution": ""}]))}
    record["solution"] = draw(st.sampled_from(SOLUTIONS))
    record["evaluation"] = draw(evaluations())
    order = draw(st.sampled_from([None, None, sorted(record), sorted(record, reverse=True)]))
    return record if order is None else {key: record[key] for key in order}


lines = st.one_of(
    *[records().map(json.dumps)] * 8,
    records().map(lambda one: json.dumps(one, ensure_ascii=False, separators=(",", ":"))),
    st.sampled_from(BAD_LINES),
    st.sampled_from(["", "  ", "\t"]),
)


@st.composite
def files(draw):
    """Return the bytes of a data file."""
    kind = draw(st.sampled_from(["lines"] * 6 + ["pretty", "list"]))
    if kind == "pretty":
        return json.dumps(draw(records()), indent=1).encode()
    if kind == "list":
        return json.dumps(draw(st.lists(records(), max_size=3)), indent=1).encode()
    texts = draw(st.lists(lines, max_size=8))
    texts += texts[: draw(st.integers(0, 2))]  # some twice
    newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    text = "".join(one + newline for one in texts).encode()
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    end = draw(st.sampled_from(["", "", "", "torn", "unfinished", "zeros", "blanks"]))
    last = json.dumps(draw(records())).encode()
    ends = {"torn": last[: len(last) // 2], "unfinished": last, "zeros": b"\0\0", "blanks": b"  "}
    return mark + text + ends.get(end, b"")


PLACES = ("traces/gemm/gemm.jsonl", "traces/norm.jsonl", "traces/workloads/x.jsonl")
datasets = st.fixed_dictionaries(
    {}, optional={place: files() for place in (*PLACES, "workloads/w.jsonl", "traces/one.json")}
)


def write(root, make, content):
    for name in NAMES:
        record = make.definition_record(name, op_type=f"type_{name}")
        _put(root / f"definitions/{name}.json", json.dumps(record).encode())
    for name in SOLUTIONS[:-1]:
        author, definition = name.split("_")
        record = make.solution_record(name, definition, author)
        _put(root / f"solutions/{name}.json", json.dumps(record).encode())
    for place, data in content.items():
        _put(root / place, data)


def _put(path, data, mode="wb"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(data)


def outcome(ask):
    """Return an answer, or the error, in a form in which NaN equals NaN."""
    try:
        return repr(ask())
    except FibError as error:
        return (type(error), str(error), getattr(error, "line", None))


def spelled(rows):
    """Return what rows say, but for where they come from."""
    return [astuple(row)[1:-2] for row in rows]


def answers(trace_set):
    yield "rows", outcome(lambda: spelled(trace_set.run_rows()))
    yield "errors", outcome(lambda: trace_set.load_errors)
    for name in (*NAMES, "unknown"):
        yield f"rows of {name}", outcome(lambda: spelled(trace_set.run_rows(name)))  # noqa: B023
        yield f"workloads of {name}", outcome(lambda: trace_set.workload_uuids(name))  # noqa: B023
        for limits in ((1e-2, 1e-2), (math.inf, math.inf), (0.0, 1e-3)):
            yield f"{name} {limits}", outcome(lambda: trace_set.filter_traces(name, *limits))  # noqa: B023
            for axes in (None, {"M": 2}, {"M": 9}, {}):
                best = outcome(lambda: trace_set.get_best_trace(name, axes, *limits))  # noqa: B023
                yield f"{name} {axes} {limits}", best


def assert_equal_answers(root, on_error, *, indexed=True):
    plain = TraceSet.from_path(root, on_error=on_error)
    quick = TraceSet.from_path(root, on_error=on_error)
    outcome(lambda: plain.traces)
    found = dict(answers(quick))
    assert found == dict(answers(plain))
    if indexed and on_error == "collect":
        assert "not read yet" in repr(quick)  # else nothing was tested
    if on_error == "collect":
        assert quick.workloads == plain.workloads or "nan" in repr(plain.workloads)


AGES = st.sampled_from([-1, 2 * 10**9])
"""How old a file has to be to be trusted: any age, or more than it has."""


def _damage(path, data):
    """Replace, take out or double some bytes."""
    text = bytearray(path.read_bytes())
    at, size = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 30))
    pieces = st.sampled_from([b"", b'"', b"\\", b"{", b"}", b",", b"\x00", b"\xc3", b"9", b"\n"])
    text[at : at + size] = data.draw(pieces | st.just(bytes(text[at : at + size]) * 2))
    path.write_bytes(text)


@given(content=datasets, on_error=st.sampled_from(["raise", "collect", "collect"]))
def test_random_datasets(make, content, on_error):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, make, content)
        assert_equal_answers(root, on_error)


@given(content=datasets, more=st.lists(datasets, min_size=1, max_size=3), data=st.data())
def test_random_changes(make, content, more, data):
    """An index that is brought up to date equals one that is made anew; files may be damaged."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder) / "dataset"
        patch.setenv("FIB_CACHE_PATH", f"{folder}/cache")
        patch.setattr("flashinfer_bench.data.index.SMALLEST", 0)
        patch.setattr("flashinfer_bench.data.index.SETTLE_NS", data.draw(AGES))
        write(root, make, content)
        TraceIndex.open(root)
        for change in more:
            for place, text in change.items():
                _put(root / place, text, mode=data.draw(st.sampled_from(["ab", "ab", "wb"])))
            if content and data.draw(st.booleans()):
                _damage(root / data.draw(st.sampled_from(sorted(content))), data)
            assert_equal_answers(root, "collect")
        assert index_file(root).exists() or not any(
            text for one in (content, *more) for text in one.values()
        )


@pytest.mark.parametrize("text", [b"{\n\xef\xbb\xbf\0\0", b"\xef\xbb\xbf\0\0"])
def test_only_the_first_line_may_have_a_byte_order_mark(tmp_path, text):
    _put(tmp_path / "dataset" / "traces" / "x.jsonl", text, "wb")
    assert_equal_answers(tmp_path / "dataset", "collect", indexed=False)


# ----------------------------------- lines are decoded quickly, unless the models could refuse them


def assert_lines_read_alike(root, *texts):
    """Return how many lines were refused."""
    _put(root / "traces" / "x.jsonl", b"".join(text + b"\n" for text in texts))
    assert_equal_answers(root, "collect")
    return len(TraceSet.from_path(root, on_error="collect").load_errors)


def base(make, **changes):
    return make.trace_record(
        correctness={
            "max_relative_error": 0.25,
            "max_absolute_error": 1e-3,
            "extra": {"a": [1], "integrity": {"clean": True}},
        },
        provenance={"seed": 3, "timer": "wall", "wall_s": 1.5, "extra": {"a": {"b": [1]}}},
        **changes,
    )


def test_todays_lines_are_read_quickly(make, tmp_path):
    workload = {key: make.trace_record()[key] for key in ("definition", "workload")}
    records = [make.trace_record(status=one) for one in ("PASSED", "TIMEOUT")]
    records += [base(make), workload, {**workload, "solution": None, "evaluation": None}]
    records.append({**base(make), "of_later": [1]})
    texts = [json.dumps(record).encode() for record in records]
    assert None not in map(TraceReader().read_line, texts)
    assert assert_lines_read_alike(tmp_path, *texts) == 0


SPECIAL = [b'"NaN"', b'"Infinity"', b"NaN", b"null", b"-1", b"1e999", b"-0.0", b"0", b"true", b"{}"]
SPECIAL += [b"18446744073709551617", b'""', b'"\\ud800"', b'"\xff"', b"[]", b'"f32:AAAAPwAAgD4="']
SPECIAL += [b'"f32:AAA="', b"[2.0, 1.0]", b"[1, 2.5]", b"[[0]]", b"[[0, 1], [1, 9]]"]
PLACES = {
    "alice_v1": b'"alice_v1"',
    "max_relative_error": b"0.25",
    "latency_ms": b"1.5",
    "log": b'"fine"',
    "seed": b"3",
    "status": b'"PASSED"',
    "samples_ms": b'"a"',
    "reference_samples_ms": b'"b"',
    "interval_ms": b'"c"',
    "speedup_interval": b'"d"',
    "dropped": b'"e"',
    "outliers": b'"f"',
}


@pytest.mark.parametrize("place", PLACES)
def test_special_values_in_each_place(make, tmp_path, place):
    record = base(make)
    if len(PLACES[place]) == 3:
        record["evaluation"]["performance"][place] = json.loads(PLACES[place])
    text = json.dumps(record).encode()
    assert PLACES[place] in text
    texts = [text.replace(PLACES[place], special) for special in SPECIAL]
    assert assert_lines_read_alike(tmp_path, *texts) > 0


def test_repeated_keys_count_as_in_the_models(make, tmp_path):
    record = json.dumps(base(make))
    doubled = (
        record.replace('"status": "PASSED"', '"status": "TIMEOUT", "status": "PASSED"'),
        record.replace('"latency_ms": ', '"latency_ms": 7, "latency_ms": '),
        record[:-1] + ', "solution": "bob"}',
        record[:-1] + ', "definition": "other"}',
        record.replace('"hardware": ', '"hardware": "x", "hardware": '),
        record.replace('"uuid": ', '"uuid": "x", "uuid": '),
    )
    assert_lines_read_alike(tmp_path, *(text.encode() for text in doubled))
