"""Solutions: fields, validation, digests."""

from __future__ import annotations

import hashlib
import json

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import BuildSpec, CompileOptions, Solution, SourceFile


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


@pytest.mark.parametrize("written", ["python", "Python", " PYTHON "])
def test_languages_are_lower_case(written):
    assert spec(language=written).language == "python"


@pytest.mark.parametrize(
    ("written", "read"), [(None, None), ("torch", "torch"), ("TVM_FFI", "tvm-ffi"), ("nb", "nb")]
)
def test_bindings(written, read):
    assert spec(binding=written).binding == read


@pytest.mark.parametrize(
    "entry", ["run", "main.py:run", "::run", "main.py::", "a::b::c", "", " :: "]
)
def test_an_entry_point_is_file_and_symbol(entry):
    with pytest.raises(ValidationError, match="file::symbol"):
        spec(entry_point=entry)


def test_the_entry_file_may_be_spelled_with_a_dot(make):
    solution = make.solution(spec={"entry_point": "./main.py::run"})
    assert solution.get_entry_source().path == "main.py"


@pytest.mark.parametrize("again", ["main.py", "./main.py", "x/../main.py"])
def test_no_path_comes_twice(make, again):
    sources = [{"path": path, "content": "x = 1"} for path in ("main.py", again)]
    with pytest.raises(ValidationError, match=r"occurs twice|without '\.\.'"):
        make.solution(sources=sources)


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (
            ["/etc/passwd", "../main.py", "a/../../main.py", "a/..", "C:\\main.py", "C:main.py",
             "\\\\host\\share", "..\\main.py", "\\main.py", "a\0b"],
            "must be relative and without",
        ),
        (["", ".", "a/", "./"], "does not name a file|at least 1 character"),
    ],
)  # fmt: skip
def test_paths_name_a_file_in_the_folder(paths, problem):
    for path in paths:
        with pytest.raises(ValidationError, match=problem):
            SourceFile(path=path, content="")


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


def test_the_digest_depends_neither_on_names_nor_on_the_order_of_sources(make):
    same = make.solution("other", author="bob", description="text")
    assert same.hash() == make.solution().hash()
    sources = [{"path": "main.py", "content": "x"}, {"path": "b.py", "content": "y"}]
    forward, backward = make.solution(sources=sources), make.solution(sources=sources[::-1])
    assert forward.hash() == backward.hash()


def test_a_unique_name_tells_the_content(make):
    solution = make.solution()
    unique = solution.with_unique_name()
    assert unique.name == f"alice_v1_{solution.hash()[:8]}"
    assert unique.hash() == solution.hash()
    assert solution.name == "alice_v1"


# --------------------------------------------------------------------------------- compile options


def test_without_them_the_digest_is_the_one_it_always_was(make):
    record = make.solution_record()
    sources = [[one["path"], one["content"]] for one in record["sources"]]
    spec = {**record["spec"], "dependencies": [], "binding": None}
    content = [record["definition"], spec, sources]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert make.solution().hash() == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("empty", [None, {}, {"cflags": []}, {"cflags": None}, {"other": 1}])
def test_those_that_ask_for_nothing_are_none_and_not_written(make, empty):
    made = make.solution(spec={"compile_options": empty})
    assert made == make.solution()
    assert made.hash() == make.solution().hash()
    assert made.spec.compile_options is None
    assert "compile_options" not in json.loads(made.to_json())["spec"]
    assert "compile_options" not in made.model_dump()["spec"]


def test_they_are_read_and_written(make):
    options = {
        "cflags": ["-O3"],
        "cuda_cflags": ["--use_fast_math"],
        "ldflags": ["-lm"],
        "include_paths": ["include", "/opt/x"],
    }
    made = make.solution(spec={"compile_options": options})
    assert made.spec.compile_options == CompileOptions(**options)
    assert json.loads(made.to_json())["spec"]["compile_options"] == options
    assert Solution.model_validate_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ("-O2", "compile_options"),
        (["-O2"], "compile_options"),
        ({"cflags": 3}, "cflags"),
        ({"cflags": [3]}, "cflags"),
        ({"cflags": "an 'open quote"}, "cflags"),
        ({"ldflags": {"a": "b"}}, "ldflags"),
        ({"include_paths": [""]}, "include_paths"),
    ],
)
def test_what_is_no_list_of_words_is_refused(wrong, field):
    with pytest.raises(ValidationError, match=field):
        spec(compile_options=wrong)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"ld_flags": ["-lm"]}, {"ldflags": ["-lm"]}),
        ({"extra_ldflags": ["-lm"]}, {"ldflags": ["-lm"]}),
        ({"extra_cflags": ["-O2"]}, {"cflags": ["-O2"]}),
        ({"extra_cuda_cflags": ["-G"]}, {"cuda_cflags": ["-G"]}),
        ({"extra_include_paths": ["a"]}, {"include_paths": ["a"]}),
        ({"include_dirs": ["a"]}, {"include_paths": ["a"]}),
        ({"cflags": "-O2 '-DA=b c'"}, {"cflags": ["-O2", "-DA=b c"]}),
        ({"extra_cflags": ""}, {}),
        ({"cflags": ["-O2"], "extra_cflags": ["-O3"]}, {"cflags": ["-O2"]}),
        ({"cflags": None, "ld_flags": None}, {}),
    ],
)
def test_other_spellings_of_them_are_read(written, meant):
    assert spec(compile_options=written) == spec(compile_options=meant)
