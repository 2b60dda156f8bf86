"""Solutions: fields, validation, digests."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import (
    BuildSpec,
    Solution,
    SourceFile,
    SupportedBindings,
    SupportedLanguages,
)


def refused(record, match):
    with pytest.raises(ValidationError, match=match):
        Solution(**record)


def spec(**changes):
    return BuildSpec(
        **{"language": "python", "target_hardware": ["cpu"], "entry_point": "a.py::run", **changes}
    )


def test_fields_and_defaults(make):
    solution = make.solution(spec={"destination_passing_style": True})
    assert solution.description is None
    assert solution.spec.dependencies == []
    assert solution.spec.binding is None
    assert solution.sources[0].path == "main.py"


def test_outputs_are_passed_in_unless_said_otherwise():
    assert spec().destination_passing_style is True


def test_it_cannot_be_changed(make):
    solution = make.solution()
    with pytest.raises(ValidationError, match="frozen"):
        solution.name = "other"
    with pytest.raises(ValidationError, match="frozen"):
        solution.spec.language = "cuda"
    with pytest.raises(ValidationError, match="frozen"):
        solution.sources[0].content = ""


@pytest.mark.parametrize("field", ["name", "definition", "author"])
def test_names_are_given_and_not_empty(make, field):
    refused(make.solution_record(**{field: ""}), "at least 1 character")
    record = make.solution_record()
    del record[field]
    refused(record, "Field required")


# ------------------------------------------------------------------------------------- languages


@pytest.mark.parametrize("written", ["python", "Python", " PYTHON "])
def test_languages_are_lower_case(written):
    assert spec(language=written).language == "python"


@pytest.mark.parametrize("language", list(SupportedLanguages))
def test_known_languages_are_members_of_the_list(language):
    made = spec(language=language.value)
    assert made.language is language
    assert made.language.value == language == spec(language=language).language


def test_any_language_loads():
    assert spec(language="Mojo").language == "mojo"


def test_an_empty_language_is_refused():
    with pytest.raises(ValidationError, match="language"):
        spec(language="")


def test_a_language_is_written_as_its_name():
    assert spec(language="Triton").model_dump(mode="json")["language"] == "triton"
    assert json.loads(spec(language="Triton").model_dump_json())["language"] == "triton"
    assert f"{spec(language='cuda').language}" == str(SupportedLanguages.CUDA) == "cuda"


def test_a_language_is_found_by_its_name():
    assert {"cuda": 1}[spec(language="cuda").language] == 1


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, None),
        ("torch", "torch"),
        ("tvm-ffi", "tvm-ffi"),
        ("TVM_FFI", "tvm-ffi"),
        ("nb", "nb"),
    ],
)
def test_bindings(written, read):
    assert spec(binding=written).binding == read


def test_known_bindings_are_members_of_the_list():
    assert spec(binding="tvm-ffi").binding is SupportedBindings.TVM_FFI
    assert f"{SupportedBindings.TORCH}" == "torch"


def test_an_empty_binding_is_refused():
    with pytest.raises(ValidationError, match="binding"):
        spec(binding="")


@pytest.mark.parametrize("hardware", [[], None, [""], "cpu"])
def test_hardware_is_named(hardware):
    with pytest.raises(ValidationError, match="target_hardware"):
        spec(target_hardware=hardware)


@pytest.mark.parametrize("value", ["yes", 1, 0.0])
def test_the_style_is_true_or_false(value):
    with pytest.raises(ValidationError, match="destination_passing_style"):
        spec(destination_passing_style=value)


def test_nulls_are_the_defaults():
    made = spec(dependencies=None, destination_passing_style=None)
    assert made.dependencies == []
    assert made.destination_passing_style is True


# ----------------------------------------------------------------------------------- entry point


@pytest.mark.parametrize(
    "entry", ["run", "main.py:run", "::run", "main.py::", "a::b::c", "", " :: "]
)
def test_an_entry_point_is_file_and_symbol(entry):
    with pytest.raises(ValidationError, match="file::symbol"):
        spec(entry_point=entry)


def test_the_parts_of_the_entry_point(make):
    sources = [
        {"path": "pkg/main.py", "content": "def go(): ..."},
        {"path": "pkg/__init__.py", "content": ""},
    ]
    solution = make.solution(sources=sources, spec={"entry_point": "pkg/main.py::go"})
    assert solution.get_entry_path() == "pkg/main.py"
    assert solution.get_entry_symbol() == "go"
    assert solution.get_entry_source().content == "def go(): ..."


def test_the_entry_file_may_be_spelled_with_a_dot(make):
    solution = make.solution(spec={"entry_point": "./main.py::run"})
    assert solution.get_entry_source().path == "main.py"


def test_the_entry_file_is_among_the_sources(make):
    record = make.solution_record(spec={"entry_point": "other.py::run"})
    refused(record, r"spec\.entry_point: the entry file 'other.py' is not among the sources \(main")


def test_the_entry_file_is_not_empty(make):
    sources = [{"path": "main.py", "content": " \n"}]
    refused(make.solution_record(sources=sources), r"sources\.0\.content: the entry file")


# --------------------------------------------------------------------------------------- sources


def test_there_are_sources(make):
    refused(make.solution_record(sources=[]), "at least 1 item")


def test_content_is_given(make):
    refused(make.solution_record(sources=[{"path": "main.py"}]), r"sources\.0\.content")


@pytest.mark.parametrize("again", ["main.py", "./main.py", "x/../main.py"])
def test_no_path_comes_twice(make, again):
    sources = [{"path": path, "content": "x = 1"} for path in ("main.py", again)]
    refused(make.solution_record(sources=sources), r"comes twice|without '\.\.'")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../main.py",
        "a/../../main.py",
        "a/..",
        "C:\\main.py",
        "C:main.py",
        "\\\\host\\share",
        "..\\main.py",
        "\\main.py",
        "a\0b",
    ],
)
def test_paths_stay_in_the_folder(path):
    with pytest.raises(ValidationError, match="must be relative and without"):
        SourceFile(path=path, content="")


@pytest.mark.parametrize("path", ["", ".", "a/", "./"])
def test_paths_name_a_file(path):
    with pytest.raises(ValidationError, match=r"names no file|at least 1 character"):
        SourceFile(path=path, content="")


@pytest.mark.parametrize("path", ["a.py", "a/b.cu", "./a.py", "..a/b", "a..b", "sp ace.py", "é.py"])
def test_ordinary_paths(path):
    assert SourceFile(path=path, content="").path == path


# ---------------------------------------------------------------------------------------- digest


def test_the_digest_does_not_depend_on_names(make):
    digest = make.solution().hash()
    assert make.solution("other").hash() == digest
    assert make.solution(author="bob").hash() == digest
    assert make.solution(description="text").hash() == digest


@pytest.mark.parametrize(
    "changes",
    [
        {"definition": "other"},
        {"spec": {"language": "triton"}},
        {"spec": {"target_hardware": ["H200"]}},
        {"spec": {"dependencies": ["numpy"]}},
        {"spec": {"destination_passing_style": True}},
        {"spec": {"binding": "torch"}},
        {"sources": [{"path": "main.py", "content": "def run(): ..."}]},
    ],
)
def test_the_digest_depends_on_what_is_built(make, changes):
    assert make.solution(**changes).hash() != make.solution().hash()


def test_the_digest_does_not_confuse_parts(make):
    one = [{"path": "main.py", "content": "ab"}, {"path": "b", "content": "c"}]
    two = [{"path": "main.py", "content": "a"}, {"path": "b", "content": "bc"}]
    assert make.solution(sources=one).hash() != make.solution(sources=two).hash()


def test_the_digest_does_not_depend_on_the_order_of_sources(make):
    sources = [{"path": "main.py", "content": "x"}, {"path": "b.py", "content": "y"}]
    forward, backward = make.solution(sources=sources), make.solution(sources=sources[::-1])
    assert forward.hash() == backward.hash()


def test_the_digest_takes_any_text(make):
    sources = [{"path": "main.py", "content": "# \ud800 é \U0001f600"}]
    assert len(make.solution(sources=sources).hash()) == 64


def test_a_unique_name_tells_the_content(make):
    solution = make.solution()
    unique = solution.with_unique_name()
    assert unique.name == f"alice_v1_{solution.hash()[:8]}"
    assert unique.hash() == solution.hash()
    assert solution.name == "alice_v1"


@pytest.mark.parametrize(
    ("language", "expected"),
    [("python", False), ("triton", False), ("tilelang", False), ("cuda", True), ("cpp", True)],
)
def test_what_requires_a_compiler(make, language, expected):
    assert make.solution(spec={"language": language}).requires_build() is expected


def test_to_json(make):
    solution = make.solution()
    text = solution.to_json()
    assert Solution.model_validate_json(text) == solution
    assert "null" not in text
