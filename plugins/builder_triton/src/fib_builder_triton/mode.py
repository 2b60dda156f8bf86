"""Triton's two ways to run a kernel: compiled for a GPU, or interpreted on the CPU.

``TRITON_INTERPRET`` chooses. Triton reads it whenever ``@triton.jit`` decorates a function, and so,
for the functions of its own library (``tl.sum``, ``tl.zeros``, …), when it is itself imported.
"""

from __future__ import annotations

import os
import sys

from flashinfer_bench.errors import CapabilityError

VARIABLE = "TRITON_INTERPRET"
"""The environment variable that chooses."""

_TRUE = frozenset({"1", "true", "on", "yes", "y"})


def interpreter_wanted() -> bool:
    """Return whether ``TRITON_INTERPRET`` is set to what Triton takes for true."""
    return os.environ.get(VARIABLE, "").lower() in _TRUE


def check_unchanged() -> None:
    """Check that Triton's own library is in the mode that kernels would get now.

    Raises
    ------
    CapabilityError
        If `VARIABLE` was changed after Triton had been imported.
    """
    language = sys.modules.get("triton.language")
    if language is None:
        return
    wanted = interpreter_wanted()
    interpreted = type(getattr(language, "sum", None)).__name__ == "InterpretedFunction"
    if interpreted != wanted:
        ways = ("interpreted", "compiled") if wanted else ("compiled", "interpreted")
        raise CapabilityError(
            f"{VARIABLE} was changed after triton had been imported: kernels would be {ways[0]}, "
            f"but the functions of triton.language that they call are {ways[1]}",
            hint=f"Set {VARIABLE} before the process imports triton.",
        )
