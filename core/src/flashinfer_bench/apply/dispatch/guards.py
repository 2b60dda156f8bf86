"""Whether a substitute may take a call, and why not: the guard of a definition.

It is the authority on that. What is quicker (`recognition`) only recognises calls like those that
it has let through.

torch marks everything out of the ordinary with *dispatch keys*: sparse and nested tensors, lazily
negated or conjugated ones, those of vmap and grad transforms, fake ones; autocast and dispatch
modes, which change what an operation does, are marked in the thread. A kernel that reads memory
knows nothing of all that, nor of the tangents that forward-mode gradients hang on to tensors.

A tensor is ordinary if its keys are those of a fresh tensor. A thread is if it adds no key to those
of a fresh thread, autocast is off, and no forward-mode gradient is computed. Fewer keys are no
harm: code inside of a custom operator runs with those of autograd taken away.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch import stats

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from flashinfer_bench.apply.dispatch.layout import Layout


def in_fresh_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, called in a thread where no mode of torch is on."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


class Facts:
    """What torch is asked at each call, looked up once.

    Attributes
    ----------
    tensor, parameter : type
        The two exact types of tensors that a substitute may get.
    keys, number : callable
        The dispatch keys of a tensor, and these as a number.
    included, excluded : callable
        The dispatch keys that this thread adds to those of a tensor, and those that it takes away.
    usual, masked : int
        The same of a fresh thread. Autocast works by unmasking its keys.
    modes : callable
        How many dispatch modes this thread is in.
    forward : module
        Its ``_current_level`` is -1 unless forward-mode gradients are being computed.
    grad_enabled, inference : callable
        Whether grad mode, or inference mode, is on in this thread.
    """

    def __init__(self) -> None:
        import torch

        self.tensor, self.parameter = torch.Tensor, torch.nn.Parameter
        self.modes = torch._C._len_torch_dispatch_stack
        self.forward = torch.autograd.forward_ad
        self.grad_enabled = torch.is_grad_enabled
        self.inference = torch.is_inference_mode_enabled
        self.keys, self.number = torch._C._dispatch_keys, torch._C.DispatchKeySet.raw_repr
        self.included = torch._C._dispatch_tls_local_include_set
        self.excluded = torch._C._dispatch_tls_local_exclude_set
        self.usual, self.masked = in_fresh_thread(
            lambda: (self.number(self.included()), self.number(self.excluded()))
        )

    def keys_of(self, tensor: torch.Tensor) -> int:
        """Return the dispatch keys of a tensor, as a number."""
        return self.number(self.keys(tensor))

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is of one of the two types, and no subclass."""
        return type(value) is self.tensor or type(value) is self.parameter


@lru_cache(maxsize=1)
def facts() -> Facts:
    """Return what to ask torch, worked out once per process."""
    return Facts()


@lru_cache(maxsize=64)
def ordinary_keys(device: torch.device) -> frozenset[int]:
    """Return the keys that ordinary tensors on `device` may have: of inference mode, and others."""

    def samples() -> frozenset[int]:
        import torch

        with torch.inference_mode():
            made = torch.empty(0, device=device)
        return frozenset(map(facts().keys_of, (made, torch.empty(0, device=device))))

    found: frozenset[int] = in_fresh_thread(samples)
    return found


# -------------------------------------------------------------------------------------- devices


class Devices:
    """The devices with the hardware that a table was made for.

    Parameters
    ----------
    device : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``. Other GPUs of the same name are as good. None for any.
    """

    def __init__(self, device: Optional[str]) -> None:
        self._kind, _, index = (device or "").partition(":")
        self._index = int(index or 0)
        self._known: dict[Any, Optional[frozenset[int]]] = {}

    def keys_on(self, device: torch.device) -> Optional[frozenset[int]]:
        """Return the dispatch keys of ordinary tensors on `device`; None for other hardware."""
        try:
            return self._known[device]
        except KeyError:
            kind = self._kind or device.type
            same = device.type == kind and (
                kind == "cpu"
                or (
                    kind == "cuda"
                    and (not self._kind or _gpu(device.index or 0) == _gpu(self._index))
                )
            )
            found = self._known[device] = ordinary_keys(device) if same else None
            return found


@lru_cache(maxsize=64)
def _gpu(index: int) -> str:
    import torch

    return torch.cuda.get_device_name(index)


