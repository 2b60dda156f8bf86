"""Which tensors are plain numbers in memory, and when torch does with a call what it says.

torch marks everything out of the ordinary with *dispatch keys*: sparse and nested tensors, lazily
negated or conjugated ones, those of vmap and grad transforms, fake ones; autocast and dispatch
modes, which change what an operation does, are marked in the thread. A kernel that reads memory
knows nothing of all that, nor of the tangents that forward-mode gradients hang on to tensors.

A tensor is ordinary if its keys are those of a fresh tensor. A thread is if it adds no key to those
of a fresh thread, autocast is off, and no forward-mode gradient is computed. Fewer keys are no
harm: code inside of a custom operator runs with those of autograd taken away.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def in_fresh_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, called in a thread where no mode of torch is on."""
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(function(*args))
        except Exception as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="flashinfer_bench-apply-facts", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


@dataclass(frozen=True)
class Facts:
    """What torch is asked at each call.

    Attributes
    ----------
    tensor, parameter : type
        The two exact types of tensors that a substitute may get.
    keys_of : callable
        Dispatch keys of a tensor, as a number.
    clean : callable
        Whether no mode of this thread changes what operations do.
    modes : callable
        How many dispatch modes this thread is in: a part of `clean`, and quicker.
    usual, masked : int
        Dispatch keys that a fresh thread adds to those of a tensor, and those that it takes away.
    forward : module
        Its ``_current_level`` is -1 unless forward-mode gradients are being computed.
    grad_enabled, inference : callable
        Whether grad mode, or inference mode, is on in this thread.
    """

    tensor: type
    parameter: type
    keys_of: Callable[[Any], int]
    clean: Callable[[], bool]
    modes: Callable[[], int]
    usual: int
    masked: int
    forward: Any
    grad_enabled: Callable[[], bool]
    inference: Callable[[], bool]


@lru_cache(maxsize=1)
def facts() -> Facts:
    """Return what to ask torch, worked out once per process."""
    import torch

    usual, masked = in_fresh_thread(_usual_keys)
    return Facts(
        tensor=torch.Tensor,
        parameter=torch.nn.Parameter,
        keys_of=_asking_keys(),
        clean=_cleanness(usual, masked),
        modes=torch._C._len_torch_dispatch_stack,
        usual=usual,
        masked=masked,
        forward=torch.autograd.forward_ad,
        grad_enabled=torch.is_grad_enabled,
        inference=torch.is_inference_mode_enabled,
    )


@lru_cache(maxsize=64)
def ordinary_keys(device: torch.device) -> frozenset[int]:
    """Return the keys, as numbers, that ordinary tensors on `device` may have.

    There are two sets: of tensors made in inference mode, and of others.
    """
    found: frozenset[int] = in_fresh_thread(_sample_keys, device)
    return found


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous numbers in memory, of no subclass."""
    asked = facts()
    exact = type(tensor) is asked.tensor or type(tensor) is asked.parameter
    ordinary = exact and asked.keys_of(tensor) in ordinary_keys(tensor.device)
    return ordinary and tensor.is_contiguous()


def _sample_keys(device: torch.device) -> frozenset[int]:
    import torch

    keys_of = _asking_keys()
    found = [keys_of(torch.empty(0, device=device))]
    with torch.inference_mode():
        found.append(keys_of(torch.empty(0, device=device)))
    return frozenset(found)


def _asking_keys() -> Callable[[Any], int]:
    import torch

    dispatch_keys = torch._C._dispatch_keys
    as_number = torch._C.DispatchKeySet.raw_repr
    return lambda tensor: as_number(dispatch_keys(tensor))


def _usual_keys() -> tuple[int, int]:
    """Return the keys that a fresh thread adds, and the masked ones (those of autocast)."""
    import torch

    included = torch._C._dispatch_tls_local_include_set()
    return included.raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()


def _cleanness(usual: int, masked: int) -> Callable[[], bool]:
    import torch

    include, exclude = (
        torch._C._dispatch_tls_local_include_set,
        torch._C._dispatch_tls_local_exclude_set,
    )
    forward = torch.autograd.forward_ad

    def clean() -> bool:
        # Autocast works by unmasking its keys; all else adds some, or (tangents) has none.
        added = include().raw_repr() & ~usual
        return not added and exclude().raw_repr() & masked == masked and forward._current_level < 0

    return clean
