"""A plugin whose solutions are C, compiled by the system's compiler into libraries on disk.

A solution's source says what else is to happen, one directive to a line: ``//! note FILE`` appends
when its compiler begins and ends, ``//! wait FILE`` keeps it going until that file is there,
``//! hang FILE`` for ever, with the pid of a process of its own in the file. ``//! storage``,
``//! capability``, ``//! crash`` and ``//! quit`` fail in the ways of their names;
``//! load …`` does so when the library is loaded, ``//! call …`` when it is called.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path

from candidate_test_plugin import InlineBuilder as InlineBuilder

from flashinfer_bench.compile import Builder, Runnable, RunnableMetadata
from flashinfer_bench.compile.toolkit import build_failed, build_once, is_complete
from flashinfer_bench.errors import BuildError, CapabilityError, StorageError
from flashinfer_bench.plugins import Availability, BuilderSpec, hookimpl

FAILURES = {
    "storage": lambda: StorageError("the cache has no space left", hint="make room"),
    "capability": lambda: CapabilityError("the tool 'frob' was not found", hint="install frob"),
    "build": lambda: BuildError("a template is too deep", log="line 7: error: too deep"),
    "crash": lambda: os.abort(),
    "quit": lambda: SystemExit(3),
}


class Compilation:
    """Tells whether it did something, as `Artefact` does."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        self.folder, self.fresh = folder, fresh


class CBuilder(Builder):
    shares_builds = False

    def __init__(self) -> None:
        super().__init__(package_prefix="compiling_test", build_dir_name="compiling_test")

    def can_build(self, solution):
        return "//! decline" not in solution.sources[0].content

    def compile(self, definition, solution):
        made = []

        def produce(folder: Path) -> None:
            made.append(folder)
            compile_c(solution, folder)

        folder = self.build_path(definition, solution)
        build_once(folder, produce)
        assert is_complete(folder)
        return Compilation(folder, bool(made))

    def build(self, definition, solution):
        folder = self.compile(definition, solution).folder
        fail_as_told(solution, "load ")
        library = ctypes.CDLL(str(folder / "lib.so"))

        def run(x, y):
            fail_as_told(solution, "call ")
            pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y))
            library.run(*pointers, ctypes.c_long(x.numel()))

        metadata = RunnableMetadata(
            build_type="c",
            definition_name=definition.name,
            solution_name=solution.name,
            destination_passing_style=True,
            definition=definition,
        )
        return Runnable(run, metadata, explain=explain)


def explain(error):
    return FAILURES["build"]() if isinstance(error, BuildError) else None


def directives(solution) -> list[str]:
    lines = solution.sources[0].content.splitlines()
    return [line.removeprefix("//! ") for line in lines if line.startswith("//! ")]


def fail_as_told(solution, stage: str) -> None:
    for directive in directives(solution):
        name = directive.removeprefix(stage)
        if directive.startswith(stage) and name in FAILURES:
            raise FAILURES[name]()


def compile_c(solution, folder: Path) -> None:
    notes = [Path(line[5:]) for line in directives(solution) if line.startswith("note ")]
    note(notes, "begin", solution)
    fail_as_told(solution, "")
    for directive in directives(solution):
        word, _, argument = directive.partition(" ")
        if word == "wait":
            while not Path(argument).exists():
                time.sleep(0.01)
        if word == "hang":
            # As a driver does it that starts the compiler proper.
            script = f"sleep 1000 & echo $! >{argument}.new; mv {argument}.new {argument}; wait"
            subprocess.run(["sh", "-c", script], check=True)
    source = folder / "main.c"
    source.write_text(solution.sources[0].content)
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", "lib.so", "main.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    note(notes, "end", solution)
    if done.returncode:
        raise build_failed(solution.name, "cc", done.stderr)


def note(files: list[Path], what: str, solution) -> None:
    for file in files:
        with file.open("a") as stream:
            stream.write(f"{what} {solution.name}\n")


def absent() -> Availability:
    return Availability(False, "there is no frob", "install frob")


@hookimpl
def fib_register_builders():
    me = "compiling_plugin"
    yield BuilderSpec(
        name="testc", handles=(("testc", None),), compiles=True, factory=f"{me}:CBuilder"
    )
    yield BuilderSpec(
        name="testc_frob",
        handles=(("testc", "*"),),
        priority=20,
        compiles=True,
        factory=f"{me}:InlineBuilder",
        probe=f"{me}:absent",
    )
    yield BuilderSpec(
        name="testgpu", handles=(("testgpu", "*"),), devices=("cuda",), factory=f"{me}:CBuilder"
    )
    yield BuilderSpec(
        name="inline_test", handles=(("python", "*"),), priority=1000, factory=f"{me}:InlineBuilder"
    )
