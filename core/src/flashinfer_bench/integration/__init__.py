"""Routing the calls of a library through wrappers, and taking the wrappers off again.

The author of a plugin subclasses `Adapter` and registers the class by a
`flashinfer_bench.plugins.AdapterSpec`.
"""

from flashinfer_bench.integration.adapter import Adapter, Kind, PatchSpec
from flashinfer_bench.integration.patch_manager import PatchManager, Target, get_manager, resolve
from flashinfer_bench.integration.status import PatchStatus, State

__all__ = [
    "Adapter",
    "Kind",
    "PatchManager",
    "PatchSpec",
    "PatchStatus",
    "State",
    "Target",
    "get_manager",
    "resolve",
]
