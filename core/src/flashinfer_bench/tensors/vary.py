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

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING, Any, Literal, Optional

from flashinfer_bench.data import Definition, RandomInput, Workload
from flashinfer_bench.tensors.generate import is_softmaxed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


Way = Literal["signs", "columns", "rotate", "move", "fixed"]

ROOM_BYTES = 1 << 20
"""How much longer than a tensor its buffer is: 4,096 different addresses."""

ALIGNMENT = 256
"""Bytes; what kernels that load vectors may expect of an address."""

MAX_COPIED_BYTES = 1 << 26
"""A larger input is rotated at most, and else stays where it is: a copy would cost too much."""

_MIX_BITS = 47
_FEWEST_ROWS = 4  # that are worth mixing
_SMALL = 256  # a tensor of so few elements is patched all over
_MOST_PATCHES = 1 << 14
_BLOCK = 1 << 20  # words that are summed at once
_PATTERN = 1 << 18  # elements whose signs are changed by one piece of the pattern
_MOST_GROUPS = 4  # ranges of columns
_SIGN_BITS = {"complex64": (31, 63), "float4": (3, 7)}  # two numbers in one unit


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
    rotors = [Rotor(value, item.way) for item, value in zip(free, inputs, strict=True)]
    shown = [rotor.at(shift) for rotor, shift in zip(rotors, variation.shifts, strict=True)]
    for rotor, mix in zip(rotors, variation.mixes, strict=True):
        rotor.mix(mix)
    for patch in variation.patches:
        rotors[patch.input].patch(patch.positions, patch.values)
    return [value.detach().clone() if is_tensor(value) else value for value in shown]


class Rotor:
    """One input as a process holds it, ready to appear at another address with each call.

    Parameters
    ----------
    value : torch.Tensor or scalar
        As it was put; any device.
    way : str
        How it may vary.
    """

    def __init__(self, value: Any, way: Way) -> None:
        self._value = value.contiguous() if is_tensor(value) else value
        self._way: Way = way if is_tensor(value) else "fixed"
        self._turn = self._mix = 0
        self._shown: Any = self._value
        self._undo: Optional[tuple[torch.Tensor, torch.Tensor]] = None
        self._buffer: Optional[torch.Tensor] = None
        if self._way != "fixed":
            self._buffer = self._extended()
            self._shown = self.at(0)
        if self._way == "rotate":
            self._value = self._shown  # the buffer holds all of it
        # Whether the solution is given the memory that this object keeps, and not a copy.
        self._gives_its_own = self._way in ("rotate", "fixed")
        self._digest = digest(self._kept()) if is_tensor(value) and self._gives_its_own else 0

    def _kept(self) -> torch.Tensor:
        return units_of(self._value) if self._buffer is None else self._buffer

    def _extended(self) -> torch.Tensor:
        """Return the buffer: the tensor's elements, and room after them."""
        import torch

        units = units_of(self._value)
        room = ROOM_BYTES // self._value.element_size()
        if self._way == "rotate":
            return torch.cat((units, units[:room]))
        return units.new_empty((units.shape[0] + room, *units.shape[1:]))

    def at(self, shift: int) -> Any:
        """Undo the last patch, and return the input shifted by that many elements, not yet mixed.

        Raises
        ------
        ValueError
            If there is not so much room.
        """
        self._restore()
        if self._buffer is None:
            return self._value
        elements = self._value.numel()
        if not 0 <= shift <= self._buffer.shape[0] - elements:
            raise ValueError(f"an input of {elements} elements cannot be shifted by {shift}")
        view = self._buffer[shift : shift + elements]
        self._turn, self._mix = shift if self._way == "signs" else 0, 0
        if self._way != "rotate":
            turned(view, units_of(self._value), self._turn)
        self._shown = view.reshape(-1).view(self._value.dtype).view(self._value.shape)
        return self._shown

    def mix(self, mix: int) -> None:
        """Change signs or columns of what `at` returned last, as `mix` chooses; 0: none.

        Raises
        ------
        ValueError
            If this input has neither.
        """
        if not mix:
            return
        if self._way not in ("signs", "columns"):
            raise ValueError(f"an input whose way is {self._way!r} cannot be mixed")
        self._mix = mix
        mix_into(units_of(self._shown), self._value, self._way, mix)

    def patch(self, positions: torch.Tensor, values: torch.Tensor) -> None:
        """Replace elements of what `at` returned last.

        Raises
        ------
        IndexError
            If a position lies outside the tensor.
        ValueError
            If this input cannot be patched.
        """
        if self._buffer is None:
            raise ValueError("an input that is fixed cannot be patched")
        units, places = units_of(self._shown), positions.to(self._shown.device)
        written = units_of(values.to(self._shown.device))
        self._undo = places, units[places]
        self._written = written
        units[places] = written

    def is_intact(self) -> bool:
        """Undo the last patch, and return whether all elements are what `at` made them.

        Those that were patched have to be what they were patched with.
        """
        import torch

        stands = self._undo is None or bool(
            torch.equal(units_of(self._shown)[self._undo[0]], self._written)
        )
        self._restore()
        if not stands or not is_tensor(self._value):
            return stands
        if self._gives_its_own:
            return digest(self._kept()) == self._digest
        wanted = torch.empty_like(units_of(self._shown))
        turned(wanted, units_of(self._value), self._turn)
        mix_into(wanted, self._value, self._way, self._mix)
        return bool(torch.equal(wanted, units_of(self._shown)))

    def _restore(self) -> None:
        if self._undo is not None:
            places, before = self._undo
            units_of(self._shown)[places] = before
            self._undo = None


