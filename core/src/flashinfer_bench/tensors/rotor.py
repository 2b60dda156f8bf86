"""One input as a process holds it, and whether it is still what it was."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.tensors.mixing import Way, is_tensor, mix_into, turned, typed, units_of

if TYPE_CHECKING:
    import torch

ROOM_BYTES = 1 << 20
"""How much longer than a tensor its buffer is: 4,096 different addresses."""

_BLOCK = 1 << 20  # words that are summed at once


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
        self._digest = digest(self._kept()) if is_tensor(value) and self._gives_its_own else 0

    @property
    def _gives_its_own(self) -> bool:
        """Whether the solution is given the memory that this object keeps, and not a copy."""
        return self._way in ("rotate", "fixed")

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
        self._shown = typed(view, self._value)
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

        stands = self._patch_stands()
        self._restore()
        if not stands or not is_tensor(self._value):
            return stands
        if self._gives_its_own:
            return digest(self._kept()) == self._digest
        wanted = torch.empty_like(units_of(self._shown))
        turned(wanted, units_of(self._value), self._turn)
        mix_into(wanted, self._value, self._way, self._mix)
        return bool(torch.equal(wanted, units_of(self._shown)))

    def _patch_stands(self) -> bool:
        import torch

        if self._undo is None:
            return True
        return bool(torch.equal(units_of(self._shown)[self._undo[0]], self._written))

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
