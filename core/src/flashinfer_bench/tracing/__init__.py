"""Record the workloads of a running program.

`enable_tracing` records calls of definitions, deduplicated, into a dataset; so does
``FIB_ENABLE_TRACING=1``, without changing the program. Errors in tracing never reach the program.

Names are imported on first use: ``import flashinfer_bench.tracing`` loads neither torch nor
pydantic, unless ``FIB_ENABLE_TRACING`` enables tracing immediately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench._lazy import exports
from flashinfer_bench.tracing.api import disable_tracing, enable_tracing

if TYPE_CHECKING:
    from flashinfer_bench.tracing.config import *  # noqa: F403
    from flashinfer_bench.tracing.policies import *  # noqa: F403
    from flashinfer_bench.tracing.runtime import *  # noqa: F403
    from flashinfer_bench.tracing.shutdown import *  # noqa: F403

_NAMES = {
    "config": "TracingConfig TracingConfigRegistry TracingLimits "
    "get_attention_only_configs get_default_configs get_full_configs",
    "policies": (
        "FilterPolicy InputDumpPolicy KeyedPolicy OnlinePolicy PolicyRegistry WorkloadEntry"
    ),
    "runtime": "TracingRuntime",
    "shutdown": "install_signal_handlers",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
__all__ += ["disable_tracing", "enable_tracing"]

if env.tracing_mentioned():
    from flashinfer_bench.tracing.api import activate

    activate()
