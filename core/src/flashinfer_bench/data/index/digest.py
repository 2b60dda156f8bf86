"""What rankings need of many runs: counts, and the lowest latency of each solution and workload."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Optional

import msgspec

from flashinfer_bench.data.index.columns import NO_RUN, PASSED, Columns

if TYPE_CHECKING:
    from collections.abc import Iterable


class Digest(msgspec.Struct, array_like=True):
    """The runs of one definition in one file.

    Attributes
    ----------
    total, passed : int
        Number of runs.
    failed : set of str
        Solutions of which a run failed.
    best_ms : dict
        Solution, then uuid of a workload, to the lowest latency in milliseconds.
    unusable : (str, float), optional
        Solution and latency of the first passing run whose latency is not positive.
    """

    total: int = 0
    passed: int = 0
    failed: set[str] = msgspec.field(default_factory=set)
    best_ms: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    unusable: Optional[tuple[str, float]] = None

    def add(self, more: Digest) -> None:
        """Add the runs of another file, which come after those of this one."""
        self.total += more.total
        self.passed += more.passed
        self.failed |= more.failed
        self.unusable = self.unusable or more.unusable
        for solution, times in more.best_ms.items():
            mine = self.best_ms.setdefault(solution, {})
            for uuid, latency in times.items():
                mine[uuid] = min(latency, mine.get(uuid, math.inf))


Digests = dict[str, Digest]
_decoder = msgspec.msgpack.Decoder(Digests)


def encode_digests(digests: Digests) -> bytes:
    """Return digests in the form in which they are kept."""
    return msgspec.msgpack.encode(digests)


def decode_digests(data: bytes) -> Digests:
    """Read what `encode_digests` returned."""
    return _decoder.decode(data)


def digest_columns(columns: Columns) -> Digests:
    """Digest the runs of one file, by definition in the order in which they are met."""
    heads = columns.heads
    totals, failed, lowest, unusable = _by_head(columns)
    digests: Digests = {}
    for place, solution in ((place, heads[place].solution) for place in totals):
        if solution is None:
            continue
        digest = digests.setdefault(heads[place].definition, Digest())
        digest.total += totals[place]
        digest.passed += totals[place] - failed[place]
        if failed[place]:
            digest.failed.add(solution)
        if place in lowest:
            times = digest.best_ms.setdefault(solution, {})
            uuid = heads[place].workload
            times[uuid] = min(lowest[place], times.get(uuid, math.inf))
    for place, latency in unusable:
        digest, solution = digests[heads[place].definition], heads[place].solution
        if digest.unusable is None and solution is not None:
            digest.unusable = (solution, latency)
    return digests


def _by_head(
    columns: Columns,
) -> tuple[Counter[int], Counter[int], dict[int, float], list[tuple[int, float]]]:
    """Return number of lines and of failed runs, lowest latency, and unusable latencies."""
    heads, _, statuses, times = columns.arrays[:4]
    failed = Counter(
        place
        for place, status in zip(heads, statuses, strict=True)
        if status not in (PASSED, NO_RUN)
    )
    lowest: dict[int, float] = {}
    unusable: list[tuple[int, float]] = []
    for place, latency in zip(heads, times, strict=True):
        if latency < lowest.get(place, math.inf):  # false for NaN: not passed
            if latency > 0.0:
                lowest[place] = latency
            else:
                unusable.append((place, latency))
    return Counter(heads), failed, lowest, unusable


def merged(digests: Iterable[Digest]) -> Digest:
    """Return the digest of all runs of a definition, over all files in their order."""
    several = list(digests)
    if len(several) == 1:
        return several[0]
    whole = Digest()
    for one in several:
        whole.add(one)
    return whole
