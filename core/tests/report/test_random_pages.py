"""Pages of random results: always whole, always within their frames."""

from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.report import (
    PageInfo,
    Result,
    best_solutions,
    latest_results,
    render_page,
    score_solutions,
)
from flashinfer_bench.report.page.payload import Extras, pack, page_data

NAMES = st.sampled_from(["a", "b_a", "c d", "<i>", "&amp;", "ü", "x" * 80, 'q"', "0", "__"])
LATENCY = st.floats(1e-6, 1e5)


@st.composite
def results(draw):
    status = draw(st.sampled_from(list(EvaluationStatus)))
    latency = reference = speedup = None
    samples: tuple[float, ...] = ()
    if status is EvaluationStatus.PASSED:
        latency = draw(LATENCY)
        reference = draw(st.none() | LATENCY)
        speedup = reference / latency if reference else None
        samples = tuple(draw(st.lists(LATENCY, max_size=5)))
    sizes = draw(st.dictionaries(st.sampled_from("NM"), st.integers(0, 2**40), max_size=2))
    definition, solution = draw(NAMES), draw(NAMES)
    return Result(
        definition=definition,
        op_type=f"type of {definition}",
        solution=solution,
        author=f"{solution[:1]}'s author",
        language=f"{solution[:1]}++",
        workload=draw(NAMES),
        axes=sizes,
        hardware=draw(st.sampled_from(["cpu", "gpu"])),
        status=status,
        timestamp=draw(st.sampled_from(["2026-01-01", "2026-01-02"])),
        log=draw(st.sampled_from(["", "log", "<b>" * 3000, "\x1b[0m\0"])),
        latency_ms=latency,
        reference_latency_ms=reference,
        speedup=speedup,
        samples_ms=samples,
        max_absolute_error=draw(st.none() | st.floats(min_value=0.0)),
    )


SEVERAL = st.lists(results(), min_size=1, max_size=25).map(latest_results)


class Nesting(HTMLParser):
    """Checks that elements nest."""

    def __init__(self):
        super().__init__()
        self.stack = []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@settings(max_examples=60)
@given(SEVERAL)
def test_any_results_make_a_whole_page(found):
    page = render_page(found, PageInfo("T", "D", "G"))
    nesting = Nesting()
    nesting.feed(page)
    nesting.close()
    assert nesting.stack == []
    assert "\x1b" not in page
    assert "\0" not in page


@settings(max_examples=60)
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


@given(SEVERAL)
def test_scores_count_every_result_once(found):
    scores = score_solutions(found)
    assert sum(score.workloads for score in scores) == len(found)
    assert sum(score.passed for score in scores) == sum(result.passed for result in found)
    for score in scores:
        assert sum(score.statuses.values()) == score.workloads
        if score.speedup is not None:
            assert score.min_speedup <= score.speedup * (1 + 1e-9)
            assert score.speedup <= score.max_speedup * (1 + 1e-9)


@given(SEVERAL)
def test_the_best_is_never_beaten_by_one_that_passed_as_much(found):
    scores = score_solutions(found)
    for best in best_solutions(scores):
        rivals = [
            score
            for score in scores
            if (score.definition, score.hardware) == (best.score.definition, best.score.hardware)
            and score.all_passed
        ]
        assert best.score in rivals
        assert all(best.score.passed >= rival.passed for rival in rivals)
        for rival in rivals:
            if rival.passed == best.score.passed:
                assert best.score.mean_latency_ms <= rival.mean_latency_ms
        assert best.lead is None or best.lead >= 1.0


@settings(max_examples=30)
@given(SEVERAL)
def test_the_order_of_results_does_not_matter(found):
    info = PageInfo("T", "D", "G")
    assert render_page(found, info) == render_page(found[::-1], info)


@given(SEVERAL)
def test_keeping_the_latest_twice_changes_nothing(found):
    assert latest_results(found) == sorted(found, key=lambda result: result.timestamp)
