"""Solutions: fields, validation, digests."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import BuildSpec, Solution, SourceFile


def refused(record, match):
    with pytest.raises(ValidationError, match=match):
        Solution(**record)


def spec(**changes):
    return BuildSpec(
        **{"language": "python", "target_hardware": ["cpu"], "entry_point": "a.py::run", **changes}
    )


def test_it_cannot_be_changed(make):
    solution = make.solution()
    with pytest.raises(ValidationError, match="frozen"):
        solution.name = "other"
    with pytest.raises(ValidationError, match="frozen"):
        solution.spec.language = "cuda"
    with pytest.raises(ValidationError, match="frozen"):
        solution.sources[0].content = ""


# ------------------------------------------------------------------------------------- languages


@pytest.mark.parametrize("written", ["python", "Python", " PYTHON "])
def test_languages_are_lower_case(written):
    assert spec(language=written).language == "python"


@pytest.mark.parametrize(
    ("written", "read"), [(None, None), ("torch", "torch"), ("TVM_FFI", "tvm-ffi"), ("nb", "nb")]
)
def test_bindings(written, read):
    assert spec(binding=written).binding == read


# ----------------------------------------------------------------------------------- entry point


@pytest.mark.parametrize(
    "entry", ["run", "main.py:run", "::run", "main.py::", "a::b::c", "", " :: "]
)
def test_an_entry_point_is_file_and_symbol(entry):
    with pytest.raises(ValidationError, match="file::symbol"):
        spec(entry_point=entry)


def test_the_entry_file_may_be_spelled_with_a_dot(make):
    solution = make.solution(spec={"entry_point": "./main.py::run"})
    assert solution.get_entry_source().path == "main.py"


# --------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("again", ["main.py", "./main.py", "x/../main.py"])
def test_no_path_comes_twice(make, again):
    sources = [{"path": path, "content": "x = 1"} for path in ("main.py", again)]
    refused(make.solution_record(sources=sources), r"comes twice|without '\.\.'")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../main.py", "a/../../main.py", "a/..", "C:\\main.py", "C:main.py",
     "\\\\host\\share", "..\\main.py", "\\main.py", "a\0b"],
)  # fmt: skip
def test_paths_stay_in_the_folder(path):
    with pytest.raises(ValidationError, match="must be relative and without"):
        SourceFile(path=path, content="")


@pytest.mark.parametrize("path", ["", ".", "a/", "./"])
def test_paths_name_a_file(path):
    with pytest.raises(ValidationError, match=r"names no file|at least 1 character"):
        SourceFile(path=path, content="")


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


def test_the_digest_does_not_depend_on_the_order_of_sources(make):
    sources = [{"path": "main.py", "content": "x"}, {"path": "b.py", "content": "y"}]
    forward, backward = make.solution(sources=sources), make.solution(sources=sources[::-1])
    assert forward.hash() == backward.hash()


def test_a_unique_name_tells_the_content(make):
    solution = make.solution()
    unique = solution.with_unique_name()
    assert unique.name == f"alice_v1_{solution.hash()[:8]}"
    assert unique.hash() == solution.hash()
    assert solution.name == "alice_v1"
