"""Collecting the workloads of a running program.

`enable_tracing` records calls of definitions, deduplicated, into a dataset; so does
``FIB_ENABLE_TRACING=1``, without a change to the program. An error of tracing never reaches it.

Every name is imported when it is first used: ``import flashinfer_bench.tracing`` loads neither
torch nor pydantic, unless ``FIB_ENABLE_TRACING`` has it enable tracing at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench._lazy import exports
from flashinfer_bench.tracing.api import disable_tracing, enable_tracing

if TYPE_CHECKING:
    from flashinfer_bench.tracing.config import TracingConfig as TracingConfig
    from flashinfer_bench.tracing.config import TracingConfigRegistry as TracingConfigRegistry
    from flashinfer_bench.tracing.config import TracingLimits as TracingLimits
    from flashinfer_bench.tracing.config import (
        get_attention_only_configs as get_attention_only_configs,
    )
    from flashinfer_bench.tracing.config import get_default_configs as get_default_configs
    from flashinfer_bench.tracing.config import get_full_configs as get_full_configs
    from flashinfer_bench.tracing.policies import FilterPolicy as FilterPolicy
    from flashinfer_bench.tracing.policies import KeyedPolicy as KeyedPolicy
    from flashinfer_bench.tracing.policies import OnlinePolicy as OnlinePolicy
    from flashinfer_bench.tracing.policies import PolicyRegistry as PolicyRegistry
    from flashinfer_bench.tracing.policies import WorkloadEntry as WorkloadEntry
    from flashinfer_bench.tracing.runtime import TracingRuntime as TracingRuntime
    from flashinfer_bench.tracing.shutdown import install_signal_handlers as install_signal_handlers

_NAMES = {
    "config": "TracingConfig TracingConfigRegistry TracingLimits "
    "get_attention_only_configs get_default_configs get_full_configs",
    "policies": "FilterPolicy KeyedPolicy OnlinePolicy PolicyRegistry WorkloadEntry",
    "runtime": "TracingRuntime",
    "shutdown": "install_signal_handlers",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
__all__ += ["disable_tracing", "enable_tracing"]

if env.tracing_mentioned():
    from flashinfer_bench.tracing.api import activate

    activate()
