"""Views that are made of the same tensor at each call, kept as long as the tensor lives.

Making the views of a cache takes longer than all else that an adapter does with a call. A cache
lives long, and many callers hand over the same object each time.

An object is recognised by a weak reference to it. Its views stay right until it gets other memory
or another form, which only methods on the object itself can give it (``set_``, ``resize_``,
``transpose_``, assignments to ``data``): so its address, sizes, strides and element type are
compared as well. Another memory cannot have come to the same address meanwhile, since the views
hold on to the old one. They are made of a detached alias: otherwise they would refer to the tensor
as their base and keep it alive, and with it the memory.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    T = TypeVar("T")

_MOST = 1024


class Views:
    """What was made of tensors."""

    def __init__(self) -> None:
        # Also has the weak references of tensors that were seen once, without callbacks.
        self._kept: dict[int, tuple[Any, ...]] = {}

    def __len__(self) -> int:
        return sum(len(each) > 1 for each in list(self._kept.values()))

    def of(self, tensor: torch.Tensor, make: Callable[[torch.Tensor], T]) -> T:
        """Return what ``make(tensor)`` returns: views of it, those of an earlier call if they hold.

        Parameters
        ----------
        tensor : torch.Tensor
            Of whatever kind; what is no plain tensor, or wants gradients, has its views made anew.
        make : callable
            Makes views, by operations that compute nothing; always the same function, since what
            another one has made is not taken. For one tensor the views of one are kept.
        """
        kept = self._kept.get(id(tensor))
        if kept is None or kept[0]() is not tensor:
            self._see(tensor)
            return make(tensor)
        if len(kept) > 1:
            _, was, address, dtype, shape, strides, views = kept
            if (
                was is make
                and tensor.data_ptr() == address
                and tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.stride() == strides
                and not tensor.requires_grad
            ):
                found: T = views
                return found
        return self._keep(tensor, make)

    def _see(self, tensor: torch.Tensor) -> None:
        """Note that a tensor was seen: for many callers make another object for each call."""
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[id(tensor)] = (weakref.ref(tensor),)

    def _keep(self, tensor: torch.Tensor, make: Callable[[torch.Tensor], T]) -> T:
        import torch

        if type(tensor) is not torch.Tensor or tensor.requires_grad:
            return make(tensor)
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # it has no memory, but stands for something in a transform
            return make(tensor)
        if not address:
            return make(tensor)
        views = make(tensor.detach())
        kept, key = self._kept, id(tensor)

        def forget(gone: Any) -> None:
            if (found := kept.get(key)) is not None and found[0] is gone:
                kept.pop(key, None)

        about = (address, tensor.dtype, tensor.shape, tensor.stride())
        kept[key] = (weakref.ref(tensor, forget), make, *about, views)
        return views


views = Views()
"""Those of all adapters."""
