"""A clean `apply` for each test, with a cache of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

from tests.apply_faults import channel
from tests.apply_faults.drive import Driver, enable
from tests.apply_faults.nursery import Nursery
from tests.apply_faults.world import World, random_world

SEEDS = tuple(range(1000, 1010))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep the user's dataset and cache out, and leave nothing enabled behind."""
    monkeypatch.setenv("FIB_ADAPTERS", "-*")  # what libraries are imported here is chance
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    monkeypatch.delenv("FIB_ENABLE_APPLY", raising=False)
    yield
    points = sys.modules.get("flashinfer_bench.routing.patch_points")
    if points is not None:
        points.router.clear()


@pytest.fixture(scope="session")
def here() -> str:
    """The name of the hardware that the tests run on."""
    from flashinfer_bench.tensors import hardware_from_device

    return hardware_from_device("cpu")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks processes that may end badly."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def make_world(here: str, tmp_path: Path) -> Callable[..., tuple[World, Path]]:
    """Draw and write a dataset: ``make_world(seed) -> (world, folder)``."""

    def make(seed: int, **options: Any) -> tuple[World, Path]:
        print(f"seed {seed}")
        world = random_world(random.Random(seed), here, **options)
        channel.reset(*world.problems.values())
        return world, world.write(tmp_path / f"dataset{seed}")

    return make


@pytest.fixture
def driven(make_world: Callable[..., tuple[World, Path]]) -> Callable[..., Any]:
    """Enable a dataset that is drawn: ``with driven(seed, config) as (driver, rng)``."""

    @contextlib.contextmanager
    def drive(seed: int, config: Any = None) -> Iterator[tuple[Driver, random.Random]]:
        from flashinfer_bench.apply import apply

        world, folder = make_world(seed)
        with enable(folder, config):
            yield Driver(world, apply), random.Random(seed)

    return drive
