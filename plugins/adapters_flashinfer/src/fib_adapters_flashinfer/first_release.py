"""FlashInfer's functions, routed through apply and tracing; the names of the first release.

Nothing of this has to be called: adapters are installed while something is applied or traced that
they route, and taken off afterwards.
"""

from __future__ import annotations

from flashinfer_bench.routing import PatchStatus, installation

__all__ = ["install_flashinfer_integrations", "uninstall_flashinfer_integrations"]

_LIBRARY = "flashinfer"


def install_flashinfer_integrations() -> list[PatchStatus]:
    """Have FlashInfer patched as far as anything is applied or traced, now and from now on.

    That is so from the start; only `uninstall_flashinfer_integrations` makes it otherwise.

    Returns
    -------
    list of PatchStatus
        What became of each target. Empty if nothing is applied or traced.
    """
    return _suspended(False)


def uninstall_flashinfer_integrations() -> list[PatchStatus]:
    """Give FlashInfer its own functions back, and leave it alone until it is installed again.

    Returns
    -------
    list of PatchStatus
        What became of each target.
    """
    return _suspended(True)


def _suspended(suspended: bool) -> list[PatchStatus]:
    statuses = installation.default().suspend(_LIBRARY, suspended)
    return [status for status in statuses if status.path.partition(".")[0] == _LIBRARY]
