"""Seeds: one for a run, from which those of all input sets follow."""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Optional

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
    digest = blake2b(f"{given}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)
