"""The file of the index may be missing, damaged, old, shared, or impossible to write."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data import index as index_module
from flashinfer_bench.data.index import TraceIndex

NAME = "gemm_n8_k4"
AT_PART = [HealthCheck.function_scoped_fixture]


def total(root):
    return len(TraceIndex.open(root).rows(NAME))


def best(root):
    return TraceSet.from_path(root).get_best_trace(NAME).solution


def test_it_is_where_caches_are(dataset, kept, tmp_path):
    total(dataset)
    assert kept.parent.parent == tmp_path / "cache" / "index"
    assert os.listdir(kept.parent) == ["traces.idx"]  # noqa: PTH208 - also hidden ones


def test_it_may_be_deleted_at_any_time(dataset, kept):
    assert best(dataset) == "alice_v1"
    trace_set = TraceSet.from_path(dataset)
    assert len(trace_set.run_rows()) == 3
    shutil.rmtree(kept.parent)
    assert trace_set.get_best_trace(NAME).solution == "alice_v1"
    assert "not read yet" in repr(trace_set)
    assert best(dataset) == "alice_v1"
    assert kept.exists()


@settings(suppress_health_check=AT_PART, deadline=None)
@given(place=st.floats(0, 1), byte=st.integers(0, 255))
def test_any_damage_is_noticed(dataset, kept, place, byte):
    """A wrong byte, or a file that was cut off there."""
    total(dataset)
    data = bytearray(kept.read_bytes())
    at = int(place * (len(data) - 1))
    data[at] ^= byte
    kept.write_bytes(data if byte else data[:at])
    trace_set = TraceSet.from_path(dataset)
    assert len(trace_set.run_rows()) == 3
    assert trace_set.get_best_trace(NAME).evaluation.performance.speedup_factor == 2.0
    kept.unlink()


def test_one_of_another_release_is_made_anew(dataset, kept, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(index_module, "_MAGIC", b"fibindex--------")
    total(dataset)
    monkeypatch.undo()
    monkeypatch.setenv("FIB_CACHE_PATH", str(kept.parents[2]))
    assert total(dataset) == 3
    assert "another release" in caplog.text


def test_a_full_disk(dataset, kept, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert total(dataset) == 3
    assert best(dataset) == "alice_v1"
    assert list(kept.parent.iterdir()) == []


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
        from flashinfer_bench.data import index
        index.SMALLEST = 0
        root, number = Path(sys.argv[1]), sys.argv[2]
        one = TraceSet.from_path(root)
        trace = one.get_best_trace("gemm_n8_k4")
        before = 0
        for turn in range(15):
            one.add_traces([trace])
            now = len(one.run_rows())
            assert now > before, (now, before)
            assert one.get_best_trace("gemm_n8_k4").solution == "alice_v1"
            assert len(one.filter_traces("gemm_n8_k4")) >= turn + 1
            before = now
            if number == "0":
                index.index_file(root).unlink(missing_ok=True)
    """
    processes = [python.start(script, dataset, number) for number in range(4)]
    for process in processes:
        python.finish(process)
    assert total(dataset) == 3 + 4 * 15
    assert {path.name for path in kept.parent.iterdir()} <= {Path(kept).name}
