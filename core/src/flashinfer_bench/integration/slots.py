"""Where calls are sent: the places they go through, who may take them, and who is told of them.

Each decorated function, and each function of a library that an adapter has patched, looks into a
`Slot` of its own; the function form of apply looks into `Board.calls`. Both hold what the innermost
active runtime gives them, behind what the watchers want to be told, or nothing: while nobody is
active a slot costs one attribute. A runtime that starts, stops or is rebuilt is published, and so
is a watcher: all slots are filled anew, one after the other, each in one step. What a call found it
keeps until it returns.

Here is the board of this process, and what is used with it, under one roof.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from flashinfer_bench.integration.board import Board
from flashinfer_bench.integration.opaque import opaque
from flashinfer_bench.integration.places import Runtime, Slot, Watcher
from flashinfer_bench.integration.watchers import Everything

if TYPE_CHECKING:
    from flashinfer_bench.integration.places import Args as Args
    from flashinfer_bench.integration.places import Call as Call
    from flashinfer_bench.integration.places import Fallback as Fallback
    from flashinfer_bench.integration.places import Kwargs as Kwargs
    from flashinfer_bench.integration.places import Note as Note
    from flashinfer_bench.integration.places import Observer as Observer

__all__ = [
    "Board",
    "Everything",
    "Runtime",
    "Slot",
    "Watcher",
    "board",
    "no_fallback",
    "opaque",
]

logger = logging.getLogger(__name__)

_INSTALLATION = "flashinfer_bench.integration.installation"
_ANYTHING = (Exception,)

board = Board()
"""The board of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=board.after_fork)


def no_fallback(name: str, reason: str = "") -> str:
    """Return the message for a call that nothing takes and that has no fallback."""
    return board.no_fallback(name, reason)


def _install() -> None:
    """Have the adapters installed that route calls which are wanted, and the others taken off.

    What that takes is imported when something is wanted for the first time.
    """
    if not board.in_use and getattr(sys.modules.get(_INSTALLATION), "made", None) is None:
        return
    try:
        from flashinfer_bench.integration import installation

        installation.default().update()
    except _ANYTHING:  # calls of libraries stay what they are; everything else is as it should be
        logger.warning("adapters are not kept up with what is wanted", exc_info=True)


board.on_use(_install)
