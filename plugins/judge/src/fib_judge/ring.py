"""Memory of the judge's in which a solution's timed calls take place."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.bench import memory
from flashinfer_bench.bench.correctness import OutputSpec, output_specs
from flashinfer_bench.bench.executors.base import Attachment, Release
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors import dtype_name, poison

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence, Set

    import torch

    from flashinfer_bench.bench.calls import Attempt

_SLOTS = 4
_MOST_BYTES = 1 << 30
_AT_ONCE = 1 << 16
"""Bytes that are written, or copied away, within microseconds."""

_LATE, _LOOKED_AT = 2048, 512  # elements
_PIECES, _PIECE = 8, 256  # bytes
_L2_TIMES = 2
_OVERWRITTEN = "an input was overwritten"
_NS_PER_MS = 1e6


class Ring:
    """Slots with inputs and room for outputs, which a process maps.

    Parameters
    ----------
    attempt : Attempt
        A process that has loaded a solution, and the workload.
    written : set of int
        Which of the inputs that are tensors may be overwritten.

    Raises
    ------
    CapabilityError
        If there is not enough memory for one slot, or the device has none that can be shared.
    CandidateError
        If the process does not map it.
    """

    def __init__(self, attempt: Attempt, written: Set[int] = frozenset()) -> None:
        baseline = attempt.baseline
        self.attempt, self.written = attempt, written
        self.device = baseline.device
        self.specs: tuple[OutputSpec, ...] = output_specs(baseline.definition, baseline.axes)
        self._given = baseline.trials[0].inputs
        tensors = [value for value in self._given if _is_tensor(value)]
        shapes = [(value.shape, dtype_name(value.dtype)) for value in tensors]
        shapes += [(spec.shape, dtype_name(spec.dtype)) for spec in self.specs]
        sizes = [memory.size_of(*one) for one in shapes]
        self.nbytes = sum(sizes)
        self._input_bytes = sum(sizes[: len(tensors)])
        count = max(1, min(_SLOTS, _MOST_BYTES // max(1, self.nbytes)))
        self._memory = self._allocated(count)
        self._page = memory.page()
        self._sets: list[list[torch.Tensor]] = []
        self._schedules: Sequence[int] = ()
        self._flushed: Optional[torch.Tensor] = None
        self.addresses: list[int] = []  # of what was returned last
        self._next = 0
        loaded = attempt.worker.loaded
        self.writes_there = loaded is not None and loaded.destination_passing_style
        try:
            self._hand_over(tensors, shapes, sizes)
        except BaseException:
            self.close()
            raise

    def _hand_over(
        self, tensors: list[torch.Tensor], shapes: list[tuple[Any, str]], sizes: list[int]
    ) -> None:
        attempt, places = self.attempt, []
        for slot in range(len(self)):
            start = slot * self.nbytes
            starts = [start + sum(sizes[:number]) for number in range(len(sizes))]
            room = self._memory.tensor
            self._sets.append(
                [memory.tensor_at(room, at, *one) for at, one in zip(starts, shapes, strict=True)]
            )
            places.append(starts)
        self._schedules = _opened(attempt.candidate.pid), _opened("thread-self")
        for slot in range(len(self)):
            for into, value in zip(self.parts(slot)[0], tensors, strict=True):
                _flat(into).copy_(_flat(value.contiguous()))  # what a call may be rehearsed on
        axes = attempt.baseline.axes
        attachment = Attachment(self._page, self._memory, self._given, places, axes)
        attempt.candidate.attach(attachment, timeout_s=attempt.left("inputs"))

    def _allocated(self, count: int) -> Any:
        while True:
            try:
                self._count = count
                return memory.memory_on(self.device, self.nbytes * count)
            except CapabilityError:
                if count == 1:
                    raise
                count = 1

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Let go of the memory."""
        self._sets.clear()
        self._page.close()
        self._memory.close()
        for descriptor in self._schedules:
            if descriptor >= 0:
                os.close(descriptor)

    def turn(
        self,
        values: Sequence[Any],
        rng: random.Random,
        *,
        secured: bool,
        into: Optional[bool] = None,
    ) -> Turn:
        """Return the release of a call with these inputs in the next slot.

        Parameters
        ----------
        values : sequence
            Its inputs, on the device.
        rng : random.Random
            Chooses what is written last, and what is looked at first.
        secured : bool
            Whether inputs are looked at, too.
        into : bool, optional
            Whether outputs are to be written there; by default as the solution does.
        """
        slot, self._next = self._next, (self._next + 1) % len(self)
        into = self.writes_there if into is None else into
        return Turn(self, slot, values, rng, secured=secured, into=into)

    def parts(self, slot: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the inputs, those that are tensors, and the outputs of a slot."""
        inputs = sum(map(_is_tensor, self._given))
        return self._sets[slot][:inputs], self._sets[slot][inputs:]

    def staged(
        self, slot: int, values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the inputs of a slot lie, and a copy of it with these values in it."""
        inputs, _ = self.parts(slot)
        start = slot * self.nbytes
        room = self._memory.tensor[start : start + self._input_bytes]
        made = room.clone()
        for into, value in zip(inputs, values, strict=True):
            first = into.data_ptr() - room.data_ptr()
            made[first : first + value.nbytes].view(value.dtype).copy_(value)
        return room, made

    def waits_ms(self) -> Sequence[float]:
        """Return how long the main thread of the process, and this one, have waited for a core."""
        return [_waited_ms(schedule) for schedule in self._schedules]

    def wait(self) -> None:
        """Wait until the device has done what was asked of it here."""
        import torch

        torch.cuda.synchronize(self.device)

    def flush(self) -> None:
        """Empty the second-level cache of a GPU."""
        import torch

        if self._flushed is None:
            size = torch.cuda.get_device_properties(self.device).L2_cache_size
            nbytes = _L2_TIMES * max(size, 1 << 22)
            self._flushed = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        self._flushed.fill_(self._next)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "element_size")


