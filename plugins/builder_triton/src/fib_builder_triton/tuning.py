"""Autotuned kernels of a solution have all their configurations compiled at the same time.

Triton compiles a configuration when it is about to time it: one after the other, on one core. With
ten configurations that is most of the time that an evaluation takes.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from flashinfer_bench.tensors.devices import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def compile_at_once(package: str) -> None:
    """Make this so for the kernels that are global names in the modules of `package`."""
    for tuner in set(_tuners(package)):
        _change(tuner)


def _tuners(package: str) -> Iterator[Any]:
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import KernelInterface

    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for value in list(vars(module).values()):
                while isinstance(value, KernelInterface):  # decorators are stacked
                    if isinstance(value, Autotuner):
                        yield value
                    value = getattr(value, "fn", None)


def _change(tuner: Any) -> None:
    prune, measure = tuner.prune_configs, tuner._bench
    waiting: list[Any] = []

    def prune_configs(kwargs: dict[str, Any]) -> Any:
        waiting[:] = prune(kwargs)
        return list(waiting)

    def bench(*args: Any, config: Any, **meta: Any) -> Any:
        if len(waiting) > 1:
            # What is left of a mode that could not end stays in a context of its own.
            copy_context().run(_compile, tuner, tuple(waiting), args, meta)
        waiting.clear()
        return measure(*args, config=config, **meta)

    tuner.prune_configs, tuner._bench = prune_configs, bench


def _compile(
    tuner: Any, configs: Sequence[Any], args: Sequence[Any], meta: Mapping[str, Any]
) -> None:
    """Compile; what fails is told when Triton tries it."""
    from triton import AsyncCompileMode

    with (
        suppress(Exception),
        ThreadPoolExecutor(usable_cores()) as pool,
        AsyncCompileMode(pool, ignore_errors=True),
    ):
        for config in configs:
            with suppress(Exception):
                values = {**meta, **config.all_kwargs()}
                if config.pre_hook is not None:  # it sets the shapes of descriptors
                    config.pre_hook({**tuner.nargs, **values})
                tuner.fn.run(*args, **{**values, "warmup": True})
