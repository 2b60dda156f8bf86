"""A clean `apply` for each test, with a cache of its own; and the count of all that was judged."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

from tests.apply_faults import channel
from tests.apply_faults.nursery import Nursery
from tests.apply_faults.world import World, random_world

SEEDS = tuple(range(1000, 1010))
PROPERTY = "apply_faults"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much has been judged, by all workers together."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                for name, counts in report.user_properties:
                    total.update(counts if name == PROPERTY else {})
    if total:
        terminalreporter.write_line(
            f"apply under faults: {total['calls']:,} calls, {total['hits']:,} of them substituted; "
            f"{total['keys']:,} keys looked up; wrong: {total['wrong']:,}"
        )


@pytest.fixture(autouse=True)
def _alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[None]:
    """Keep the user's dataset and cache out, and leave nothing enabled behind."""
    channel.judged.clear()
    monkeypatch.setenv("FIB_ADAPTERS", "-*")  # what libraries are imported here is chance
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "no-dataset"))
    monkeypatch.delenv("FIB_ENABLE_APPLY", raising=False)
    yield
    slots = sys.modules.get("flashinfer_bench.integration.slots")
    if slots is not None:
        slots.board.clear()
    record_property(PROPERTY, dict(channel.judged))


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
