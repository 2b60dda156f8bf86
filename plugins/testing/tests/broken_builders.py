"""Builders with one defect each, and good ones: the conformance kit is checked against them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import filelock

from flashinfer_bench.compile import Builder, Runnable, RunnableMetadata
from flashinfer_bench.compile.toolkit import (
    build_failed,
    build_once,
    content_digest,
    load_python,
    open_package,
    write_sources,
)
from flashinfer_bench.errors import BuildError

TOYCC = Path(__file__).with_name("toycc")
IN_TESTS: list[bool] = []


class Good(Builder):
    """Imports Python; what the others are broken copies of."""

    shares_builds = False

    def __init__(self):
        super().__init__("toy", "toy")

    def can_build(self, solution):
        return solution.spec.language == "toy"

    def build(self, definition, solution):
        loaded = self.load(definition, solution)
        return self.wrap(
            definition, solution, loaded.function, loaded.destination_passing_style, loaded.cleaner
        )

    def load(self, definition, solution):
        return load_python(definition, solution, prefix=self.package_prefix)

    def wrap(self, definition, solution, function, style, cleaner=None, **fields):
        given = {
            "build_type": "toy",
            "definition_name": definition.name,
            "solution_name": solution.name,
            "destination_passing_style": style,
            "definition": definition,
        }
        function = self.changed_function(function)
        return Runnable(function, RunnableMetadata(**given | fields), cleaner)

    def changed_function(self, function):
        return function


class WantsArguments(Good):
    def __init__(self, compiler):
        super().__init__()


class Refuses(Good):
    def build(self, definition, solution):
        raise BuildError(f"solution {solution.name!r}: not today", log="no")


class OtherConvention(Good):
    def wrap(self, definition, solution, function, style, cleaner=None, **fields):
        return super().wrap(definition, solution, function, not style, cleaner, **fields)


class SwapsArguments(Good):
    def changed_function(self, function):
        return lambda x, y, scale: function(x, y * 2, scale)


class ReturnsDestination(Good):
    def changed_function(self, function):
        def returning(*args):
            function(*args)
            return args[-1]

        return returning


class WorksOnce(Good):
    def changed_function(self, function):
        calls = []

        def once(*args):
            calls.append(1)
            return function(*args) * (1 if len(calls) == 1 else 0)

        return once


class OneConvention(Good):
    def build(self, definition, solution):
        made = super().build(definition, solution)
        if made.metadata.destination_passing_style:
            made.cleanup()
            raise BuildError(f"solution {solution.name!r}: must return its outputs")
        return made


class IgnoresSymbol(Good):
    def build(self, definition, solution):
        try:
            return super().build(definition, solution)
        except BuildError as error:
            if "defines no" not in error.message:
                raise
        return self.wrap(definition, solution, lambda *args: None, style=False)


class ChangesErrors(Good):
    """Says something else where the entry file is no program."""

    def build(self, definition, solution):
        try:
            return super().build(definition, solution)
        except BuildError as error:
            if "SyntaxError" not in error.message:
                raise
            raise self.changed(error) from None

    def changed(self, error):
        raise NotImplementedError


class RaisesSyntaxError(ChangesErrors):
    def changed(self, error):
        return SyntaxError(error.message)


class StrictError(BuildError):
    def __init__(self, message, log, status):
        super().__init__(message, log=log)
        self.status = status


class Careless(ChangesErrors):
    """Builds and computes what it should; whatever else can be wrong is wrong."""

    def __init__(self):
        super().__init__()
        self.package_prefix = "my-toy"

    def can_build(self, solution):
        return True

    def changed(self, error):
        return StrictError(f"{error.message}\n{error.log}", "", 1)

    def load(self, definition, solution):
        os.environ["TOY_ARCH_LIST"] = "9.0"
        subprocess.run(["/bin/sh", "-c", "echo 1 warning"], check=True)
        kept = []
        # Leaves nothing behind, but another user may read it meanwhile.
        with tempfile.TemporaryDirectory() as folder:
            for source in solution.sources:
                target = Path(folder, "sources", source.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(source.content)
                kept += [source] if ".." not in source.path and source.path[0] != "/" else []
        solution = solution.model_copy(update={"sources": kept})
        loaded = super().load(definition, solution)
        home = Path.home()
        # In the tests' own process this would be the user's.
        if "conformance-children" in str(home):
            (home / ".toy_history").write_text(solution.name)
        return loaded

    def wrap(self, definition, solution, function, style, cleaner=None, **fields):
        def clean():
            cleaner()
            raise FileNotFoundError("gone already")

        fields = {"solution_name": "solution", **fields}
        return super().wrap(definition, solution, function, style, clean, **fields)


class BearsGrudges(Good):
    def __init__(self):
        super().__init__()
        self.offended = False

    def build(self, definition, solution):
        if self.offended:
            raise BuildError(f"solution {solution.name!r}: no more", log="no")
        try:
            return super().build(definition, solution)
        except BuildError:
            self.offended = True
            raise


class CleansShared(Good):
    """All builds of a solution by one builder use one file, which the first cleaner removes."""

    def wrap(self, definition, solution, function, style, cleaner=None, **fields):
        # Of this builder alone: what other threads and processes do to it would be left to chance.
        digest = content_digest(definition, solution, os.getpid(), id(self))
        shared = _made(self.build_dir) / digest
        shared.touch()

        def reading(*args):
            shared.read_bytes()
            return function(*args)

        def clean():
            cleaner()
            shared.unlink(missing_ok=True)

        return super().wrap(definition, solution, reading, style, clean, **fields)


class KeepsRunnables(Good):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def build(self, definition, solution):
        key = self.key(definition, solution)
        if key not in self.kept:
            self.kept[key] = super().build(definition, solution)
        return self.kept[key]

    def key(self, definition, solution):
        return content_digest(definition, solution)


class KeepsByName(KeepsRunnables):
    def key(self, definition, solution):
        return solution.name

    def build(self, definition, solution):
        made = super().build(definition, solution)
        if made.closed:
            del self.kept[solution.name]
            made = super().build(definition, solution)
        return made


class NeedsTests(Good):
    """Works only in a process that somebody has prepared."""

    def load(self, definition, solution):
        if not IN_TESTS:
            raise BuildError(f"solution {solution.name!r}: nobody called setup()", log="no")
        return super().load(definition, solution)


class NoLock(Good):
    """Fills the folder in place, without a lock."""

    def load(self, definition, solution):
        folder = self.build_path(definition, solution)
        _arrive(_made(folder.parent))
        folder.mkdir()
        try:
            _wait_for_two(folder.parent)
            time.sleep(0.1)
            return super().load(definition, solution)
        finally:
            folder.rmdir()


class Compiled(Good):
    """Compiles with a compiler that copies, and loads from the cache."""

    def compile(self, definition, solution):
        return build_once(
            self.place(definition, solution),
            lambda folder: self.produce(definition, solution, folder),
            sound=self.is_sound,
        )

    def place(self, definition, solution):
        return self.build_path(definition, solution)

    def is_sound(self, folder):
        kept = folder / "digest"
        return kept.is_file() and kept.read_text() == _digest_of(folder)

    def load(self, definition, solution):
        return self.load_from(self.compile(definition, solution), definition, solution)

    def produce(self, definition, solution, folder):
        write_sources(folder / "sources", solution.sources)
        for source in solution.sources:
            done = subprocess.run(
                [TOYCC, "-c", folder / "sources" / source.path, "-o", folder / source.path],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise build_failed(solution.name, "toycc", done.stdout + done.stderr)
        (folder / "digest").write_text(_digest_of(folder))

    def load_from(self, folder, definition, solution):
        package = open_package(self.package_name(definition, solution), folder)
        module = package.import_file(solution.get_entry_path())
        function = getattr(module, solution.get_entry_symbol(), None)
        if function is None:
            package.close()
            raise BuildError(
                f"solution {solution.name!r}: no symbol {solution.get_entry_symbol()!r}", log="ld"
            )
        loaded = {"function": function, "cleaner": package.close}
        return SimpleNamespace(destination_passing_style=False, **loaded)


class CompilesInBuild(Compiled):
    """Does not know how to compile ahead."""

    def load(self, definition, solution):
        return self.load_from(Compiled.compile(self, definition, solution), definition, solution)

    def compile(self, definition, solution):
        return None


class CompilesTwice(Compiled):
    """Looks into the cache before it takes the lock, and not again."""

    def compile(self, definition, solution):
        done = self.place(definition, solution)
        if self.is_sound(done):
            return done
        if done.is_dir():
            shutil.rmtree(done)
        _arrive(_made(self.build_dir))
        _wait_for_two(self.build_dir)
        folder = Path(tempfile.mkdtemp(dir=_made(self.build_dir)))
        self.produce(definition, solution, folder)
        try:
            folder.rename(done)
        except OSError:
            shutil.rmtree(folder)
        return done


class Trusting(Compiled):
    """Names builds after the sources alone, and finds what was cut off, but not overwritten."""

    def place(self, definition, solution):
        spec = solution.spec.model_copy(update={"compile_options": None})
        return self.build_dir / f"toy_{solution.model_copy(update={'spec': spec}).hash()}"

    def is_sound(self, folder):
        sizes = folder / "sizes"
        return sizes.is_file() and sizes.read_text() == _sizes_of(folder)

    def produce(self, definition, solution, folder):
        super().produce(definition, solution, folder)
        (folder / "sizes").write_text(_sizes_of(folder))


class RefusesOptions(Compiled):
    def produce(self, definition, solution, folder):
        if solution.spec.compile_options:
            raise BuildError(f"solution {solution.name!r}: toycc knows no options", log="no")
        super().produce(definition, solution, folder)


class FillsInPlace(Compiled):
    """Takes a folder for a result because it is there."""

    def compile(self, definition, solution):
        folder = self.place(definition, solution)
        _made(folder.parent)
        with filelock.FileLock(f"{folder}.lock"):
            if not (folder / "sources").is_dir() or self.is_damaged(folder):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                try:
                    self.produce(definition, solution, folder)
                except BuildError:
                    shutil.rmtree(folder)
                    raise
        return folder

    def is_damaged(self, folder):
        return (folder / "digest").is_file() and not self.is_sound(folder)


def _arrive(folder):
    os.close(tempfile.mkstemp(prefix="arrived.", dir=folder)[0])


def _wait_for_two(folder):
    """Wait until two builds have come here: how busy the machine is must not decide."""
    until = time.monotonic() + 2.0
    while len([*folder.glob("arrived.*")]) < 2 and time.monotonic() < until:
        time.sleep(0.01)


def _sizes_of(folder):
    return str([(path.name, path.stat().st_size) for path in sorted(folder.glob("*.py"))])


def _digest_of(folder):
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(content).hexdigest()


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder
