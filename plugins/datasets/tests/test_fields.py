"""Misspelt fields, unknown languages and broken definitions, as ``fib validate`` reports them."""

from __future__ import annotations

import json

import pytest

DEFINITION = "definitions/op/double.json"
SOLUTION = "solutions/alice/op/double/alice_double.json"
WORKLOADS = "workloads/op/double.jsonl"
TRACES = "traces/op/double.jsonl"


@pytest.fixture
def found(maker, fib):
    """Change the first record of a file of a sound dataset; return what validate reports of it."""
    maker.sound()

    def change(file, place="", value=None):
        path = maker.root / file
        first, *others = path.read_text().splitlines()
        record = json.loads(first)
        *parents, last = place.split(".")
        holder = record
        for key in parents:
            holder = holder[int(key) if isinstance(holder, list) else key]
        holder[last] = value
        path.write_text("\n".join([json.dumps(record), *others]) + "\n")
        (document,) = json.loads(fib("validate", maker.root, "--json").stdout)["datasets"]
        return [
            (one["severity"], one.get("field"), one["message"])
            for one in document["findings"]
            if one["path"] == file
        ]

    return change


@pytest.mark.parametrize(
    ("file", "place", "meant"),
    [
        (DEFINITION, "tolerence", "tolerance"),
        (DEFINITION, "axes.N.descripton", "description"),
        (DEFINITION, "axes.N.vlaue", ""),  # an axis of the type var has none
        (DEFINITION, "inputs.x.dtyp", "dtype"),
        (DEFINITION, "outputs.y.shap", "shape"),
        (DEFINITION, "optype", "op_type"),
        (SOLUTION, "auther", "author"),
        (SOLUTION, "spec.destination_pasing_style", "destination_passing_style"),
        (SOLUTION, "sources.0.contents", "content"),
        (WORKLOADS, "workload.uid", "uuid"),
        (WORKLOADS, "workload.inputs.x.valeu", ""),  # a random input has none
        (WORKLOADS, "solutions", "solution"),
        (TRACES, "evaluation.time_stamp", "timestamp"),
        (TRACES, "evaluation.performance.latency", "latency_ms"),
        (TRACES, "evaluation.correctness.max_abs_error", "max_absolute_error"),
        (TRACES, "evaluation.environment.lib", "libs"),
        (TRACES, "what_is_this", ""),
    ],
)
def test_a_field_that_the_format_does_not_have(found, file, place, meant):
    (severity, field, message), *others = found(file, place, "x")
    name = place.rpartition(".")[2]
    assert (severity, field, others) == ("warning", place, [])
    assert message.startswith(f'unknown field "{name}"')
    if meant:
        assert message == f'unknown field "{name}": did you mean "{meant}"?'


def test_tolerances_are_looked_into(found):
    wrong = {"atoll": 1, "max_rtol": 1, "outputs": {"y": {"rtoll": 1}}}
    fields = [field for _, field, _ in found(DEFINITION, "tolerance", wrong)]
    assert fields == ["tolerance.atoll", "tolerance.outputs.y.rtoll"]


def test_the_type_of_an_axis_says_what_it_may_have(found):
    assert "value" in found(DEFINITION, "axes.N", {"vlaue": 4})[0][2]
    ((_, field, message),) = found(DEFINITION, "axes.N", {"type": "var", "value": 4})
    assert (field, message) == ("axes.N.value", 'unknown field "value"; it is ignored')


@pytest.mark.parametrize(
    ("file", "place"),
    [
        (DEFINITION, "$schema"),
        (DEFINITION, "axes.N.parent"),
        (DEFINITION, "inputs.x.optional"),
        (DEFINITION, "check"),
        (SOLUTION, "$schema"),
        (SOLUTION, "spec.build_commands"),
        (WORKLOADS, "$schema"),
        (TRACES, "evaluation.log_file"),
        (TRACES, "evaluation.error"),
        (TRACES, "evaluation.environment.device"),
    ],
)
def test_what_older_releases_and_editors_write_is_no_finding(found, file, place):
    assert found(file, place, "x") == []


def test_a_field_on_many_lines_is_reported_once(found, maker):
    path = maker.root / TRACES
    path.write_text(path.read_text().replace('"log"', '"lgo"'))
    (_, field, message), _ = found(TRACES, "timing", "x")
    assert (field, message) == (
        "evaluation.lgo",
        'unknown field "lgo": did you mean "log"? (on 4 lines of this file)',
    )


@pytest.mark.parametrize(
    ("language", "severity", "end"),
    [
        ("C++", "warning", "write 'cpp'"),
        ("cutedsl", "warning", "write 'cute_dsl'"),
        ("brainfuck", "note", "no installed plugin builds it"),
        ("sycl", None, ""),
        ("Python", None, ""),
    ],
)
def test_languages(found, language, severity, end):
    at = [one for one in found(SOLUTION, "spec.language", language) if one[1] == "spec.language"]
    assert [one[0] for one in at] == ([severity] if severity else [])
    assert all(one[2].endswith(end) for one in at)


def test_an_entry_point_without_a_file(found):
    ((severity, field, message),) = found(SOLUTION, "spec.entry_point", "run")
    assert (severity, field) == ("warning", "spec.entry_point")
    assert message == 'the entry point has no file: write "FILE::run"'


def test_a_broken_definition_is_one_error_with_a_count(found, maker, fib):
    ((severity, field, message),) = found(DEFINITION, "reference", "def walk(x): return x")
    assert (severity, field) == ("error", "reference")
    assert message.endswith("(named by 2 solutions, 2 workloads, 4 traces)")
    assert fib("validate", maker.root, "--errors-only").stdout.count("\n") == 2
    (maker.root / DEFINITION).unlink()
    lost = fib("validate", maker.root, "--errors-only").stdout.splitlines()[1:]
    counts = ("2 solutions", "2 workloads", "4 traces")
    assert [line.rpartition("(")[2] for line in lost] == [f"named by {each})" for each in counts]
