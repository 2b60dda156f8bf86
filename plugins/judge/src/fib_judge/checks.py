"""Unannounced checks: timed calls whose outputs the judge knows, at places nobody can foresee."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.evaluators.base import Trial

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.tensors.vary import Freedom, Variation

MOST_CHECKS = 8
FEWEST_CHECKS = 2
_TIME_SHARE = 0.25  # of the reference's calls: their outputs are fetched, which also takes time
_MEMORY_SHARE = 0.25  # of what is free
_MOST_BYTES = 256 * 2**20  # that are fetched and compared: half a second, or more
_LAST_SHARE = 0.1


@dataclass(frozen=True)
class TimedCheck:
    """A variation, and what the reference made of it.

    Attributes
    ----------
    variation : Variation
        What the call sees.
    freedoms : tuple of Freedom
        How the inputs vary.
    base : Trial
        The input set that it varies.
    expected : list of torch.Tensor
        The reference's outputs.
    """

    variation: Variation
    freedoms: tuple[Freedom, ...]
    base: Trial
    expected: list[torch.Tensor]

    @property
    def trial(self) -> Trial:
        """The inputs as the call saw them, and the expected outputs."""
        return _VariedTrial(self)


class _VariedTrial(Trial):
    """Makes its inputs when they are asked for: few evaluators look at them, and it takes long."""

    def __init__(self, check: TimedCheck) -> None:
        facts = {"index": check.base.index, "seed": check.base.seed, "expected": check.expected}
        self.__dict__.update(facts, _check=check)

    @cached_property
    def inputs(self) -> list[Any]:
        from flashinfer_bench.tensors.vary import varied

        check: TimedCheck = self.__dict__["_check"]
        return varied(check.freedoms, check.base.inputs, check.variation)


def number_of_checks(timed_calls: int, output_bytes: int, free_bytes: int) -> int:
    """Return how many variations to prepare.

    Parameters
    ----------
    timed_calls : int
        Of the reference. The variations are among them, so nothing is computed twice; at most a
        quarter of them, because to fetch outputs takes time, too.
    output_bytes : int
        Size of all outputs of one call: at most a quarter of `free_bytes` is held, and 256 MiB.
    free_bytes : int
        Memory that is free.

    Returns
    -------
    int
        2 to 8, or 1 if there is one timed call only.
    """
    by_time = int(timed_calls * _TIME_SHARE)
    most = min(free_bytes * _MEMORY_SHARE, _MOST_BYTES)
    by_memory = int(most / max(1, output_bytes))
    wanted = max(FEWEST_CHECKS, min(MOST_CHECKS, by_time, by_memory))
    return min(wanted, timed_calls)


def free_memory() -> int:
    """Return the bytes of memory that nothing uses; 0 where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def secret_places(timed_calls: int, count: int, rng: random.Random) -> list[int]:
    """Return `count` different numbers of timed calls, in order.

    One lies in the last tenth of the run, as no end of it is safe for work that is left undone; the
    others anywhere, independently. A process can notice that it is looked at. If there were, say,
    one look in each of as many parts, the rest of a part would be free after it; like this a look
    says nothing about when the next one comes.
    """
    tail = max(1, int(timed_calls * _LAST_SHARE))
    late = rng.randrange(timed_calls - tail, timed_calls)
    others = [place for place in range(timed_calls) if place != late]
    return sorted([late, *rng.sample(others, count - 1)])


def secret_schedule(
    timed_calls: int, checks: Sequence[TimedCheck], rng: random.Random
) -> dict[int, Optional[TimedCheck]]:
    """Return at which timed calls the judge looks, and what it compares there.

    Each check comes once, in random order. Beside them there are none to as many decoys, which are
    None: looks like the others, after which nothing is compared. So whoever counts looks does not
    know either how many are still to come.
    """
    count = min(len(checks), timed_calls)
    if not count:
        return {}
    chosen = rng.sample(list(checks), count)
    places = secret_places(timed_calls, count, rng)
    free = sorted(set(range(timed_calls)).difference(places))
    decoys = rng.sample(free, min(rng.randint(0, count), len(free)))
    return {**dict.fromkeys(decoys), **dict(zip(places, chosen, strict=True))}


def secret_batch(
    first: int, count: int, checks: Sequence[TimedCheck], rng: random.Random
) -> dict[int, Optional[TimedCheck]]:
    """Return at which calls of a batch the judge looks, if nobody knows how many batches come.

    One or two checks, and up to as many decoys, wherever in the batch. Where checks have run out
    there are decoys alone: who counts looks learns nothing from it.

    Parameters
    ----------
    first, count : int
        Number of the batch's first timed call, and how many there are.
    checks : sequence of TimedCheck
        Those that have not been made.
    rng : random.Random
        Decides; nobody else knows it.
    """
    wanted = min(rng.randint(1, 2), count)
    chosen = rng.sample(list(checks), min(wanted, len(checks)))
    decoys = wanted - len(chosen) + rng.randint(0, wanted)
    places = rng.sample(range(first, first + count), min(len(chosen) + decoys, count))
    return {**dict.fromkeys(places), **dict(zip(places, chosen, strict=False))}
