"""The plugin host, and all that the author of a plugin imports from core to register one.

A plugin is a module that marks functions with `hookimpl` and is named under the entry-point group
``flashinfer_bench.plugins``. `hookspecs` documents the hooks, `records` what they return.
"""

from __future__ import annotations

from flashinfer_bench._lazy import import_string as import_string
from flashinfer_bench.plugins.hookspecs import hookimpl as hookimpl
from flashinfer_bench.plugins.manager import Settings as Settings
from flashinfer_bench.plugins.manager import default_catalog as default_catalog
from flashinfer_bench.plugins.manager import discover as discover
from flashinfer_bench.plugins.manager import language_versions as language_versions
from flashinfer_bench.plugins.manager import reset_default_catalog as reset_default_catalog
from flashinfer_bench.plugins.records import KINDS as KINDS
from flashinfer_bench.plugins.records import AdapterSpec as AdapterSpec
from flashinfer_bench.plugins.records import Availability as Availability
from flashinfer_bench.plugins.records import BuilderSpec as BuilderSpec
from flashinfer_bench.plugins.records import CheckSpec as CheckSpec
from flashinfer_bench.plugins.records import CommandSpec as CommandSpec
from flashinfer_bench.plugins.records import EvaluatorSpec as EvaluatorSpec
from flashinfer_bench.plugins.records import ExecutorSpec as ExecutorSpec
from flashinfer_bench.plugins.records import FormatSpec as FormatSpec
from flashinfer_bench.plugins.records import KeyBuilderSpec as KeyBuilderSpec
from flashinfer_bench.plugins.records import LanguageSpec as LanguageSpec
from flashinfer_bench.plugins.records import MeasurementSpec as MeasurementSpec
from flashinfer_bench.plugins.records import MonitorSpec as MonitorSpec
from flashinfer_bench.plugins.records import OpFamilySpec as OpFamilySpec
from flashinfer_bench.plugins.records import Record as Record
from flashinfer_bench.plugins.records import ReportSpec as ReportSpec
from flashinfer_bench.plugins.records import SandboxSpec as SandboxSpec
from flashinfer_bench.plugins.records import SourceSpec as SourceSpec
from flashinfer_bench.plugins.records import StopRuleSpec as StopRuleSpec
from flashinfer_bench.plugins.records import TimerSpec as TimerSpec
from flashinfer_bench.plugins.records import TracingPolicySpec as TracingPolicySpec
from flashinfer_bench.plugins.records import canonical as canonical
from flashinfer_bench.plugins.records import hook_of as hook_of
from flashinfer_bench.plugins.registry import Catalog as Catalog
from flashinfer_bench.plugins.registry import Conflict as Conflict
from flashinfer_bench.plugins.registry import PluginStatus as PluginStatus
from flashinfer_bench.plugins.registry import Registered as Registered
from flashinfer_bench.plugins.registry import Registry as Registry

PLUGIN_API = (2, 4)
"""Version of the plugin interface: a new hook or optional field raises the second number; whatever
makes an existing plugin stop working raises the first."""
