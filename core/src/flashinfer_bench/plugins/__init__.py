"""The plugin system, with everything that a plugin imports from core to register itself.

A plugin is a module with functions marked by `hookimpl`, registered in the entry-point group
``flashinfer_bench.plugins``. `hookspecs` documents the hooks, `records` what they return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import exports
from flashinfer_bench._lazy import import_string as import_string

if TYPE_CHECKING:
    from flashinfer_bench.plugins.hookspecs import *  # noqa: F403
    from flashinfer_bench.plugins.manager import *  # noqa: F403
    from flashinfer_bench.plugins.records import *  # noqa: F403
    from flashinfer_bench.plugins.registry import *  # noqa: F403

_NAMES = {
    "hookspecs": "hookimpl",
    "manager": ("Settings default_catalog discover language_versions reset_default_catalog"),
    "records": (
        "KINDS AdapterSpec Availability BuilderSpec CheckSpec CommandSpec EvaluatorSpec "
        "ExecutorSpec FormatSpec KeyBuilderSpec LanguageSpec MeasurementSpec MonitorSpec "
        "OpFamilySpec Record ReportSpec SandboxSpec SourceSpec StopRuleSpec TimerSpec "
        "TracingPolicySpec canonical hook_of"
    ),
    "registry": "Catalog Conflict PluginStatus Registered Registry",
}

__getattr__, __dir__, __all__ = exports(__name__, _NAMES)
__all__ += ["PLUGIN_API", "import_string"]

PLUGIN_API = (2, 4)
"""Version of the plugin interface: a new hook or optional field increases the second number; a
change that breaks existing plugins increases the first."""
