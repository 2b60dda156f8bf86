"""What the adapters share: which options do nothing, scales, buffers, definitions.

Importing this module does not import torch: adapters are made and listed where nothing is run.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

from flashinfer_bench.routing import UnroutableError, router

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from flashinfer_bench.data import Definition

T = TypeVar("T")

_NUMBERS = (float, int, bool)
_MOST_NAMES = 1024  # names are made of shapes, of which a program may have any number


# ----------------------------------------------------------------------------------- options


def unit_scale(value: Any) -> bool:
    """Return whether a scale is None or 1, as a number.

    Engines pass 1.0 where nothing is calibrated, so it has to count as no scale. A tensor on the
    CPU with one element is read; one on a device is taken for a scale that does something.
    """
    if value is None:
        return True
    if type(value) in _NUMBERS:
        return bool(value == 1.0)
    import torch

    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.numel() == 1 and value.item() == 1.0
    return bool(value == 1.0)


def capturing() -> bool:
    """Return whether a CUDA graph is being captured: then nothing may be read from the device.

    Builds of torch without CUDA raise if they are asked, so those are not.
    """
    import torch

    started: Any = torch.cuda.is_initialized  # untyped
    return bool(started() and torch.cuda.is_current_stream_capturing())


# ----------------------------------------------------------------------------------- buffers


def fill(buffer: Optional[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return the caller's buffer with `value` in it; `value` itself if there is no buffer."""
    if buffer is None or buffer is value:
        return value
    buffer.copy_(value.view(buffer.shape) if value.shape != buffer.shape else value)
    return buffer


def with_lse(
    result: Any, out: Optional[torch.Tensor], lse: Optional[torch.Tensor], return_lse: bool
) -> Any:
    """Return what attention returns, from the outputs of a definition: both, or the first.

    The caller's buffers are filled and returned. `lse` is filled even if it is not to be returned,
    as the kernels do it.
    """
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    if not return_lse and lse is None:
        return fill(out, outputs[0])
    if len(outputs) < 2:
        raise UnroutableError("no lse among the outputs")
    output, sums = fill(out, outputs[0]), fill(lse, outputs[1])
    return (output, sums) if return_lse else output


def as_matrix(rows: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its leading dimensions as one: a view.

    Raises
    ------
    UnroutableError
        If that needs a copy.
    """
    try:
        return rows.view(-1, rows.shape[-1])
    except RuntimeError:
        raise UnroutableError("rows are not evenly spaced") from None


# ------------------------------------------------------------------------------- definitions


def nobody() -> None:
    """Return None: stands for the reference to who is active where nobody was asked for yet.

    Who is active is held by weak references, since wrappers of an engine, and adapters, live on
    when it ends; and with it would its solutions.
    """


class PerDefinition(Generic[T]):
    """What is worked out once from each definition, and anew when other things are enabled.

    Parameters
    ----------
    work_out : callable
        Takes the name of a definition, and the definition, or None if nobody who is enabled has one
        of that name.
    name_of : callable, optional
        Makes the name from what it is asked by, a size say. Default: it is asked by names.
    """

    def __init__(
        self,
        work_out: Callable[[str, Optional[Definition]], T],
        name_of: Callable[[Any], str] = str,
    ) -> None:
        self._work_out = work_out
        self._name_of = name_of
        self._known: tuple[Any, dict[Any, T]] = (nobody, {})

    def __call__(self, key: Any) -> T:
        """Return what was worked out for the definition that `key` stands for."""
        calls, found = self._known
        # Replaced as a whole whenever who is active, or what they know, has changed.
        if calls() is not router.calls:
            calls, found = self._known = (weakref.ref(router.calls), {})
        value = found.get(key)
        if value is None:
            name = self._name_of(key)
            value = self._work_out(name, router.definition(name))
            if len(found) < _MOST_NAMES:
                found[key] = value
        return value
