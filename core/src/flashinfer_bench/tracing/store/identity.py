"""What makes two recorded workloads the same one.

A workload's uuid is derived from its content: the definition, the axes and the inputs, where the
tensors count by the digest in the name of their file. So the ranks of a tensor-parallel engine, and
a program that is started again, arrive at the same uuid and do not add the same workload twice.
What one process records several times on purpose (``keep_all``) is told apart by an ordinal.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashinfer_bench.data.workload import InputSpec

NAMESPACE = uuid.UUID("5b1c1f0e-6d0f-5d5c-9a55-0c5bb3ee3b3f")
"""Namespace (RFC 9562, section 5.5) of the uuids of recorded workloads. Never change it."""

MOST_ORDINALS = 1 << 17
"""Distinct contents whose number of occurrences a process remembers (about 15 MB).

Beyond it counting begins anew; a repetition then passes for known and is not written once more.
"""

DIGEST_BYTES = 16
"""Length of the digest of a tensor file: 128 bits, so that no two of a dataset ever agree."""


def blob_digest(data: bytes) -> str:
    """Return the digest in the name of a tensor file, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def content_key(definition: str, axes: Mapping[str, int], inputs: Mapping[str, InputSpec]) -> str:
    """Return a text that two workloads share if and only if they have the same content.

    Parameters
    ----------
    definition : str
        Name of the definition.
    axes : mapping of str to int
        Value of each variable axis; their order does not matter.
    inputs : mapping of str to InputSpec
        How each input comes about; tensors by the name of a file that names its content.
    """
    specs: dict[str, Any] = {name: spec.model_dump(mode="json") for name, spec in inputs.items()}
    return json.dumps([definition, dict(axes), specs], sort_keys=True, separators=(",", ":"))


def workload_uuid(key: str, ordinal: int) -> str:
    """Return the uuid of the workload with this `content_key`.

    Parameters
    ----------
    key : str
        From `content_key`.
    ordinal : int
        How often this process has recorded the same content before.
    """
    return str(uuid.uuid5(NAMESPACE, f"{key}#{ordinal}"))


class Ordinals:
    """How often each content was stored by this process; in bounded memory."""

    def __init__(self, most: int = MOST_ORDINALS) -> None:
        self._most = most
        self._counts: Counter[bytes] = Counter()

    def draft(self) -> Draft:
        """Return a copy to count on, which takes effect once it is committed."""
        return Draft(self)

    def count(self, digest: bytes) -> int:
        """Return how often a content was stored."""
        return self._counts[digest]  # a Counter makes no entry for what it does not have

    def add(self, counts: Counter[bytes]) -> None:
        """Count what was stored; forget everything first if it would be too much."""
        if len(self._counts) + len(counts) > self._most:
            self._counts.clear()
        self._counts.update(counts)


class Draft:
    """Ordinals of entries that are being stored; nothing is counted if storing them fails."""

    def __init__(self, ordinals: Ordinals) -> None:
        self._ordinals = ordinals
        self._new: Counter[bytes] = Counter()

    def next(self, key: str) -> int:
        """Return the ordinal of one more workload with this content."""
        digest = hashlib.blake2b(key.encode(), digest_size=DIGEST_BYTES).digest()
        ordinal = self._ordinals.count(digest) + self._new[digest]
        self._new[digest] += 1
        return ordinal

    def commit(self) -> None:
        """Count them: they are on disk."""
        self._ordinals.add(self._new)
        self._new = Counter()
