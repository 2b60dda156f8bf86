"""What may stand for a definition: in a mapping, in a file, in a folder."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fib_tests.mapped_norm import dataset, definition
from fib_tests.mapped_norm import solution as solution_of
from flashinfer_bench.apply.mapping import enable_mapping
from flashinfer_bench.errors import ConfigError, DataError, DatasetNotFoundError, DuplicateNameError

pytestmark = pytest.mark.usefixtures("nothing_enabled")


def definition_record(name="norm_h8"):
    return definition(name).model_dump(mode="json", exclude_none=True)


def solution_record(name="twice", of="norm_h8"):
    return solution_of(name, of).model_dump(mode="json", exclude_none=True)


def write(path: Path, record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record if isinstance(record, str) else json.dumps(record))
    return path


KNOWN = dataset(definition("norm_h8"), definition("norm_h16"))


def names(source, dataset=KNOWN):
    return {*enable_mapping(source, dataset=dataset).runtime.names()}


def twice(x, weight):
    return x


class TestMapping:
    @pytest.mark.parametrize("kind", [str, Path])
    def test_the_path_of_a_solution(self, tmp_path, kind):
        path = write(tmp_path / "twice.json", solution_record())
        assert names({"norm_h8": kind(path)}) == {"norm_h8"}

    @pytest.mark.parametrize("value", [3, None, ["path"], {"name": "twice"}])
    def test_other_values_are_refused(self, value):
        with pytest.raises(ConfigError, match=r"'norm_h8' is a .*give a callable, a Solution"):
            enable_mapping({"norm_h8": value})

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
                enable_mapping({"norm_h8": value})

    def test_a_solution_of_another_definition_is_refused(self):
        with pytest.raises(DataError) as caught:
            enable_mapping({"norm_h16": solution_of("twice")})
        text = str(caught.value)
        assert "'twice'" in text
        assert "'norm_h8', not for 'norm_h16'" in text

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(DataError, match=r"missing\.json: cannot be read: No such file"):
            enable_mapping({"norm_h8": tmp_path / "missing.json"})


class TestFolder:
    def test_solutions_are_found_at_any_depth(self, tmp_path):
        write(tmp_path / "solutions/a.json", solution_record("one", "norm_h8"))
        write(tmp_path / "solutions/me/norm/b.json", solution_record("two", "norm_h16"))
        write(tmp_path / "solutions/notes.txt", "not a solution")
        write(tmp_path / "elsewhere/c.json", solution_record("three", "norm_h32"))
        assert names(tmp_path) == {"norm_h8", "norm_h16"}

    def test_two_for_one_definition_are_refused_and_both_named(self, tmp_path):
        first = write(tmp_path / "solutions/a.json", solution_record("one"))
        second = write(tmp_path / "solutions/b/c.json", solution_record("two"))
        with pytest.raises(DuplicateNameError, match="definition 'norm_h8'") as caught:
            enable_mapping(tmp_path)
        assert str(first) in str(caught.value)
        assert caught.value.path == second

    def test_a_folder_without_solutions_is_an_error(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="solutions is not a folder"):
            enable_mapping(tmp_path)
        (tmp_path / "solutions").mkdir()
        with pytest.raises(DataError, match="there is no solution"):
            enable_mapping(tmp_path)


class TestDefinitions:
    def found(self, dataset, *wanted):
        runtime = enable_mapping(dict.fromkeys(wanted, twice), dataset=dataset).runtime
        return {name for name in wanted if runtime.definition(name) is not None}

    @pytest.mark.parametrize("kind", [str, Path])
    def test_those_of_a_folder(self, tmp_path, kind):
        write(tmp_path / "definitions/norm/norm_h8.json", definition_record())
        write(tmp_path / "definitions/norm/odd-name.json", definition_record("norm_h16"))
        found = self.found(kind(tmp_path), "norm_h8", "norm_h16", "norm_h32")
        assert found == {"norm_h8", "norm_h16"}

    def test_a_dataset_that_was_asked_for_must_exist(self, tmp_path):
        with pytest.raises(DatasetNotFoundError, match="missing"):
            self.found(tmp_path / "missing", "norm_h8")

    def test_a_broken_file_that_is_not_needed_is_not_read(self, tmp_path):
        write(tmp_path / "definitions/norm/norm_h8.json", definition_record())
        write(tmp_path / "definitions/norm/broken.json", "{")
        assert self.found(tmp_path, "norm_h8") == {"norm_h8"}

    def test_a_broken_file_that_is_needed_is_an_error(self, tmp_path):
        write(tmp_path / "definitions/norm/norm_h8.json", '{"name": "norm_h8"')
        with pytest.raises(DataError, match=r"norm_h8\.json"):
            self.found(tmp_path, "norm_h8")
