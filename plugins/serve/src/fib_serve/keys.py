"""Digests that tell which evaluations would have the same results; they need no torch."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import __version__
from flashinfer_bench.bench.digests import definition_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.data import Definition, Solution

# Settings that change no result: what is told, how fast it is built, and what the task itself says.
WITHOUT_EFFECT = frozenset({"log_level", "build_jobs", "device", "definitions", "solutions"})


def settings_key(config: Mapping[str, Any], hardware: str) -> str:
    """Return a digest of how, and on what, solutions are evaluated.

    Parameters
    ----------
    config : mapping of str to object
        The settings of the service, as for `BenchmarkConfig.default`; None means "not given".
    hardware : str
        Name of the device, as the worker's first message tells it.
    """
    given = {
        name: value
        for name, value in config.items()
        if value is not None and name not in WITHOUT_EFFECT
    }
    return _digest([__version__, hardware, given])


def task_key(
    solution: Solution,
    workloads: Iterable[str],
    settings: str,
    definition: Optional[Definition] = None,
) -> str:
    """Return the key of a task: tasks with equal keys have the same results.

    Parameters
    ----------
    solution : Solution
        What is evaluated; its name and author do not matter.
    workloads : iterable of str
        Uuids; their order does not matter.
    settings : str
        What `settings_key` returns.
    definition : Definition, optional
        What is computed, so that tasks from before a change of it are not taken for equal.
    """
    of = None if definition is None else definition_digest(definition)
    return _digest([solution.hash(), sorted(set(workloads)), settings, of])


def _digest(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
