"""Compile options: an optional part of a solution that older files and readers do not know."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import flashinfer_bench
from flashinfer_bench.data import BuildSpec, CompileOptions, Solution
from flashinfer_bench.data.legacy import upgrade_compile_options

RECORD = {
    "name": "s",
    "definition": "d",
    "author": "a",
    "spec": {
        "language": "cuda",
        "target_hardware": ["NVIDIA_H100"],
        "entry_point": "k.cu::run",
        "dependencies": ["cublas"],
        "destination_passing_style": True,
        "binding": "torch",
    },
    "sources": [{"path": "k.cu", "content": "// empty"}],
}


def solution(options=None, **spec):
    extra = {} if options is None else {"compile_options": options}
    return Solution(**{**RECORD, "spec": {**RECORD["spec"], **extra, **spec}})


class TestWithoutThem:
    def test_the_digest_is_the_one_it_always_was(self):
        spec = {**RECORD["spec"], "dependencies": ["cublas"]}
        content = ["d", spec, [["k.cu", "// empty"]]]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        assert solution().hash() == hashlib.sha256(text.encode()).hexdigest()

    def test_they_are_not_written(self):
        assert solution().spec.compile_options is None
        assert "compile_options" not in json.loads(solution().to_json())["spec"]
        assert "compile_options" not in solution().model_dump()["spec"]
        assert "compile_options" not in solution().model_dump(mode="json")["spec"]

    @pytest.mark.parametrize("empty", [{}, {"cflags": []}, {"cflags": None}, {"other": 1}])
    def test_those_that_ask_for_nothing_are_none(self, empty):
        assert solution(empty) == solution()
        assert solution(empty).hash() == solution().hash()

    def test_null(self):
        assert solution(compile_options=None) == solution()


OPTIONS = {
    "cflags": ["-O3"],
    "cuda_cflags": ["--use_fast_math"],
    "ldflags": ["-lm"],
    "include_paths": ["include", "/opt/x"],
}


class TestWithThem:
    def test_they_are_read_and_written(self):
        made = solution(OPTIONS)
        assert made.spec.compile_options == CompileOptions(**OPTIONS)
        assert json.loads(made.to_json())["spec"]["compile_options"] == OPTIONS
        assert Solution.model_validate_json(made.to_json()) == made

    def test_a_reader_that_does_not_know_them_reads_the_rest(self):
        written = json.loads(solution(OPTIONS).to_json())
        assert written["spec"].pop("compile_options")
        assert Solution(**written) == solution()

    def test_each_counts_in_the_digest(self):
        digests = {solution({name: value}).hash() for name, value in OPTIONS.items()}
        assert len(digests | {solution().hash(), solution(OPTIONS).hash()}) == 6

    def test_they_cannot_be_changed(self):
        options = CompileOptions(cflags=["-O2"])
        with pytest.raises(ValidationError, match="frozen"):
            options.cflags = []

    def test_whether_they_ask_for_anything(self):
        assert not CompileOptions()
        for name, value in OPTIONS.items():
            assert CompileOptions(**{name: value})

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
    def test_what_is_no_list_of_words_is_refused(self, wrong, field):
        with pytest.raises(ValidationError) as caught:
            solution(wrong)
        assert field in str(caught.value)


class TestOtherSpellings:
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
    def test_they_are_read(self, written, meant):
        assert CompileOptions(**written) == CompileOptions(**meant)
        assert solution(written) == solution(meant)

    def test_what_is_right_already_stays_the_same_object(self):
        record = {"cflags": ["-O2"], "ldflags": []}
        assert upgrade_compile_options(record) is record
        assert upgrade_compile_options([1]) == [1]


words = st.lists(st.text(max_size=5), max_size=3)


@given(words, words)
def test_any_flags_survive_a_round_trip(cflags, ldflags):
    spec = BuildSpec(
        language="cpp",
        target_hardware=["cpu"],
        entry_point="a.cpp::f",
        compile_options=CompileOptions(cflags=cflags, ldflags=ldflags),
    )
    again = BuildSpec.model_validate_json(spec.model_dump_json())
    assert again == spec


def test_it_is_public():
    assert flashinfer_bench.CompileOptions is CompileOptions
    assert "CompileOptions" in flashinfer_bench.__all__
