"""Compile once, keep it, load it: with the system's C compiler."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import datetime, timezone

import pytest

from flashinfer_bench.compile.toolkit import is_complete
from flashinfer_bench.compile.toolkit.info import BuildInfo
from flashinfer_bench.errors import BuildError, CapabilityError, StorageError


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


class TestOneBuild:
    def test_it_can_be_called(self, c):
        runnable = c.CBuilder().build(c.definition(), c.solution())
        assert runnable(21.0) == 42.0
        assert runnable.metadata.build_type == "c"
        assert runnable.metadata.misc["loaded"] is True
        assert runnable.metadata.misc["fresh"] is True
        assert runnable.metadata.destination_passing_style is False

    def test_the_folder_has_the_library_what_it_came_from_and_nothing_else(self, c, cache_folder):
        solution = c.solution(files={"inc/a.h": "#define A 1\n", "notes.txt": "text"})
        artefact = c.CBuilder().compile(c.definition(), solution)
        assert names_in(artefact.folder) == [
            ".complete",
            "build.json",
            "compiler.log",
            "kernel.so",
            "sources",
            "sources/inc",
            "sources/inc/a.h",
            "sources/kernel.c",
            "sources/notes.txt",
        ]
        assert artefact.folder.parent == cache_folder / "c"
        assert artefact.folder.name.startswith("fib_c_")
        assert len(artefact.folder.name) == len("fib_c_") + 64
        assert [path.name for path in artefact.folder.parent.iterdir() if path.is_dir()] == [
            artefact.folder.name
        ]

    def test_build_json_says_what_it_is(self, c):
        solution = c.solution()
        artefact = c.CBuilder(colour="red").compile(c.definition(), solution)
        record = json.loads((artefact.folder / "build.json").read_text())
        assert record["solution"] == "twice"
        assert record["author"] == "author"
        assert record["definition"] == "scale"
        assert record["language"] == "c"
        assert record["binding"] is None
        assert record["builder"] == "c_builder:CBuilder"
        assert record["key"]["colour"] == "red"
        assert record["key"]["compiler"]
        assert record["library_bytes"] == artefact.library.stat().st_size
        assert all(path.startswith("/usr/") for path in record["headers"])
        age = datetime.now(timezone.utc) - datetime.fromisoformat(
            record["created"].replace("Z", "+00:00")
        )
        assert -2 < age.total_seconds() < 60
        assert BuildInfo.read(artefact.folder) == artefact.info

    def test_the_log_has_command_and_warnings(self, c):
        text = "#warning mind the gap\ndouble run(double x) { return x; }\n"
        artefact = c.CBuilder().compile(c.definition(), c.solution(text))
        log = (artefact.folder / "compiler.log").read_text()
        assert log.startswith("$ ")
        assert "mind the gap" in log

    def test_what_does_not_compile_leaves_nothing_but_its_error(self, c, cache_folder):
        with pytest.raises(
            BuildError, match=r"'twice': compiling failed: .*kernel\.c:1:"
        ) as caught:
            c.CBuilder().build(c.definition(), c.solution("double run(double x) { return y; }\n"))
        assert "y" in caught.value.log
        assert "undeclared" in caught.value.log
        assert [path for path in cache_folder.rglob("*") if path.suffix != ".lock"] == [
            cache_folder / "c",
            cache_folder / "c" / ".fib-builds",
        ]

    def test_a_missing_entry_point_is_not_compiled_twice(self, c, counting_cc):
        solution = c.solution("double other(double x) { return x; }\n")
        with pytest.raises(BuildError, match="cannot be loaded"):
            c.CBuilder().build(c.definition(), solution)
        assert counting_cc() == 1

    def test_files_that_are_to_be_kept_are_kept(self, c):
        class Keeping(c.CBuilder):
            keep = ("*.d", "more")

            def compile_into(self, definition, solution, plan, folder):
                (folder / "more" / "and").mkdir(parents=True)
                (folder / "more" / "and" / "more.txt").write_text("x")
                return super().compile_into(definition, solution, plan, folder)

        artefact = Keeping().compile(c.definition(), c.solution())
        assert len(list(artefact.folder.glob("*.d"))) == 1
        assert (artefact.folder / "more" / "and" / "more.txt").read_text() == "x"


class TestWarm:
    def test_it_is_compiled_once(self, c, counting_cc):
        first = c.CBuilder().compile(c.definition(), c.solution())
        second = c.CBuilder().compile(c.definition(), c.solution())
        assert (first.fresh, second.fresh) == (True, False)
        assert second.library == first.library
        assert second.info == first.info
        assert counting_cc() == 1
        assert c.CBuilder().build(c.definition(), c.solution())(1.0) == 2.0
        assert counting_cc() == 1

    def test_a_use_is_noted(self, c):
        artefact = c.CBuilder().compile(c.definition(), c.solution())
        os.utime(artefact.folder / ".complete", (1000, 1000))
        c.CBuilder().compile(c.definition(), c.solution())
        assert (artefact.folder / ".complete").stat().st_mtime > 1000

    def test_neither_name_nor_author_makes_a_difference(self, c, counting_cc):
        c.CBuilder().compile(c.definition(), c.solution())
        other = c.CBuilder().compile(c.definition(), c.solution(name="other"))
        assert not other.fresh
        assert other.info.solution == "twice"

    def test_the_compiler_is_asked_for_its_version_once(self, c, script, tmp_path, monkeypatch):
        log = tmp_path / "asked.log"
        monkeypatch.setenv("CC", str(script("cc-asked", f'echo x >> {log}\nexec cc "$@"')))
        for _ in range(3):
            c.CBuilder().plan(c.definition(), c.solution())
        assert log.read_text() == "x\n"


def flipped(library):
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(bytes(content))


DAMAGES = {
    "truncated": lambda a: a.library.write_bytes(a.library.read_bytes()[:100]),
    "flipped": lambda a: flipped(a.library),
    "emptied": lambda a: a.library.write_bytes(b""),
    "library removed": lambda a: a.library.unlink(),
    "no description": lambda a: (a.folder / "build.json").unlink(),
    "half a description": lambda a: (a.folder / "build.json").write_text('{"format": 1, "li'),
    "another format": lambda a: (a.folder / "build.json").write_text('{"format": 99}'),
    "not an object": lambda a: (a.folder / "build.json").write_text("[1]"),
    "deeply nested": lambda a: (a.folder / "build.json").write_text("[" * 100_000),
    "not text": lambda a: (a.folder / "build.json").write_bytes(b"\xff\xfe\x00"),
    "no mark": lambda a: (a.folder / ".complete").unlink(),
}


class TestDamage:
    @pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
    def test_what_is_damaged_is_built_anew(self, c, damage):
        damage(c.CBuilder().compile(c.definition(), c.solution()))
        again = c.CBuilder().compile(c.definition(), c.solution())
        assert again.fresh
        assert c.CBuilder().build(c.definition(), c.solution())(4.0) == 8.0
        assert not c.CBuilder().compile(c.definition(), c.solution()).fresh
        assert [path.name for path in again.folder.parent.glob("*.partial-*")] == []

    def test_wrong_types_in_the_description(self, c):
        artefact = c.CBuilder().compile(c.definition(), c.solution())
        file = artefact.folder / "build.json"
        record = json.loads(file.read_text())
        for field in record:
            file.write_text(json.dumps({**record, field: [object.__name__]}))
            assert BuildInfo.read(artefact.folder) is None, field

    @pytest.mark.parametrize("kind", ["absolute", "outside", "link", "folder is a link"])
    def test_a_library_from_elsewhere_is_not_loaded(self, c, tmp_path, kind):
        artefact = c.CBuilder().compile(c.definition(), c.solution())
        other = tmp_path / "kernel.so"
        other.write_bytes(artefact.library.read_bytes())
        file = artefact.folder / "build.json"
        (artefact.folder / "link.so").symlink_to(other)
        (artefact.folder / "deep").symlink_to(tmp_path)
        named = {
            "absolute": str(other),
            "outside": os.path.relpath(other, artefact.folder),
            "link": "link.so",
            "folder is a link": "deep/kernel.so",
        }[kind]
        assert (artefact.folder / named).is_file()
        file.write_text(json.dumps({**json.loads(file.read_text()), "library": named}))
        assert c.CBuilder().compile(c.definition(), c.solution()).fresh

    def test_what_another_process_has_rebuilt_meanwhile_is_loaded_again(self, c):
        class Raced(c.CBuilder):
            loads = 0

            def load(self, definition, solution, artefact):
                Raced.loads += 1
                if Raced.loads == 1:
                    shutil.rmtree(artefact.folder)
                    time.sleep(0.01)
                    assert c.CBuilder().compile(definition, solution).fresh
                    raise RuntimeError("the file went away")
                return super().load(definition, solution, artefact)

        assert Raced().build(c.definition(), c.solution())(3.0) == 6.0
        assert Raced.loads == 2

    def test_a_file_in_the_place_of_the_folder(self, c):
        artefact = c.CBuilder().compile(c.definition(), c.solution())
        aside = artefact.folder.with_name("aside")
        artefact.folder.rename(aside)
        artefact.folder.write_text("in the way")
        assert c.CBuilder().build(c.definition(), c.solution())(1.0) == 2.0

    def test_what_goes_away_before_it_is_loaded_is_built_anew(self, c):
        from flashinfer_bench.compile.store import prune

        class Unlucky(c.CBuilder):
            pruned = 0

            def load(self, definition, solution, artefact):
                if not Unlucky.pruned:
                    Unlucky.pruned = len(prune(everything=True).removed)
                return super().load(definition, solution, artefact)

        assert Unlucky().build(c.definition(), c.solution())(3.0) == 6.0
        assert Unlucky.pruned == 1

    def test_whatever_a_loader_raises_then(self, c):
        class Odd(c.CBuilder):
            asked = 0

            def load(self, definition, solution, artefact):
                Odd.asked += 1
                if Odd.asked == 1:
                    artefact.library.unlink()
                    raise RuntimeError("no such file, says the library of somebody else")
                return super().load(definition, solution, artefact)

        assert Odd().build(c.definition(), c.solution())(3.0) == 6.0

    def test_an_error_of_a_sound_build_is_passed_on(self, c):
        class Wrong(c.CBuilder):
            def load(self, definition, solution, artefact):
                raise BuildError("wrong number of parameters")

        with pytest.raises(BuildError, match="wrong number"):
            Wrong().build(c.definition(), c.solution())


class TestBuildersThatErr:
    @pytest.mark.parametrize("library", ["nothing.so", "../outside.so", "sources", "", "."])
    def test_a_library_must_be_a_file_in_the_folder(self, c, library):
        class Erring(c.CBuilder):
            def compile_into(self, definition, solution, plan, folder):
                (folder.parent / "outside.so").write_text("x")
                return library

        with pytest.raises(BuildError, match="left no library"):
            Erring().compile(c.definition(), c.solution())

    def test_a_link_is_no_library(self, c, tmp_path):
        class Linking(c.CBuilder):
            def compile_into(self, definition, solution, plan, folder):
                (folder / "kernel.so").symlink_to("/dev/null")
                return "kernel.so"

        with pytest.raises(BuildError, match="left no library"):
            Linking().compile(c.definition(), c.solution())

    def test_links_and_folders_that_are_left_are_removed(self, c, tmp_path):
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "file").write_text("x")

        class Untidy(c.CBuilder):
            def compile_into(self, definition, solution, plan, folder):
                (folder / "deep" / "er").mkdir(parents=True)
                (folder / "deep" / "er" / "a.o").write_text("x")
                (folder / "link").symlink_to(tmp_path / "precious")
                (folder / "sources" / "kernel.o").write_text("x")
                return super().compile_into(definition, solution, plan, folder)

        artefact = Untidy().compile(c.definition(), c.solution())
        assert "deep" not in names_in(artefact.folder)
        assert "link" not in names_in(artefact.folder)
        assert "sources/kernel.o" not in names_in(artefact.folder)
        assert (tmp_path / "precious" / "file").exists()

    def test_an_error_of_the_disk_is_not_the_solution_s(self, c):
        class Full(c.CBuilder):
            def compile_into(self, definition, solution, plan, folder):
                raise OSError(28, "No space left on device")

        with pytest.raises(StorageError, match="No space left"):
            Full().compile(c.definition(), c.solution())
        assert c.CBuilder().compile(c.definition(), c.solution()).fresh

    def test_a_missing_compiler_is_said_so(self, c, monkeypatch):
        monkeypatch.setenv("CC", "no-such-compiler")
        with pytest.raises(CapabilityError, match=r"\$CC is 'no-such-compiler'"):
            c.CBuilder().build(c.definition(), c.solution())


def test_nothing_heavy_is_imported(c, start):
    code = (
        "import sys, c_builder as c\n"
        "assert c.CBuilder().build(c.definition(), c.solution())(2.0) == 4.0\n"
        "print([name for name in ('torch', 'numpy', 'setuptools', 'rich') if name in sys.modules])"
    )
    for _ in ("cold", "warm"):
        out, err = start(code).communicate()
        assert out == "[]\n", err


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_others_may_read_what_the_user_s_mask_lets_them(c):
    before = os.umask(0o027)
    try:
        artefact = c.CBuilder().compile(c.definition(), c.solution())
    finally:
        os.umask(before)
    assert artefact.folder.stat().st_mode & 0o777 == 0o750


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_build_that_may_not_be_read_is_not_the_solution_s_fault(c, monkeypatch):
    from pathlib import Path

    artefact = c.CBuilder().compile(c.definition(), c.solution())
    real = Path.is_file

    def refuse(path):
        if path == artefact.folder / ".complete":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    assert c.CBuilder().compile(c.definition(), c.solution()).fresh


def test_it_works_where_the_cache_is_named_by_a_relative_path(c, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", "cache")
    runnable = c.CBuilder().build(c.definition(), c.solution())
    assert runnable.metadata.misc["library"].startswith(f"{tmp_path}/cache/c/")


def test_it_works_where_the_cache_is_reached_through_a_link(c, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "link"))
    assert c.CBuilder().build(c.definition(), c.solution())(2.0) == 4.0


def test_odd_characters_in_paths(c, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "ein Ordner, $HOME & 'mehr' ü"))
    solution = c.solution(
        '#include "a b.h"\ndouble run(double x) { return A * x; }\n',
        files={"a b.h": "#define A 3\n"},
    )
    assert c.CBuilder().build(c.definition(), solution)(2.0) == 6.0


def test_other_builders_compile_nothing_ahead(builder, definition, make_solution):
    assert builder.compile(definition, make_solution()) is None
    assert builder.asked == []


def test_a_complete_folder_is_told_from_others(c, tmp_path):
    artefact = c.CBuilder().compile(c.definition(), c.solution())
    assert is_complete(artefact.folder)
    assert not is_complete(tmp_path)
