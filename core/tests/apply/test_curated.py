"""What may stand for a definition: in a mapping, in a file, in a folder."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import ClassVar

import pytest

from flashinfer_bench.apply.curated import (
    Candidate,
    check_takes,
    find_definitions,
    read_folder,
    read_mapping,
    read_solution,
    taken_by,
)
from flashinfer_bench.data import Definition, Solution, TensorSpec, TraceSet
from flashinfer_bench.errors import (
    ConfigError,
    DataError,
    DatasetNotFoundError,
    DuplicateNameError,
)


def definition_record(name="norm_h8", **changes):
    rows = {"shape": ["rows", "hidden"], "dtype": "float32"}
    return {
        "name": name,
        "op_type": "norm",
        "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
        "inputs": {"x": rows, "weight": {"shape": ["hidden"], "dtype": "float32"}},
        "outputs": {"y": rows},
        "reference": "def run(x, weight):\n    return x * weight\n",
        **changes,
    }


def solution_record(name="twice", definition="norm_h8"):
    return {
        "name": name,
        "definition": definition,
        "author": "me",
        "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
        "sources": [{"path": "main.py", "content": "def run(x, weight):\n    return x\n"}],
    }


def write(path: Path, record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


@pytest.fixture
def solution():
    return Solution.model_validate(solution_record())


@pytest.fixture
def no_dataset(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "nowhere"))


def twice(x, weight):
    return x


class TestMapping:
    def test_a_callable_stands_for_itself(self):
        (candidate,) = read_mapping({"norm_h8": twice}).values()
        assert candidate == Candidate("norm_h8", function=twice)
        assert candidate.name == "twice"

    def test_an_object_that_can_be_called_is_called_after_its_class(self):
        class Kernel:
            def __call__(self, x, weight):
                return x

        (candidate,) = read_mapping({"norm_h8": Kernel()}).values()
        assert candidate.name.endswith("Kernel")

    def test_a_solution(self, solution):
        (candidate,) = read_mapping({"norm_h8": solution}).values()
        assert candidate == Candidate("norm_h8", solution=solution)
        assert candidate.name == "twice"

    @pytest.mark.parametrize("kind", [str, Path])
    def test_the_path_of_a_solution(self, tmp_path, solution, kind):
        path = write(tmp_path / "twice.json", solution_record())
        assert read_mapping({"norm_h8": kind(path)})["norm_h8"].solution == solution

    def test_the_order_is_kept(self):
        assert list(read_mapping({"b": twice, "a": twice})) == ["b", "a"]

    def test_an_empty_mapping_is_one(self):
        assert read_mapping({}) == {}

    @pytest.mark.parametrize("value", [3, None, ["path"], {"name": "twice"}])
    def test_other_values_are_refused(self, value):
        with pytest.raises(ConfigError, match=r"'norm_h8' is a .*give a callable, a Solution"):
            read_mapping({"norm_h8": value})

    def test_what_returns_no_outputs_is_refused(self):
        async def later(x, weight):
            return x

        def one_by_one(x, weight):
            yield x

        async def each(x, weight):
            yield x

        class Later:
            async def __call__(self, x, weight):
                return x

        for value in (later, one_by_one, each, Later(), functools.partial(later, weight=1)):
            with pytest.raises(ConfigError, match="returns a coroutine or a generator"):
                read_mapping({"norm_h8": value})

    @pytest.mark.parametrize("key", ["", 3, None])
    def test_other_keys_are_refused(self, key):
        with pytest.raises(ConfigError, match="no name of a definition"):
            read_mapping({key: twice})

    def test_something_else_than_a_mapping_is_refused(self):
        with pytest.raises(ConfigError, match="is a list"):
            read_mapping([("norm_h8", twice)])

    def test_a_solution_of_another_definition_is_refused(self, solution):
        with pytest.raises(DataError) as caught:
            read_mapping({"norm_h16": solution})
        text = str(caught.value)
        assert "'twice'" in text
        assert "'norm_h8', not of 'norm_h16'" in text

    def test_in_a_file_the_message_names_the_file(self, tmp_path):
        path = write(tmp_path / "twice.json", solution_record())
        with pytest.raises(DataError) as caught:
            read_mapping({"norm_h16": path})
        assert caught.value.path == path

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(DataError, match=r"missing\.json: cannot be read: No such file"):
            read_mapping({"norm_h8": tmp_path / "missing.json"})

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(DataError, match="cannot be read: Is a directory"):
            read_mapping({"norm_h8": str(tmp_path)})

    def test_a_half_written_file_is_named(self, tmp_path):
        path = write(tmp_path / "half.json", json.dumps(solution_record())[:60])
        with pytest.raises(DataError, match=r"half\.json.*not valid JSON"):
            read_solution(path)

    def test_a_file_of_another_kind_is_refused(self, tmp_path):
        path = write(tmp_path / "definition.json", definition_record())
        with pytest.raises(DataError):
            read_solution(path)


class TestFolder:
    def test_solutions_are_found_at_any_depth(self, tmp_path):
        write(tmp_path / "solutions/a.json", solution_record("one", "norm_h8"))
        write(tmp_path / "solutions/me/norm/b.json", solution_record("two", "norm_h16"))
        write(tmp_path / "solutions/notes.txt", "not a solution")
        write(tmp_path / "elsewhere/c.json", solution_record("three", "norm_h32"))
        found = read_folder(tmp_path)
        assert {name: each.name for name, each in found.items()} == {
            "norm_h8": "one",
            "norm_h16": "two",
        }

    def test_two_for_one_definition_are_refused_and_both_named(self, tmp_path):
        first = write(tmp_path / "solutions/a.json", solution_record("one"))
        second = write(tmp_path / "solutions/b/c.json", solution_record("two"))
        with pytest.raises(DuplicateNameError, match="definition 'norm_h8'") as caught:
            read_folder(tmp_path)
        assert str(first) in str(caught.value)
        assert caught.value.path == second

    def test_a_broken_file_is_an_error(self, tmp_path):
        write(tmp_path / "solutions/a.json", solution_record())
        write(tmp_path / "solutions/b.json", "{")
        with pytest.raises(DataError, match=r"b\.json"):
            read_folder(tmp_path)

    def test_a_missing_folder_is_an_error(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="is no folder"):
            read_folder(tmp_path / "missing")

    def test_a_folder_without_solutions_is_an_error(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="solutions is no folder"):
            read_folder(tmp_path)
        (tmp_path / "solutions").mkdir()
        with pytest.raises(DataError, match="there is no solution"):
            read_folder(tmp_path)


class TestDefinitions:
    def test_those_of_a_set_in_memory(self):
        known = Definition.model_validate(definition_record())
        dataset = TraceSet(definitions={"norm_h8": known})
        assert find_definitions(["norm_h8", "gemm"], dataset) == {"norm_h8": known}

    @pytest.mark.parametrize("kind", [str, Path])
    def test_those_of_a_folder(self, tmp_path, kind):
        write(tmp_path / "definitions/norm/norm_h8.json", definition_record())
        write(tmp_path / "definitions/norm/odd-name.json", definition_record("norm_h16"))
        found = find_definitions(["norm_h8", "norm_h16", "norm_h32"], kind(tmp_path))
        assert set(found) == {"norm_h8", "norm_h16"}

    def test_by_default_those_of_the_environment(self, tmp_path, monkeypatch):
        write(tmp_path / "definitions/norm/norm_h8.json", definition_record())
        monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
        assert set(find_definitions(["norm_h8"])) == {"norm_h8"}

    @pytest.mark.usefixtures("no_dataset")
    def test_without_a_dataset_none_is_known(self):
        assert find_definitions(["norm_h8"]) == {}

    def test_a_dataset_that_was_asked_for_must_exist(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="missing"):
            find_definitions(["norm_h8"], tmp_path / "missing")

    def test_a_folder_without_definitions_has_none(self, tmp_path):
        assert find_definitions(["norm_h8"], tmp_path) == {}

    def test_a_broken_file_that_is_not_needed_is_not_read(self, tmp_path):
        write(tmp_path / "definitions/norm/norm_h8.json", definition_record())
        write(tmp_path / "definitions/norm/broken.json", "{")
        assert set(find_definitions(["norm_h8"], tmp_path)) == {"norm_h8"}

    def test_a_broken_file_that_is_needed_is_an_error(self, tmp_path):
        write(tmp_path / "definitions/norm/norm_h8.json", '{"name": "norm_h8"')
        with pytest.raises(DataError, match=r"norm_h8\.json"):
            find_definitions(["norm_h8"], tmp_path)


class TestParameters:
    def test_what_a_function_takes_by_name(self):
        def function(a, /, b, *rest, c=1):
            pass

        assert taken_by(function) == {"b": True, "c": False}

    def test_one_with_keywords_takes_anything(self):
        assert taken_by(lambda x, **more: x) is None

    def test_one_that_does_not_tell_takes_anything(self):
        class Silent:
            __signature__ = "none of this kind"

            def __call__(self):
                return None

        assert taken_by(Silent()) is None

    @pytest.mark.parametrize(
        "function",
        [
            lambda x, weight: x,
            lambda weight, x: x,
            lambda x, weight, eps=1e-6: x,
            lambda **inputs: inputs,
        ],
    )
    def test_functions_of_the_inputs(self, function):
        known = Definition.model_validate(definition_record())
        check_takes(Candidate("norm_h8", function=function), known)

    @pytest.mark.parametrize(
        ("function", "word"),
        [
            (lambda x: x, "weight"),
            (lambda x, w: x, "weight"),
            (lambda x, weight, eps: x, "eps"),
            (lambda x, weight, /: x, "x"),
        ],
    )
    def test_others_are_refused(self, function, word):
        known = Definition.model_validate(definition_record())
        with pytest.raises(ConfigError, match=word) as caught:
            check_takes(Candidate("norm_h8", function=function), known)
        assert "'norm_h8' (x, weight)" in str(caught.value)


class TestParam:
    """The optional field of inputs and outputs that says where an output is written back."""

    SHAPE: ClassVar = {"shape": ["rows"], "dtype": "float32"}

    def test_it_is_read_and_written(self):
        spec = TensorSpec.model_validate({**self.SHAPE, "param": "x"})
        assert spec.param == "x"
        assert spec.model_dump(mode="json", exclude_none=True) == {**self.SHAPE, "param": "x"}

    def test_without_it_nothing_is_written(self):
        spec = TensorSpec.model_validate(self.SHAPE)
        assert spec.param is None
        assert "param" not in spec.model_dump()
        assert "param" not in spec.model_dump_json()

    def test_a_scalar_keeps_its_shape_beside_it(self):
        spec = TensorSpec.model_validate({"shape": None, "dtype": "float32", "param": "eps"})
        assert spec.model_dump(mode="json", exclude_none=True)["shape"] is None

    def test_it_survives_a_round_trip_of_a_definition(self):
        record = definition_record()
        record["outputs"]["y"] = {**record["outputs"]["y"], "param": "x"}
        known = Definition.model_validate(record)
        assert known.outputs["y"].param == "x"
        assert Definition.model_validate_json(known.model_dump_json()) == known

    def test_no_name_is_refused(self):
        with pytest.raises(ValueError, match="param"):
            TensorSpec.model_validate({**self.SHAPE, "param": ""})
