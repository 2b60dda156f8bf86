"""Route the calls of a library through apply and tracing: the building blocks of adapters.

The author of a plugin subclasses `RouteAdapter` to have calls answered by recorded solutions, or
`Adapter` to only wrap functions, and registers the class with a
`flashinfer_bench.plugins.AdapterSpec`. No other part of core is needed; the names below are stable.

=====================  ==========================================================================
`Adapter`, `PatchSpec`  which functions of a library are wrapped, and how
`RouteAdapter`, `Route` a table of functions whose calls correspond to definitions
`Understood`            the meaning of a call: a definition and its inputs
`Made`                  a definition that a route has derived from a call
`UnroutableError`       raised for a call that no definition describes; the original runs
`signature_of`          the inputs of a route under the names of the definition
`route_calls`           the wrapper of one function
`quick_binder`          binds arguments to names, with defaults
`Returns`, `returns_of` how a function returns its outputs
`write_back`            copies outputs into buffers of the caller
`same_value`            whether an argument equals the default that a definition assumes
`router`                the router of this process, which connects calls and runtimes
`is_capturing`          whether a CUDA graph is being captured; if so, do not wait for the device
=====================  ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports

if TYPE_CHECKING:
    from flashinfer_bench.routing.binding import *  # noqa: F403
    from flashinfer_bench.routing.patch_manager import *  # noqa: F403
    from flashinfer_bench.routing.patch_points import *  # noqa: F403
    from flashinfer_bench.routing.routes import *  # noqa: F403

_NAMES = {
    "binding": "Canonical Returns evaluated quick_binder returns_of same_value signature_of "
    "write_back",
    "patch_manager": "Adapter Kind PatchManager PatchSpec PatchStatus State Target "
    "get_manager resolve",
    "patch_points": "is_capturing router",
    "routes": "Again Made Route RouteAdapter RouteFactory Understood UnroutableError "
    "route_calls route_stats",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
