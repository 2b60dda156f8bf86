"""``fib init``, ``fib new`` and ``fib schema``, and that what they write is right."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from flashinfer_bench.data import layout

ROOT = Path(__file__).parents[4]
SAMPLE = ROOT / "examples" / "sample-dataset"
NAMES = {"gemm_n256_k256": "gemm", "rmsnorm_h512": "rmsnorm"}


def findings(fib, root):
    (found,) = json.loads(fib("validate", root, "--strict", "--json").stdout)["datasets"]
    return found["findings"]


@pytest.fixture
def begun(fib, tmp_path):
    """A dataset as ``fib init`` writes it."""
    done = fib("init", tmp_path / "kernels")
    assert done.exit_code == 0
    assert len(done.stdout.split()) == 4
    assert all(Path(path).is_file() for path in done.stdout.split())
    assert f"fib run {tmp_path / 'kernels'}" in done.stderr
    return tmp_path / "kernels"


def test_what_init_writes_is_sound(begun, fib):
    assert findings(fib, begun) == []
    before = {path: path.read_bytes() for path in layout.files(begun, "")}
    again = fib("init", begun)
    assert (again.exit_code, "is already a dataset" in again.stderr) == (2, True)
    assert {path: path.read_bytes() for path in layout.files(begun, "")} == before


def test_new_records_fit_together_and_are_refused_twice(begun, fib):
    commands = (
        ("new", "definition", "scale", "--op-type", "scaling", "--local", begun),
        ("new", "solution", "baseline_scale", "--definition", "scale", "--author", "baseline"),
        ("new", "workload", "scale", "tokens=7"),
    )
    for command in commands:
        done = fib(*command, "--dataset", begun)
        assert done.exit_code == 0, done.stderr
        assert Path(done.stdout.strip()).is_file()
        again = fib(*command, "--dataset", begun)
        assert (again.exit_code, "already" in again.stderr) == (2, True)
    assert findings(fib, begun) == []
    (line,) = (begun / "workloads/scaling/scale.jsonl").read_text().splitlines()
    workload = json.loads(line)["workload"]
    assert workload["axes"] == {"tokens": 7}
    assert workload["inputs"]["eps"] == {"type": "scalar", "value": 1e-6}
    other = fib("new", "workload", "scale", "tokens=7", "eps=0.5", "--local", begun)
    assert (other.exit_code, "a default" in other.stderr) == (0, False)
    wrong = fib("new", "workload", "scale", "eps=x", "--local", begun)
    assert (wrong.exit_code, "not INPUT=VALUE with a float32" in wrong.stderr) == (2, True)


def test_a_uuid_that_an_edited_workload_has_is_not_taken_again(begun, fib):
    path = begun / "workloads/layernorm/layernorm_h256.jsonl"
    command = ("new", "workload", "layernorm_h256", "tokens=7", "--local", begun)
    assert "eps = 1e-06 (a default" in fib(*command).stderr
    path.write_text(path.read_text().replace("1e-6", "1e-5"))
    assert fib(*command).exit_code == 0
    lines = path.read_text().splitlines()
    assert len({json.loads(line)["workload"]["uuid"] for line in lines}) == 3
    assert findings(fib, begun) == []


@pytest.mark.parametrize("language", ["triton", "cpp", "cuda"])
def test_a_solution_in_another_language(begun, fib, language):
    command = ("new", "solution", "mine", "--definition", "layernorm_h256")
    done = fib(*command, "--language", language, "--local", begun)
    solution = json.loads(Path(done.stdout.strip()).read_text())
    assert solution["spec"]["language"] == language
    assert findings(fib, begun) == []
    (source,) = solution["sources"]
    if language != "triton":
        assert "TensorView weight,\n    double eps,\n    /* float32 [tokens" in source["content"]


def test_a_workload_that_breaks_a_constraint_is_refused(begun, fib):
    definition = json.loads((begun / "definitions/layernorm/layernorm_h256.json").read_text())
    even = {"name": "even", "axes": {"n": {"type": "var"}}, "constraints": ["n % 2 == 0"]}
    shapes = {"inputs": {"x": {"shape": ["n"], "dtype": "int32"}}, "outputs": {}}
    even = json.dumps({**definition, **even, **shapes})
    (begun / "definitions/layernorm/even.json").write_text(even)
    before = list(layout.files(begun, ""))
    done = fib("new", "workload", "even", "n=3", "--local", begun)
    assert done.exit_code == 2
    assert "'n % 2 == 0' is violated by n=3" in done.stderr
    assert list(layout.files(begun, "")) == before


def test_any_name_makes_a_file_that_is_in_its_place(begun, fib):
    for kind, *more in (
        ("definition", "--op-type", "../op"),
        ("solution", "--definition", "layernorm_h256", "--author", "a/b"),
    ):
        assert fib("new", kind, "x", *more, "--local", begun).exit_code == 0
        for name in ("", "a b", "x/../y", ".x", "x" * 161):
            assert fib("new", kind, name, *more, "--local", begun).exit_code == 2
    assert {each["severity"] for each in findings(fib, begun)} == set()
    assert sorted(path.name for path in begun.iterdir()) == [
        "definitions",
        "solutions",
        "workloads",
    ]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.plugin("python")
def test_what_they_write_runs_and_passes(begun, fib, fib_process):
    fib("new", "definition", "scale", "--local", begun)
    fib("new", "solution", "my_scale", "--definition", "scale", "--local", begun)
    fib("new", "workload", "scale", "--local", begun)
    done = fib_process("run", "--local", begun, "--device", "cpu", "--iterations", "5")
    assert done.returncode == 0
    assert done.stderr.count("PASSED") >= 3
    assert {each["severity"] for each in findings(fib, begun)} <= {"note"}


def test_a_name_that_a_solution_of_another_definition_has(fib, begun):
    fib("new", "definition", "other", "--local", begun)
    taken = json.loads(next(begun.glob("solutions/**/*.json")).read_text())["name"]
    done = fib("new", "solution", taken, "--definition", "other", "--local", begun)
    assert (done.exit_code, "already" in done.stderr) == (2, True)
    shadowed = fib("new", "solution", "other", "--definition", "other", "--local", begun)
    assert shadowed.exit_code == 0, shadowed.stderr


# -------------------------------------------------------------------------------------- schemas


@cache
def schema(kind):
    from fib_datasets.schema import schema_of

    return schema_of(kind)


def fits(part, value, root):
    """Return whether a value is what a schema asks for; every key of the schema is understood."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    rules = {
        "$ref": lambda to: fits(root["$defs"][to.rpartition("/")[2]], value, root),
        "anyOf": lambda parts: any(fits(one, value, root) for one in parts),
        "oneOf": lambda parts: sum(fits(one, value, root) for one in parts) == 1,
        "const": lambda one: value == one,
        "enum": lambda some: value in some,
        "type": lambda kind: (
            isinstance(value, kinds[kind])
            if kind in kinds
            else type(value) in ((int,) if kind == "integer" else (int, float))
        ),
        "minimum": lambda least: value >= least,
        "maximum": lambda most: value <= most,
        "exclusiveMinimum": lambda least: value > least,
        "minLength": lambda least: len(value) >= least,
        "minItems": lambda least: len(value) >= least,
        "maxItems": lambda most: len(value) <= most,
        "pattern": lambda text: re.search(text, value) is not None,
        "items": lambda one: all(fits(one, each, root) for each in value),
        "prefixItems": lambda some: all(map(lambda a, b: fits(a, b, root), some, value)),
        "required": lambda names: all(name in value for name in names),
        "propertyNames": lambda one: all(fits(one, name, root) for name in value),
        "properties": lambda each: all(
            fits(each[name], one, root) for name, one in value.items() if name in each
        ),
        "additionalProperties": lambda one: all(
            one is True or (one is not False and fits(one, each, root))
            for name, each in value.items()
            if name not in part.get("properties", {})
        ),
    }
    talk = {"$schema", "$defs", "title", "description", "default", "discriminator"}
    order = sorted(part.keys() - talk, key=lambda rule: rule != "type")
    return all(rules[rule](part[rule]) for rule in order)


