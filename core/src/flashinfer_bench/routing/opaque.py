"""Functions that torch.compile calls, but neither traces nor compiles.

``torch.compiler.disable`` puts a wrapper around a function, which costs more than a microsecond in
each call, compiled or not. Here the function's code itself is marked, so that other callers pay
nothing. Where a torch has no such mark the function is not made a part of a graph, but may be
compiled on its own: slower in its first calls, and as right.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_Function = TypeVar("_Function", bound="Callable[..., Any]")

logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)


def opaque(function: _Function) -> _Function:
    """Have torch.compile break the graph at calls of `function`, and run what it calls as it is.

    Parameters
    ----------
    function : callable
        A Python function. Others with the same code are marked as well.

    Returns
    -------
    callable
        `function` itself.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    code = getattr(function, "__code__", None)
    torch = sys.modules.get("torch")  # nobody compiles without it
    if torch is not None and code is not None:
        _mark(torch, code)
    return function


def _mark(torch: Any, code: CodeType) -> None:
    try:
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        # The second one is for what is called from there.
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except _ANYTHING:  # not torch's public face: releases differ, and some builds have no compiler
        logger.debug("torch.compile will look into %s", code.co_name, exc_info=True)
