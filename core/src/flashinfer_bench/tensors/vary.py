"""Fresh values and addresses for every timed call, without drawing or sending everything anew.

An input set is sent to a process once. From then on each timed call sees a *variation* of it, in a
buffer that is a little longer than the tensor, `shift` elements after its start:

* Random floats are rotated by `shift`, and their **signs** are changed by a random pattern, which
  `mix` chooses: results for other values are of no help, and the distribution stays the same.
* Recorded floats are mixed by **columns**: a few ranges of them, which `mix` chooses, are rotated
  by a number of rows each. Every value stays in its column, but no row stays as it was.
* Random integers and probabilities **rotate**, the latter by whole rows. The buffer then holds the
  beginning of the tensor once more at its end, and a view of it is the rotated tensor.
* What only **moves**, such as recorded indices, is copied to another address.
* Some elements of what is random and not mixed are **patched** with values from other places of the
  same tensor. They are spread evenly, so that hardly a part of the output stays as it was.

Shifts are told when a call is prepared; `mix` and patches only when it is about to be made, and its
clock runs: nothing that was computed before then is of use.

Shifts keep addresses aligned to `ALIGNMENT` bytes. The judge draws variations from a secret seed;
`varied` tells it what a call saw, `Rotor` is what the process holds. Both give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data import RandomInput
from flashinfer_bench.tensors.mixing import Way, is_tensor, mix_into, turned, units_of
from flashinfer_bench.tensors.rand import is_softmaxed
from flashinfer_bench.tensors.rotor import ROOM_BYTES, Rotor

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    import torch

    from flashinfer_bench.data import Definition, Workload

__all__ = ["Freedom", "Patch", "Rotor", "Variation", "Way", "draw_variation", "freedoms", "varied"]

ALIGNMENT = 256
"""Bytes; what kernels that load vectors may expect of an address."""

MAX_COPIED_BYTES = 1 << 26
"""A larger input is rotated at most, and else stays where it is: a copy would cost too much."""

_MIX_BITS = 47
_FEWEST_ROWS = 4  # that are worth mixing
_SMALL = 256  # a tensor of so few elements is patched all over
_MOST_PATCHES = 1 << 14


@dataclass(frozen=True)
class Freedom:
    """How one input may vary.

    Attributes
    ----------
    way : str
        ``signs``, ``columns``, ``rotate``, ``move``, or ``fixed`` (scalars, and what is too large).
    step : int
        Shifts are multiples of this many elements; at least 1.
    most : int
        Largest shift in elements.
    patched : bool
        Whether elements may change places.
    """

    way: Way
    step: int = 1
    most: int = 0
    patched: bool = False

    @property
    def is_mixed(self) -> bool:
        """Whether a variation has a number that chooses signs or columns."""
        return self.way in ("signs", "columns")


@dataclass(frozen=True)
class Patch:
    """New elements for one input.

    Attributes
    ----------
    input : int
        Which one.
    positions : torch.Tensor
        Flat places in the tensor as the call sees it, int64, on the CPU.
    values : torch.Tensor
        The elements to write there, of the input's dtype, on the CPU.
    """

    input: int
    positions: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Variation:
    """What one timed call sees.

    Attributes
    ----------
    slot : int
        Which input set.
    shifts : tuple of int
        For each input by how many elements it is shifted; 0 for scalars.
    mixes : tuple of int
        For each input what chooses its signs or columns; 0 where nothing is mixed.
    output_shift : int
        By how many bytes outputs are shifted that the solution is to write into.
    patches : tuple of Patch
        What is replaced.
    warm : bool
        Whether the device's caches are left as they are.
    """

    slot: int
    shifts: tuple[int, ...]
    mixes: tuple[int, ...]
    output_shift: int
    patches: tuple[Patch, ...]
    warm: bool = False


def freedoms(
    definition: Definition, workload: Workload, inputs: Sequence[Any]
) -> tuple[Freedom, ...]:
    """Return for each input how it may vary from call to call.

    Parameters
    ----------
    definition : Definition
        Names the inputs.
    workload : Workload
        Says which of them are random.
    inputs : sequence
        CPU tensors and Python scalars in the order of the definition.
    """
    return tuple(
        _freedom(
            value,
            is_random=isinstance(workload.inputs.get(name), RandomInput),
            probabilities=is_softmaxed(definition.op_type, name),
        )
        for name, value in zip(definition.inputs, inputs, strict=True)
    )


def _freedom(value: Any, *, is_random: bool, probabilities: bool) -> Freedom:
    if not is_tensor(value) or value.numel() == 0:
        return Freedom("fixed")
    aligned = ALIGNMENT // value.element_size()
    room = ROOM_BYTES // value.element_size() // aligned * aligned
    small = value.numel() * value.element_size() <= MAX_COPIED_BYTES
    if small and _has_signs(value) and not probabilities:
        if is_random:
            return Freedom("signs", aligned, room)
        if value.dim() and value.shape[0] >= _FEWEST_ROWS:
            return Freedom("columns", aligned, room)
    if is_random or _has_signs(value):
        rotation = _rotation(value, aligned, by_rows=probabilities or not is_random)
        if rotation is not None:
            return rotation
    if not small:
        return Freedom("fixed")
    return Freedom("move", aligned, room, is_random and not probabilities)


def _has_signs(value: torch.Tensor) -> bool:
    packed = "float4" in str(value.dtype)  # which torch does not count among the floats
    return value.is_floating_point() or value.is_complex() or packed


def _rotation(value: torch.Tensor, aligned: int, *, by_rows: bool) -> Optional[Freedom]:
    """Return how far a view may be shifted; None if it cannot."""
    row = value.numel() // value.shape[0] if by_rows and value.dim() else 1
    step = lcm(aligned, row)
    room = min(ROOM_BYTES // value.element_size(), value.numel() - 1)
    if room < step:
        return None
    return Freedom("rotate", step, room // step * step, not by_rows)


def draw_variation(
    free: Sequence[Freedom], inputs: Sequence[Any], slot: int, rng: random.Random
) -> Variation:
    """Draw what one call is to see.

    Parameters
    ----------
    free : sequence of Freedom
        As `freedoms` returned it.
    inputs : sequence
        The input set of that slot.
    slot : int
        Its number.
    rng : random.Random
        Decides, and nothing else does: the same state gives the same variation.
    """
    shifts = tuple(rng.randrange(0, item.most + 1, item.step) for item in free)
    mixes = tuple(1 + rng.getrandbits(_MIX_BITS) if item.is_mixed else 0 for item in free)
    patches = tuple(
        _draw_patch(number, inputs[number], free[number], shifts[number], rng)
        for number, item in enumerate(free)
        if item.patched
    )
    return Variation(slot, shifts, mixes, rng.randrange(0, ROOM_BYTES, ALIGNMENT), patches)


def _draw_patch(
    number: int, value: torch.Tensor, free: Freedom, shift: int, rng: random.Random
) -> Patch:
    """Draw places, one from each of equal parts of the tensor, and what to write there.

    Values are exchanged among these places: were some written twice, there would be ties where
    there are none, and more than one right answer.
    """
    import torch

    elements = value.numel()
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    count = patch_count(elements)
    part = elements // count
    positions = _starts(elements, count)
    if part > 1:
        positions = positions + torch.randint(part, (count,), generator=generator)
    sources = positions.roll(rng.randrange(1, count) if count > 1 else 0)
    sources += shift if free.way == "rotate" else 0
    units = units_of(value.contiguous())[sources % elements]
    return Patch(number, positions, units.view(-1).view(value.dtype))


@lru_cache(maxsize=64)
def _starts(elements: int, count: int) -> torch.Tensor:
    import torch

    return torch.arange(count) * elements // count


def patch_count(elements: int) -> int:
    """Return how many elements of a tensor are patched.

    All of a small one, else one in 64, but no more than 16,384: telling them takes time, which the
    judge has to subtract.
    """
    return elements if elements <= _SMALL else min(_MOST_PATCHES, max(_SMALL, elements // 64))


def varied(free: Sequence[Freedom], inputs: Sequence[Any], variation: Variation) -> list[Any]:
    """Return the inputs as the call saw them, as contiguous CPU tensors of their own."""
    values = [
        _copied(value, item.way, shift, mix)
        for item, value, shift, mix in zip(
            free, inputs, variation.shifts, variation.mixes, strict=True
        )
    ]
    for patch in variation.patches:
        units_of(values[patch.input])[patch.positions] = units_of(patch.values)
    return values


def _copied(value: Any, way: Way, shift: int, mix: int) -> Any:
    if not is_tensor(value):
        return value
    plain = value.detach().contiguous()
    copy = plain.clone()
    turned(units_of(copy), units_of(plain), shift if way in ("signs", "rotate") else 0)
    mix_into(units_of(copy), plain, way, mix)
    return copy
