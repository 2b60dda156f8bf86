"""What the adapters share: which options do nothing, scales, page caches, buffers, definitions.

Each check that fails raises `UnroutableError` with a reason in constant words: the call then goes
to the original, and is counted under that reason.

Importing this module does not import torch: adapters are made and listed where nothing is run.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

from flashinfer_bench.integration.routing import UnroutableError
from flashinfer_bench.integration.slots import board

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from flashinfer_bench.data import Definition

T = TypeVar("T")

HALVES: tuple[torch.dtype, ...]
"""Element types that the kernels of all adapters here are for."""

_NUMBERS = (float, int, bool)
_MOST_NAMES = 1024  # names are made of shapes, of which a program may have any number


def __getattr__(name: str) -> Any:
    if name != "HALVES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch

    globals()[name] = (torch.float16, torch.bfloat16)
    return globals()[name]


# ----------------------------------------------------------------------------------- options


def neutral(value: Any, *defaults: Any) -> bool:
    """Return whether an option does nothing: it is None, or equal to one of `defaults`.

    A tensor never does: to look into it could mean to wait for the device.
    """
    if value is None:
        return True
    if type(value) not in _NUMBERS:
        import torch

        if isinstance(value, torch.Tensor):
            return False
    return any(value is default or bool(value == default) for default in defaults)


def require_neutral(reason: str, value: Any, *defaults: Any) -> None:
    """Refuse the call with `reason` unless an option does nothing; see `neutral`."""
    if value is not None and not neutral(value, *defaults):
        raise UnroutableError(reason)


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


def require_unit_scales(reason: str, *scales: Any) -> None:
    """Refuse the call with `reason` unless all scales are None or 1; see `unit_scale`."""
    for scale in scales:
        if scale is not None and not unit_scale(scale):
            raise UnroutableError(reason)


def capturing() -> bool:
    """Return whether a CUDA graph is being captured: then nothing may be read from the device.

    Builds of torch without CUDA raise if they are asked, so those are not.
    """
    import torch

    started: Any = torch.cuda.is_initialized  # untyped
    return bool(started() and torch.cuda.is_current_stream_capturing())


# ------------------------------------------------------------------------------- page caches


def split_kv(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of a paged cache, as views.

    Parameters
    ----------
    cache : tuple of two tensors, or tensor
        Two 4-D tensors; or one 5-D tensor with keys and values in its second dimension,
        ``[num_pages, 2, ...]``.

    Raises
    ------
    UnroutableError
        If it is neither.
    """
    import torch

    if isinstance(cache, torch.Tensor):
        if cache.dim() == 5 and cache.shape[1] == 2:
            return cache.select(1, 0), cache.select(1, 1)
    elif isinstance(cache, (tuple, list)) and len(cache) == 2:
        k, v = cache
        if isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor) and k.dim() == v.dim() == 4:
            return k, v
    raise UnroutableError("form of the kv cache")


def to_nhd(pages: torch.Tensor, layout: str) -> torch.Tensor:
    """Return pages as ``[num_pages, page_size, num_heads, head_dim]``, as a view.

    Parameters
    ----------
    pages : torch.Tensor
        4-D. In layout ``"HND"`` heads come before the places in a page.
    layout : str
        ``"NHD"`` or ``"HND"``: ``_kv_layout`` of the wrapper.

    Raises
    ------
    UnroutableError
        If the layout is another one.
    """
    if layout == "NHD":
        return pages
    if layout == "HND":
        return pages.permute(0, 2, 1, 3)
    raise UnroutableError("kv layout")


def halves() -> tuple[torch.dtype, ...]:
    """Return `HALVES`, for modules that do not import torch themselves."""
    import torch

    return torch.float16, torch.bfloat16


def require_halves(*tensors: torch.Tensor) -> None:
    """Refuse the call unless all tensors are of one element type, float16 or bfloat16."""
    first = tensors[0].dtype
    if first not in halves() or any(tensor.dtype != first for tensor in tensors):
        raise UnroutableError("dtype")


# ----------------------------------------------------------------------------------- buffers


def first_output(result: Any) -> Any:
    """Return the first output of a definition: the result itself, or its first element."""
    return result[0] if isinstance(result, (tuple, list)) else result


def fill(buffer: Optional[torch.Tensor], value: torch.Tensor) -> torch.Tensor:
    """Return the caller's buffer with `value` in it; `value` itself if there is no buffer."""
    if buffer is None or buffer is value:
        return value
    buffer.copy_(value.view(buffer.shape) if value.shape != buffer.shape else value)
    return buffer


def with_lse(
    result: Sequence[torch.Tensor],
    out: Optional[torch.Tensor],
    lse: Optional[torch.Tensor],
    return_lse: bool,
) -> Any:
    """Return what attention returns, from a definition's two outputs: both, or the first.

    The caller's buffers are filled and returned. `lse` is filled even if it is not to be returned,
    as the kernels do it.
    """
    output = fill(out, result[0])
    if not return_lse and lse is None:
        return output
    sums = fill(lse, result[1])
    return (output, sums) if return_lse else output


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
        if calls() is not board.calls:
            calls, found = self._known = (weakref.ref(board.calls), {})
        value = found.get(key)
        if value is None:
            name = self._name_of(key)
            value = self._work_out(name, board.definition(name))
            if len(found) < _MOST_NAMES:
                found[key] = value
        return value
