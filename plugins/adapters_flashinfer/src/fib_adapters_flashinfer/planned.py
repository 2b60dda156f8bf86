"""What attention wrappers are known to have planned, and what a call of one keeps."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fib_adapters_flashinfer.common import nobody

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

FAILED = "its last plan failed"
"""Reason: a plan that raised may have changed a part of the object, and left the rest."""


class Call(NamedTuple):
    """What a route keeps of a call, to hand the outputs over.

    Attributes
    ----------
    wrapper : Any
        The object that was run.
    out, lse : torch.Tensor, optional
        The caller's buffers.
    return_lse : bool
        Whether the logarithms of the sums are returned as well.
    enable_pdl : bool, optional
        A hint for the launch.
    """

    wrapper: Any
    out: Optional[torch.Tensor]
    lse: Optional[torch.Tensor]
    return_lse: bool
    enable_pdl: Optional[bool]

    @classmethod
    def of(cls, fields: tuple[Any, ...]) -> Call:
        """Return a call with these: in half the time that its constructor takes."""
        return tuple.__new__(cls, fields)


class Shapes(NamedTuple):
    """What follows from the shapes of a call's tensors.

    Attributes
    ----------
    q, k, v : tuple of int
        The shapes.
    calls : callable
        Weak reference to `Board.calls` when the name was chosen.
    name : str
        The definition.
    sm_scale : float
        What scores are multiplied by where the plan does not say: 1 / sqrt(head_dim).
    out : tuple of int
        Shape of the output.
    last_page_len : torch.Tensor, optional
        Places in use on the last page of each request; None where pages have one place.
    """

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    calls: Callable[[], Any]
    name: str
    sm_scale: float
    out: tuple[int, ...]
    last_page_len: Optional[torch.Tensor]


class Totals(NamedTuple):
    """What the arguments of a plan say without a look at the device: None where they do not.

    Attributes
    ----------
    info : Any
        ``_plan_info`` that the plan left: another one was left by a later plan.
    queries : int, optional
        The last of the offsets of queries.
    keys : int, optional
        The last of the offsets of keys, or of pages.
    starved : bool
        Whether a request is known to have some keys, but fewer than queries: its first queries see
        none, of which kernels make a number, and references of definitions none.
    """

    info: Any
    queries: Optional[int]
    keys: Optional[int]
    starved: bool = False


class Planned:
    """What stays the same between two plans of one object.

    Attributes
    ----------
    info, keys, indices : Any
        What the object had when this was learnt: ``_plan_info``, offsets, page numbers. A plan
        replaces the first always, and the others unless they are the caller's buffers.
    refusal : str, optional
        Why its runs cannot be routed.
    queries : int, optional
        How many queries there are; None where that is not known on the host.
    dtype : torch.dtype
        Of queries, keys, values and outputs.
    total : int, optional
        How many keys, or pages, there are; None as long as nobody could ask the device.
    valid : torch.Tensor, optional
        The page numbers in use: a view, since buffers may be longer.
    exact : bool
        Whether all page numbers are in use.
    shapes : Shapes
        Of the latest call.
    """

    __slots__ = (
        "dtype", "exact", "indices", "info", "keys", "queries", "refusal", "shapes", "total",
        "valid",
    )  # fmt: skip

    def __init__(self, info: Any, keys: Any, indices: Any) -> None:
        self.info = info
        self.keys = keys
        self.indices = indices
        self.refusal: Optional[str] = None
        self.queries: Optional[int] = None
        self.dtype: Any = None
        self.total: Optional[int] = None
        self.valid: Any = None
        self.exact = False
        self.shapes = _NO_SHAPES


_NO_SHAPES = Shapes((), (), (), nobody, "", 0.0, (), None)


class Ledger:
    """What is known of each planned object, for as long as it lives."""

    def __init__(self) -> None:
        self.planned: weakref.WeakKeyDictionary[Any, Planned] = weakref.WeakKeyDictionary()
        self.totals: weakref.WeakKeyDictionary[Any, Totals] = weakref.WeakKeyDictionary()

    def forget(self, wrapper: Any) -> None:
        """Forget an object: it is planned anew."""
        self.planned.pop(wrapper, None)
        self.totals.pop(wrapper, None)

    def refuse(self, wrapper: Any, keys: str, indices: str) -> None:
        """Have runs of an object refused until it is planned anew, by whatever function.

        Parameters
        ----------
        wrapper : Any
            Its plan raised.
        keys, indices : str
            The attributes that have the offsets and the page numbers; see `AttentionRoute`.
        """
        found = (getattr(wrapper, name, None) for name in ("_plan_info", keys, indices))
        planned = self.planned[wrapper] = Planned(*found)
        planned.refusal = FAILED


ledger = Ledger()
"""That of all classes of wrappers."""


def last_of(
    where: Optional[tuple[int, str]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Optional[int]:
    """Return the last element of an argument, if it can be had without waiting for a device."""
    import torch

    if where is None:
        return None
    position, name = where
    value = args[position] if position < len(args) else kwargs.get(name)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not value.numel():
        return None
    return int(value[-1])


Where = tuple[int, str]


def starves(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    queries: Where,
    keys: Where,
    pages: Optional[tuple[Where, Where]],
) -> bool:
    """Return whether a request has more queries than keys, as far as arguments on the host say.

    Parameters
    ----------
    args, kwargs
        Of a plan.
    queries, keys : tuple of (int, str)
        Which arguments have the offsets of queries; and of keys, or pages.
    pages : tuple, optional
        Which ones have the places in use on last pages, and the page size.
    """
    import torch

    def given(where: Where) -> Any:
        position, name = where
        return args[position] if position < len(args) else kwargs.get(name)

    offsets = [given(queries), given(keys), *([given(pages[0])] if pages else [])]
    if not all(isinstance(each, torch.Tensor) and each.device.type == "cpu" for each in offsets):
        return False
    asked, lengths = offsets[0].diff(), offsets[1].diff()
    some = lengths > 0
    if pages:
        lengths = (lengths - 1) * given(pages[1]) + offsets[2]
    return bool((some & (asked > lengths)).any())
