"""Check whether C solutions can be built and run here."""

from __future__ import annotations

from importlib.util import find_spec

from flashinfer_bench.plugins import Availability


def probe() -> Availability:
    """Return whether torch and a C compiler are installed, without importing or compiling."""
    if find_spec("torch") is None:
        return Availability(
            ok=False,
            reason="torch is not installed, and the inputs of solutions are torch tensors",
            remedy="pip install torch numpy safetensors",
        )
    from flashinfer_bench.compile.toolkit import availability, find_cc

    return availability(find_cc)
