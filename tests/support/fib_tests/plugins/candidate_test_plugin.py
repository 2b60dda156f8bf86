"""A plugin as a user would write one: a Python builder and timers, found through FIB_PLUGINS.

Core is tested without any plugin installed, so the tests bring their own.
"""

from __future__ import annotations

from flashinfer_bench.compile import Builder, Runnable, RunnableMetadata
from flashinfer_bench.compile.toolkit import load_python
from flashinfer_bench.plugins import BuilderSpec, TimerSpec, hookimpl


class InlineBuilder(Builder):
    shares_builds = False

    def __init__(self) -> None:
        super().__init__(package_prefix="candidate_test", build_dir_name="candidate_test")

    def can_build(self, solution):
        return True

    def build(self, definition, solution):
        loaded = load_python(definition, solution, prefix=self.package_prefix)
        metadata = RunnableMetadata(
            build_type="inline",
            definition_name=definition.name,
            solution_name=solution.name,
            destination_passing_style=loaded.destination_passing_style,
            definition=definition,
        )
        return Runnable(loaded.function, metadata, loaded.cleaner)


class BrokenTimer:
    def __init__(self) -> None:
        raise OSError("this clock has stopped")


@hookimpl
def fib_register_builders():
    yield BuilderSpec(
        name="inline",
        handles=(("python", "*"),),
        priority=1000,
        factory="candidate_test_plugin:InlineBuilder",
        preloads=(("cpu", "xmlrpc.client"), ("cpu", "there_is_none"), ("cuda", "xmlrpc.server")),
    )


@hookimpl
def fib_register_timers():
    yield TimerSpec(
        name="broken",
        devices=("cpu",),
        priority=1,
        factory="candidate_test_plugin:BrokenTimer",
    )