def digest(units: torch.Tensor) -> int:
    """Return a number that nearly every change of a tensor's bytes, or of their order, changes.

    Not meant against an attacker. Each word of 64 bits counts with an odd factor of its own, modulo
    2**64, in blocks whose sums are combined in order.
    """
    import torch

    data = units.contiguous().view(-1).view(torch.uint8)
    whole = data.numel() // 8 * 8
    # An address that is not a multiple of 8 is possible for small types only; a copy is aligned.
    words = data[:whole].clone() if data.data_ptr() % 8 else data[:whole]
    total = int.from_bytes(bytes(data[whole:].tolist()), "little")
    numbers = words.view(torch.int64)
    for start in range(0, numbers.numel(), _BLOCK):
        block = numbers[start : start + _BLOCK]
        factors = _factors(str(block.device))[: block.numel()]
        total = (total * 31 + int((block * factors).sum())) % 2**64
    return total


@lru_cache(maxsize=16)
def _factors(device: str) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(20)
    drawn = torch.randint(-(2**62), 2**62, (_BLOCK,), generator=generator)
    return (drawn * 2 + 1).to(device)


# How the elements of an input are rotated and mixed; with integers only, so the same everywhere.
# Elements are handled as *units*: signed or unsigned integers of their size, in a row.


def is_tensor(value: Any) -> bool:
    """Return whether an input is a tensor, and not a Python scalar."""
    return hasattr(value, "element_size")


def units_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor in a row, as integers that every device copies."""
    import torch

    flat = tensor.view(-1)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if flat.element_size() in integer:
        return flat.view(integer[flat.element_size()])
    return flat.view(torch.int64).view(flat.numel(), -1)  # complex128


def turned(into: torch.Tensor, units: torch.Tensor, turn: int) -> None:
    """Write `units` into other memory, rotated: what was at place `turn` comes first."""
    turn %= len(units)
    into[: len(units) - turn].copy_(units[turn:])
    into[len(units) - turn :].copy_(units[:turn])


def mix_into(shown: torch.Tensor, value: torch.Tensor, way: Way, mix: int) -> None:
    """Change what one call is to see of an input, in place.

    Parameters
    ----------
    shown : torch.Tensor
        Units, as many as `value` has; for ``signs`` what is to be changed.
    value : torch.Tensor
        The input, contiguous, on the same device.
    way : str
        ``signs`` or ``columns``; nothing is done for the others.
    mix : int
        Chooses signs or columns; 0 leaves them alone.
    """
    if way == "signs" and mix:
        _change_signs(shown, value.dtype, mix)
    elif way == "columns" and mix:
        _mix_columns(shown, units_of(value), value.shape[0], mix)


def _mix_columns(into: torch.Tensor, units: torch.Tensor, rows: int, mix: int) -> None:
    target, source = into.view(rows, -1), units.view(rows, -1)
    columns = source.shape[1]
    rng = random.Random(mix)
    cuts = sorted(rng.sample(range(1, columns), min(columns, _MOST_GROUPS) - 1))
    for first, last in pairwise((0, *cuts, columns)):
        turn = rng.randrange(1, rows)
        target[: rows - turn, first:last].copy_(source[turn:, first:last])
        target[rows - turn :, first:last].copy_(source[:turn, first:last])


def _change_signs(into: torch.Tensor, dtype: torch.dtype, mix: int) -> None:
    flat = into.view(-1)
    pattern = _sign_pattern(str(flat.device), str(dtype), flat.dtype)
    rng = random.Random(mix)
    for start in range(0, flat.numel(), _PATTERN):
        piece = flat[start : start + _PATTERN]
        offset = rng.randrange(_PATTERN)
        piece.bitwise_xor_(pattern[offset : offset + piece.numel()])


@lru_cache(maxsize=16)
def _sign_pattern(device: str, dtype: str, integer: torch.dtype) -> torch.Tensor:
    """Return random bits, in the places where elements of a type keep their signs."""
    import torch

    width = 8 * integer.itemsize
    places = next((_SIGN_BITS[name] for name in _SIGN_BITS if name in dtype), (width - 1,))
    generator = torch.Generator().manual_seed(21)
    pattern = torch.zeros(2 * _PATTERN, dtype=torch.int64)
    for place in places:
        pattern |= torch.randint(2, pattern.shape, generator=generator) << place
    if integer.is_signed and width < 64:  # the signed number of the same bits
        pattern -= (pattern >> (width - 1)) << width
    return pattern.to(integer).to(device)
