"""Whether there is a FlashInfer to adapt; nothing is imported to find out."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability

_INSTALL = "pip install 'fib-adapters-flashinfer[flashinfer]'"


def probe() -> Availability:
    """Return whether FlashInfer is installed; what of it is supported shows when it is patched."""
    from flashinfer_bench.compile.toolkit import availability

    return availability(find_flashinfer)


def probe_torch() -> Availability:
    """Return whether torch is installed."""
    from flashinfer_bench.compile.toolkit import availability

    return availability(find_torch)


def find_flashinfer() -> str:
    """Return FlashInfer's name and version.

    Raises
    ------
    CapabilityError
        If it, or the torch that it needs, is not installed.
    """
    if find_spec("flashinfer") is None:
        raise CapabilityError("flashinfer is not installed", hint=_INSTALL)
    find_torch()
    return f"flashinfer {_version_of('flashinfer-python')}"


def find_torch() -> str:
    """Return torch's name and version.

    Raises
    ------
    CapabilityError
        If it is not installed.
    """
    if find_spec("torch") is None:
        raise CapabilityError(
            "torch is not installed", hint="pip install 'flashinfer-bench-core[torch]'"
        )
    return f"torch {_version_of('torch')}"


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # found as a folder on the path
        return "of unknown version"
