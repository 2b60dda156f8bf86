"""What is kept of a dataset's files: it saves reading, and never decides anything."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.apply import disk, snapshot
from flashinfer_bench.apply.records import Reading, RunReader, kept
from flashinfer_bench.apply.records.kept import Kept
from flashinfer_bench.apply.records.runs import FileRuns, Other, Runs, Texts
from flashinfer_bench.apply.snapshot import digest_of
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.data import Solution, TraceSet

_spec = importlib.util.spec_from_file_location(
    "fib_tests_table_dataset", Path(__file__).with_name("table_dataset.py")
)
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)

HERE, key = make.HERE, make.key
PATH = Path("traces.jsonl")
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
    """A dataset with two trace files."""
    made = make.Folder.of(tmp_path / "dataset", [make.trace(), make.trace("slow", 2.0)])
    made.traces([make.trace(on=make.workload(3)), make.trace("slow", 0.1)], "traces/b.jsonl")
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


@pytest.fixture
def parsed(monkeypatch):
    """Collect which trace files are parsed, and from where on."""
    found = []
    real = RunReader.read

    def noted(self, data, path, known=None, start=0):
        found.append((path.name, start))
        return real(self, data, path, known, start)

    monkeypatch.setattr(RunReader, "read", noted)
    return found


def lines(*made):
    return "".join(json.dumps(one) + "\n" for one in made)


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def load(folder):
    return ApplyTable.load_or_build(folder.root, hardware=HERE)


def winner(folder, rows=1):
    return load(folder).match_solution("scale", key(rows))


def the_file(cache):
    (path,) = cache.glob("*.kept")
    return path


def assert_right(folder):
    """Check that the table is that of the dataset as it is."""
    trace_set = TraceSet.from_path(folder.root, on_error="collect")
    wanted = ApplyTable.load_or_build(trace_set, hardware=HERE).definitions
    assert load(folder).definitions == wanted


class TestSaving:
    """What has not changed is not read again."""

    def test_lines_are_added_to_one_file(self, folder, reads, parsed):
        assert winner(folder) == "fast"  # 2.0 and 0.1 are 1.05 in the middle
        size = (folder.root / "traces" / "all.jsonl").stat().st_size
        reads.clear()
        parsed.clear()
        append(folder.root / "traces" / "all.jsonl", lines(make.trace("fast", 0.01)))
        assert_right(folder)
        assert [name for name in reads if name.startswith("traces")] == ["traces/all.jsonl"]
        assert parsed == [("all.jsonl", size)]

    def test_again_and_again(self, folder, parsed):
        path = folder.root / "traces" / "all.jsonl"
        sizes = [0]
        for number in range(5):
            assert_right(folder)
            sizes.append(path.stat().st_size)
            append(path, lines(make.trace("slow", 0.5 + number)))
        assert [start for name, start in parsed if name == "all.jsonl"] == sizes[:-1]

    def test_a_solution_is_added(self, folder, reads, parsed):
        load(folder)
        parsed.clear()
        reads.clear()
        folder.solution(make.solution("later"))
        assert_right(folder)
        assert parsed == []
        wanted = ["solutions/later.json"]
        assert [name for name in reads if not name.startswith("definitions")] == wanted

    def test_a_file_is_touched(self, folder, parsed):
        load(folder)
        append(folder.root / "traces" / "b.jsonl", lines(make.trace()))
        os.utime(folder.root / "traces" / "all.jsonl", (1, 1))
        parsed.clear()
        assert_right(folder)
        assert [name for name, _ in parsed] == ["b.jsonl"]

    def test_another_machine(self, folder, parsed):
        load(folder)
        parsed.clear()
        ApplyTable.load_or_build(folder.root, hardware=make.ELSEWHERE)
        assert parsed == []

    def test_young_files_are_read_but_not_parsed(self, folder, parsed, monkeypatch):
        monkeypatch.setattr(snapshot, "_YOUNG_NS", 2_000_000_000)
        load(folder)
        folder.solution(make.solution("later"))
        parsed.clear()
        assert_right(folder)
        assert parsed == []

    def test_nothing_is_written_if_nothing_is_new(self, folder, cache, monkeypatch):
        load(folder)
        before = the_file(cache).stat()
        ApplyTable.load_or_build(folder.root, hardware=make.ELSEWHERE)
        assert the_file(cache).stat().st_ino == before.st_ino

    def test_what_is_gone_is_forgotten(self, folder, cache):
        load(folder)
        size = the_file(cache).stat().st_size
        (folder.root / "traces" / "b.jsonl").unlink()
        assert_right(folder)
        assert the_file(cache).stat().st_size < size


class TestOtherContents:
    """Names, sizes and times decide nothing."""

    @pytest.fixture(autouse=True)
    def _first(self, folder):
        load(folder)
        yield
        assert_right(folder)

    def test_the_same_size_and_time(self, folder):
        path = folder.root / "traces" / "all.jsonl"
        info = path.stat()
        path.write_bytes(path.read_bytes().replace(b'"latency_ms": 2.0', b'"latency_ms": 0.2'))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        assert path.stat().st_size == info.st_size

    def test_a_file_that_grew_has_another_beginning(self, folder, parsed):
        path = folder.root / "traces" / "all.jsonl"
        changed = path.read_bytes().replace(b'"latency_ms": 2.0', b'"latency_ms": 0.2')
        path.write_bytes(changed + lines(make.trace("fast", 5.0)).encode())
        load(folder)
        assert parsed == [("all.jsonl", 0)]

    def test_a_file_that_shrank(self, folder, parsed):
        path = folder.root / "traces" / "all.jsonl"
        path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")
        load(folder)
        assert parsed == [("all.jsonl", 0)]

    def test_two_files_that_change_places(self, folder):
        first, second = (folder.root / "traces" / name for name in ("all.jsonl", "b.jsonl"))
        first.rename(folder.root / "x")
        second.rename(first)
        (folder.root / "x").rename(second)

    def test_an_unfinished_line_that_is_finished_later(self, folder, parsed):
        path = folder.root / "traces" / "all.jsonl"
        line = lines(make.trace("slow", 0.001))
        append(path, line[:100])
        assert len(load(folder).problems) == 1
        append(path, line[100:])
        assert_right(folder)
        assert not load(folder).problems

    def test_a_last_line_without_newline_that_goes_on(self, folder):
        path = folder.root / "traces" / "all.jsonl"
        append(path, lines(make.trace("slow", 0.001)).rstrip("\n"))
        assert_right(folder)
        append(path, "0\n")
        assert len(load(folder).problems) == 1

    def test_a_document_that_becomes_lines(self, folder):
        path = folder.put("traces/c.json", json.dumps([make.trace("slow", 0.01)]) + "\n")
        assert_right(folder)
        append(path, lines(make.trace("slow", 0.01)))
        assert len(load(folder).problems) == 1

    def test_a_file_that_vanishes_and_comes_back(self, folder):
        path = folder.root / "traces" / "b.jsonl"
        content = path.read_bytes()
        path.unlink()
        assert_right(folder)
        path.write_bytes(content)

    def test_a_link_to_itself(self, folder):
        path = folder.root / "traces" / "b.jsonl"
        path.unlink()
        path.symlink_to(path)


class TestProblems:
    def test_they_are_told_every_time(self, folder, parsed):
        path = folder.root / "traces" / "all.jsonl"
        append(path, "{]\n")
        assert len(load(folder).problems) == 1
        for number in range(3):
            parsed.clear()
            folder.solution(make.solution(f"later{number}"))
            (problem,) = load(folder).problems
            assert "all.jsonl:3: not valid JSON" in problem
            assert parsed == [("all.jsonl", 0)]
        assert_right(folder)

    def test_those_of_solutions_too(self, folder):
        folder.put("solutions/bad.json", "{")
        folder.put("solutions/again.json", json.dumps(make.solution("fast")))
        first = load(folder).problems
        assert len(first) == 2
        append(folder.root / "traces" / "b.jsonl", lines(make.trace()))
        assert load(folder).problems == first
        assert_right(folder)


class TestSolutions:
    def changed(self, folder):
        """Have the table made anew, with everything else as it was."""
        append(folder.root / "traces" / "b.jsonl", "\n")
        return load(folder)

    def test_a_kept_one_counts_as_the_file_does(self, folder):
        first = load(folder)
        again = self.changed(folder)
        assert again.definitions == first.definitions
        assert again.source.solution("fast").hash() == first.source.solution("fast").hash()

    @pytest.mark.parametrize(
        "change", [{"target": ["cpu"]}, {"of": "other"}, {"author": "me"}, {"language": "cuda"}]
    )
    def test_a_changed_one_is_read(self, folder, reads, change):
        load(folder)
        reads.clear()
        folder.solution(make.solution("fast", **change))
        assert_right(folder)
        assert "solutions/fast.json" in reads
        assert "solutions/slow.json" not in reads

    def test_recorded_hashes_are_compared_with_the_kept_one(self, folder, monkeypatch):
        good = Solution.model_validate(make.solution("fast")).hash()
        for name, found in (("c", good), ("d", "another")):
            extra = {"provenance": {"extra": {"solution_hash": found}}}
            folder.traces([make.trace(latency=0.01, **extra)], f"traces/{name}.jsonl")
        load(folder)
        asked = []
        real = Solution.hash
        monkeypatch.setattr(Solution, "hash", lambda self: asked.append(self.name) or real(self))
        append(folder.root / "traces" / "b.jsonl", lines(make.trace("slow")))
        load(folder)
        assert asked == []
        assert_right(folder)
        folder.solution(make.solution("fast", author="me"))
        assert_right(folder)


# ---------------------------------------------------------------------------- the file of all that


class TestDamage:
    def rebuild(self, folder, cache):
        for path in cache.glob("*.table"):
            path.unlink()
        assert_right(folder)

    @pytest.mark.parametrize("size", [0, 1, 20, 57, 80, 100, 400, -1])
    def test_truncated(self, folder, cache, parsed, size):
        load(folder)
        parsed.clear()
        file = the_file(cache)
        whole = file.read_bytes()
        file.write_bytes(whole[:size])
        self.rebuild(folder, cache)
        assert len(parsed) == 2
        assert file.read_bytes() == whole

    @AT_RANDOM
    @given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def test_any_flipped_bit_is_found(self, folder, cache, place, bit):
        load(folder)
        file = the_file(cache)
        whole = file.read_bytes()
        damaged = bytearray(whole)
        damaged[int(place * len(whole))] ^= 1 << bit
        file.write_bytes(bytes(damaged))
        self.rebuild(folder, cache)
        assert file.read_bytes() == whole

    @pytest.mark.parametrize("name", ["FORMAT", "__version__"])
    def test_another_version(self, folder, cache, parsed, monkeypatch, name):
        load(folder)
        parsed.clear()
        monkeypatch.setattr(kept, name, "99")
        self.rebuild(folder, cache)
        assert len(parsed) == 2

    @pytest.mark.parametrize("payload", [b"", b"\x90", b"\x92\x80", b"\x92\x81\xa1x\x01\x80"])
    def test_of_another_shape(self, folder, cache, parsed, payload):
        load(folder)
        parsed.clear()
        disk.write(the_file(cache), kept._purpose(), payload)
        self.rebuild(folder, cache)
        assert len(parsed) == 2

    def test_a_table_in_its_place(self, folder, cache):
        load(folder)
        (table,) = cache.glob("*.table")
        the_file(cache).write_bytes(table.read_bytes())
        self.rebuild(folder, cache)

    def test_that_of_another_dataset(self, folder, cache, tmp_path):
        load(folder)
        mine = the_file(cache)
        other = make.Folder.of(tmp_path / "other", [make.trace("slow", 0.1)] * 2)
        load(other)
        (theirs,) = set(cache.glob("*.kept")) - {mine}
        mine.write_bytes(theirs.read_bytes())
        self.rebuild(folder, cache)

    def test_it_cannot_be_written(self, folder, cache, monkeypatch, parsed):
        real = disk.write
        monkeypatch.setattr(
            disk, "write", lambda path, *given: path.suffix != ".kept" and real(path, *given)
        )
        assert_right(folder)
        append(folder.root / "traces" / "b.jsonl", lines(make.trace()))
        assert_right(folder)
        assert not list(cache.glob("*.kept"))

    def test_it_would_be_too_large(self, folder, cache, monkeypatch):
        monkeypatch.setattr(kept, "_MOST_BYTES", 100)
        assert_right(folder)
        assert not list(cache.glob("*.kept"))

    def test_a_folder_in_its_place(self, folder, cache):
        load(folder)
        file = the_file(cache)
        file.unlink()
        file.mkdir()
        self.rebuild(folder, cache)


WORKLOAD = json.dumps(make.workload()).encode()
ENVIRONMENT = b'{"hardware": "x"}'


class TestSoundness:
    """Files whose checksum is right, but whose content is none."""

    def taken(self, runs):
        made = Kept(Path("dataset"))
        made.add_runs("a", b"digest", 10, Reading(runs, may_grow=True))
        assert made.save()
        return Kept(Path("dataset")).runs("a", b"digest", Texts())

    def group(self, workload=0, environment=0, figures=(1.0, 0.0, 0.0)):
        return Runs("d", "s", workload, environment, False, None, list(figures))

    def test_sound(self):
        runs = FileRuns([WORKLOAD], [ENVIRONMENT], [self.group()])
        assert self.taken(runs) == runs

    @pytest.mark.parametrize(
        "change",
        [
            {"workload": 1},
            {"workload": -1},
            {"environment": 5},
            {"environment": -2},
            {"figures": (1.0, 0.0)},
        ],
    )
    def test_places_that_are_none(self, change):
        assert self.taken(FileRuns([WORKLOAD], [ENVIRONMENT], [self.group(**change)])) is None

    @pytest.mark.parametrize(
        ("workload", "environment"),
        [(b"{}", ENVIRONMENT), (b"", ENVIRONMENT), (WORKLOAD, b"[]"), (WORKLOAD, b"\xff")],
    )
    def test_texts_that_are_none(self, workload, environment):
        assert self.taken(FileRuns([workload], [environment], [self.group()])) is None


notes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


class TestKeeping:
    @AT_RANDOM
    @given(st.lists(st.tuples(st.sampled_from(["fast", "slow"]), notes, st.booleans()), max_size=4))
    def test_what_is_kept_is_what_was_read(self, tmp_path_factory, made):
        traces = [
            make.trace(
                name,
                correctness=make.errors("NaN" if odd else 0.5, 0.5, extra={"integrity": note}),
            )
            for name, note, odd in made
        ]
        root, reader = tmp_path_factory.mktemp("d"), RunReader()
        reading = reader.read(lines(*traces).encode(), PATH)
        first = Kept(root)
        first.add_runs("a", b"x", 1, reading)
        first.save()
        again = Kept(root).runs("a", b"x", Texts())
        if again is not None:  # JSON has larger numbers than can be kept
            assert repr(again) == repr(reading.runs)
        else:
            assert any(abs(n) >= 2**63 for n in _integers([note for _, note, _ in made]))

    def test_numbers_that_are_too_large_are_read_again(self, folder, parsed):
        extra = {"integrity": {"hidden_ms": 10**30, "allowed_ms": 1}}
        folder.traces(
            [make.trace("slow", 0.001, correctness=make.errors(0.0, 0.0, extra=extra))],
            "traces/huge.jsonl",
        )
        load(folder)
        folder.solution(make.solution("later"))
        parsed.clear()
        assert_right(folder)
        assert parsed == [("huge.jsonl", 0)]

    def test_a_digest_that_is_not_known_finds_nothing(self, tmp_path):
        made = Kept(tmp_path)
        made.add_runs("a", b"x", 5, Reading(FileRuns([], [], []), may_grow=True))
        made.save()
        again = Kept(tmp_path)
        assert again.runs("a", b"", Texts()) is None
        assert again.runs("b", b"x", Texts()) is None
        assert again.head("a", b"") is None

    @AT_RANDOM
    @given(st.binary(max_size=9), st.binary(max_size=9), st.booleans())
    def test_a_beginning_is_found_by_its_content(self, tmp_path_factory, old, new, may_grow):
        root = tmp_path_factory.mktemp("d")
        made = Kept(root)
        made.add_runs("a", digest_of(old), len(old), Reading(FileRuns([], [], []), may_grow))
        made.save()
        runs, size = Kept(root).beginning("a", new, Texts())
        grown = may_grow and old and new.startswith(old) and len(new) > len(old)
        assert (runs is not None, size) == (bool(grown), len(old) if grown else 0)

    def test_names_that_are_no_text(self, tmp_path):
        made = Kept(tmp_path)
        made.add_runs("\udcff", b"x", 1, Reading(FileRuns([], [], []), may_grow=True))
        assert made.save() is False

    def test_other_runs_survive_the_way(self):
        run = Other("PASSED", 1.0, float("inf"), 0.0, 0.5, {"a": [1]})
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(run), type=Other)
        assert again == run


def _integers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in _integers(each)]
    return [value] if isinstance(value, int) else []


class TestAtOnce:
    def test_writers_while_lines_are_added(self, folder, cache):
        """Several processes make tables of a dataset that grows; each is one that it had."""
        code = (
            "import sys; from flashinfer_bench.apply import snapshot\n"
            "from flashinfer_bench.apply.table import ApplyTable\n"
            "snapshot._YOUNG_NS = -(10**15)\n"
            "for _ in range(25):\n"
            f"    table = ApplyTable.load_or_build({str(folder.root)!r}, hardware=sys.argv[1])\n"
            "    assert not [one for one in table.problems if 'unfinished' not in one], table\n"
        )
        children = [
            subprocess.Popen([sys.executable, "-c", code, hardware])
            for hardware in (HERE, HERE, make.ELSEWHERE)
        ]
        chance = random.Random(3)
        for _ in range(60):
            name = chance.choice(["all.jsonl", "b.jsonl"])
            slow = make.trace("slow", chance.random(), on=make.workload(chance.randrange(4)))
            append(folder.root / "traces" / name, lines(slow))
            if chance.random() < 0.2:
                for path in cache.glob("*.table") if cache.is_dir() else ():
                    path.unlink(missing_ok=True)
        assert [child.wait(120) for child in children] == [0, 0, 0]
        for path in cache.glob("*.table"):
            path.unlink()
        assert_right(folder)

    def test_the_last_writer_wins_as_a_whole(self, folder, cache):
        load(folder)
        first, second = Kept(folder.root), Kept(folder.root)
        for number, one in enumerate((first, second)):
            runs = Reading(FileRuns([], [], []), may_grow=True)
            one.add_runs(f"traces/{number}.jsonl", b"x", 1, runs)
            assert one.save()
        again = Kept(folder.root)
        assert again.runs("traces/0.jsonl", b"x", Texts()) is None
        assert again.runs("traces/1.jsonl", b"x", Texts()) is not None
        assert_right(folder)


class TestAnyHistory:
    """Whatever happens to the files, the table is that of the dataset."""

    @settings(AT_RANDOM, max_examples=40)
    @given(
        st.lists(
            st.sampled_from(["append", "rewrite", "tear", "newline", "swap", "drop", "solution"]),
            max_size=7,
        ),
        st.integers(0, 1000),
    )
    def test_it(self, tmp_path_factory, steps, seed):
        chance = random.Random(seed)
        root = tmp_path_factory.mktemp("history") / "dataset"
        folder = make.Folder.of(root, [make.trace(), make.trace("slow", 2.0)])
        names = ["traces/all.jsonl", "traces/b.jsonl"]
        folder.traces([make.trace("slow", 1.0)], names[1])
        assert_right(folder)
        for step in steps:
            path = root / chance.choice(names)
            content = path.read_bytes() if path.exists() else b""
            line = lines(make.trace(chance.choice(["fast", "slow"]), chance.random())).encode()
            if step == "append":
                path.write_bytes(content + line)
            elif step == "rewrite":
                path.write_bytes(line)
            elif step == "tear":
                path.write_bytes(content[: chance.randrange(len(content) + 1)])
            elif step == "newline":
                path.write_bytes(content + b"\n")
            elif step == "swap":
                path.write_bytes(b"\n".join(reversed(content.split(b"\n"))))
            elif step == "drop":
                path.unlink(missing_ok=True)
            else:
                folder.solution(make.solution("fast", target=[chance.choice(["cpu", HERE])]))
            assert_right(folder)
