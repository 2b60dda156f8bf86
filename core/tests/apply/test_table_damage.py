"""Kept tables that are damaged or foreign, cannot be kept, or are used by many at once."""

from __future__ import annotations

import importlib.util
import json
import logging
import random
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.apply import disk, snapshot, table_build, table_cache
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import TraceSet

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


class TestDamage:
    @pytest.fixture
    def table(self, folder, cache):
        load(folder)
        (path,) = files(cache, ".table")
        return path

    @pytest.mark.parametrize("size", [0, 1, 20, 40, 57, 100, -1])
    def test_truncated(self, folder, table, builds, size):
        whole = table.read_bytes()
        table.write_bytes(whole[:size])
        assert winner(folder) == "fast"
        assert len(builds) == 1
        assert table.read_bytes() == whole

    @AT_RANDOM
    @given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def test_any_flipped_bit_is_found(self, folder, cache, table, place, bit):
        whole = table.read_bytes()
        damaged = bytearray(whole)
        damaged[int(place * len(whole))] ^= 1 << bit
        table.write_bytes(bytes(damaged))
        assert winner(folder) == "fast"
        assert table.read_bytes() == whole

    @pytest.mark.parametrize("content", [b"", b"\0" * 1000, b"{}", disk.MAGIC])
    def test_foreign(self, folder, table, builds, content):
        table.write_bytes(content)
        assert winner(folder) == "fast"
        assert len(builds) == 1

    def test_of_something_else(self, folder, cache, table, builds):
        load(folder, hardware=make.ELSEWHERE)
        (other,) = set(files(cache, ".table")) - {table}
        table.write_bytes(other.read_bytes())
        assert winner(folder) == "fast"
        assert len(builds) == 2

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            msgspec.msgpack.encode([]),
            msgspec.msgpack.encode({"definitions": []}),
            msgspec.msgpack.encode(
                table_cache.StoredTable(
                    {}, [table_cache.StoredDefinition("scale", "scaling", [], None, [])], {}, {}, []
                )
            ),
        ],
    )
    def test_well_kept_nonsense(self, folder, cache, table, builds, payload):
        purpose = bytes.fromhex(load(folder).digest)
        assert disk.write(table, purpose, payload)
        assert winner(folder) == "fast"
        assert len(builds) == 1

    def test_a_solution_without_a_file(self, folder, table, builds):
        purpose = bytes.fromhex(load(folder).digest)
        kept = table_cache.load(purpose)
        kept.definitions[0].choices[0].solution = "invented"
        assert table_cache.save(purpose, kept)
        assert winner(folder) == "fast"
        assert len(builds) == 1

    @pytest.mark.parametrize("content", [b"", b"nonsense", None])
    def test_the_memory_of_digests(self, folder, cache, builds, content):
        load(folder)
        (memory,) = files(cache, ".files")
        if content is None:
            disk.write(memory, b"", msgspec.msgpack.encode({"x": 1}))
        else:
            memory.write_bytes(content)
        assert winner(folder) == "fast"
        assert winner(folder) == "fast"

    def test_a_folder_in_place_of_the_file(self, folder, table):
        table.unlink()
        table.mkdir()
        assert winner(folder) == "fast"

    def test_it_is_told_quietly(self, folder, table, caplog):
        table.write_bytes(b"nonsense")
        with caplog.at_level(logging.INFO):
            load(folder)
        assert [record.levelno for record in caplog.records] == [logging.INFO]


class TestNoCache:
    def test_a_file_in_place_of_the_folder(self, folder, cache):
        cache.parent.parent.mkdir(exist_ok=True)
        cache.parent.write_text("")
        assert winner(folder) == winner(folder) == "fast"

    def test_a_folder_that_cannot_be_written_to(self, folder, cache, monkeypatch):
        def refuse(*args, **kwargs):
            raise PermissionError(13, "read-only")

        monkeypatch.setattr(disk.tempfile, "mkstemp", refuse)
        assert winner(folder) == winner(folder) == "fast"
        assert not files(cache, "")

    def test_a_disk_that_fills_up(self, folder, cache, monkeypatch):
        def refuse(*args):
            raise OSError(28, "no space left")

        monkeypatch.setattr(Path, "replace", refuse)
        assert winner(folder) == "fast"
        assert not files(cache, "")

    def test_what_is_in_a_folder_that_cannot_be_written_to_is_used(
        self, folder, cache, monkeypatch, builds
    ):
        load(folder)
        monkeypatch.setattr(disk, "write", lambda *given: False)
        monkeypatch.setattr(snapshot, "_remembered", lambda path: {})
        assert winner(folder) == "fast"
        assert len(builds) == 1

    def test_a_dataset_in_part_unreadable_is_not_kept(self, folder, cache, monkeypatch, builds):
        real = snapshot.Snapshot._read_file

        def fail(self, name):
            if name == "solutions/fast.json":
                return PermissionError(13, "not yours")
            return real(self, name)

        with monkeypatch.context() as patch:
            patch.setattr(snapshot.Snapshot, "_read_file", fail)
            table = load(folder)
            assert table.match_solution("scale", key()) == "slow"
            assert "cannot be read: not yours" in table.problems[0]
        assert not files(cache, ".table")
        assert winner(folder) == "fast"

    def test_a_table_that_lacks_keys_is_not_kept(self, folder, cache):
        class NeedsTensors(AxesOnlyKeyBuilder):
            def build_from_workload(self, workload, root=None):
                (root / "blob").read_bytes()
                return super().build_from_workload(workload, root)

        ApplyKeyFactory.register("scaling", NeedsTensors)
        try:
            assert winner(folder) is None
            (folder.root / "blob").write_bytes(b"there now")
            assert winner(folder) == "fast"
        finally:
            ApplyKeyFactory.unregister("scaling")
        assert len(files(cache, ".table")) == 1


