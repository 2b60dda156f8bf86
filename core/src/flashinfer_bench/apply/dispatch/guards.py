"""The guard of a definition: decides whether a substitute may answer a call, and if not, why.

The guard is authoritative. The faster checks in `recognition` only recognise calls like those that
it has accepted.

torch marks everything unusual with *dispatch keys*: sparse and nested tensors, lazily negated or
conjugated tensors, tensors of vmap and grad transforms, and fake tensors. Autocast and dispatch
modes, which change the behaviour of operations, are marked in the thread. A kernel that reads
memory ignores all of these, and also the tangents that forward-mode gradients attach to tensors.

A tensor is ordinary if its keys are those of a fresh tensor. A thread is ordinary if it adds no key
to those of a fresh thread, autocast is off, and no forward-mode gradient is being computed. Missing
keys are harmless: code inside a custom operator runs with the autograd keys removed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch import stats
from flashinfer_bench.routing.binding import compile_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from flashinfer_bench.apply.dispatch.layout import Layout

    Guard = Callable[..., Optional[str]]
    KeysOn = Callable[[torch.device], Optional[frozenset[int]]]


def in_fresh_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, called in a thread without any torch mode."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


class Facts:
    """Functions and constants of torch that every check needs, looked up once.

    Attributes
    ----------
    tensor, parameter : type
        The two exact tensor types that a substitute may get.
    keys, number : callable
        Return the dispatch keys of a tensor, and these keys as a number.
    included, excluded : callable
        Return the dispatch keys that this thread adds to those of a tensor, and that it removes.
    usual, masked : int
        The same for a fresh thread. Autocast works by unmasking its keys.
    modes : callable
        Return the number of dispatch modes active in this thread.
    forward : module
        Its ``_current_level`` is -1 unless forward-mode gradients are being computed.
    grad_enabled, inference : callable
        Return whether grad mode, or inference mode, is on in this thread.
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
        """Return whether a value has exactly one of the two types, not a subclass."""
        return type(value) is self.tensor or type(value) is self.parameter


@lru_cache(maxsize=1)
def facts() -> Facts:
    """Return the facts about torch, computed once per process."""
    return Facts()


@lru_cache(maxsize=64)
def ordinary_keys(device: torch.device) -> frozenset[int]:
    """Return the keys of ordinary tensors on `device`, in inference mode and outside of it."""

    def samples() -> frozenset[int]:
        import torch

        with torch.inference_mode():
            made = torch.empty(0, device=device)
        return frozenset(map(facts().keys_of, (made, torch.empty(0, device=device))))

    found: frozenset[int] = in_fresh_thread(samples)
    return found


# -------------------------------------------------------------------------------------- devices


def ordinary_keys_on(wanted: Optional[str]) -> KeysOn:
    """Return a function that maps a device to the dispatch keys of ordinary tensors on it.

    The function returns None for devices other than the hardware of the table.

    Parameters
    ----------
    wanted : str, optional
        ``cpu``, ``cuda`` or ``cuda:N``. Other GPUs of the same name are accepted. None for any.
    """
    kind, _, index = (wanted or "").partition(":")

    @cache
    def keys_on(device: torch.device) -> Optional[frozenset[int]]:
        same = device.type in ("cpu", "cuda") and device.type == (kind or device.type)
        if same and kind == "cuda":
            same = _gpu(device.index or 0) == _gpu(int(index or 0))
        return ordinary_keys(device) if same else None

    return keys_on


@lru_cache(maxsize=64)
def _gpu(index: int) -> str:
    import torch

    return torch.cuda.get_device_name(index)


def is_current(device: torch.device) -> Optional[Callable[[], bool]]:
    """Return a predicate whether `device` is current; None if it always is."""
    if device.type != "cuda":
        return None
    import torch

    if torch.cuda.device_count() < 2:
        return None
    index, current = device.index, torch.cuda.current_device
    return lambda: current() == index


