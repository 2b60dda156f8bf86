"""Random tensors whose bits depend on nothing but a seed, a shape and an element type.

The generator is torch's on the CPU. Large tensors are drawn in blocks of a fixed size, each with a
seed of its own, so that several cores can work on one tensor and never change what comes out.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING

from flashinfer_bench.tensors.dtypes import (
    FLOAT4,
    is_bool,
    is_float,
    is_integer,
    is_low_precision,
    to_torch_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Draw = Callable[[int, torch.Generator], torch.Tensor]

BLOCK = 1 << 22
"""Elements that are drawn with one seed."""

INT_BOUND = 128
"""Integers wider than 8 bits lie in [0, INT_BOUND)."""

# Midpoints between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 that four bits can hold.
_FLOAT4_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2**63) that depends on every one of `parts` and on their order."""
    text = "\x1f".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def random_tensor(shape: Sequence[int], dtype: str, seed: int) -> torch.Tensor:
    """Draw a tensor.

    Parameters
    ----------
    shape : sequence of int
        Its shape; a size may be 0.
    dtype : str
        Name of the element type. Floats are standard normal; those of 8 bits or fewer are clamped
        to the finite range of their type. ``int8`` and ``uint8`` use their whole range, wider
        integers lie in [0, `INT_BOUND`), ``bool`` is true for half of the elements.
    seed : int
        What the values depend on.

    Returns
    -------
    torch.Tensor
        Contiguous, on the CPU.
    """
    import torch

    if dtype == FLOAT4:
        packed = torch.empty(tuple(shape), dtype=torch.uint8)
        return _fill(packed, seed, _draw_float4).view(to_torch_dtype(FLOAT4))
    return _fill(torch.empty(tuple(shape), dtype=to_torch_dtype(dtype)), seed, _draw_of(dtype))


def is_softmaxed(op_type: str, name: str) -> bool:
    """Return whether a random input called `name` holds probabilities, row by row."""
    return op_type == "sampling" and "probs" in name


def _draw_of(dtype: str) -> Draw:
    if is_low_precision(dtype):
        return _clamped_normal(dtype)
    if is_float(dtype):
        return _draw_normal
    if is_bool(dtype):
        return _uniform_integers(0, 2)
    if is_integer(dtype):
        ranges = {"int8": (-128, 128), "uint8": (0, 256)}
        return _uniform_integers(*ranges.get(dtype, (0, INT_BOUND)))
    return _draw_normal


def _fill(tensor: torch.Tensor, seed: int, draw: Draw) -> torch.Tensor:
    flat = tensor.view(-1)
    starts = range(0, prod(tensor.shape), BLOCK)

    def fill_block(start: int) -> None:
        import torch

        generator = torch.Generator("cpu").manual_seed(derive_seed(seed, start // BLOCK))
        part = flat[start : start + BLOCK]
        part.copy_(draw(part.numel(), generator))

    if len(starts) <= 1:
        for start in starts:
            fill_block(start)
        return tensor
    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
        list(pool.map(fill_block, starts))
    return tensor


def _draw_normal(count: int, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randn(count, dtype=torch.float32, generator=generator)


def _clamped_normal(dtype: str) -> Draw:
    import torch

    limits = torch.finfo(to_torch_dtype(dtype))

    def draw(count: int, generator: torch.Generator) -> torch.Tensor:
        return _draw_normal(count, generator).clamp_(limits.min, limits.max)

    return draw


def _uniform_integers(low: int, high: int) -> Draw:
    def draw(count: int, generator: torch.Generator) -> torch.Tensor:
        import torch

        return torch.randint(low, high, (count,), generator=generator)

    return draw


def _draw_float4(count: int, generator: torch.Generator) -> torch.Tensor:
    import torch

    values = _draw_normal(2 * count, generator)
    codes = torch.bucketize(values.abs(), torch.tensor(_FLOAT4_MIDPOINTS)).to(torch.uint8)
    codes |= torch.signbit(values).to(torch.uint8) << 3
    low, high = codes.view(-1, 2).unbind(1)
    return low | (high << 4)
