"""The page as a document: self-contained, escaped, and complete whatever the results are."""

from __future__ import annotations

import base64
import hashlib
import random
import re
import string
from html.parser import HTMLParser

import pytest

from flashinfer_bench.report import PageInfo, render_page

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
    assert checker.tags.count("script") == 5  # four of which are data
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
    assert checker.tags.count("script") == 5
    assert "img" not in checker.tags
    assert checker.handlers == []
    assert "\x1b" not in page


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


def test_ten_thousand_evaluations_with_samples_and_noise_stay_small(make_result, unpack):
    rng = random.Random(5)
    results = []
    for n in range(10_000):
        middle = rng.lognormvariate(0, 2)
        samples = tuple(middle * rng.lognormvariate(0, 0.05) for _ in range(40))
        results.append(
            make_result(
                f"a_{n % 10}", workload=f"w{n}", definition=f"d{n // 200}", latency_ms=middle,
                samples_ms=samples, interval_ms=(middle * 0.98, middle * 1.03),
                speedup_interval=(rng.random(), 2.0 + rng.random()),
                timing={"watched": {"cpu": {"load": [rng.random() for _ in range(3)]}}},
                log="".join(rng.choices(string.ascii_letters, k=1000)),
            )
        )  # fmt: skip
    page = render_page(results, INFO)
    assert len(page.encode()) < 3_000_000
    shapes = unpack(page, "shapes")
    places = unpack(page, "data")["runs"]["shape"]
    assert sorted(place for place in places if place >= 0) == list(range(len(shapes)))
    assert len(shapes) > 5_000
