"""Turning apply on and off, by a call or by the environment."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import env
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.opaque import opaque
from flashinfer_bench.integration.slots import board
from flashinfer_bench.tracing import enabling as tracing

if TYPE_CHECKING:
    from flashinfer_bench.apply.runtime import Config, Dataset

logger = logging.getLogger(__name__)

_ANYTHING = (Exception, SystemExit)

# In our own program nothing is substituted behind the back of what it examines.
_COMMAND_LINE = "flashinfer_bench.cli.main"


def enable(
    source: Any, config: Config, device: object = None, dataset: Optional[Dataset] = None
) -> Any:
    """Start what `enable_apply` is given; see there."""
    folder = env.apply_path() if source is None else None
    if device is not None and (folder is not None or isinstance(source, Mapping)):
        raise ConfigError(
            f"device={device!r} is for a dataset: a mapping goes by the tensors of each call",
            hint="leave it out",
        )
    if isinstance(source, Mapping):
        from flashinfer_bench.apply.mapping import enable_mapping

        return enable_mapping(source, config, dataset=dataset)
    if folder is not None:
        from flashinfer_bench.apply.mapping import enable_folder

        return enable_folder(folder, config, dataset=dataset)
    if dataset is not None:
        raise ConfigError(
            "dataset= has the definitions of a mapping, and there is none",
            hint="give a mapping from definitions to solutions, or the dataset itself in first "
            "place",
        )
    from flashinfer_bench.apply.runtime import ApplyRuntime

    return ApplyRuntime(source, config, device=device).start()


def disable() -> None:
    """Stop the innermost active runtime, if there is one."""
    board.asked()  # what has been turned off is not turned on by the environment afterwards
    top = board.top()
    if top is not None:
        top.stop()


def activate() -> None:
    """Do what the environment says, once: at the first use of apply.

    With ``FIB_ENABLE_APPLY=1``, the folder of ``FIB_APPLY_PATH`` if that is set, else the dataset
    of ``FIB_DATASET_PATH``. A failure is a warning, and apply stays off. ``FIB_ENABLE_TRACING`` is
    seen to as well: calls of `apply` are what is traced. Nothing happens while an engine waits for
    the first call that could matter; see `engines`.
    """
    if not (board.quiet or board.deferred is not None or board.asked()):
        _activate()


@opaque
def _activate() -> None:
    if _COMMAND_LINE in sys.modules:
        return
    tracing.activate()
    try:
        if env.apply_enabled():
            enable(None, None)
    except _ANYTHING as error:  # the program that is running must not notice
        logger.debug("enabling apply failed", exc_info=True)
        _warn(f"FIB_ENABLE_APPLY: apply stays off: {type(error).__name__}: {error}")


def _warn(message: str) -> None:
    try:
        warnings.warn(message, UserWarning, stacklevel=2)
    except UserWarning:  # warnings are errors here, but nothing has been called that could fail
        logger.warning("%s", message)
