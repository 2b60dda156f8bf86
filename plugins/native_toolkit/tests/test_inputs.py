"""What a build reads from outside, headers and libraries: when it changes, so does the build."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fib_native_toolkit.inputs import files_read

TEXT = "#include <factor.h>\ndouble run(double x) { return FACTOR * x; }\n"
CALL = "double f(double x);\ndouble run(double x) { return f(x); }\n"


def age(path, seconds=100):
    then = time.time() - seconds
    os.utime(path, (then, then))


def write(path, text, seconds=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    age(path, seconds)
    return path


def library(folder, factor, *, archive=True):
    source = write(folder / "f.c", f"double f(double x) {{ return {factor} * x; }}\n")
    subprocess.run(["cc", "-c", "-fPIC", source, "-o", folder / "f.o"], check=True)
    if archive:
        (folder / "libf.a").unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", folder / "libf.a", folder / "f.o"], check=True)
        age(folder / "libf.a", 100 - factor)
    age(folder / "f.o", 100 - factor)


@pytest.fixture
def result(c):
    """Return a function that builds a solution and calls it with 1."""
    return lambda *arguments, **spec: c.CBuilder().build(
        c.definition(), c.solution(*arguments, **spec)
    )(1.0)


@pytest.mark.parametrize("how", ["-isystem {}", "-isystem{}", "-I{}", "CPATH", "CUTLASS_PATH"])
def test_a_link_that_leads_elsewhere(c, result, tmp_path, monkeypatch, how):
    for number in (3, 5):
        write(tmp_path / str(number) / "factor.h", f"#define FACTOR {number}\n", 100 + number)
    link = tmp_path / "current"
    link.symlink_to("3")
    if how == "CUTLASS_PATH":

        class Searching(c.CBuilder):
            def compile_into(self, definition, solution, plan, folder):
                monkeypatch.setenv("CPATH", os.path.realpath(link))
                return super().compile_into(definition, solution, plan, folder)

        monkeypatch.setattr(c, "CBuilder", Searching)
    if how.startswith("-"):
        options = {"compile_options": {"cflags": [how.format(link)]}}
    else:
        options = {}
        monkeypatch.setenv(how, str(link))
    assert result(TEXT, **options) == 3.0
    monkeypatch.delenv("CPATH") if how == "CUTLASS_PATH" else None
    link.unlink()
    link.symlink_to("5")
    assert result(TEXT, **options) == 5.0


@pytest.mark.parametrize(
    "flags",
    [
        ["{}/libf.a"],
        ["-L{}", "-lf"],
        ["-L{}", "-l:libf.a"],
        ["-Wl,{}/libf.a"],
        ["-Wl,-L,{}", "-lf"],
    ],
)
def test_what_is_linked_in(c, result, tmp_path, flags):
    library(tmp_path, 3)
    options = {"compile_options": {"ldflags": [flag.format(tmp_path) for flag in flags]}}
    assert result(CALL, **options) == 3.0
    library(tmp_path, 5)
    assert result(CALL, **options) == 5.0


def test_what_is_linked_at_run_time_is_not_recorded(c, tmp_path):
    for name in ("libg.so", "libg.so.1.2"):
        write(tmp_path / name, "x")
    flags = [f"{tmp_path}/libg.so.1.2", f"-L{tmp_path}", "-lg", "-l:libg.so", "-Wl,-rpath,/opt"]
    solution = c.solution(compile_options={"ldflags": [*flags, "-lno", "-l"]})
    assert files_read(tmp_path / "build", solution, ()) == []


def test_folders_that_the_key_stands_for_are_left_out(c, tmp_path):
    for name in ("versioned", "other", "versioned-not"):
        write(tmp_path / name / f"{name.replace('-', '_')}.h", "")
    (tmp_path / "link").symlink_to(tmp_path / "versioned")

    class Versioned(c.CBuilder):
        def plan(self, definition, solution):
            roots = (tmp_path / "link", Path("/usr"))
            return replace(super().plan(definition, solution), versioned_roots=roots)

    names = ("versioned", "other", "versioned-not")
    text = "".join(f'#include "{name.replace("-", "_")}.h"\n' for name in names)
    paths = [str(tmp_path / name) for name in names]
    solution = c.solution(
        text + "double run(double x) { return x; }\n", compile_options={"include_paths": paths}
    )
    known = Versioned().compile(c.definition(), solution).info.headers
    assert sorted(known) == [
        f"{tmp_path}/other/other.h",
        f"{tmp_path}/versioned-not/versioned_not.h",
    ]


# ------------------------------------------------------------------------------- headers


@pytest.fixture
def headers(tmp_path):
    """A folder with a header, and one that it includes, made a while ago."""
    folder = tmp_path / "include"
    write(folder / "factor.h", '#include "deep/er.h"\n')
    write(folder / "deep" / "er.h", "#define FACTOR 3\n")
    return folder


@pytest.fixture(params=["include_paths", "-I", "-I in two words", "-isystem", "-Wp,-I", "absolute"])
def solution(request, c, headers):
    """A solution that gets its header in one of the possible ways."""
    if request.param == "absolute":
        return c.solution(TEXT.replace("<factor.h>", f'"{headers}/factor.h"'))
    flags = {
        "-I": [f"-I{headers}"],
        "-I in two words": ["-I", str(headers)],
        "-isystem": ["-isystem", f"{headers}/deep/.."],
        "-Wp,-I": [f"-Wp,-I,{headers}"],
    }
    if request.param == "include_paths":
        return c.solution(TEXT, compile_options={"include_paths": [str(headers)]})
    return c.solution(TEXT, compile_options={"cflags": flags[request.param]})


def test_a_changed_header_leads_to_another_build(c, solution, headers):
    builder = c.CBuilder()
    assert builder.build(c.definition(), solution)(1.0) == 3.0
    assert not builder.compile(c.definition(), solution).fresh
    (headers / "deep" / "er.h").write_text("#define FACTOR 5\n")
    assert builder.build(c.definition(), solution)(1.0) == 5.0
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
    write(headers / "deep" / "er.h", "#define FACTOR 4\n", seconds=50)
    assert c.CBuilder().build(c.definition(), plain)(1.0) == 4.0
