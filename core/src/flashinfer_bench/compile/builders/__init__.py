"""The builders of installed plugins, by the names of their classes.

``from flashinfer_bench.compile.builders import TritonBuilder`` works where the plugin is installed;
elsewhere it is an ImportError that names what to install. Nothing is imported before it is asked
for.
"""

from __future__ import annotations

import warnings
from typing import Any

from flashinfer_bench._lazy import moved
from flashinfer_bench.errors import FibDeprecationWarning

# Class -> distribution that provides it, in its module `builder`.
_BUILDERS = {
    "PythonBuilder": "fib-builder-python",
    "TritonBuilder": "fib-builder-triton",
    "TileLangBuilder": "fib-builder-tilelang",
    "TVMFFIBuilder": "fib-builder-tvmffi",
    "TorchBuilder": "fib-builder-cuda-torch",
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
    distribution = _BUILDERS[name]
    get, _ = moved(name, f"{distribution.replace('-', '_')}.builder", distribution)
    return get(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