def everything(folder):
    """Return the table made without any cache."""
    trace_set = TraceSet.from_path(folder.root, on_error="collect")
    return ApplyTable.load_or_build(trace_set, hardware=HERE).definitions


class TestAnyHistory:
    """Whatever happens to the dataset and the cache, the table is that of the dataset."""

    def append(self, chance, folder, cache):
        name, latency = chance.choice(["fast", "slow"]), chance.choice([0.5, 1.0, 4.0])
        line = json.dumps(make.trace(name, latency, on=make.workload(rows=chance.randrange(3))))
        with (folder.root / "traces" / "all.jsonl").open("a") as file:
            file.write(f"{line}\n")

    def tear(self, chance, folder, cache):
        path = folder.root / "traces" / "all.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - chance.randrange(60)])

    def mend(self, chance, folder, cache):
        with (folder.root / "traces" / "all.jsonl").open("a") as file:
            file.write("\n")

    def retarget(self, chance, folder, cache):
        folder.solution(make.solution("fast", target=[chance.choice(["cpu", HERE])]))

    def disturb(self, chance, folder, cache):
        folder.put("solutions/slow.json", chance.choice(["{", json.dumps(make.solution("slow"))]))

    def damage(self, chance, folder, cache):
        for path in files(cache, ""):
            content = bytearray(path.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(bytes(content[: chance.randrange(len(content)) + 1]))

    def forget(self, chance, folder, cache):
        for path in files(cache, ""):
            if chance.random() < 0.5:
                path.unlink()

    def mix_up(self, chance, folder, cache):
        tables = files(cache, ".table")
        for path in tables:
            path.write_bytes(chance.choice(tables).read_bytes())

    @AT_RANDOM
    @given(
        steps=st.lists(
            st.sampled_from(
                ["append", "tear", "mend", "retarget", "disturb", "damage", "forget", "mix_up"]
            ),
            max_size=8,
        ),
        seed=st.integers(0, 1000),
    )
    def test_it(self, tmp_path_factory, cache, steps, seed):
        chance = random.Random(seed)
        root = tmp_path_factory.mktemp("history") / "dataset"
        folder = make.Folder.of(root, [make.trace(), make.trace("slow", 2.0)])
        assert load(folder).definitions == everything(folder)
        for step in steps:
            getattr(self, step)(chance, folder, cache)
            assert load(folder).definitions == everything(folder)
            assert load(folder).definitions == everything(folder)


class TestAtOnce:
    def test_two_processes(self, folder):
        code = (
            "import sys; from flashinfer_bench.apply.table import ApplyTable\n"
            "from flashinfer_bench.apply.keys import ApplyKey\n"
            "key = ApplyKey((('rows', 1), ('columns', 2)))\n"
            "for _ in range(15):\n"
            f"    table = ApplyTable.load_or_build({str(folder.root)!r}, hardware={HERE!r})\n"
            "    assert table.match_solution('scale', key) == 'fast', table\n"
        )
        children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
        assert [child.wait(60) for child in children] == [0, 0, 0]

    def test_threads_while_the_dataset_and_the_cache_change(self, folder, cache):
        """Whatever is read, it is one of the contents that there were, as a whole."""
        stop, seen, failures = threading.Event(), set(), []
        contents = [
            "".join(json.dumps(make.trace(name, 1.0)) + "\n" for _ in range(3))
            for name in ("fast", "slow")
        ]

        def look():
            try:
                while not stop.is_set():
                    seen.add(winner(folder))
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        chance = random.Random(5)
        for number in range(40):
            new = folder.put("new", contents[number % 2])
            new.replace(folder.root / "traces" / "all.jsonl")
            for path in files(cache, "") if cache.is_dir() else ():
                if chance.random() < 0.3:
                    path.unlink(missing_ok=True)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert seen <= {"fast", "slow"}
        assert winner(folder) == "slow"
