"""Triton's two modes for kernels: compiled for a GPU, or interpreted on the CPU.

``TRITON_INTERPRET`` selects the mode. Triton reads it whenever ``@triton.jit`` decorates a
function; for the functions of its own library (``tl.sum``, ``tl.zeros``, …) this happens when
Triton is imported.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.data import Definition

VARIABLE = "TRITON_INTERPRET"
"""The environment variable that selects the mode."""

BFLOAT16 = (
    "Triton's interpreter computes bfloat16 wrongly, and rounds towards zero where it is stored: "
    "kernels must convert what they load with .to(tl.float32)"
)
"""Limitation for definitions with bfloat16 tensors."""

_running = threading.RLock()


def interpreter_wanted() -> bool:
    """Return whether ``TRITON_INTERPRET`` is set to a value that Triton treats as true."""
    return os.environ.get(VARIABLE, "").lower() in ("1", "true", "on", "yes", "y")


def check_unchanged() -> None:
    """Check that Triton's own library was imported in the mode that kernels would use now.

    Raises
    ------
    CapabilityError
        If `VARIABLE` was changed after Triton had been imported.
    """
    language = sys.modules.get("triton.language")
    wanted = interpreter_wanted()
    interpreted = type(getattr(language, "sum", None)).__name__ == "InterpretedFunction"
    if language is not None and interpreted != wanted:
        ways = ("interpreted", "compiled") if wanted else ("compiled", "interpreted")
        raise CapabilityError(
            f"{VARIABLE} was changed after triton had been imported: kernels would be {ways[0]}, "
            f"but the functions of triton.language that they call are {ways[1]}",
            hint=f"Set {VARIABLE} before the process imports triton.",
        )


def enter() -> None:
    """Prepare this process for interpreted kernels; idempotent.

    Without a GPU Triton has no driver, and ``@triton.autotune`` fails. Triton then gets a
    `CPUDriver`.

    Raises
    ------
    CapabilityError
        If Triton cannot be imported, or was imported before the interpreter was switched on.
    """
    try:
        import triton
        from triton.backends import backends
    except ImportError as error:
        raise CapabilityError(
            f"triton cannot be imported: {error}", hint="pip install triton"
        ) from error
    check_unchanged()
    if any(backend.driver.is_active() for backend in backends.values()):
        return
    config: Any = triton.runtime.driver
    try:
        config.active  # noqa: B018 - raises if no driver is set
    except RuntimeError:
        config.set_active(CPUDriver())


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with calls from several threads serialised.

    While Triton interprets a kernel, it replaces the functions of ``triton.language`` for all
    threads, and stores the position in the grid in one global object.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _running:
            return function(*args, **kwargs)

    return call


def notes(definition: Definition) -> tuple[str, ...]:
    """Return the limitations of interpreting solutions of `definition`."""
    specs = (*definition.inputs.values(), *definition.outputs.values())
    return (BFLOAT16,) if any(spec.dtype == "bfloat16" for spec in specs) else ()


class CPUDriver:
    """Replaces Triton's GPU driver on a machine without a GPU.

    Provides what kernels need before they run: it names the device, and makes autotuning select the
    first configuration.
    """

    @staticmethod
    def get_current_target() -> Any:
        """Return a target that matches no kind of GPU."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", "interpreter", 1)

    @staticmethod
    def get_active_torch_device() -> Any:
        """Return the CPU as a torch device."""
        import torch

        return torch.device("cpu")

    @staticmethod
    def get_benchmarker() -> Callable[..., Any]:
        """Return a function that measures nothing: interpreter timings say nothing about a GPU."""

        def same_for_all(_call: Any, *, quantiles: Any = None, **_: Any) -> Any:
            return [0.0] * len(quantiles) if quantiles else 0.0  # selects the first

        return same_for_all

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"triton.runtime.driver.active.{name} needs a GPU: there is none, and Triton's "
            "interpreter has neither timing nor device properties"
        )
