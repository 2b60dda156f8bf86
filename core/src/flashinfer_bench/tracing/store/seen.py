"""A set of names that takes 16 bytes for each, for files of millions of workloads."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_BYTES = 16
"""128 bits of a digest: no two names of a dataset ever agree."""

_MOST_RECENT = 1 << 14
"""Names in an ordinary set (about 130 bytes each) before they are sorted in among the others."""


class Seen:
    """Texts that are remembered by their digests: older ones sorted, recent ones in a set.

    A set of a million uuids takes 150 MB, this 16 MB. Without NumPy it is a set of digests.

    Parameters
    ----------
    texts : iterable of str
        Those to begin with.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._recent: set[bytes] = set()
        self._sorted: Any = None
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Remember a text."""
        digest = _digest(text)
        if digest in self._recent or self._is_sorted_in(digest):
            return
        self._recent.add(digest)
        if len(self._recent) >= _MOST_RECENT:
            self._sort_in()

    def __contains__(self, text: object) -> bool:
        digest = _digest(text) if isinstance(text, str) else b""
        return digest in self._recent or self._is_sorted_in(digest)

    def __len__(self) -> int:
        return len(self._recent) + (0 if self._sorted is None else len(self._sorted))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (set, frozenset)):
            other = Seen(other)
        return self._all() == other._all() if isinstance(other, Seen) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def _all(self) -> set[bytes]:
        older = [] if self._sorted is None else self._sorted.tolist()
        return {*older, *(digest.rstrip(b"\0") for digest in self._recent)}

    def _is_sorted_in(self, digest: bytes) -> bool:
        if self._sorted is None:
            return False
        place = int(self._sorted.searchsorted(digest))
        # NumPy leaves out zeros at the end of what it returns.
        return place < len(self._sorted) and self._sorted[place] == digest.rstrip(b"\0")

    def _sort_in(self) -> None:
        numpy = _numpy()
        if numpy is None:
            return
        recent = numpy.array(list(self._recent), dtype=f"S{_BYTES}")
        older = recent[:0] if self._sorted is None else self._sorted
        merged = numpy.concatenate([older, recent])
        merged.sort()
        self._sorted, self._recent = merged, set()


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _digest(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_BYTES).digest()
