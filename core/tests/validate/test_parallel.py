"""Several processes find what one finds."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.validate import parallel, validate_dataset
from flashinfer_bench.validate.parallel import Workers, share


@pytest.fixture(autouse=True)
def _importable(monkeypatch, pytestconfig):
    """Let new processes import this module by the name that pytest gave it."""
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath))


@given(st.lists(st.integers(0, 10**9), max_size=50), st.integers(1, 9))
def test_shares_hold_everything_once(costs, shares):
    parts = share(costs, shares)
    assert sorted(index for part in parts for index in part) == list(range(len(costs)))
    assert len(parts) <= shares
    assert all(parts)
    if costs:
        loads = [sum(costs[index] for index in part) for part in parts]
        assert max(loads) <= sum(costs) / shares + max(costs)


def _sizes(paths):
    return [(path.name, path.stat().st_size, os.getpid()) for path in paths]


def test_results_are_in_the_order_of_the_files(tmp_path):
    paths = [tmp_path / str(number) for number in range(20)]
    for number, path in enumerate(paths):
        path.write_bytes(b"x" * (number * 7919 % 5000))
    with Workers(2) as workers:
        results = workers.map_files(_sizes, paths)
    assert [name for name, _, _ in results] == [path.name for path in paths]
    assert len({pid for _, _, pid in results} - {os.getpid()}) == 2


def test_little_work_stays_here(tmp_path):
    (tmp_path / "x").touch()
    with Workers() as workers:
        assert workers.map_files(_sizes, [tmp_path / "x"] * 3)[0][2] == os.getpid()
        assert workers.map_files(_sizes, []) == []


def test_much_work_is_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "_WORTH", 1)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
    (tmp_path / "x").touch()
    with Workers() as workers:
        pids = {pid for _, _, pid in workers.map_files(_sizes, [tmp_path / "x"] * 4)}
    assert os.getpid() not in pids


def _die(paths):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_told(tmp_path):
    with Workers(2) as workers, pytest.raises(CapabilityError, match="was killed") as caught:
        workers.map_files(_die, [tmp_path / "x", tmp_path / "y"])
    assert "--jobs 1" in caught.value.hint


def test_two_processes_find_what_one_finds(maker):
    """Facts that cross files: uuids, workloads, solutions, baselines, blobs."""
    maker.sound()
    maker.definition("triple", op_type="gemm")
    maker.solution("bob_triple", definition="triple", author="bob")
    maker.solution("lost", definition="lost")
    maker.from_blob("blob/none.safetensors", uuid="w3")
    maker.workload(uuid="w1", axes={"N": 99}, folder="workloads/more")
    maker.workload(uuid="w5", folder="traces/workloads")
    for name in ("gone", "gone", "alice_double"):
        maker.trace(name, uuid="w5")
    maker.trace("gone", uuid="w6")
    path = maker.root / "traces/op/double.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    for number, line in enumerate(lines[5:]):
        path.with_name(f"part{number}.jsonl").write_bytes(line + b"broken\n" + line[:50])
    one, two = (validate_dataset(maker.root, jobs=jobs) for jobs in (1, 2))
    assert one.findings
    assert two == one
