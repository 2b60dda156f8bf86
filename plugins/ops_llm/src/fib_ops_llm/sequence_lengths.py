"""The filter policy of attention: calls whose sequences are as long on average count as one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing import is_capturing
from flashinfer_bench.tracing import KeyedPolicy

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import torch

    from flashinfer_bench.tracing.recorder import Layout

USUAL = ("kv_indptr", "seq_indptr", "cu_seqlens")
"""Names of index pointers of keys and values, the first that there is counts."""

_LAST = r"(?P<input>\w+)\[-1\](?:\.item\(\))?"
_TOTAL = re.compile(rf"(?P<axis>\w+) *== *{_LAST}")
_TOTAL_BEHIND = re.compile(rf"{_LAST} *== *(?P<axis>\w+)")


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
            return None  # captured, or no tensor any more
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
    """Return the axis that is the last element of an index pointer, by the name of that input.

    From constraints such as ``num_kv_indices == kv_indptr[-1].item()``.
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
