"""Whether there is a FlashInfer to adapt; nothing is imported to find out."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from flashinfer_bench.plugins import Availability

_FLASHINFER = "pip install 'fib-adapters-flashinfer[flashinfer]'"
_TORCH = "pip install 'flashinfer-bench-core[torch]'"


def probe() -> Availability:
    """Return whether FlashInfer is installed; what of it is supported shows when it is patched."""
    if find_spec("flashinfer") is None:
        return Availability(False, "flashinfer is not installed", _FLASHINFER)
    found = probe_torch()
    return Availability(True, f"flashinfer {_version_of('flashinfer-python')}") if found else found


def probe_torch() -> Availability:
    """Return whether torch is installed."""
    if find_spec("torch") is None:
        return Availability(False, "torch is not installed", _TORCH)
    return Availability(True, f"torch {_version_of('torch')}")


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # found as a folder on the path
        return "of unknown version"
