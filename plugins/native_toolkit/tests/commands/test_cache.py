"""``fib cache`` on a cache that holds real and left-over things."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from fib_tests.cli import rows
from flashinfer_bench.compile.cache import lock_of
from flashinfer_bench.compile.toolkit import build_lock, build_once

DAY = 86400.0


@pytest.fixture
def cache(tmp_path):
    """The cache folder, which is empty."""
    return tmp_path / "cache"


@pytest.fixture
def filled(cache):
    """Three finished builds, last used 0, 10 and 40 days ago, and what a killed one has left."""
    for number, (days, size) in enumerate([(0, 1000), (10, 2000), (40, 3000)]):
        make(cache, number, days, size)
    left = cache / "a_builder" / f"p_{'f' * 64}.partial-x"
    left.mkdir()
    (left / "main.o").write_bytes(bytes(500))
    return cache


def make(cache, number: int, days: float, size: int) -> Path:
    folder = cache / "a_builder" / f"p_{number:064x}"
    build_once(folder, lambda working: (working / "lib.so").write_bytes(bytes(size)))
    used = time.time() - days * DAY
    os.utime(folder / ".complete", (used, used))
    return folder


def numbers(cache) -> list[int]:
    """The builds that are left, by number."""
    folders = [path for path in cache.glob("a_builder/p_*") if (path / ".complete").exists()]
    return sorted(int(path.name[2:], 16) for path in folders)


def test_list_the_least_recently_used_first(fib, filled):
    result = fib("cache", "list")
    assert result.exit_code == 0
    found = [row for row in rows(result.stdout) if row["state"] == "complete"]
    assert [int(row["bytes"]) for row in found] == [3000, 2000, 1000]
    assert [Path(row["path"]).parent.name for row in found] == ["a_builder"] * 3
    assert {row["builder"] for row in found} == {"a_builder"}
    assert [row["state"] for row in rows(result.stdout)].count("partial") == 1
    assert str(filled) in result.stderr


def test_an_empty_cache(fib, cache):
    result = fib("cache", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "0 entries" in result.stderr
    result = fib("cache", "prune", "--all")
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], [0, 1, 2]),
        (["--older-than", "30d"], [0, 1]),
        (["--older-than", "1.5 W"], [0, 1]),
        (["--older-than", "90m"], [0]),
        (["--max-size", "1.5kB"], [0]),
        (["--max-size", "5000"], [0, 1]),
        (["--max-size", "1T"], [0, 1, 2]),
        (["--older-than", "30d", "--max-size", "1KiB"], [0]),
        (["--all"], []),
    ],
)
def test_prune_by_age_and_size(fib, filled, options, left):
    before = fib("cache", "prune", *options, "--dry-run")
    assert before.exit_code == 0
    assert "would remove" in before.stderr
    result = fib("cache", "prune", *options)
    assert result.exit_code == 0
    assert numbers(filled) == left
    assert "partial" in {row["state"] for row in rows(result.stdout)}
    assert {row["path"] for row in rows(result.stdout)} == {
        row["path"] for row in rows(before.stdout)
    }


def test_a_dry_run_removes_nothing(fib, filled):
    document = json.loads(fib("cache", "prune", "--all", "--dry-run", "--json").stdout)
    assert document["dry_run"] is True
    assert len(document["removed"]) == 4
    assert len(list((filled / "a_builder").glob("p_*"))) >= 4
    document = json.loads(fib("cache", "prune", "--all", "--json").stdout)
    assert (document["dry_run"], document["busy"], document["bytes_left"]) == (False, [], 0)
    assert document["bytes_freed"] >= 6500


def test_what_is_being_built_stays(fib, filled):
    folder = filled / "a_builder" / f"p_{2:064x}"
    with build_lock(lock_of(folder)):
        result = fib("cache", "prune", "--all")
    assert result.exit_code == 0
    assert numbers(filled) == [2]
    assert "kept 1 entries that are in use" in result.stderr
