"""Pages of random results: always whole, always within their frames."""

from __future__ import annotations

import base64
import json
import zlib

from hypothesis import given
from hypothesis import strategies as st

from fib_report.page.payload import Extras, pack, page_data
from fib_tests.results import a_result
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report import latest_results

NAMES = st.sampled_from(["a", "b_a", "c d", "<i>", "&amp;", "ü", "x" * 80, 'q"', "0", "__"])
LATENCY = st.floats(1e-6, 1e5)


@st.composite
def results(draw):
    status = draw(st.sampled_from(list(EvaluationStatus)))
    latency = reference = None
    samples: tuple[float, ...] = ()
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


SEVERAL = st.lists(results(), min_size=1, max_size=25).map(latest_results)


@given(SEVERAL)
def test_everything_can_be_read_back_from_the_columns(found):
    extras = Extras()
    data = json.loads(zlib.decompress(base64.b64decode(pack(page_data(found, (), extras)))))
    runs = data["runs"]
    assert {len(column) for column in runs.values()} == {len(found)}
    read = set()
    for index, status in enumerate(runs["status"]):
        place, solution, _, author, language = data["solutions"][runs["solution"][index]]
        owner, uuid, *_ = data["workloads"][runs["workload"][index]]
        assert owner == place
        log = extras.logs.texts[runs["log"][index]] if runs["log"][index] >= 0 else ""
        assert bool(log) == bool(runs["length"][index])
        assert (runs["cause"][index] < 0) == (status == "PASSED")
        definition, device = data["definitions"][place][0], data["devices"][runs["device"][index]]
        read.add((definition, solution, author, language, uuid, device, status))
    assert read == {
        (r.definition, r.solution, r.author, r.language, r.workload, r.hardware, r.status.value)
        for r in found
    }  # fmt: skip
