"""Headers from outside of a solution: a build is made anew when one has changed."""

from __future__ import annotations

import os
import time

import pytest

TEXT = "#include <factor.h>\ndouble run(double x) { return FACTOR * x; }\n"


@pytest.fixture
def headers(tmp_path):
    """A folder with a header, and one that it includes, made a while ago."""
    folder = tmp_path / "include"
    (folder / "deep").mkdir(parents=True)
    (folder / "factor.h").write_text('#include "deep/er.h"\n')
    (folder / "deep" / "er.h").write_text("#define FACTOR 3\n")
    age(folder / "factor.h")
    age(folder / "deep" / "er.h")
    return folder


def age(path, seconds=100):
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture(params=["include_paths", "-I", "-I in two words", "-isystem", "absolute"])
def solution(request, c, headers):
    """A solution that gets its header in one of the possible ways."""
    if request.param == "absolute":
        return c.solution(TEXT.replace("<factor.h>", f'"{headers}/factor.h"'))
    flags = {
        "-I": [f"-I{headers}"],
        "-I in two words": ["-I", str(headers)],
        "-isystem": ["-isystem", f"{headers}/deep/.."],
    }
    if request.param == "include_paths":
        return c.solution(TEXT, compile_options={"include_paths": [str(headers)]})
    return c.solution(TEXT, compile_options={"cflags": flags[request.param]})


class TestAChangedHeader:
    def test_it_leads_to_another_build(self, c, solution, headers):
        builder = c.CBuilder()
        assert builder.build(c.definition(), solution)(1.0) == 3.0
        assert not builder.compile(c.definition(), solution).fresh
        (headers / "deep" / "er.h").write_text("#define FACTOR 5\n")
        assert builder.build(c.definition(), solution)(1.0) == 5.0
        age(headers / "deep" / "er.h")
        assert len(list(builder.build_dir.glob("*/build.json"))) == 1


@pytest.fixture
def plain(c, headers):
    """A solution with the header's folder among its include paths."""
    return c.solution(TEXT, compile_options={"include_paths": [str(headers)]})


def test_headers_of_the_solution_are_not_listed_and_those_of_the_system_are(c, headers):
    solution = c.solution(
        '#include <stdio.h>\n#include "own.h"\ndouble run(double x) { return OWN * x; }\n',
        files={"own.h": "#define OWN 2\n"},
        compile_options={"include_paths": [str(headers), "."]},
    )
    known = c.CBuilder().compile(c.definition(), solution).info.headers
    assert any(path.endswith("/stdio.h") for path in known)
    assert not any(path.endswith("own.h") for path in known)


def test_a_header_that_is_changed_while_it_is_compiled(c, plain, headers):
    class Slow(c.CBuilder):
        def compile_into(self, definition, solution, plan, folder):
            library = super().compile_into(definition, solution, plan, folder)
            time.sleep(0.05)  # the clock of a file system has coarse ticks
            (headers / "deep" / "er.h").write_text("#define FACTOR 9\n")
            time.sleep(0.05)
            return library

    assert Slow().build(c.definition(), plain)(1.0) == 3.0
    age(headers / "deep" / "er.h")
    assert c.CBuilder().build(c.definition(), plain)(1.0) == 9.0


def test_another_text_of_the_same_size_is_a_change(c, plain, headers):
    c.CBuilder().compile(c.definition(), plain)
    (headers / "deep" / "er.h").write_text("#define FACTOR 4\n")
    age(headers / "deep" / "er.h", seconds=50)
    assert c.CBuilder().build(c.definition(), plain)(1.0) == 4.0
