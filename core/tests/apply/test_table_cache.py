"""Kept tables: found while they hold, made anew in every other case, never believed blindly."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from flashinfer_bench.apply import snapshot, table_build, table_cache
from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.keys import ApplyKey, AxesOnlyKeyBuilder
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


class TestHolding:
    def test_nothing_is_read_again(self, folder, builds, reads):
        first = load(folder)
        assert (len(builds), len(reads)) == (1, 4)
        second = load(folder)
        assert (len(builds), len(reads)) == (1, 4)
        assert second.definitions == first.definitions
        assert (second.digest, second.hardware) == (first.digest, first.hardware)
        assert repr(second) == repr(first)

    def test_problems_are_kept_too(self, folder, builds):
        folder.put("traces/torn.jsonl", '{"definition": ')
        first = load(folder)
        assert len(first.problems) == 1
        assert load(folder).problems == first.problems
        assert len(builds) == 1

    def test_other_settings_of_calls_change_nothing(self, folder, builds):
        load(folder)
        load(folder, ApplyConfig(shadow_calls=5, aot_ratio=0.0, on_miss_policy="nearest"))
        assert len(builds) == 1

    def test_a_changed_time_alone_costs_a_look_at_that_file(self, folder, builds, reads):
        load(folder)
        reads.clear()
        os.utime(folder.root / "traces" / "all.jsonl", (1, 1))
        load(folder)
        assert (reads, len(builds)) == (["traces/all.jsonl"], 1)
        load(folder)
        assert (reads, len(builds)) == (["traces/all.jsonl"], 1)

    def test_back_to_an_earlier_content_is_back_to_its_table(self, folder, builds):
        load(folder)
        folder.traces([make.trace("slow", 0.5)])
        assert winner(folder) == "slow"
        folder.traces([make.trace(), make.trace("slow", 2.0)])
        assert winner(folder) == "fast"
        assert len(builds) == 2


class TestChanging:
    """Each of these makes another table."""

    @pytest.fixture(autouse=True)
    def _first(self, folder, builds):
        load(folder)
        yield
        assert len(builds) == 2

    def test_a_trace_is_added(self, folder):
        with (folder.root / "traces" / "all.jsonl").open("a") as file:
            file.write(json.dumps(make.trace("slow", 0.1)) + "\n")
            file.write(json.dumps(make.trace("slow", 0.1)) + "\n")
        assert winner(folder) == "slow"

    def test_the_same_size_at_the_same_time(self, folder):
        path = folder.root / "traces" / "all.jsonl"
        before = path.stat()
        swapped = path.read_bytes().replace(b'"latency_ms": 2.0', b'"latency_ms": 0.2')
        path.write_bytes(swapped)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        assert winner(folder) == "slow"

    def test_a_file_is_added(self, folder):
        folder.traces([make.trace("slow", 0.1)] * 2, "traces/more.jsonl")
        assert winner(folder) == "slow"

    def test_a_file_is_gone(self, folder):
        (folder.root / "solutions" / "fast.json").unlink()
        assert winner(folder) == "slow"

    def test_a_file_is_renamed(self, folder):
        folder.solution(make.solution("fast", of="other"), name="a")
        assert winner(folder) == "slow"

    def test_a_file_is_replaced(self, folder):
        new = folder.put("new", json.dumps(make.solution("fast", target=["cpu"])))
        new.replace(folder.root / "solutions" / "fast.json")
        assert winner(folder) == "slow"

    def test_a_definition_changes(self, folder):
        folder.definition(make.definition(dtype="float32", tolerance={"atol": 0.0, "rtol": 0.0}))
        assert winner(folder) is None

    def test_other_bounds(self, folder):
        assert winner(folder, config=ApplyConfig(max_atol=0.0)) is None

    def test_other_bounds_of_one_definition(self, folder):
        config = ApplyConfigRegistry(per_definition={"scale": ApplyConfig(max_atol=0.0)})
        assert winner(folder, config=config) is None

    def test_other_hardware(self, folder):
        assert winner(folder, hardware=make.ELSEWHERE) is None

    def test_other_libraries(self, folder, monkeypatch):
        versions = {"torch": "9.9"}
        monkeypatch.setattr("flashinfer_bench.apply.hardware.installed_versions", lambda: versions)
        assert winner(folder) is None

    def test_another_release(self, folder, monkeypatch):
        monkeypatch.setattr(table_cache, "__version__", "99.0")
        load(folder)

    def test_another_format_of_tables(self, folder, monkeypatch):
        monkeypatch.setattr(table_cache, "FORMAT", 99)
        load(folder)

    def test_another_maker_of_keys(self, folder):
        class Other(AxesOnlyKeyBuilder):
            def build_from_workload(self, workload, root=None):
                return ApplyKey((), (("other", True),))

        ApplyKeyFactory.register("scaling", Other)
        try:
            assert load(folder).match_solution("scale", ApplyKey((), (("other", True),))) == "fast"
        finally:
            ApplyKeyFactory.unregister("scaling")

    def test_a_copy_of_the_dataset(self, folder, tmp_path):
        # Keys may be made from tensors beside it, which have no digest.
        make.Folder.of(tmp_path / "copy", [make.trace(), make.trace("slow", 2.0)])
        load(make.Folder(tmp_path / "copy"))


class TestYoungFiles:
    """A file that was changed just now may be changed again without a trace of it in its times."""

    @pytest.fixture(autouse=True)
    def _real_age(self, monkeypatch):
        monkeypatch.setattr(snapshot, "_YOUNG_NS", 2_000_000_000)

    def test_they_are_read_every_time(self, folder, builds, reads):
        load(folder)
        load(folder)
        assert (len(reads), len(builds)) == (8, 1)

    def test_a_change_that_leaves_all_times_alone_is_seen(self, folder, monkeypatch):
        path = folder.root / "traces" / "all.jsonl"
        stamp = snapshot.Stamp.of(path.stat())
        load(folder)
        path.write_bytes(path.read_bytes().replace(b'"latency_ms": 2.0', b'"latency_ms": 0.2'))
        real = snapshot.Stamp.of.__func__
        same = classmethod(
            lambda cls, info: stamp if info.st_ino == stamp.inode else real(cls, info)
        )
        monkeypatch.setattr(snapshot.Stamp, "of", same)
        assert winner(folder) == "slow"

    def test_files_from_the_future_are_never_old(self):
        now = time.time_ns()
        stamp = snapshot.Stamp(1, now + 10**12, now - 10**12, 1, 1)
        assert not stamp.is_settled(now)
        assert stamp.is_settled(now + 10**13)

    def test_the_time_of_the_inode_counts(self):
        now = time.time_ns()
        assert not snapshot.Stamp(1, now - 10**12, now - 10**9, 1, 1).is_settled(now)
        assert snapshot.Stamp(1, now - 10**12, now - 10**11, 1, 1).is_settled(now)
