"""The builders of installed plugins, by the names of their classes.

``from flashinfer_bench.compile.builders import TritonBuilder`` works where the plugin is installed;
elsewhere it is an ImportError that names what to install. Nothing is imported before it is asked
for.
"""

from __future__ import annotations

import warnings
from typing import Any

from flashinfer_bench.errors import CapabilityError, FibDeprecationWarning, PluginError

# Class -> name of the plugin's record, distribution that provides it.
_BUILDERS = {
    "PythonBuilder": ("python", "fib-builder-python"),
    "TritonBuilder": ("triton", "fib-builder-triton"),
    "TileLangBuilder": ("tilelang", "fib-builder-tilelang"),
    "TVMFFIBuilder": ("tvm_ffi", "fib-builder-tvmffi"),
    "TorchBuilder": ("torch", "fib-builder-cuda-torch"),
}

__all__ = [*_BUILDERS]


def __getattr__(name: str) -> Any:
    if name == "CUDABuilder":
        warnings.warn(
            "CUDABuilder is now called TorchBuilder; the old name goes in 1.0",
            FibDeprecationWarning,
            stacklevel=2,
        )
        name = "TorchBuilder"
    if name not in _BUILDERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load(name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _load(name: str) -> Any:
    from flashinfer_bench.plugins import default_catalog

    record, distribution = _BUILDERS[name]
    catalog = default_catalog()
    for registered in catalog.builders:
        if registered.spec.factory.rpartition(":")[2] == name:
            try:
                return registered.load()
            except PluginError as error:
                raise ImportError(f"{name} cannot be loaded: {error}") from error
    try:
        catalog.find("builder", record)
    except CapabilityError as error:
        reason = error.message
    else:
        reason = f"the installed builder {record!r} has no class {name}"
    raise ImportError(
        f"{name} comes with the distribution {distribution} (pip install {distribution}): {reason}",
        name=__name__,
    )
