"""The catalog that is used where none is given."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import PluginError
from flashinfer_bench.plugins.host import discover

if TYPE_CHECKING:
    from flashinfer_bench.plugins.catalog import Catalog

_lock = threading.RLock()
_catalog: Optional[Catalog] = None
_discovering = False


def default_catalog() -> Catalog:
    """Return the catalog of this process; plugins are discovered at the first call.

    Returns
    -------
    Catalog
        The same object until `reset_default_catalog`.

    Raises
    ------
    PluginError
        If a plugin calls this while it is being loaded, or in strict mode.
    ConfigError
        If an environment variable has a value that is not allowed.
    """
    global _catalog, _discovering
    with _lock:
        if _discovering:
            raise PluginError(
                "default_catalog() was called by a plugin that is just being loaded",
                hint="call it later, in the code that the plugin's factory names",
            )
        if _catalog is None:
            _discovering = True
            try:
                _catalog = discover()
            finally:
                _discovering = False
        return _catalog


def reset_default_catalog(catalog: Optional[Catalog] = None) -> None:
    """Forget the catalog of this process, so that the next use discovers anew.

    Parameters
    ----------
    catalog : Catalog, optional
        Use this one from now on, instead of discovering.
    """
    global _catalog
    with _lock:
        _catalog = catalog
