"""The file of the index may be missing, damaged, old, shared, or impossible to write."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.index import StaleIndexError, TraceIndex, container, index_file

NAME = "gemm_n8_k4"
AT_PART = [HealthCheck.function_scoped_fixture]


def total(root):
    return TraceIndex.open(root).counts(NAME)[0]


def best(root):
    return TraceIndex.open(root).best(NAME, None, 1, 1).solution


def test_it_is_where_caches_are(dataset, kept, tmp_path):
    total(dataset)
    assert kept.parent.parent == tmp_path / "cache" / "index"
    assert os.listdir(kept.parent) == ["traces.idx"]  # noqa: PTH208 - also hidden ones


def test_each_dataset_has_its_own(dataset, tmp_path):
    (tmp_path / "link").symlink_to(dataset)
    assert index_file(tmp_path / "link") == index_file(dataset) != index_file(tmp_path)


def test_it_may_be_deleted_at_any_time(dataset, kept):
    assert best(dataset) == "alice_v1"
    index = TraceIndex.open(dataset)
    shutil.rmtree(kept.parent)
    with pytest.raises(StaleIndexError):
        index.best(NAME, None, 1, 1)
    assert best(dataset) == "alice_v1"
    assert kept.exists()


def test_a_set_goes_on_when_the_index_is_deleted(dataset, kept):
    total(dataset)
    trace_set = TraceSet.from_path(dataset)
    assert trace_set.summary().total == 3
    shutil.rmtree(kept.parent)
    assert trace_set.get_best_trace(NAME).solution == "alice_v1"
    assert "not read yet" in repr(trace_set)


@settings(suppress_health_check=AT_PART, deadline=None, max_examples=60)
@given(place=st.floats(0, 1), byte=st.integers(1, 255))
def test_any_wrong_byte_is_noticed(dataset, kept, place, byte):
    total(dataset)
    data = bytearray(kept.read_bytes())
    data[int(place * (len(data) - 1))] ^= byte
    kept.write_bytes(data)
    trace_set = TraceSet.from_path(dataset)
    assert trace_set.summary().total == 3
    assert trace_set.get_best_trace(NAME).evaluation.performance.speedup_factor == 2.0
    kept.unlink()


@settings(suppress_health_check=AT_PART, deadline=None, max_examples=30)
@given(size=st.floats(0, 1))
def test_a_part_of_it_is_noticed(dataset, kept, size):
    total(dataset)
    data = kept.read_bytes()
    kept.write_bytes(data[: int(size * (len(data) - 1))])
    trace_set = TraceSet.from_path(dataset)
    assert trace_set.summary().total == 3
    assert trace_set.get_best_trace(NAME).solution == "alice_v1"
    kept.unlink()


def test_that_it_was_damaged_is_told(dataset, kept, caplog):
    caplog.set_level(logging.INFO)
    total(dataset)
    assert caplog.text == ""
    kept.write_bytes(b"nonsense")
    assert total(dataset) == 3
    assert "cannot be used and is made anew" in caplog.text
    caplog.clear()
    assert total(dataset) == 3
    assert caplog.text == ""


def test_one_of_another_release_is_made_anew(dataset, kept, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(container, "_MAGIC", b"fibindex--------")
    total(dataset)
    monkeypatch.undo()
    monkeypatch.setenv("FIB_CACHE_PATH", str(kept.parents[2]))
    assert total(dataset) == 3
    assert "another release" in caplog.text


def test_a_section_of_a_replaced_file_is_refused(dataset, kept):
    total(dataset)
    index = TraceIndex.open(dataset)
    assert container.save_parts(kept, TraceIndex.open(dataset)._parts)
    with pytest.raises(StaleIndexError, match="replaced"):
        index.best(NAME, None, 1, 1)


def test_a_folder_that_cannot_be_made(dataset, kept, tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    assert total(dataset) == 3
    assert best(dataset) == "alice_v1"


def test_a_full_disk(dataset, kept, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container.os, "fdopen", full)
    assert total(dataset) == 3
    assert best(dataset) == "alice_v1"
    assert list(kept.parent.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(dataset, kept):
    kept.parent.mkdir(parents=True)
    kept.parent.chmod(0o500)
    assert total(dataset) == 3


def test_small_datasets_leave_nothing_behind(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    assert total(dataset) == 3
    assert not (tmp_path / "cache").exists()


def test_many_processes_at_once(dataset, kept, python, make, writer):
    """They read, append and rebuild at the same time; every answer is one that was true."""
    script = """
        import sys
        from pathlib import Path
        from flashinfer_bench.data import TraceSet
        from flashinfer_bench.data.index import trace_index
        trace_index.SMALLEST = 0
        root, number = Path(sys.argv[1]), sys.argv[2]
        one = TraceSet.from_path(root)
        trace = one.get_best_trace("gemm_n8_k4")
        before = 0
        for turn in range(15):
            one.add_traces([trace])
            now = one.summary().total
            assert now > before, (now, before)
            assert one.get_best_trace("gemm_n8_k4").solution == "alice_v1"
            assert len(one.filter_traces("gemm_n8_k4")) >= turn + 1
            before = now
            if number == "0":
                trace_index.index_file(root).unlink(missing_ok=True)
    """
    processes = [python.start(script, dataset, number) for number in range(4)]
    for process in processes:
        python.finish(process)
    assert total(dataset) == 3 + 4 * 15
    assert {path.name for path in kept.parent.iterdir()} <= {Path(kept).name}
