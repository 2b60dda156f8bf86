"""``fib show``: names, and all that is recorded of them."""

import json
import re

import pytest

FAILURE = """call: ValueError: 12 is wrong
Traceback (most recent call last):
  File "main.py", line 3, in run
ValueError: 12 is wrong
--- output ---
the last words"""


@pytest.fixture
def dataset(two_definitions):
    maker = two_definitions
    maker.solution("carol_double", author="carol", code="def run(x):\n    raise ValueError(12)\n")
    maker.trace("carol_double", status="RUNTIME_ERROR", log=FAILURE, provenance={"seed": 77})
    maker.trace("alice_double", log="a note")
    return maker


@pytest.mark.parametrize("name", ["carol_double", "carol", "car*", "double/carol_double/w1"])
def test_all_that_is_known_of_a_solution(fib, dataset, name):
    result = fib("show", name, dataset.root)
    assert result.exit_code == 0, result.stderr
    for words in (
        "--- Solution carol_double",
        "author: carol",
        "--- Trace double/carol_double/w1",
        "RUNTIME_ERROR main.py:3: ValueError: 12 is wrong",
        "the last words",
        "environment: {'hardware': 'Test CPU'",
        "provenance: {'seed': 77,",
        "--- Source main.py",
        "    raise ValueError(12)",
    ):
        assert words in result.stdout


def test_a_definition_and_a_workload(fib, dataset):
    shown = fib("show", "triple", "--local", dataset.root).stdout
    assert "--- Definition triple" in shown
    assert "--- Reference" in shown
    assert "op_type: gemm" in shown
    shown = fib("show", "double/w1", "--local", dataset.root).stdout
    assert "--- Workload w1" in shown
    assert "carol_double\tN=16\tw1\tTest CPU\tRUNTIME_ERROR\t\t\tmain.py:3: ValueError: 12" in shown


def test_scalars_and_speedups_are_shown(fib, maker):
    maker.definition()
    maker.solution()
    path = maker.trace(latency_ms=1.0, reference_ms=3.0)
    scalar = '"inputs": {"eps": {"type": "scalar", "value": 0.5}, '
    path.write_text(path.read_text().replace('"inputs": {', scalar))
    shown = fib("show", "alice_double", maker.root).stdout
    assert "N=16,eps=0.5\tw1\tTest CPU\tPASSED\t1\t3\t" in shown
    assert "for N=16 eps=0.5" in shown


def test_json_has_the_records(fib, dataset):
    found = json.loads(fib("show", "carol_double", dataset.root, "--json").stdout)
    assert found["subject"]["solution"] == "carol_double"
    assert found["solution"]["sources"][0]["path"] == "main.py"
    assert [one["evaluation"]["log"] for one in found["traces"]] == [FAILURE]


def test_a_name_that_fits_several(fib, dataset):
    several = fib("show", "*_double", dataset.root)
    assert (several.exit_code, several.stdout) == (2, "")
    assert "matches 3 names" in several.stderr
    assert "alice_double" in several.stderr
    assert "did you mean carol_double" in fib("show", "carl_double", dataset.root).stderr


def test_a_terminal_shows_sizes_and_short_uuids(fib_terminal, dataset):
    dataset.trace("alice_double", uuid="64858cd4-6862-5674-92ed-907bbf8315c6", axes={"N": 7})
    _, shown = fib_terminal("show", "double", dataset.root, columns=80)
    assert re.search("alice_double +N=7 +64858cd4 ", shown), shown


def test_a_log_cannot_talk_to_the_terminal(fib_terminal, dataset):
    dataset.trace("carol_double", status="RUNTIME_ERROR", log="\x1b[2J[red]", timestamp="2027")
    _, shown = fib_terminal("show", "carol_double", dataset.root, columns=80)
    assert "\\x1b[2J[red]" in shown
    assert "\x1b[2J" not in shown
