"""Short digests that go into a trace, so that a replay can tell whether it has the same thing."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flashinfer_bench.data import Definition

_HASH_DIGITS = 16
_COMMITMENT_BYTES = 4  # a 53-bit seed cannot be found from them: 2**21 seeds have the same
_PIECE = 1 << 20
_PIECES = 16


def definition_digest(definition: Definition) -> str:
    """Return a digest of what is computed: all of a definition except its description.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    content = definition.model_dump(mode="json", exclude={"description"}, exclude_none=True)
    text = json.dumps(_in_order(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]


def _in_order(content: dict[str, Any]) -> list[Any]:
    """Sort the fields, but keep inputs and outputs in their order, which is that of arguments."""
    return sorted(
        (name, list(value.items()) if name in ("inputs", "outputs") else value)
        for name, value in content.items()
    )


def inputs_crc32(trials: Iterable[Sequence[Any]]) -> str:
    """Return a checksum of the inputs of all trials.

    Of a tensor of more than 16 MiB, 16 pieces of 1 MiB count, spread over it from its first byte to
    its last: the cost is bounded, and other random numbers differ everywhere.

    Parameters
    ----------
    trials : iterable of sequences
        The input sets: tensors, and Python numbers for scalars.

    Returns
    -------
    str
        The CRC-32 as 8 hexadecimal digits.
    """
    crc = 0
    for inputs in trials:
        for value in inputs:
            for piece in _bytes_of(value):
                crc = zlib.crc32(piece, crc)
    return f"{crc:08x}"


def _bytes_of(value: Any) -> Iterator[bytes | memoryview]:
    if not hasattr(value, "shape"):
        yield repr(value).encode()
        return
    from flashinfer_bench.tensors.wire import tensor_to_bytes

    dtype, shape, data = tensor_to_bytes(value)
    yield f"{dtype}{shape}".encode()
    size = len(data)
    if size <= _PIECES * _PIECE:
        yield data
        return
    for index in range(_PIECES):
        start = (size - _PIECE) * index // (_PIECES - 1)
        yield data[start : start + _PIECE]


def seed_commitment(seed: int) -> str:
    """Return a name for a secret seed from which the seed cannot be found: 8 hexadecimal digits."""
    return hashlib.blake2b(f"{seed}".encode(), digest_size=_COMMITMENT_BYTES).hexdigest()
