"""Charts say what the results say."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from flashinfer_bench.report import score_solutions
from flashinfer_bench.report.page.fastp_chart import fastp_chart, fastp_curves
from flashinfer_bench.report.page.frame import COLOURS, OTHERS, colours
from flashinfer_bench.report.page.latency_chart import SOLUTIONS, WORKLOADS, latency_chart
from flashinfer_bench.report.page.names import workload_labels
from flashinfer_bench.report.page.results_table import results_table
from flashinfer_bench.report.page.sections import definition_section, failures_section
from flashinfer_bench.report.page.speedup_chart import speedup_chart
from flashinfer_bench.report.page.status_chart import status_chart


def tree(markup):
    """Parse markup as XML, in which a line break in an attribute counts as a space."""
    return ElementTree.fromstring(
        re.sub("<wbr>", "", markup)
        .replace(" hidden>", ' hidden="">')
        .replace("<details open", '<details open=""')
    )


def with_class(root, *names):
    return [e for e in root.iter() if set(names) <= set((e.get("class") or "").split())]


def draw(chart, results):
    classes = colours(score.solution for score in score_solutions(results))
    markup = chart(results, workload_labels(results), classes)
    return None if markup is None else tree(markup)


# ----------------------------------------------------------------------------------- colours


def test_colours_are_given_out_in_order_and_never_twice():
    found = colours(f"s{n}" for n in range(COLOURS + 3))
    own = list(found.values())[:COLOURS]
    assert len(set(own)) == COLOURS
    assert OTHERS not in own
    assert set(list(found.values())[COLOURS:]) == {OTHERS}


# ---------------------------------------------------------------------------------- speed-up


def test_one_dot_for_each_solution_and_workload(make_result):
    results = [
        make_result(name, workload=uuid, axes={"N": size}, latency_ms=latency)
        for name, latency in (("a", 1.0), ("b", 4.0))
        for uuid, size in (("w1", 1), ("w2", 2), ("w3", 3))
    ]
    root = draw(speedup_chart, results)
    dots = with_class(root, "dot")
    assert len(dots) == 6
    fast, slow = with_class(root, "dot", "c1"), with_class(root, "dot", "c2")
    assert {d.get("data-tip").split(" ")[0] for d in fast} == {"a"}
    # Upwards is faster, and coordinates grow downwards.
    assert max(float(d.get("cy")) for d in fast) < min(float(d.get("cy")) for d in slow)
    assert sorted(float(d.get("cx")) for d in fast) == [float(d.get("cx")) for d in fast]


def test_failures_have_a_line_of_their_own(make_result):
    results = [make_result("a"), make_result("b", status="TIMEOUT")]
    root = draw(speedup_chart, results)
    (cross,) = with_class(root, "cross")
    assert cross.get("data-tip") == "b N=16 TIMEOUT"
    assert len(with_class(root, "dot")) == 1


def test_nothing_compared_nothing_drawn(make_result):
    assert draw(speedup_chart, [make_result(reference_latency_ms=None)]) is None
    assert draw(speedup_chart, [make_result(status="TIMEOUT")]) is None


def test_everything_stays_within_the_drawing(make_result):
    results = [
        make_result("a", workload=f"w{n}", axes={"N": n}, latency_ms=10.0 ** (n % 7 - 3))
        for n in range(60)
    ]
    root = draw(speedup_chart, results)
    _, _, width, height = map(float, root.find(".//svg").get("viewBox").split())
    for dot in with_class(root, "dot"):
        assert 0 <= float(dot.get("cx")) <= width
        assert 0 <= float(dot.get("cy")) <= height
    assert len(with_class(root, "tick")) < 40


# ----------------------------------------------------------------------------------- latency


def test_spread_of_the_samples(make_result):
    samples = tuple(1.0 + index / 100 for index in range(101))
    root = draw(latency_chart, [make_result(samples_ms=samples, latency_ms=1.5)])
    (whisker,), (box,), (dot,) = (with_class(root, c) for c in ("whisker", "box", "dot"))
    ends = [float(whisker.get("x1")), float(whisker.get("x2"))]
    inner = [float(box.get("x1")), float(box.get("x2"))]
    assert ends[0] < inner[0] < float(dot.get("cx")) < inner[1] < ends[1]
    assert "101 samples" in root.find(".//g").get("data-tip")


def test_without_samples_only_the_latency_is_drawn(make_result):
    root = draw(latency_chart, [make_result()])
    assert with_class(root, "whisker") == with_class(root, "box") == []
    assert len(with_class(root, "dot")) == 1
    assert "no samples" in "".join(root.itertext())


def test_the_reference_is_a_line(make_result):
    root = draw(latency_chart, [make_result(latency_ms=1.0, reference_latency_ms=2.0)])
    (reference,) = with_class(root, "reference")
    (dot,) = with_class(root, "dot")
    assert float(reference.get("x1")) > float(dot.get("cx"))
    assert (
        with_class(draw(latency_chart, [make_result(reference_latency_ms=None)]), "reference") == []
    )


def test_no_more_than_can_be_read(make_result):
    results = [
        make_result(f"s{s}", workload=f"w{w}", axes={"N": w}, latency_ms=1.0 + s)
        for s in range(SOLUTIONS + 4)
        for w in range(WORKLOADS + 5)
    ]
    root = draw(latency_chart, results)
    assert len(with_class(root, "heading")) == WORKLOADS
    assert len(with_class(root, "dot")) == WORKLOADS * SOLUTIONS
    headings = [e.text for e in with_class(root, "heading")]
    assert headings[0] == "N=0"
    assert headings[-1] == f"N={WORKLOADS + 4}"
    assert f"{WORKLOADS} of {WORKLOADS + 5} workloads" in "".join(root.itertext())


def test_nothing_passed_nothing_drawn(make_result):
    assert draw(latency_chart, [make_result(status="TIMEOUT")]) is None


# ------------------------------------------------------------------------------------ fast_p


def test_tasks_of_all_authors_count_for_each(make_result):
    results = [
        make_result("alice_a", workload="w1", latency_ms=1.0),
        make_result("alice_a", workload="w2", latency_ms=1.0),
        make_result("bob_b", workload="w1", latency_ms=0.5),
    ]
    curves = fastp_curves(results)
    assert curves["alice"][0] == (0.0, 1.0)
    assert curves["bob"][0] == (0.0, 0.5)
    assert list(curves) == ["alice", "bob"]


def test_the_fastest_solution_of_an_author_counts(make_result):
    results = [make_result("alice_slow", latency_ms=4.0), make_result("alice_fast", latency_ms=0.5)]
    assert fastp_curves(results)["alice"] == [(0.0, 1.0), (4.0, 0.0)]


def test_a_pass_without_a_time_of_the_reference_is_no_task(make_result):
    results = [make_result(), make_result(workload="w2", reference_latency_ms=None)]
    assert fastp_curves(results)["alice"][0] == (0.0, 1.0)
    assert fastp_curves([make_result(reference_latency_ms=None)]) == {}


def test_fastp_chart(make_result):
    results = [make_result("alice_a"), make_result("bob_b", status="TIMEOUT")]
    curves = fastp_curves(results)
    root = tree(f"<div>{fastp_chart(curves, colours(curves))}</div>")
    (curve,) = with_class(root, "curve")
    assert curve.get("data-tip") == "alice 100% faster than the reference"
    assert "alice · 100%" in "".join(root.itertext())


def test_those_who_solved_nothing_are_named(make_result):
    results = [make_result("alice_a"), make_result("bob_b", status="TIMEOUT")]
    curves = fastp_curves(results)
    root = tree(f"<div>{fastp_chart(curves, colours(curves))}</div>")
    (entry,) = [one for one in root.iter("li") if "solved nothing" in "".join(one.itertext())]
    assert "".join(entry.itertext()) == "1 author solved nothing"
    assert entry.get("data-tip") == "bob"


def test_no_fastp_chart_when_nothing_is_solved(make_result):
    curves = fastp_curves([make_result(status="TIMEOUT")])
    assert fastp_chart(curves, colours(curves)) is None


def test_many_authors_share_grey(make_result):
    results = [make_result(f"author{n:02d}_x", latency_ms=1.0 + n / 10) for n in range(COLOURS + 4)]
    curves = fastp_curves(results)
    root = tree(f"<div>{fastp_chart(curves, colours(curves))}</div>")
    assert len(with_class(root, "curve")) == COLOURS + 4
    assert "4 others" in "".join(root.itertext())


# ---------------------------------------------------------------------------------- statuses


def test_bars_show_the_share_of_each_status(make_result):
    results = [
        make_result(workload="w1"),
        make_result(workload="w2"),
        make_result(workload="w3"),
        make_result(workload="w4", status="TIMEOUT"),
    ]
    root = tree(f"<div>{status_chart(results)}</div>")
    (passed,), (late,) = with_class(root, "st-passed")[:1], with_class(root, "st-timeout")[:1]
    widths = float(passed.get("width")) + 2, float(late.get("width")) + 2
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)
    assert late.get("data-tip") == "alice timeout: 1 of 4"


def test_authors_with_few_evaluations_share_a_bar(make_result):
    results = [make_result(f"author{n}_x") for n in range(20)]
    assert "8 others" in status_chart(results)


# ------------------------------------------------------------------------- table and sections


def test_table_has_a_row_for_each_score(make_result):
    results = [
        make_result("a", latency_ms=1.0),
        make_result("b", workload="w1", status="TIMEOUT"),
        make_result("b", workload="w2"),
    ]
    scores = score_solutions(results)
    root = tree(results_table(scores, {("double", "Test CPU", "a")}))
    rows = root.findall(".//tbody/tr")
    assert len(rows) == 2
    assert [bool(with_class(row, "badge")) for row in rows] == [True, False]
    text = ["".join(row.itertext()) for row in rows]
    assert "passed" in text[0]
    assert "1 failed" in text[1]
    assert "1/2" in text[1]
    assert len(rows[0]) == len(root.findall(".//th"))


def test_every_cell_that_is_sorted_has_a_value(make_result):
    scores = score_solutions([make_result(max_absolute_error=float("nan"), status="PASSED")])
    root = tree(results_table(scores, ()))
    for cell in root.findall(".//tbody/tr/td"):
        value = cell.get("data-v")
        assert value is not None
        if "n" in (cell.get("class") or "").split() and value:
            float(value)


def test_the_device_is_a_column_only_where_there_are_several(make_result):
    one = score_solutions([make_result()])
    two = score_solutions([make_result(), make_result(hardware="Other")])
    assert "Device" not in results_table(one, ())
    assert "Device" in results_table(two, ())


def test_section_of_a_definition(make_result):
    results = [make_result("alice_double_a"), make_result("bob_double_b", latency_ms=4.0)]
    section = definition_section(results, score_solutions(results), True, False)
    assert section.startswith("<details open")
    assert "2 solutions" in section
    assert "alice_…_a · 1 ms · 2×" in section
    assert section.count("<svg") == 2


def test_section_of_a_definition_that_nobody_solved(make_result):
    results = [make_result(status="COMPILE_ERROR")]
    section = definition_section(results, score_solutions(results), False, True)
    assert "not solved" in section
    assert "nothing to draw" in section
    assert "Test CPU" in section


def test_failures_are_grouped_and_their_logs_shown(make_result):
    results = [
        make_result(workload="w1", status="RUNTIME_ERROR", log=""),
        make_result(workload="w2", status="RUNTIME_ERROR", log="Traceback: boom"),
        make_result("b", status="TIMEOUT"),
        make_result("c"),
    ]
    section = failures_section(results)
    assert section.count("<details") == 2
    assert "2 workloads" in section
    assert "Traceback: boom" in section
    assert "no log was recorded" in section


def test_long_logs_keep_both_ends(make_result):
    log = "first line\n" + "middle\n" * 5000 + "last line"
    section = failures_section([make_result(status="RUNTIME_ERROR", log=log)])
    assert "first line" in section
    assert "last line" in section
    assert "characters left out" in section
    assert len(section) < 10_000


def test_no_failures_no_section(make_result):
    assert failures_section([make_result()]) is None
