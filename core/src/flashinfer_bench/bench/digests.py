"""Seeds, and short digests that go into a trace, so that a replay can tell what is the same."""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from flashinfer_bench.data import Definition

_SEED_BITS = 53  # every JSON reader, JavaScript's too, keeps such an integer exact
_PIECE, _PIECES = 1 << 20, 16


def fresh_seed() -> int:
    """Return an unpredictable seed for a run, below 2**53."""
    return secrets.randbits(_SEED_BITS)


def trial_seed(run_seed: int, trial: int) -> int:
    """Return the seed of one input set.

    Parameters
    ----------
    run_seed : int
        Seed of the run, as recorded in its traces.
    trial : int
        Number of the set, from 0.

    Returns
    -------
    int
        At least 0 and below 2**63; the same everywhere, for ever.
    """
    digest = hashlib.blake2b(f"{run_seed}/{trial}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def definition_digest(definition: Definition) -> str:
    """Return a digest of what is computed: all of a definition except its description.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    # What old files say beside an axis is kept, and means nothing.
    kept = {name: set(axis.model_extra or ()) for name, axis in definition.axes.items()}
    without: dict[str, Any] = {"description": True, "axes": kept}
    content = definition.model_dump(mode="json", exclude=without, exclude_none=True)
    # Fields are sorted; inputs and outputs keep their order, which is that of arguments.
    ordered = sorted(
        (name, list(value.items()) if name in ("inputs", "outputs") else value)
        for name, value in content.items()
    )
    text = json.dumps(ordered, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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
    from flashinfer_bench.tensors.dtypes import tensor_to_bytes

    dtype, shape, data = tensor_to_bytes(value)
    yield f"{dtype}{shape}".encode()
    size = len(data)
    if size <= _PIECES * _PIECE:
        yield data
        return
    for index in range(_PIECES):
        start = (size - _PIECE) * index // (_PIECES - 1)
        yield data[start : start + _PIECE]
