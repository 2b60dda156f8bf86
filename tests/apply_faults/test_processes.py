"""Processes that are killed, or cannot write: the next one works, and nobody runs by mistake."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.apply_faults.conftest import SEEDS
from tests.apply_faults.world import random_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.plugin("python"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

KILLS = 8


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into, which pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="apply-faults-"))
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def task(open_folder: Path, here: str) -> Callable[..., dict[str, Any]]:
    """Write a dataset and say what a child has to know: ``task(seed) -> dict``."""

    def write(seed: int) -> dict[str, Any]:
        print(f"seed {seed}")
        root = open_folder / f"dataset{seed}"
        random_world(random.Random(seed), here).write(root)
        cache = str(open_folder / f"cache{seed}")
        return {"seed": seed, "hardware": here, "dataset": str(root), "cache": cache}

    return write


def sound(answer: dict[str, Any]) -> None:
    harmless(answer)
    assert answer["wrong"] == []
    assert answer["hits"] >= answer["wanted"]


def harmless(answer: dict[str, Any]) -> None:
    """Calls may have gone to the original: solutions in Python are written out to be imported."""
    assert "error" not in answer, answer["error"]
    assert answer["signal"] == 0
    wrong = [text for text in answer["wrong"] if "should have run" not in text]
    assert wrong == []


def test_after_a_kill_at_any_moment_the_next_process_works(nursery, task):
    whole = task(SEEDS[0])
    sound(first := nursery.child(**whole))
    rng, shortest_s = random.Random(5), first["seconds"]
    killed = 0
    for turn in range(KILLS):
        if turn % 2 == 0:
            shutil.rmtree(whole["cache"], ignore_errors=True)
        moment = rng.uniform(0.0, shortest_s)
        killed += nursery.child(**whole, kill_after_s=moment)["signal"] == signal.SIGKILL
        sound(whole_run := nursery.child(**whole))
        shortest_s = min(shortest_s, whole_run["seconds"])
    assert killed >= KILLS // 4, "too few were killed in the middle to say anything"


@pytest.mark.parametrize("limit", [0, 1, 300, 5000])
def test_a_full_disk_costs_hits_at_most_and_harms_no_later_process(limit, nursery, task):
    for seed in SEEDS[:2]:
        whole = task(seed)
        harmless(nursery.child(**whole, file_limit=limit))
        sound(nursery.child(**whole))


def test_a_cache_that_may_only_be_read(nursery, task):
    for seed in SEEDS[:2]:
        whole = task(seed)
        cache = Path(whole["cache"])
        cache.mkdir()
        cache.chmod(0o555)
        harmless(nursery.child(**whole, as_nobody=True))
        cache.chmod(0o755)
        sound(nursery.child(**whole))  # fills it
        for path in (*cache.rglob("*"), cache):
            path.chmod(0o555 if path.is_dir() else 0o444)
        harmless(nursery.child(**whole, as_nobody=True))
