"""``fib validate``."""

from __future__ import annotations

import json

import pytest


def test_a_sound_dataset(fib, maker):
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "0 errors, 0 warnings in 1 definitions, 2 solutions, 2 workloads, 4 traces" in (
        result.stderr
    )


def test_errors_are_findings_in_a_table_and_in_json(fib, maker):
    maker.sound()
    maker.raw("definitions/op/broken.json", '{"name": "x",\n "op_type": }')
    result = fib("validate", "--local", maker.root)
    assert result.exit_code == 1
    header, line = result.stdout.splitlines()
    assert header == "severity\tcheck\tplace\tmessage"
    assert line.startswith("error\tdefinitions\tdefinitions/op/broken.json:2\tnot valid JSON")
    assert "1 errors, 0 warnings" in result.stderr
    result = fib("validate", "--json", "--local", maker.root)
    assert result.exit_code == 1
    (dataset,) = json.loads(result.stdout)["datasets"]
    assert (dataset["errors"], dataset["counts"]["traces"]) == (1, 4)
    (finding,) = dataset["findings"]
    assert (finding["severity"], finding["check"]) == ("error", "definitions")
    assert (finding["path"], finding["line"]) == ("definitions/op/broken.json", 2)


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--strict"], 1)])
def test_warnings_count_only_when_asked(fib, maker, flags, code):
    maker.sound().raw("traces/notes.txt", "")
    result = fib("validate", "--local", maker.root, *flags)
    assert result.exit_code == code
    assert result.stdout.splitlines()[1].startswith("warning\t")


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        (["--layer", "workload"], ["workload"]),
        (["--layer", "workload", "solution"], ["workload", "solution"]),
        (["--checks", "workload", "solution", "workload"], ["workload", "solution"]),
        (["--checks=workload", "--layers", "workload, solution"], ["workload", "solution"]),
    ],
)
def test_layers(fib, maker, flags, layers):
    maker.sound()
    maker.solution("lost", definition="triple")  # an error
    maker.workload()  # a warning
    result = fib("validate", maker.root, "--json", *flags)
    assert result.exit_code == len(layers) - 1
    (dataset,) = json.loads(result.stdout)["datasets"]
    assert dataset["layers"] == layers
    assert {one["check"] for one in dataset["findings"]} == {f"{one}s" for one in layers}


def test_a_report_in_a_file_is_that_of_json(fib, maker, tmp_path):
    maker.sound()
    maker.solution("lost", definition="triple")
    before = fib("validate", maker.root, "--json")
    assert not (maker.root / "reports").exists()
    result = fib("validate", maker.root, "--outputs", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1 errors, 0 warnings" in result.stderr
    (path,) = (maker.root / "reports").iterdir()
    assert path.read_text() + "\n" == before.stdout
    assert f"report written to {path}" in result.stderr
    # What lies there now changes no finding.
    elsewhere = tmp_path / "a" / "b"
    options = ("--outputs", "stdout,json", "--json", "--output-folder", elsewhere)
    assert fib("validate", maker.root, *options).stdout == before.stdout
    assert [one.name for one in elsewhere.iterdir()] == ["validation.json"]


@pytest.mark.plugin("datasets")
@pytest.mark.parametrize("flags", [[], ["--strict"]])
def test_a_definition_without_a_baseline_is_no_fault(fib, maker, flags):
    """As after a merge with a dataset that has none."""
    maker.sound()
    maker.definition("triple")
    maker.solution("alice_triple", definition="triple")
    maker.workload("triple")
    result = fib("validate", maker.root, *flags)
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()[1:]
    assert line.startswith("note\tbaseline\tdefinitions/op/triple.json\t")
    assert "0 errors, 0 warnings, 1 notes in" in result.stderr
    assert fib("validate", maker.root, "--errors-only", *flags).stdout == ""
    (dataset,) = json.loads(fib("validate", maker.root, "--json").stdout)["datasets"]
    assert (dataset["errors"], dataset["warnings"], dataset["notes"]) == (0, 0, 1)
