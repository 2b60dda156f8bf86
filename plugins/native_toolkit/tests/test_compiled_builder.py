"""Compile once, keep it, load it: with the system's C compiler."""

import json
import os
from datetime import datetime, timezone

import pytest

from fib_build_cache.info import LibraryInfo
from flashinfer_bench.errors import BuildError


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


class TestOneBuild:
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
        artefact = c.CBuilder(colour="red").compile(c.definition(), c.solution())
        record = json.loads((artefact.folder / "build.json").read_text())
        known = {"solution": "twice", "author": "author", "definition": "scale", "language": "c"}
        known |= {"binding": None, "builder": "c_builder:CBuilder"}
        known |= {"library_bytes": artefact.library.stat().st_size}
        assert known.items() <= record.items()
        assert record["key"]["colour"] == "red"
        assert record["key"]["compiler"]
        assert all(path.startswith("/usr/") for path in record["headers"])
        created = datetime.fromisoformat(record["created"].replace("Z", "+00:00"))
        assert -2 < (datetime.now(timezone.utc) - created).total_seconds() < 60
        assert LibraryInfo.read(artefact.folder) == artefact.info


def flipped(library):
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(bytes(content))


DAMAGES = {
    "truncated": lambda a: a.library.write_bytes(a.library.read_bytes()[:100]),
    "flipped": lambda a: flipped(a.library),
    "library removed": lambda a: a.library.unlink(),
    "no description": lambda a: (a.folder / "build.json").unlink(),
    "another format": lambda a: (a.folder / "build.json").write_text('{"format": 99}'),
    "deeply nested": lambda a: (a.folder / "build.json").write_text("[" * 100_000),
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

    def test_what_goes_away_before_it_is_loaded_is_built_anew(self, c):
        from fib_build_cache.store import prune

        class Unlucky(c.CBuilder):
            pruned = 0

            def load(self, definition, solution, artefact):
                if not Unlucky.pruned:
                    Unlucky.pruned = len(prune(everything=True).removed)
                return super().load(definition, solution, artefact)

        assert Unlucky().build(c.definition(), c.solution())(3.0) == 6.0
        assert Unlucky.pruned == 1


@pytest.mark.parametrize("library", ["nothing.so", "../outside.so", "sources", "", "."])
def test_a_library_must_be_a_file_in_the_folder(c, library):
    class Erring(c.CBuilder):
        def compile_into(self, definition, solution, plan, folder):
            (folder.parent / "outside.so").write_text("x")
            return library

    with pytest.raises(BuildError, match="produced no library"):
        Erring().compile(c.definition(), c.solution())