def _opened(process: object) -> int:
    """Return a descriptor of what the scheduler tells of a thread; -1 where it does not."""
    try:
        return os.open(f"/proc/{process}/schedstat", os.O_RDONLY)
    except OSError:
        return -1


def _waited_ms(schedule: int) -> float:
    with suppress(OSError, ValueError, IndexError):
        return int(os.pread(schedule, 64, 0).split()[1]) / _NS_PER_MS
    return 0.0


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor in a row, as integers: sooner copied."""
    import torch

    units = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.reshape(-1).view(units.get(tensor.element_size(), torch.int64))


class Turn(Release):
    """One call in a slot; see `Ring.turn`.

    Attributes
    ----------
    outputs : list of torch.Tensor
        On a device, copies of what was in the slot's outputs at the answer.
    into : bool
        Whether outputs are to be written into the slot.
    waited_ms : float
        How long the main thread of the process, or this one, could have run during the call while
        others had its core; on the CPU.
    """

    def __init__(
        self,
        ring: Ring,
        slot: int,
        values: Sequence[Any],
        rng: random.Random,
        *,
        secured: bool,
        into: bool,
    ) -> None:
        self.slot = slot
        self._ring, self._rng, self._secured, self.into = ring, rng, secured, into
        self._on_cpu = ring.device == "cpu"
        self.stopped = self._on_cpu and ring.nbytes > _AT_ONCE
        inputs, self._outputs = ring.parts(slot)
        tensors = [value for value in values if _is_tensor(value)]
        self._pairs = [
            (_flat(place), _flat(value.contiguous()))
            for place, value in zip(inputs, tensors, strict=True)
        ]
        self._late: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._given: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._words: list[int] = []
        self.outputs: list[torch.Tensor] = []
        self._waits: Sequence[float] = ()
        self.waited_ms = 0.0
        if self.stopped or not self._on_cpu:
            for place, value in self._pairs:
                part = self._some(place, _LATE)
                self._late.append((place[part], value[part].clone()))
        elif self._pairs:
            self._late.append(ring.staged(slot, [value for _, value in self._pairs]))
        # What is looked at is chosen before, as the clock runs then.
        self._views: list[torch.Tensor] = []
        self._pieces: list[_Piece] = []
        if self._on_cpu and into:
            flat = [_flat(output) for output in self._outputs]
            self._views = [each[self._some(each, _LOOKED_AT)] for each in flat]
        elif self._on_cpu:
            specs = enumerate(ring.specs[: memory.MOST_OUTPUTS])
            found = (self._piece(number, spec) for number, spec in specs)
            self._pieces = [piece for piece in found if piece.whole]
        self._kept: list[Any] = []

    def fill(self) -> None:
        """Write inputs, but for some elements, and poison outputs."""
        if self.stopped or not self._on_cpu:
            for into, value in self._pairs:
                into.copy_(value)
            for into, value in self._late:
                into.copy_(value.flip(0))
            self._poison()
            if self._on_cpu:
                # Now that it stands still: it could make this take long, with the inputs at hand.
                self._secure(self._ring.addresses)
        if not self._on_cpu:
            if self._ring.attempt.baseline.config.cache == "cold":
                self._ring.flush()
            self._ring.wait()

    def _poison(self) -> None:
        for output in self._outputs if self.into or not self._on_cpu else ():
            poison(output)

    def before(self) -> None:
        """See how long there has been no core; have what is secured in this core's caches."""
        if self._on_cpu:
            if not self.stopped:
                self._poison()  # only now: calls are rehearsed until then
                self._secure(self._ring.addresses)
            self._waits = self._ring.waits_ms()

    def last(self) -> None:
        """Write what is left."""
        for into, value in self._late:
            into.copy_(value)
        if not self._on_cpu:
            self._ring.wait()

    def answered(self, addresses: Sequence[int]) -> None:
        """Copy outputs away, or parts of them, before anything could still be written there."""
        if not self._on_cpu:
            self.outputs = [output.clone() for output in self._outputs]
            self._ring.wait()
        else:
            self._words = self._ring.addresses = list(addresses)
            self._secure(self._words)

    def _secure(self, addresses: Sequence[int]) -> None:
        self._kept = [view.clone() for view in self._views]
        for number, _, read in self._pieces:
            # Of a tensor every process tells an address: what comes without one is hidden.
            address = addresses[number] if number < len(addresses) else 0
            self._kept.append(read(address) if address else None)

    def after(self) -> None:
        """See how long there has been no core, and whether inputs are as they were."""
        if not self._on_cpu:
            return
        pairs = zip(self._ring.waits_ms(), self._waits, strict=True)
        self.waited_ms = max(now - before for now, before in pairs)
        for into, value in self._pairs if self._secured else ():
            part = self._some(into, _LATE)
            self._given.append((into[part].clone(), value[part]))

    def _some(self, flat: torch.Tensor, count: int) -> slice:
        step = max(1, len(flat) // count)
        # Odd, and another one each time, or all may lie in one column of a matrix.
        step = (step - self._rng.randrange(step // 8 + 1)) | 1
        return slice(self._rng.randrange(step), None, step)

    def _piece(self, number: int, spec: OutputSpec) -> _Piece:
        whole = spec.dtype.itemsize * math.prod(spec.shape)
        starts, size = [0], whole
        if whole > _AT_ONCE:
            size = _PIECE
            starts = sorted(self._rng.randrange(whole // size) * size for _ in range(_PIECES))
        return _Piece(number, whole, self._ring.attempt.candidate.peeker(starts, size))

    def problem(self) -> Optional[str]:
        """Return what has changed, or must not have changed, since the answer; None if nothing has.

        Asked while the process still stands still for the look at its outputs.
        """
        if not self._on_cpu:
            return _OVERWRITTEN if self.overwritten() - self._ring.written else None
        for number, (kept, given) in enumerate(self._given):
            if number not in self._ring.written and not kept.equal(given):
                return _OVERWRITTEN
        candidate = self._ring.attempt.candidate
        views = zip(self._kept, self._views, strict=False)
        late = any(not kept.equal(now) for kept, now in views)
        for number, one in enumerate(candidate.returned()[: len(self._words)]):
            if isinstance(one, (bool, int, float)):
                late = late or memory.word_of(one) != self._words[number]
        places = candidate.places()
        for piece, kept in zip(self._pieces, self._kept, strict=False):
            place = places[piece.number] if piece.number < len(places) else None
            late = late or (place is not None and not self._is_as_it_was(piece, kept, *place))
        return "outputs were still written after the answer" if late else None

    def overwritten(self) -> set[int]:
        """Return which of the inputs that are tensors are not as they were, by number."""
        return {number for number, (into, value) in enumerate(self._pairs) if not into.equal(value)}

    def _is_as_it_was(self, piece: _Piece, kept: Any, address: int, span: int) -> bool:
        if address != self._words[piece.number] or span != piece.whole:  # it was to have no gaps
            return False
        return bool(kept == piece.read(address))


class _Piece(NamedTuple):
    """Which bytes of an output that a solution makes are looked at."""

    number: int
    whole: int
    read: Callable[[int], Optional[bytes]]
