"""What a build reads from outside by other ways than include paths: when it changes, so does it."""

from __future__ import annotations

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


def test_flags_in_disguise(c, result, tmp_path):
    write(tmp_path / "inc" / "factor.h", "#define FACTOR 3\n")
    options = {"compile_options": {"cflags": [f"-Wp,-I,{tmp_path}/inc"]}}
    assert result(TEXT, **options) == 3.0
    write(tmp_path / "inc" / "factor.h", "#define FACTOR 5\n", 50)
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
