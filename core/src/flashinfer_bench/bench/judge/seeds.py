"""Seeds: one for a run, from which those of all input sets follow."""

from __future__ import annotations

import secrets
from hashlib import blake2b

_SEED_BITS = 53  # every JSON reader, JavaScript's too, keeps such an integer exact


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
    digest = blake2b(f"{run_seed}/{trial}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
