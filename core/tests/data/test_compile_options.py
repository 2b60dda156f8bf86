"""Compile options: an optional part of a solution that older files and readers do not know."""

from __future__ import annotations

import hashlib
import json

import pytest
from pydantic import ValidationError

from flashinfer_bench.data import CompileOptions, Solution

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
        content = ["d", RECORD["spec"], [["k.cu", "// empty"]]]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        assert solution().hash() == hashlib.sha256(text.encode()).hexdigest()

    @pytest.mark.parametrize("empty", [None, {}, {"cflags": []}, {"cflags": None}, {"other": 1}])
    def test_those_that_ask_for_nothing_are_none_and_not_written(self, empty):
        made = solution(compile_options=empty)
        assert made == solution()
        assert made.hash() == solution().hash()
        assert made.spec.compile_options is None
        assert "compile_options" not in json.loads(made.to_json())["spec"]
        assert "compile_options" not in made.model_dump()["spec"]


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
