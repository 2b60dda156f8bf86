"""Routing the calls of a library through apply and tracing: what adapters are made of.

The author of a plugin subclasses `RouteAdapter`, whose calls are answered by recorded solutions, or
`Adapter`, which only wraps functions, and registers the class by a
`flashinfer_bench.plugins.AdapterSpec`. Nothing else of core is needed for that; these names are
stable.

=====================  ==========================================================================
`Adapter`, `PatchSpec`  which functions of a library are wrapped, and how
`RouteAdapter`, `Route` a table of functions whose calls are calls of definitions
`Understood`            what a call means: a definition and its inputs
`Made`                  a definition that a route has made of a call
`UnroutableError`       raised for a call that no definition describes: the original answers it
`signature_of`          the inputs of a route under the names of the definition
`route_calls`           the wrapper of one function
`quick_binder`          arguments by name, with defaults
`Returns`, `returns_of` how a function returns its outputs
`write_back`            outputs into buffers that the caller has given
`same_value`            whether an argument is the default that a definition assumes
`router`                what is applied and traced in this process
`is_capturing`          whether a CUDA graph is being captured: nothing may wait for the device
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
