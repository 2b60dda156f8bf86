"""Turning tracing on by the environment.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings

from flashinfer_bench import env
from flashinfer_bench.integration.opaque import opaque
from flashinfer_bench.integration.slots import board

logger = logging.getLogger(__name__)

_ANYTHING = (Exception, SystemExit)

# In our own program nothing is recorded behind the back of what it examines.
_COMMAND_LINE = "flashinfer_bench.cli.main"

_asked = False


def asked() -> bool:
    """Note that the environment is asked, or need not be; return whether it had been before."""
    global _asked
    before, _asked = _asked, True
    return before


@opaque
def activate() -> None:
    """Do what the environment says, once: with ``FIB_ENABLE_TRACING=1``, `enable_tracing`.

    With ``FIB_TRACING_SIGNALS=1`` what was recorded is written on signals as well, where this is
    called in the main thread; see `tracing.signals`. A failure is a warning, and tracing stays off.
    Nothing happens while an engine waits for the first call that could matter; see `engines`.
    """
    if board.deferred is not None or asked() or _COMMAND_LINE in sys.modules:
        return
    try:
        if env.tracing_enabled():
            from flashinfer_bench.tracing.runtime import TracingRuntime

            TracingRuntime().start()
            _handle_signals()
    except _ANYTHING as error:  # the program that is running must not notice
        logger.debug("enabling tracing failed", exc_info=True)
        _warn(f"FIB_ENABLE_TRACING: tracing stays off: {type(error).__name__}: {error}")


def _handle_signals() -> None:
    if env.tracing_signals() and threading.current_thread() is threading.main_thread():
        from flashinfer_bench.tracing.signals import install_signal_handlers

        install_signal_handlers()


def _warn(message: str) -> None:
    try:
        warnings.warn(message, UserWarning, stacklevel=3)
    except UserWarning:  # warnings are errors here, but nothing has been called that could fail
        logger.warning("%s", message)
