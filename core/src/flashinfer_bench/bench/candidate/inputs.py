"""Input sets as a candidate holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import RunnerError
from flashinfer_bench.tensors.vary import Rotor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from flashinfer_bench.tensors.vary import Way


class InputSet:
    """One set of inputs, and how they vary from call to call.

    Parameters
    ----------
    values : sequence
        Tensors on the device and Python scalars, in the order of the definition.
    axes : mapping
        Value of every variable axis.
    ways : sequence of str
        How each of them may vary; empty if none does.

    Raises
    ------
    RunnerError
        If there are ways for some of them only.
    """

    def __init__(
        self, values: Sequence[Any], axes: Mapping[str, int], ways: Sequence[Way] = ()
    ) -> None:
        if ways and len(ways) != len(values):
            raise RunnerError(f"{len(ways)} ways to vary came with {len(values)} inputs")
        self.axes = dict(axes)
        self._values: tuple[Any, ...] = ()
        self._rotors: Optional[list[Rotor]] = None
        if ways:
            self._rotors = [Rotor(value, way) for value, way in zip(values, ways, strict=True)]
        else:
            self._values = tuple(values)

    def at(self, shifts: Optional[Sequence[int]] = None) -> tuple[Any, ...]:
        """Return the inputs for a call, neither mixed nor patched.

        Parameters
        ----------
        shifts : sequence of int, optional
            By how many elements each is shifted. Default: by none.

        Raises
        ------
        RunnerError
            If there are not as many as inputs, or the inputs do not vary.
        """
        if shifts is None:
            if self._rotors is None:
                return self._values
            return tuple(rotor.at(0) for rotor in self._rotors)
        rotors = self._moving
        if len(shifts) != len(rotors):
            raise RunnerError(f"{len(shifts)} shifts came for {len(rotors)} inputs")
        return tuple(rotor.at(shift) for rotor, shift in zip(rotors, shifts, strict=True))

    def mix(self, mixes: Sequence[int]) -> None:
        """Change signs or columns of what `at` returned last."""
        rotors = self._moving
        if len(mixes) != len(rotors):
            raise RunnerError(f"{len(mixes)} mixes came for {len(rotors)} inputs")
        for rotor, mix in zip(rotors, mixes, strict=True):
            rotor.mix(mix)

    def patch(self, number: int, positions: torch.Tensor, values: torch.Tensor) -> None:
        """Replace elements of an input that `at` returned last."""
        rotors = self._moving
        if number >= len(rotors):
            raise RunnerError(f"input {number} of {len(rotors)} is to be patched")
        rotors[number].patch(positions, values)

    def changed(self) -> list[int]:
        """Return the numbers of the inputs that are not as they were put; undoes patches."""
        return [number for number, rotor in enumerate(self._moving) if not rotor.is_intact()]

    @property
    def _moving(self) -> list[Rotor]:
        if self._rotors is None:
            raise RunnerError("these inputs have been put without ways to vary")
        return self._rotors
