"""Collecting the workloads of a running program.

`enable_tracing` records calls of definitions, deduplicated, into a dataset; so does
``FIB_ENABLE_TRACING=1``, without a change to the program. An error of tracing never reaches it.

Every name is imported when it is first used: ``import flashinfer_bench.tracing`` loads neither
torch nor pydantic, unless ``FIB_ENABLE_TRACING`` has it enable tracing at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashinfer_bench import env
from flashinfer_bench.tracing.api import disable_tracing, enable_tracing

if TYPE_CHECKING:
    from flashinfer_bench.tracing.config import TracingConfig as TracingConfig
    from flashinfer_bench.tracing.config import TracingConfigRegistry as TracingConfigRegistry
    from flashinfer_bench.tracing.config import TracingLimits as TracingLimits
    from flashinfer_bench.tracing.entry import WorkloadEntry as WorkloadEntry
    from flashinfer_bench.tracing.policies import FilterPolicy as FilterPolicy
    from flashinfer_bench.tracing.policies import KeyedPolicy as KeyedPolicy
    from flashinfer_bench.tracing.policies import OnlinePolicy as OnlinePolicy
    from flashinfer_bench.tracing.presets import (
        get_attention_only_configs as get_attention_only_configs,
    )
    from flashinfer_bench.tracing.presets import get_default_configs as get_default_configs
    from flashinfer_bench.tracing.presets import get_full_configs as get_full_configs
    from flashinfer_bench.tracing.registry import PolicyRegistry as PolicyRegistry
    from flashinfer_bench.tracing.runtime import TracingRuntime as TracingRuntime
    from flashinfer_bench.tracing.signals import install_signal_handlers as install_signal_handlers

_MODULES = {
    "config": ("TracingConfig", "TracingConfigRegistry", "TracingLimits"),
    "entry": ("WorkloadEntry",),
    "policies": ("FilterPolicy", "KeyedPolicy", "OnlinePolicy"),
    "presets": ("get_attention_only_configs", "get_default_configs", "get_full_configs"),
    "registry": ("PolicyRegistry",),
    "runtime": ("TracingRuntime",),
    "signals": ("install_signal_handlers",),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["disable_tracing", "enable_tracing", *sorted(_EXPORTS)]


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


if env.tracing_mentioned():
    from flashinfer_bench.tracing.enabling import activate

    activate()
