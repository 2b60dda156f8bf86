"""A policy for attention: by the average length of the sequences of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracing.policies.keyed import KeyedPolicy
from flashinfer_bench.tracing.snapshots import last_element

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from flashinfer_bench.tracing.layout import Layout
    from flashinfer_bench.tracing.policies.base import FastPath

USUAL = ("kv_indptr", "seq_indptr", "cu_seqlens")
"""Names of index pointers of keys and values, the first that there is counts."""


class KeepFirstByAvgSeqLen(KeyedPolicy):
    """Keeps the first so many calls of each rounded average length of the sequences.

    The average is the last element of an index pointer over the number of sequences. Where a
    constraint of the definition says that an axis has that total
    (``num_kv_indices == kv_indptr[-1].item()``), no data is read. Otherwise the element is: from a
    GPU that waits for the device, and is not done while a CUDA graph is captured.

    Calls without such an input have no average, and are all as good as each other.

    Parameters
    ----------
    k : int
        How many.
    by_batch : bool
        Whether batches of different numbers of sequences are kept apart.
    indptr : str or sequence of str, optional
        Names of index pointers: calls are as good as each other if the averages of all of them are.
        Default: the first of `USUAL` that the definition has.
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
        self._by_batch = by_batch
        self._wanted = None if indptr is None else _names(indptr)
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
            total = axes[axis] if axis is not None else last_element(inputs[name])
        except (RuntimeError, TypeError, AttributeError):
            return None  # captured, or no tensor any more
        return round(total / count)

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        found = super().fast_path(layout)
        return found and found._replace(namespace={**found.namespace, "last": last_element})

    def key_source(self, layout: Layout) -> Optional[tuple[str, tuple[int, ...]]]:
        """See `KeyedPolicy.key_source`."""
        self._totals = layout.totals
        names = self._pointers(dict.fromkeys(layout.tensors()))
        positions = {layout.names.index(name): None for name in names}
        parts = ["n := a{}.shape[0] - 1".format(*positions)] if names and self._by_batch else []
        for index, name in enumerate(names):
            position = layout.names.index(name)
            count = "n" if index == 0 and parts else f"(a{position}.shape[0] - 1)"
            axis = layout.totals.get(name)
            total = f"last(a{position})"
            if axis is not None:
                total = layout.size_of(axis)
                positions[layout.places[axis][0]] = None
            parts.append(f"round({total} / {count})")
        return f"({''.join(f'({part}), ' for part in parts).strip()})", tuple(positions)


def _names(given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"indptr={given!r} is not allowed; give names of inputs")
    return names
