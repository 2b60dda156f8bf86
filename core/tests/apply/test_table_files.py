"""The files of a dataset and of the cache: what is read, remembered and removed."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.apply import disk, snapshot, table_build
from flashinfer_bench.apply.table import ApplyTable

_spec = importlib.util.spec_from_file_location(
    "fib_tests_table_dataset", Path(__file__).with_name("table_dataset.py")
)
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

HERE, key = make.HERE, make.key
AT_RANDOM = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and files that count as old at once."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(snapshot, "_YOUNG_NS", -(10**15))
    return tmp_path / "cache" / "apply"


@pytest.fixture
def folder(tmp_path):
    return make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 2.0)])


@pytest.fixture
def builds(monkeypatch):
    """Count how often a table is made."""
    made = []
    real = table_build.build_table

    def counted(*given):
        made.append(given)
        return real(*given)

    monkeypatch.setattr(table_build, "build_table", counted)
    return made


@pytest.fixture
def reads(monkeypatch):
    """Collect the names of the files that are read."""
    names = []
    real = snapshot.Snapshot._read_file

    def noted(self, name):
        names.append(name)
        return real(self, name)

    monkeypatch.setattr(snapshot.Snapshot, "_read_file", noted)
    return names


def load(folder, config=None, hardware=HERE):
    return ApplyTable.load_or_build(folder.root, config, hardware=hardware)


def winner(folder, **options):
    return load(folder, **options).match_solution("scale", key())


def files(cache, suffix):
    return sorted(path for path in cache.iterdir() if path.name.endswith(suffix))


class TestFolder:
    def test_old_tables_are_removed(self, cache, monkeypatch):
        monkeypatch.setattr(disk, "_MOST_FILES", 3)
        for number in range(6):
            assert disk.write(cache / f"{number}.table", b"p", b"content")
            os.utime(cache / f"{number}.table", (number, number))
        assert disk.write(cache / "new.table", b"p", b"content")
        assert {path.name for path in files(cache, ".table")} == {"4.table", "5.table", "new.table"}

    def test_what_killed_processes_left_is_removed(self, cache):
        cache.mkdir(parents=True)
        for name, age_s in ((".x.table.abc", 7200), (".y.table.abc", 10)):
            (cache / name).write_bytes(b"half")
            os.utime(cache / name, (time.time() - age_s,) * 2)
        disk.write(cache / "new.table", b"", b"")
        assert {path.name for path in cache.iterdir()} == {".y.table.abc", "new.table"}

    @given(purpose=st.binary(max_size=40), payload=st.binary(max_size=99), other=st.binary())
    @AT_RANDOM
    def test_what_is_written_is_read_for_the_same_purpose_only(
        self, cache, purpose, payload, other
    ):
        assert disk.write(cache / "one", purpose, payload)
        assert disk.read(cache / "one", purpose) == payload
        if not (purpose + payload).startswith(other):
            assert disk.read(cache / "one", other) is None

    def test_what_is_not_there_is_nothing(self, cache):
        assert disk.read(cache / "none", b"") is None


class TestSnapshot:
    def test_it_finds_what_the_loader_finds(self, folder):
        from flashinfer_bench.data import layout

        folder.traces([], "traces/a/b/c.jsonl")
        folder.traces([], "traces/a-b.jsonl")
        folder.put("traces/notes.txt", "")
        folder.put("traces/.hidden/x.jsonl", "")
        (folder.root / "traces" / "back").symlink_to(folder.root)
        taken = snapshot.Snapshot(folder.root)
        for name, suffixes in snapshot.FOLDERS.items():
            wanted = [str(path) for path in layout.files(folder.root / name, *suffixes)]
            assert [str(folder.root / one) for one in taken.paths(name)] == wanted

    def test_large_files_are_read_ahead_and_given_once(self, folder, monkeypatch):
        monkeypatch.setattr(snapshot, "_SMALL_BYTES", 10)
        for number in range(20):
            folder.put(f"traces/{number:02}.jsonl", b"\n" * (number + 11))
        taken = snapshot.Snapshot(folder.root)
        names = taken.paths("traces")
        sizes = [len(taken.read(name)) for name in names if not name.endswith("all.jsonl")]
        assert sizes == [number + 11 for number in range(20)]
        assert len(taken.read(names[0])) == 11  # read again
        assert taken.digest(names[0]) == snapshot.digest_of(b"\n" * 11)

    def test_contents_are_kept_for_the_reader_up_to_a_limit(self, folder, monkeypatch, reads):
        monkeypatch.setattr(snapshot, "_KEPT_BYTES", 1000)
        taken = snapshot.Snapshot(folder.root)
        taken.identity()
        assert len(reads) == 4
        for name in ("definitions/scale.json", "traces/all.jsonl"):
            assert taken.read(name) == (folder.root / name).read_bytes()
        assert len(reads) == 5

    def test_what_changes_between_digest_and_reading_gets_another_digest(self, folder):
        taken = snapshot.Snapshot(folder.root)
        before = taken.identity()
        taken.read("traces/all.jsonl")
        folder.traces([make.trace("slow", 0.1)])
        taken.read("traces/all.jsonl")
        assert taken.identity() != before
        assert taken.identity() == snapshot.Snapshot(folder.root).identity()

    def test_what_is_gone_when_it_is_read_is_a_problem(self, folder):
        taken = snapshot.Snapshot(folder.root)
        (folder.root / "traces" / "all.jsonl").unlink()
        assert taken.read("traces/all.jsonl") is None
        assert taken.read("traces/all.jsonl") is None
        assert not taken.is_complete
        assert ["all.jsonl" in str(problem) for problem in taken.problems] == [True]

    def test_a_folder_that_cannot_be_listed_is_a_problem(self, folder, monkeypatch):
        real = os.scandir

        def refuse(path):
            if str(path).endswith("traces"):
                raise PermissionError(13, "not yours")
            return real(path)

        monkeypatch.setattr(os, "scandir", refuse)
        taken = snapshot.Snapshot(folder.root)
        assert taken.paths("traces") == []
        assert taken.paths("solutions")
        assert "traces: cannot be read: not yours" in str(taken.problems[0])
