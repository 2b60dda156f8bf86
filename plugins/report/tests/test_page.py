"""The page as a document: self-contained, escaped, and complete whatever the results are."""

import base64
import hashlib
import random
import re
import string
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.run_source import RunRow
from flashinfer_bench.report import PageInfo, collect_results, latest_results, render_page

INFO = PageInfo("A title", "/data/set", "2026-01-01 00:00 UTC")
HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>\"'&\x1b[31m"
VOID = {"meta"}


class Checker(HTMLParser):
    """Checks nesting, and collects what could ask for something."""

    def __init__(self):
        super().__init__()
        self.stack, self.tags, self.references, self.handlers, self.ids = [], [], [], [], []
        self.styles = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.stack.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action", "srcset", "data", "poster", "xlink:href"):
                self.references.append((tag, value))
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "style":
                self.styles.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def check(page):
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.stack == []
    return checker


@pytest.fixture
def results(make_result):
    return [
        make_result(name, workload=uuid, latency_ms=latency, samples_ms=(latency, latency * 1.1))
        for name, latency in (("alice_double", 1.0), ("bob_double", 0.5))
        for uuid in ("w1", "w2")
    ]


def test_it_asks_for_nothing(results):
    page = render_page(results, INFO)
    checker = check(page)
    assert all(value.startswith("#") for _, value in checker.references)
    assert checker.handlers == []
    assert checker.styles == []  # the policy forbids them
    assert checker.tags.count("script") == 7  # six of which are data
    assert "link" not in checker.tags
    without_namespace = page.replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(r"url\(|@import|https?://", without_namespace)


@pytest.mark.parametrize("kind", ["script", "style"])
def test_the_policy_lets_exactly_its_own_script_and_style_run(results, kind):
    page = render_page(results, INFO)
    (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src &#x27;none&#x27;")
    assert f"{kind}-src &#x27;sha256-{digest}&#x27;" in policy
    assert "unsafe" not in policy


def test_hostile_names_and_logs_are_text(make_result):
    results = [
        make_result(
            HOSTILE + str(n), definition=HOSTILE, op_type=HOSTILE, author=HOSTILE, status=status,
            language=HOSTILE, workload=HOSTILE, axes={HOSTILE: 3}, hardware=HOSTILE, log=HOSTILE,
        )
        for n, status in enumerate(("PASSED", "RUNTIME_ERROR"))
    ]  # fmt: skip
    page = render_page(results, PageInfo(HOSTILE, HOSTILE, HOSTILE))
    checker = check(page)
    assert checker.tags.count("script") == 7
    assert "img" not in checker.tags
    assert checker.handlers == []
    assert "\x1b" not in page


def test_the_head_says_what_was_evaluated_when_and_with_what(maker):
    maker.sound()
    maker.trace(hardware="H200", timestamp="2026-03-04T05:06:07",
                provenance={"seed": 7, "driver": "570.1"})  # fmt: skip
    trace_set = TraceSet.from_path(maker.root)
    info = PageInfo("A title", "/data/set", "today", "fib report visualize d")
    page = render_page(latest_results(collect_results(trace_set)), info, (), trace_set)
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd><bdi>([^<]*)</bdi></dd>", page))
    assert facts == {
        "Dataset": "/data/set", "Command": "fib report visualize d", "Device": "Test CPU; H200",
        "Evaluated": "2026-01-01 to 2026-03-04", "Driver": "570.1", "Seed": "7",
    }  # fmt: skip


def test_numbers_of_the_tiles(results, make_result):
    results.append(make_result("carol_x", definition="other", status="TIMEOUT"))
    tiles = re.findall(r"<b>([^<]*)</b><span>([^<]*)</span>", render_page(results, INFO))
    assert {label: value for value, label in tiles} == {
        "Definitions solved": "1 / 2",
        "Solutions": "3",
        "Workloads": "3",
        "Latest evaluations": "5",
        "Passed": "80%",
        "Mean speed-up of the best": "4×",
    }


def test_ten_thousand_evaluations_with_everything_stay_small(make_result, unpack):
    rng = random.Random(5)

    def noise(length):
        return "".join(rng.choices(string.ascii_letters, k=length))

    def run(n, **changes):
        middle = rng.lognormvariate(0, 2)
        return make_result(
            f"a_{n % 10}_{n // 200}", workload=f"w{n}", definition=f"d{n // 200}", log=noise(1000),
            latency_ms=middle, interval_ms=(middle * 0.98, middle * 1.03),
            samples_ms=tuple(middle * rng.lognormvariate(0, 0.05) for _ in range(40)),
            speedup_interval=(rng.random(), 2.0 + rng.random()),
            timing={"watched": {"cpu": {"load": [rng.random() for _ in range(3)]}}}, **changes,
        )  # fmt: skip

    results = [run(n) for n in range(10_000)]
    older = [run(n, timestamp=f"2025-{n}") for n in range(3_000)]
    spec = SimpleNamespace(language="python")
    solutions = {
        f"d{n}": [
            SimpleNamespace(
                name=f"a_{m}_{n}", author="a", spec=spec,
                sources=[SimpleNamespace(path="main.py", content=noise(3000))],
            )
            for m in range(10)
        ]
        for n in range(50)
    }  # fmt: skip
    rows = [row_of(one) for one in (*older, *results)]
    given = {"definitions": {}, "solutions": solutions, "root": None}
    trace_set = SimpleNamespace(**given, run_rows=lambda: rows)
    page = render_page(results, INFO, (), trace_set)
    assert len(page.encode()) < 3_000_000
    shapes, data = unpack(page, "shapes"), unpack(page, "data")
    places = data["runs"]["shape"]
    assert sorted(place for place in places if place >= 0) == list(range(len(shapes)))
    assert len(shapes) > 5_000
    assert (data["latest"], len(places)) == (10_000, 12_000)
    assert len(unpack(page, "sources")["files"]) == 500


def row_of(result):
    return RunRow(*(getattr(result, name) for name in RunRow.__struct_fields__))
