"""Triton's two ways to run a kernel: compiled for a GPU, or interpreted on the CPU.

``TRITON_INTERPRET`` chooses. Triton reads it whenever ``@triton.jit`` decorates a function, and so,
for the functions of its own library (``tl.sum``, ``tl.zeros``, …), when it is itself imported.
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
"""The environment variable that chooses."""

BFLOAT16 = (
    "Triton's interpreter computes bfloat16 wrongly, and rounds towards zero where it is stored: "
    "kernels must convert what they load with .to(tl.float32)"
)
"""What to know about definitions with bfloat16 tensors."""

_running = threading.RLock()


def interpreter_wanted() -> bool:
    """Return whether ``TRITON_INTERPRET`` is set to what Triton takes for true."""
    return os.environ.get(VARIABLE, "").lower() in ("1", "true", "on", "yes", "y")


def check_unchanged() -> None:
    """Check that Triton's own library is in the mode that kernels would get now.

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

    Where there is no GPU, Triton has no driver, without which ``@triton.autotune`` fails. It then
    gets a `CPUDriver`.

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
        config.active  # noqa: B018 - it raises where nobody has put a driver in place
    except RuntimeError:
        config.set_active(CPUDriver())


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` such that calls from several threads wait for one another.

    While Triton interprets a kernel, the functions of ``triton.language`` are replaced, for all
    threads, and the place in the grid is kept in one global object.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _running:
            return function(*args, **kwargs)

    return call


def notes(definition: Definition) -> tuple[str, ...]:
    """Return what to bear in mind when solutions of `definition` are interpreted."""
    specs = (*definition.inputs.values(), *definition.outputs.values())
    return (BFLOAT16,) if any(spec.dtype == "bfloat16" for spec in specs) else ()


class CPUDriver:
    """Stands where Triton keeps the driver of a GPU, on a machine that has none.

    It has what kernels need before they run: it says which device there is, and lets autotuning
    take the first configuration.
    """

    @staticmethod
    def get_current_target() -> Any:
        """Return a target that is of no kind of GPU."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", "interpreter", 1)

    @staticmethod
    def get_active_torch_device() -> Any:
        """Return the CPU, as torch names it."""
        import torch

        return torch.device("cpu")

    @staticmethod
    def get_benchmarker() -> Callable[..., Any]:
        """Return a function that times nothing: the interpreter's times mean nothing for a GPU."""

        def same_for_all(_call: Any, *, quantiles: Any = None, **_: Any) -> Any:
            return [0.0] * len(quantiles) if quantiles else 0.0  # the autotuner takes the first

        return same_for_all

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"triton.runtime.driver.active.{name} needs a GPU: there is none, and Triton's "
            "interpreter has neither timing nor device properties"
        )
