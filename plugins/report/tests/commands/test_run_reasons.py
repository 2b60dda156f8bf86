"""What ``fib run`` says of failures, what it runs again, and what it writes for machines."""

import json
import re
from xml.etree import ElementTree

import pytest

from fib_tests.cli import rows
from flashinfer_bench.plugins import reset_default_catalog

pytestmark = [pytest.mark.torch, pytest.mark.plugin("python"), pytest.mark.timeout(400)]

QUICK = ["--device", "cpu", "--iterations", "2", "--warmup-runs", "0", "--num-trials", "1"]
SOLUTIONS = {
    "good_double": "def run(x):\n    return x * 2\n",
    "wrong_double": "def run(x):\n    y = x * 2\n    y[3:5] = 7.0\n    return y\n",
    "raises_double": "def run(x):\n    if len(x) > 8:\n        raise ValueError('too long')\n"
    "    return x * 2\n",
    "broken_double": "def run(x:\n",
    "shape_double": "def run(x):\n    return x[1:]\n",
    "exits_double": "import os\n\n\ndef run(x):\n    os.kill(os.getpid(), 9)\n",
}
REASONS = {
    "wrong_double": r"y\[3\] is 7, expected \S+; 12.5 % of the elements are wrong; "
    r"largest error \S+ absolute, \S+ relative",
    "raises_double": r"main.py:3: ValueError: too long",
    "broken_double": r"importing main.py failed: main.py:1: SyntaxError: '\(' was never closed",
    "shape_double": r"output 'y' has shape \[15\] instead of \[16\]",
    "exits_double": r"the worker was killed by signal 9 \(SIGKILL.*\)",
}


@pytest.fixture
def dataset(maker, monkeypatch):
    monkeypatch.setenv("FIB_DISABLE_PLUGINS", "judge")
    reset_default_catalog()
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    maker.definition()
    maker.workload(uuid="long-1")
    maker.workload(uuid="short-1", axes={"N": 8})
    for name, code in SOLUTIONS.items():
        maker.solution(name, author=name.partition("_")[0], code=code)
    yield maker
    reset_default_catalog()  # the next test has the judge again


def evaluated(root):
    lines = (root / "traces/op/double.jsonl").read_text().splitlines()
    traces = [json.loads(line) for line in lines]
    return [(one["solution"], one["workload"]["uuid"]) for one in traces]


def test_each_failure_has_its_reason_and_equal_ones_are_told_once(fib_process, dataset, tmp_path):
    junit = tmp_path / "junit.xml"
    done = fib_process(
        "run", dataset.root, *QUICK, "--workload", "long*", "--junit", junit,
        env={"GITHUB_ACTIONS": "true"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, reason in REASONS.items():
        assert re.search(rf"\] [A-Z_]+ double / {name}\n      {reason}\n", done.stderr), done.stderr
        assert re.search(rf"\n  1 x [A-Z_]+ double / {name}\n      {reason}\n", done.stderr)
        assert re.search(rf"\n::error title=[A-Z_]+ double / {name}::", done.stderr)
    assert "12.5 %25 of" in done.stderr
    assert "5 failures, by reason:" in done.stderr
    assert re.search(rf"'fib show \w+_double {dataset.root}'", done.stderr)
    (suite,) = ElementTree.parse(junit).getroot()
    assert dict(suite.attrib)["tests"] == "6"
    told = {case.get("name"): case.find("failure") for case in suite}
    assert told.pop("good_double[long-1]") is None
    for name, reason in REASONS.items():
        assert re.fullmatch(reason, told[f"{name}[long-1]"].get("message"))
        assert told[f"{name}[long-1]"].text


def test_only_what_failed_last_is_run_again(fib_process, dataset):
    filters = ["--solution", "*s_double", "--author", "raises", "good*", "--workload", "*-1"]
    assert fib_process("run", dataset.root, *QUICK, *filters).returncode == 0
    first = evaluated(dataset.root)
    assert set(first) == {("raises_double", "long-1"), ("raises_double", "short-1")}
    again = fib_process("run", dataset.root, *QUICK, "--lf", "--log-level", "ERROR")
    assert again.returncode == 0, again.stderr
    assert [row["solution"] for row in rows(again.stdout)] == ["raises_double"]
    assert evaluated(dataset.root)[len(first) :] == [("raises_double", "long-1")]
    none = fib_process("run", dataset.root, *QUICK, "--lf", "--workload", "short-1")
    assert (none.returncode, none.stdout) == (5, "")
    assert "all latest evaluations passed" in none.stderr


@pytest.mark.parametrize(("option", "count"), [(["-x"], 1), (["--maxfail", "2"], 2)])
def test_a_run_stops_after_so_many_failures(fib_process, dataset, option, count):
    done = fib_process("run", dataset.root, *QUICK, *option)
    assert done.returncode == 1, done.stderr
    assert f"stopped after {count} failure" in done.stderr
    assert ("1 failure, by reason:" in done.stderr) == (count == 1)
    outcomes = [row["status"] for row in rows(done.stdout)]
    assert sum("PASSED" not in one for one in outcomes) == count
    assert len(evaluated(dataset.root)) < 12


def test_the_dataset_may_be_the_current_folder_or_one_of_its_parents(fib_process, dataset):
    inside = dataset.root / "solutions" / "good"
    found = fib_process("run", *QUICK, "--author", "good", cwd=inside, env={"FIB_DATASET_PATH": ""})
    assert found.returncode == 0, found.stderr
    assert len(evaluated(dataset.root)) == 2
    several = fib_process("report", "best", dataset.root, "--dataset", dataset.root)
    assert several.returncode == 0, several.stderr


def test_on_a_terminal_reasons_stand_above_the_bar(fib_terminal, dataset):
    pyte = pytest.importorskip("pyte")
    code, shown = fib_terminal("run", dataset.root, *QUICK, columns=80)
    assert code == 0, shown
    screen = pyte.HistoryScreen(80, 40, history=1000)
    pyte.Stream(screen).feed(shown.replace("\n", "\r\n"))
    top = ["".join(line[n].data for n in range(80)).rstrip() for line in screen.history.top]
    lines = [*top, *(line.rstrip() for line in screen.display)]
    for name, reason in REASONS.items():  # once, though there are two workloads
        (place,) = (
            n for n, line in enumerate(lines) if re.fullmatch(f"[A-Z_]+ double / {name}", line)
        )
        if len(reason) < 70:
            assert re.fullmatch(f"  {reason}", lines[place + 1]), lines
    assert not any("━" in line for line in lines)
    assert "\x1b[31mINCORRECT_NUMERICAL" in shown


def test_junit_is_xml_whatever_names_hold():
    from fib_report.run_addition import junit_xml
    from flashinfer_bench.bench import Skipped

    skipped = [
        Skipped("reference", "d\x1b", "s\x00", None, 1, "it \x07 fails"),
        Skipped("device", "d\x1b", "t", None, 1, "elsewhere"),
    ]
    (suite,) = ElementTree.fromstring(junit_xml([], skipped))
    assert (suite.get("errors"), suite.get("skipped"), suite.get("name")) == ("1", "1", "d?")