def records(root):
    for kind in ("definition", "solution", "workload", "trace"):
        folder = f"{kind}s"
        for path in layout.files(root / folder, ".json", ".jsonl"):
            text = path.read_text(encoding="utf-8")
            for record in [text] if path.suffix == ".json" else text.splitlines():
                yield kind, json.loads(record)


def test_records_fit_their_schema(maker):
    maker.sound()
    maker.trace(status="INCORRECT_NUMERICAL", error=1.0, provenance={"seed": 1, "new": {}})
    found = [*records(SAMPLE), *records(maker.root)]
    assert {kind for kind, _ in found} == {"definition", "solution", "workload", "trace"}
    for kind, record in found:
        assert fits(schema(kind), {**record, "$schema": "x"}, schema(kind)), record


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("definition", "tolerence", {}),
        ("definition", "tolerance", {"atoll": 1}),
        ("definition", "axes.N.type", "varr"),
        ("definition", "inputs.x.dtype", "float23"),
        ("solution", "spec.destination_pasing_style", True),
        ("solution", "sources", []),
        ("workload", "workload.axes.N", "16"),
        ("workload", "workload.inputs.x.type", "zeros"),
        ("workload", "solution", "a"),
        ("trace", "evaluation", None),
        ("trace", "evaluation.status", "PASSD"),
        ("trace", "evaluation.performance.latency_ms", "fast"),
    ],
)
def test_what_is_wrong_does_not_fit(maker, kind, place, value):
    maker.sound()
    record = next(one for name, one in records(maker.root) if name == kind)
    *parents, last = place.split(".")
    holder = record
    for key in parents:
        holder = holder[key]
    holder[last] = value
    assert not fits(schema(kind), record, schema(kind))


def test_schemas_are_printed_and_written(fib, tmp_path):
    kinds = ("definition", "solution", "workload", "trace")
    assert list(json.loads(fib("schema").stdout)) == list(kinds)
    done = fib("schema", "--output", tmp_path)
    written = [Path(line) for line in done.stdout.split()]
    assert [path.name for path in written] == [f"{kind}.schema.json" for kind in kinds]
    for path, kind in zip(written, kinds, strict=True):
        one = json.loads(path.read_text())
        assert one == json.loads(fib("schema", kind).stdout) == schema(kind)
        fields = [one["properties"], *(p.get("properties", {}) for p in one["$defs"].values())]
        silent = [n for each in fields for n, field in each.items() if "description" not in field]
        assert set(silent) <= {"type"}
