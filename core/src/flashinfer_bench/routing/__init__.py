"""Routing the calls of a library through apply and tracing: what adapters are made of.

The author of a plugin subclasses `RouteAdapter`, whose calls are answered by recorded solutions, or
`Adapter`, which only wraps functions, and registers the class by a
`flashinfer_bench.plugins.AdapterSpec`. Nothing else of core is needed for that; these names are
stable.

=====================  ==========================================================================
`Adapter`, `PatchSpec`  which functions of a library are wrapped, and how
`RouteAdapter`, `Route` a table of functions whose calls are calls of definitions
`Understood`            what a call means: a definition and its inputs
`UnroutableError`       raised for a call that no definition describes: the original answers it
`signature_of`          the inputs of a route under the names of the definition
`route_calls`           the wrapper of one function
`quick_binder`          arguments by name, with defaults
`Returns`, `returns_of` how a function returns its outputs
`write_back`            outputs into buffers that the caller has given
`same_value`            whether an argument is the default that a definition assumes
`router`                what is applied and traced in this process
=====================  ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports

if TYPE_CHECKING:
    from flashinfer_bench.routing.binding import same_value as same_value
    from flashinfer_bench.routing.outputs import Returns as Returns
    from flashinfer_bench.routing.outputs import evaluated as evaluated
    from flashinfer_bench.routing.outputs import quick_binder as quick_binder
    from flashinfer_bench.routing.outputs import returns_of as returns_of
    from flashinfer_bench.routing.outputs import write_back as write_back
    from flashinfer_bench.routing.patch_manager import Adapter as Adapter
    from flashinfer_bench.routing.patch_manager import Kind as Kind
    from flashinfer_bench.routing.patch_manager import PatchManager as PatchManager
    from flashinfer_bench.routing.patch_manager import PatchSpec as PatchSpec
    from flashinfer_bench.routing.patch_manager import PatchStatus as PatchStatus
    from flashinfer_bench.routing.patch_manager import State as State
    from flashinfer_bench.routing.patch_manager import Target as Target
    from flashinfer_bench.routing.patch_manager import get_manager as get_manager
    from flashinfer_bench.routing.patch_manager import resolve as resolve
    from flashinfer_bench.routing.patch_points import router as router
    from flashinfer_bench.routing.routes import Again as Again
    from flashinfer_bench.routing.routes import Canonical as Canonical
    from flashinfer_bench.routing.routes import Route as Route
    from flashinfer_bench.routing.routes import RouteAdapter as RouteAdapter
    from flashinfer_bench.routing.routes import RouteFactory as RouteFactory
    from flashinfer_bench.routing.routes import Understood as Understood
    from flashinfer_bench.routing.routes import UnroutableError as UnroutableError
    from flashinfer_bench.routing.routes import route_calls as route_calls
    from flashinfer_bench.routing.routes import route_stats as route_stats
    from flashinfer_bench.routing.routes import signature_of as signature_of

_NAMES = {
    "binding": "same_value",
    "outputs": "Returns evaluated quick_binder returns_of write_back",
    "patch_manager": "Adapter Kind PatchManager PatchSpec PatchStatus State Target "
    "get_manager resolve",
    "patch_points": "router",
    "routes": "Again Canonical Route RouteAdapter RouteFactory Understood UnroutableError "
    "route_calls route_stats signature_of",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