def is_current(device: torch.device) -> Optional[Callable[[], bool]]:
    """Return a question whether `device` is the current one; None where it cannot be another."""
    if device.type != "cuda":
        return None
    import torch

    if torch.cuda.device_count() < 2:
        return None
    index, current = device.index, torch.cuda.current_device
    return lambda: current() == index


def on_device(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, to be called with `device` as the current one."""
    import torch

    def call(*args: Any) -> Any:
        with torch.cuda.device(device):
            return function(*args)

    return call


# -------------------------------------------------------------------------------------- the guard


def overlap(left: Any, right: Any) -> bool:
    """Return whether two contiguous tensors have a byte in common."""
    start, other = left.data_ptr(), right.data_ptr()
    stop = start + left.numel() * left.element_size()
    other_stop = other + right.numel() * right.element_size()
    return bool(max(start, other) < min(stop, other_stop))


class Guard:
    """The guard of a definition.

    Parameters
    ----------
    layout : Layout
        Of the definition.
    devices : Devices
        Where tensors may be.
    into : bool
        Whether outputs follow the inputs.
    strided : bool
        Whether inputs may have gaps between their elements, and their axes in any order.
    """

    def __init__(
        self, layout: Layout, devices: Devices, *, into: bool, strided: bool = False
    ) -> None:
        self._asked, inputs = facts(), len(layout.inputs)
        operands = [*layout.inputs, *(layout.outputs if into else ())]
        self._devices = devices
        self._strided = strided
        # A scalar output that is passed in is a tensor without dimensions.
        self._places = [
            i for i, each in enumerate(operands) if each.shape is not None or i >= inputs
        ]
        self._scalars = [
            (i, each.scalar) for i, each in enumerate(operands) if i not in self._places
        ]
        self._declared = [(operands[i].dtype, operands[i].shape or ()) for i in self._places]
        self._written = [*sorted(layout.mutated), *range(inputs, len(operands))]
        # What is written may share memory with nothing else.
        pairs = combinations(self._places, 2)
        self._apart = [pair for pair in pairs if not {*pair}.isdisjoint(self._written)]

    def __call__(self, *args: Any) -> Optional[str]:
        """Return None for a call that may be taken, or a reason of `stats`.

        Asks nothing of an argument whose type is wrong, and raises nothing unless torch does.
        """
        tensors = [args[index] for index in self._places]
        for each in tensors:
            if not self._asked.is_tensor(each):
                return stats.TYPE
        for index, scalar in self._scalars:
            if type(args[index]) is not scalar:
                return stats.TYPE
        # Cheap and safe questions first.
        place = self._wrong_place(tensors)
        return place or self._wrong_shape(tensors) or self._wrong_memory(args, tensors)

    def _wrong_place(self, tensors: list[Any]) -> Optional[str]:
        if not tensors:
            return stats.DEVICE  # nothing says where it is to be computed
        asked, device = self._asked, tensors[0].device
        ordinary = self._devices.keys_on(device)
        for each in tensors:
            if ordinary is None or each.device != device:
                return stats.DEVICE
        added, taken = asked.number(asked.included()), asked.number(asked.excluded())
        odd = added & ~asked.usual or taken & asked.masked != asked.masked
        if odd or asked.forward._current_level >= 0:
            return stats.MODE
        for each in tensors:
            if asked.number(asked.keys(each)) not in ordinary:
                return stats.MODE
        return None

    def _wrong_shape(self, tensors: list[Any]) -> Optional[str]:
        sizes: dict[str, int] = {}
        for each, (dtype, axes) in zip(tensors, self._declared, strict=True):
            if each.dtype is not dtype:
                return stats.DTYPE
            shape = each.shape
            if len(shape) != len(axes):
                return stats.SHAPE
            for axis, here in zip(axes, shape, strict=True):
                if here != (sizes.setdefault(axis, here) if isinstance(axis, str) else axis):
                    return stats.SHAPE
        return None

    def _wrong_memory(self, args: tuple[Any, ...], tensors: list[Any]) -> Optional[str]:
        asked = self._asked
        for each in tensors:
            # Elements that share memory, as those of an expanded tensor do, are another matter.
            if 0 in each.stride() if self._strided else not each.is_contiguous():
                return stats.LAYOUT
        if asked.grad_enabled() and any(each.requires_grad for each in tensors):
            return stats.GRAD
        # Torch itself refuses such writes.
        if not asked.inference() and any(args[index].is_inference() for index in self._written):
            return stats.MODE
        shared = any(overlap(args[left], args[right]) for left, right in self._apart)
        return stats.OVERLAP if shared else None
