"""Substitute the best recorded solution for a call.

`apply` marks calls that may be substituted; `enable_apply` selects the solutions. The module itself
is callable as `apply`, so that ``flashinfer_bench.apply`` works as both.

The author of a plugin subclasses `ApplyKeyBuilder` or `AxesOnlyKeyBuilder`, and registers the class
with a `flashinfer_bench.plugins.KeyBuilderSpec`.

Names are imported on first use: ``import flashinfer_bench.apply`` loads neither torch nor pydantic,
unless ``FIB_ENABLE_APPLY`` enables apply immediately.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench._lazy import exports
from flashinfer_bench.apply.api import (
    activate,
    apply,
    asked_for,
    disable_apply,
    enable_apply,
    get_runtime,
    set_runtime,
)

if TYPE_CHECKING:
    from inspect import Signature

    from flashinfer_bench.apply.config import *  # noqa: F403
    from flashinfer_bench.apply.keys import *  # noqa: F403
    from flashinfer_bench.apply.runtime import *  # noqa: F403
    from flashinfer_bench.apply.table import *  # noqa: F403

_NAMES = {
    "config": "ApplyConfig ApplyConfigRegistry MissPolicy get_default_registry",
    "key": "GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder",
    "keys": "ApplyKey ApplyKeyBuilder ApplyKeyFactory AxesOnlyKeyBuilder",
    "mapping": "stats",
    "runtime": "ApplyRuntime",
    "table": "ApplyTable",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
__all__ += ["apply", "disable_apply", "enable_apply", "get_runtime", "set_runtime"]


class _Callable(ModuleType):
    """The module itself, which ``from flashinfer_bench import apply`` may return."""

    __call__ = staticmethod(apply)

    @property
    def __signature__(self) -> Signature:
        """Its signature. `inspect` drops the first parameter of a callable object as `self`."""
        from inspect import signature

        return signature(apply)


sys.modules[__name__].__class__ = _Callable

if asked_for() or env.tracing_mentioned():
    activate()