def on_device(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` wrapped to run with `device` as the current one."""
    import torch

    def call(*args: Any) -> Any:
        with torch.cuda.device(device):
            return function(*args)

    return call


# -------------------------------------------------------------------------------------- the guard


def overlap(left: Any, right: Any) -> bool:
    """Return whether two contiguous tensors overlap in memory."""
    start, other = left.data_ptr(), right.data_ptr()
    stop = start + left.numel() * left.element_size()
    other_stop = other + right.numel() * right.element_size()
    return bool(max(start, other) < min(stop, other_stop))


def make_guard(layout: Layout, keys_on: KeysOn, *, into: bool, strided: bool = False) -> Guard:
    """Return the guard of a definition.

    Parameters
    ----------
    layout : Layout
        Layout of the definition.
    keys_on : callable
        Maps devices to ordinary dispatch keys; see `ordinary_keys_on`.
    into : bool
        Whether outputs follow the inputs.
    strided : bool
        Whether inputs may have gaps between their elements, and their axes in any order.

    Returns
    -------
    callable
        Takes the arguments of a call; returns None, or a reason of `stats`. Does not inspect
        arguments of a wrong type, and raises only if torch does.
    """
    inputs = len(layout.inputs)
    operands = [*layout.inputs, *(layout.outputs if into else ())]
    names = [f"a{index}" for index in range(len(operands))]
    # A scalar output that is passed in is a zero-dimensional tensor.
    scalars = {names[i]: each.scalar for i, each in enumerate(layout.inputs) if each.shape is None}
    tensors = {n: each for n, each in zip(names, operands, strict=True) if n not in scalars}
    lines = [f"def guard({', '.join(names)}):"]

    def refuse(reason: str, conditions: Iterable[str]) -> None:
        if wrong := " or ".join(conditions):
            lines.append(f"if {wrong}: return {reason!r}")

    # Cheap and safe checks first.
    refuse(stats.TYPE, (f"type({n}) is not {kind.__name__}" for n, kind in scalars.items()))
    refuse(stats.TYPE, (f"type({n}) is not tensor and type({n}) is not parameter" for n in tensors))
    if not tensors:
        return lambda *_args: stats.DEVICE  # no tensor determines the device
    first, *others = tensors
    lines += [f"device = {first}.device", "ordinary = keys_on(device)"]
    refuse(stats.DEVICE, ["ordinary is None", *(f"{n}.device != device" for n in others)])
    odd = ["number(included()) | usual != usual", "number(excluded()) & masked != masked"]
    odd += ["forward._current_level >= 0"]
    refuse(stats.MODE, odd + [f"number(keys({n})) not in ordinary" for n in tensors])
    refuse(stats.DTYPE, (f"{n}.dtype is not dtype_{n}" for n in tensors))
    lines += [f"shape_{n} = {n}.shape" for n in tensors]
    shapes = {n: each.shape or () for n, each in tensors.items()}
    refuse(stats.SHAPE, (f"len(shape_{n}) != {len(shape)}" for n, shape in shapes.items()))
    known: dict[str, str] = {}  # first occurrence of each variable axis
    for n, shape in shapes.items():
        sizes = [(f"shape_{n}[{i}]", size) for i, size in enumerate(shape)]
        wanted = [
            (here, known.setdefault(size, here) if isinstance(size, str) else size)
            for here, size in sizes
        ]
        refuse(stats.SHAPE, (f"{here} != {size}" for here, size in wanted if here != size))
    # Inputs with elements that share memory, such as expanded tensors, are rejected.
    question = "0 in {0}.stride()" if strided else "not {0}.is_contiguous()"
    refuse(stats.LAYOUT, map(question.format, tensors))
    graded = " or ".join(f"{n}.requires_grad" for n in tensors)
    refuse(stats.GRAD, [f"grad_enabled() and ({graded})"])
    written = [names[index] for index in (*sorted(layout.mutated), *range(inputs, len(names)))]
    # torch itself rejects such writes.
    refuse(stats.MODE, (f"{n}.is_inference() and not inference()" for n in written))
    # Written tensors must not share memory with any other argument.
    pairs = [pair for pair in combinations(tensors, 2) if not {*pair}.isdisjoint(written)]
    refuse(stats.OVERLAP, (f"overlap({left}, {right})" for left, right in pairs))
    namespace = {**vars(facts()), "keys_on": keys_on, "overlap": overlap}
    namespace |= {f"dtype_{n}": operand.dtype for n, operand in tensors.items()}
    source = "\n    ".join([*lines, "return None"]) + "\n"
    return compile_source(source, "guard", namespace, f"guard of {layout.name!r}")
