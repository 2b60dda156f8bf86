"""Seeds, and short digests that go into a trace, so that a replay can tell what is the same."""

from __future__ import annotations

import hashlib
import json
import secrets
import zlib
from typing import TYPE_CHECKING, Any, Optional

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
    return _number(f"{run_seed}/{trial}") >> 1


def secret_seed(given: Optional[int], purpose: str) -> int:
    """Return the seed of what no candidate may foresee, below 2**53.

    A fresh one each time: a trace that tells it is written while other candidates still run, and
    they might read it.

    Parameters
    ----------
    given : int, optional
        Take one that follows from this instead, to repeat what was recorded.
    purpose : str
        What it is for; another purpose gives another seed.
    """
    if given is None:
        return fresh_seed()
    return _number(f"{given}/{purpose}") >> (64 - _SEED_BITS)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def seed_commitment(seed: int) -> str:
    """Return a name for a secret seed from which the seed cannot be found: 8 hexadecimal digits.

    2**21 of the seeds of 53 bits have the same.
    """
    return hashlib.blake2b(f"{seed}".encode(), digest_size=4).hexdigest()


def definition_digest(definition: Definition) -> str:
    """Return a digest of what is computed: all of a definition except its description.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    content = definition.model_dump(mode="json", exclude={"description"}, exclude_none=True)
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
