"""Putting the best solution to work in place of a call.

`apply` marks what may be substituted, `enable_apply` says by what. The module itself can be called
as `apply`, so that ``flashinfer_bench.apply`` is both.

The author of a plugin subclasses `ApplyKeyBuilder`, or `AxesOnlyKeyBuilder`, and registers the
class by a `flashinfer_bench.plugins.KeyBuilderSpec`.

Every name is imported when it is first used: ``import flashinfer_bench.apply`` loads neither torch
nor pydantic, unless ``FIB_ENABLE_APPLY`` has it enable apply at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashinfer_bench import env
from flashinfer_bench.apply.api import (
    apply,
    disable_apply,
    enable_apply,
    get_runtime,
    set_runtime,
)

if TYPE_CHECKING:
    from flashinfer_bench.apply.config import ApplyConfig as ApplyConfig
    from flashinfer_bench.apply.config import ApplyConfigRegistry as ApplyConfigRegistry
    from flashinfer_bench.apply.config import get_default_registry as get_default_registry
    from flashinfer_bench.apply.key_builders import GEMMKeyBuilder as GEMMKeyBuilder
    from flashinfer_bench.apply.key_builders import GQAKeyBuilder as GQAKeyBuilder
    from flashinfer_bench.apply.key_builders import MLAKeyBuilder as MLAKeyBuilder
    from flashinfer_bench.apply.key_factory import ApplyKeyFactory as ApplyKeyFactory
    from flashinfer_bench.apply.keys import ApplyKey as ApplyKey
    from flashinfer_bench.apply.keys import ApplyKeyBuilder as ApplyKeyBuilder
    from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder as AxesOnlyKeyBuilder
    from flashinfer_bench.apply.runtime import ApplyRuntime as ApplyRuntime
    from flashinfer_bench.apply.table import ApplyTable as ApplyTable

_MODULES = {
    "config": ("ApplyConfig", "ApplyConfigRegistry", "MissPolicy", "get_default_registry"),
    "key_builders": ("GEMMKeyBuilder", "GQAKeyBuilder", "MLAKeyBuilder"),
    "key_factory": ("ApplyKeyFactory",),
    "keys": ("ApplyKey", "ApplyKeyBuilder", "AxesOnlyKeyBuilder"),
    "mapping": ("stats",),
    "runtime": ("ApplyRuntime",),
    "table": ("ApplyTable",),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "apply",
    "disable_apply",
    "enable_apply",
    "get_runtime",
    "set_runtime",
    *sorted(_EXPORTS),
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})


class _Callable(ModuleType):
    """The module itself, which ``from flashinfer_bench import apply`` may give."""

    __call__ = staticmethod(apply)


sys.modules[__name__].__class__ = _Callable

if env.apply_mentioned() or env.tracing_mentioned():
    from flashinfer_bench.apply.enabling import activate

    activate()
