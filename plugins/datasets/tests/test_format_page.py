"""The page of the format has every field of every record, and its examples are right."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import TypeAdapter

from fib_datasets.schema import schema_of
from fib_datasets.starters import STARTER
from flashinfer_bench import data
from flashinfer_bench.data import layout
from flashinfer_bench.data.trace import EvaluationStatus
from flashinfer_bench.validate import validate_dataset

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "format.md"
HEAD = "| field | required | type | example | since | meaning |\n|---|---|---|---|---|---|\n"
MODELS = (
    *(data.Definition, data.AxisConst, data.AxisVar, data.TensorSpec, data.Tolerance),
    *(data.Workload, data.RandomInput, data.ScalarInput, data.SafetensorsInput),
    *(data.Solution, data.BuildSpec, data.SourceFile, data.CompileOptions),
    *(data.Trace, data.Evaluation, data.Correctness, data.Performance, data.Environment),
)
NAMES = {"array": "list"}


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def tables(page):
    """Return the tables of fields, in the order of the page: a list of rows each."""
    found = [part.partition("\n\n")[0] for part in page.split(HEAD)[1:]]
    return [[re.split(r"(?<!\\) \| ", row[2:-2]) for row in each.splitlines()] for each in found]


def words(part, parts):
    """Return what a field of a schema may be, as the page calls it."""
    if "anyOf" in part:
        found = {word for one in part["anyOf"] for word in words(one, parts)}
        return found - {"integer"} if "number" in found else found
    if "$ref" in part:
        return words(parts[part["$ref"].rpartition("/")[2]], parts)
    # Words for numbers that JSON does not know have no type.
    return {NAMES.get(part["type"], part["type"])} if "type" in part else set()


# To a type adapter the old name of a field means nothing.
@pytest.mark.filterwarnings("ignore::pydantic.warnings.UnsupportedFieldAttributeWarning")
def test_every_field_is_there_with_a_true_example(page):
    found = tables(page)
    assert len(found) == len(MODELS)
    parts = {}
    for kind in ("definition", "solution", "trace"):
        one = schema_of(kind)
        parts |= {kind.capitalize(): one, **one["$defs"]}
    for model, rows in zip(MODELS, found, strict=True):
        assert [row[0].strip("`") for row in rows] == list(model.model_fields)
        for name, required, kinds, example, since, meaning in rows:
            name = name.strip("`")
            field = model.model_fields[name]
            assert required == ("yes" if field.is_required() else "no"), name
            assert re.fullmatch(r"first|later|0\.2|20\d\d-\d\d", since)
            assert meaning
            TypeAdapter(Annotated[field.annotation, field]).validate_json(example.strip("`"))
            allowed = words(parts[model.__name__]["properties"][name], parts)
            # That an optional field may be null is said above the tables.
            assert set(kinds.split(" or ")) == allowed - set(
                () if field.is_required() else {"null"}
            )


def test_the_lists_of_names_are_whole(page):
    listed = re.search(r"Element types: (.*?)\. Two", page, re.DOTALL)[1]
    assert re.findall(r"`(\w+)`", listed) == [str(one) for one in data.DType]
    statuses = re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)
    assert sorted(statuses) == sorted(str(one) for one in EvaluationStatus)
    draws = page.partition("| dtype | `random` draws |")[2].partition("\n\n")[0]
    drawn = re.findall(r"`(\w+)`", "".join(line.split(" | ")[0] for line in draws.splitlines()))
    assert sorted(drawn) == sorted(str(one) for one in data.DType)


def test_the_examples_are_what_init_writes_and_are_sound(page, tmp_path):
    blocks = re.findall(r"^```json\n(\{.*?)^```$", page, re.MULTILINE | re.DOTALL)
    definition, workload, solution, trace = map(json.loads, blocks[:4])
    paths = layout.files(STARTER, ".json", ".jsonl")
    written = [json.loads(path.read_text()) for path in paths]
    assert all(record in written for record in (definition, workload, solution))
    shutil.copytree(STARTER, tmp_path / "dataset")
    path = layout.traces_file(tmp_path / "dataset", "layernorm", trace["definition"])
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(trace) + "\n")
    report = validate_dataset(tmp_path / "dataset")
    assert [one for one in report.findings if one.severity != "note"] == []
    assert report.counts["traces"] == 1


@pytest.mark.torch
def test_random_draws_what_the_page_says():
    from flashinfer_bench.tensors.generate import random_tensor

    for dtype, low, high in (("int8", -128, 127), ("int16", 0, 127), ("int64", 0, 127)):
        drawn = random_tensor((100_000,), dtype, 1)
        assert (int(drawn.min()), int(drawn.max())) == (low, high)
    normal = random_tensor((100_000,), "bfloat16", 1).float()
    assert abs(float(normal.mean())) < 0.02
    assert abs(float(normal.var()) - 1) < 0.05
    assert abs(float(random_tensor((100_000,), "bool", 1).float().mean()) - 0.5) < 0.02
