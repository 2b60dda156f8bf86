"""Filter policies for engines with very many calls: by average length, and at random."""

from __future__ import annotations

import math
import random
import re
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing import is_capturing
from flashinfer_bench.tracing import KeyedPolicy, OnlinePolicy
from flashinfer_bench.tracing.config import positive
from flashinfer_bench.tracing.policies import FastPath

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import torch

    from flashinfer_bench.tracing import WorkloadEntry
    from flashinfer_bench.tracing.recorder import Layout

USUAL = ("kv_indptr", "seq_indptr", "cu_seqlens")
"""Names of index pointers for keys and values; the first one that exists is used."""

_LAST = r"(?P<input>\w+)\[-1\](?:\.item\(\))?"
_TOTAL = re.compile(rf"(?P<axis>\w+) *== *{_LAST}")
_TOTAL_BEHIND = re.compile(rf"{_LAST} *== *(?P<axis>\w+)")


class KeepFirstByAvgSeqLen(KeyedPolicy):
    """Keeps the first calls for each rounded average sequence length.

    The average is the last element of an index pointer divided by the number of sequences. If a
    constraint of the definition sets an axis to that total (``num_kv_indices ==
    kv_indptr[-1].item()``), no data is read. Otherwise the element is read, which waits for a GPU;
    this is skipped while a CUDA graph is captured.

    All calls without such an input count as equal.

    Parameters
    ----------
    k : int
        Number of calls kept per average.
    by_batch : bool
        Whether batches with different numbers of sequences are treated separately.
    indptr : str or sequence of str, optional
        Names of index pointers: calls are equal if the averages of all of them are equal. Default:
        the first of `USUAL` that the definition has.
    """

    def __init__(
        self,
        k: int = 1,
        by_batch: bool = False,
        indptr: Union[str, Sequence[str], None] = None,
    ) -> None:
        super().__init__(k)
        if type(by_batch) is not bool:
            raise ConfigError(f"by_batch={by_batch!r} is not allowed; give True or False")
        names = None if indptr is None else [indptr] if isinstance(indptr, str) else list(indptr)
        if names is not None and not (names and all(isinstance(n, str) and n for n in names)):  # type: ignore[redundant-expr]
            raise ConfigError(f"indptr={indptr!r} is not allowed; give names of inputs")
        self._by_batch = by_batch
        self._wanted = names
        self._totals: dict[str, str] = {}

    def _pointers(self, inputs: Mapping[str, Any]) -> list[str]:
        if self._wanted is not None:
            return [name for name in self._wanted if name in inputs]
        return [name for name in USUAL if name in inputs][:1]

    def key_of(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> Hashable:
        """See `KeyedPolicy.key_of`."""
        names = self._pointers(inputs)
        counts = {name: inputs[name].shape[0] - 1 for name in names}
        averages = [self._average(name, counts[name], axes, inputs) for name in names]
        batch = [counts[names[0]]] if names and self._by_batch else []
        return (*batch, *averages)

    def _average(
        self, name: str, count: int, axes: Mapping[str, int], inputs: Mapping[str, Any]
    ) -> Optional[int]:
        if count <= 0:
            return 0
        axis = self._totals.get(name)
        try:
            total = axes[axis] if axis is not None else self.last(inputs[name])
        except (RuntimeError, TypeError, AttributeError):
            return None  # captured, or no longer a tensor
        return round(total / count)

    @staticmethod
    def last(tensor: torch.Tensor) -> int:
        """Return the last element of an index pointer.

        Raises
        ------
        RuntimeError
            If that would wait for a device whose stream is being captured.
        """
        if tensor.device.type != "cpu" and is_capturing():
            raise RuntimeError("the stream is being captured")
        return int(tensor[-1].item())

    def key_source(self, layout: Layout) -> tuple[str, tuple[int, ...]]:
        """See `KeyedPolicy.key_source`."""
        self._totals = totals_of(layout)
        names = self._pointers(dict.fromkeys(layout.tensors()))
        positions = {layout.names.index(name): None for name in names}
        parts = ["n := a{}.shape[0] - 1".format(*positions)] if names and self._by_batch else []
        for index, name in enumerate(names):
            position = layout.names.index(name)
            count = "n" if index == 0 and parts else f"(a{position}.shape[0] - 1)"
            axis = self._totals.get(name)
            total = f"policy.last(a{position})"
            if axis is not None:
                total = layout.size_of(axis)
                positions[layout.places[axis][0]] = None
            parts.append(f"round({total} / {count})")
        return f"({''.join(f'({part}), ' for part in parts).strip()})", tuple(positions)


def totals_of(layout: Layout) -> dict[str, str]:
    """Return the axis that equals the last element of each index pointer, by input name.

    Derived from constraints such as ``num_kv_indices == kv_indptr[-1].item()``.
    """
    matches = [
        pattern.fullmatch(constraint.text.strip())
        for constraint in layout.constraints
        for pattern in (_TOTAL, _TOTAL_BEHIND)
    ]
    return {
        match["input"]: match["axis"]
        for match in matches
        if match is not None and match["axis"] in layout.places
    }


class KeepRandomK(OnlinePolicy):
    """Keeps a uniform random sample of the calls since the last drain.

    Algorithm L of Li, "Reservoir-sampling algorithms of time complexity O(n(1 + log(N/n)))", ACM
    TOMS 20 (1994): the number of calls to skip is drawn instead of a decision for each call.

    Parameters
    ----------
    k : int
        Size of the sample.
    seed : int, optional
        Makes the choice reproducible.
    """

    def __init__(self, k: int = 1, seed: Optional[int] = None) -> None:
        super().__init__()
        self._k = positive("k", k)
        self._random = random.Random(seed)
        self._skip, self._weight = 0, 1.0

    def skips(self) -> bool:
        """Return whether to skip the current call, and count it as seen if so."""
        if self._skip > 0:
            self._skip -= 1
            return True
        return False

    def admit(self, axes: Mapping[str, int], inputs: Mapping[str, Any]) -> bool:
        """See `OnlinePolicy.admit`."""
        return not self.skips()

    def keep(self, entry: WorkloadEntry) -> Optional[WorkloadEntry]:
        """See `OnlinePolicy.keep`."""
        displaced = None
        if len(self.entries) < self._k:
            self.entries.append(entry)
        else:
            index = self._random.randrange(self._k)
            displaced, self.entries[index] = self.entries[index], entry
        if len(self.entries) == self._k:
            self._draw()
        return displaced

    def _draw(self) -> None:
        # From ]0, 1], because log(0) is undefined.
        self._weight *= math.exp(math.log(1.0 - self._random.random()) / self._k)
        most = 1.0 - self._weight
        steps = math.log(1.0 - self._random.random()) / math.log(most) if 0 < most < 1 else 0.0
        self._skip = int(min(steps, 2.0**62))

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        return FastPath("policy._skip and policy.skips()", (), {"policy": self})

    def drain(self) -> list[WorkloadEntry]:
        """See `FilterPolicy.drain`. The next sample starts afterwards."""
        self._skip, self._weight = 0, 1.0
        return sorted(super().drain(), key=lambda entry: entry.order)
