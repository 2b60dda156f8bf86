"""Whether Python solutions can run here."""

from __future__ import annotations

from importlib.util import find_spec
from platform import python_version

from flashinfer_bench.plugins import Availability


def probe() -> Availability:
    """Return whether torch, which every solution works on, is installed; does not import it."""
    if find_spec("torch") is None:
        return Availability(
            ok=False,
            reason="torch is not installed, and the inputs of solutions are torch tensors",
            remedy="pip install 'flashinfer-bench-core[torch]'",
        )
    return Availability(ok=True, reason=f"Python {python_version()}")
