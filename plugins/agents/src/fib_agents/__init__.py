"""Tools for agents that write kernels: feedback, profiler, sanitizer, MCP server and prompts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashinfer_bench.plugins import CommandSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable


_MODULES = {
    "diagnosis": ("Diagnosis", "diagnose"),
    "feedback": ("Feedback", "feedback_of"),
    "kernel_prompts": ("FFI_PROMPT", "FFI_PROMPT_SIMPLE", "prompt_for"),
    "ncu": ("flashinfer_bench_list_ncu_options", "flashinfer_bench_run_ncu", "profile"),
    "sanitizer": ("flashinfer_bench_run_sanitizer", "memcheck"),
    "solution_files": ("extract_solution_to_files", "pack_solution_from_files"),
    "tool_schemas": ("function_to_schema", "get_all_tool_schemas"),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


@hookimpl
def fib_register_commands() -> Iterable[CommandSpec]:
    """Register profile, memcheck, mcp, and ``fib run --feedback``."""
    yield CommandSpec(
        name="profile",
        factory="fib_agents.commands:profile_app",
        priority=904,
        summary="Profile a solution on a workload with Nsight Compute.",
    )
    yield CommandSpec(
        name="memcheck",
        factory="fib_agents.commands:memcheck_app",
        priority=903,
        summary="Look for invalid accesses and races with compute-sanitizer.",
    )
    yield CommandSpec(
        name="mcp",
        factory="fib_agents.mcp_command:app",
        priority=902,
        summary="Serve the tools to agents over the Model Context Protocol.",
    )
    yield CommandSpec(
        name="run feedback",
        factory="fib_agents.run_addition:add_to_run",
        summary="--feedback FILE: what an agent can act on, as JSON lines.",
    )
