"""Memory of the judge's in which a solution's timed calls take place."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
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

SLOTS, SLOTS_ON_DEVICE = 4, 10
"""Sets of inputs that a process has at a time, on the CPU and elsewhere; fewer, if they are large.
"""

_MOST_BYTES = 1 << 30
_AT_ONCE = 1 << 16
"""Bytes that are written, or copied away, within microseconds."""

_LATE, _LOOKED_AT = 2048, 512  # elements of a tensor
_WORD = 4  # bytes that are written at a time on a GPU
_PIECES, _PIECE, _GLIMPSE = 8, 256, 16  # bytes
_DRAWN = 64  # calls for which it is decided at a time what is written last
_L2_TIMES = 2
_OVERWRITTEN = "an input was overwritten"
LATE = "outputs were still written after the answer"
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
        self._output_starts = [
            sum(sizes[len(tensors) : end]) for end in range(len(tensors), len(sizes))
        ]
        self.wanted = SLOTS if self.device == "cpu" else SLOTS_ON_DEVICE
        count = max(1, min(self.wanted, _MOST_BYTES // max(1, self.nbytes)))
        self._memory = self._allocated(count)
        self._page = memory.page()
        self._sets: list[list[torch.Tensor]] = []
        self._schedules: Sequence[int] = ()
        self._late_places: Optional[torch.Tensor] = None
        self._late_left = 0  # rows of it that no call has used
        self._poisoned: Optional[torch.Tensor] = None
        self._chance: Optional[torch.Generator] = None
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
        draw: Callable[[], list[Any]],
        rng: random.Random,
        *,
        secured: bool,
        into: Optional[bool] = None,
    ) -> HostTurn:
        """Return the release of a call on the CPU with these inputs in the next slot.

        Parameters
        ----------
        draw : callable
            Returns its inputs.
        rng : random.Random
            Chooses what is written last, and what is looked at first.
        secured : bool
            Whether inputs are looked at, too.
        into : bool, optional
            Whether outputs are to be written there; by default as the solution does.
        """
        slot, self._next = self._next, (self._next + 1) % len(self)
        into = self.writes_there if into is None else into
        return HostTurn(self, slot, rng, draw, secured=secured, into=into)

    def parts(self, slot: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the inputs, those that are tensors, and the outputs of a slot."""
        inputs = sum(map(_is_tensor, self._given))
        return self._sets[slot][:inputs], self._sets[slot][inputs:]

    def room(self, slot: int) -> torch.Tensor:
        """Return the bytes of a slot that its inputs lie in."""
        start = slot * self.nbytes
        tensor: torch.Tensor = self._memory.tensor
        return tensor[start : start + self._input_bytes]

    @property
    def rows(self) -> torch.Tensor:
        """All slots as words, one in a row: its inputs, then its outputs."""
        room: torch.Tensor = self._memory.tensor
        return _words_of(room[: len(self) * self.nbytes]).view(len(self), self.nbytes // _WORD)

    def packed(self, values: Sequence[Any], slot: int = 0) -> torch.Tensor:
        """Return a copy of the bytes of a slot's inputs, with these values in it."""
        made, tensors = self.room(slot).clone(), list(filter(_is_tensor, values))
        for into, value in zip(self.unpacked(made, tensors), tensors, strict=True):
            _flat(into).copy_(_flat(value.contiguous()))
        return made

    def unpacked(self, packed: torch.Tensor, values: Sequence[Any]) -> list[Any]:
        """Return inputs like these whose tensors lie in the bytes of a slot."""
        inputs = iter(self.parts(0)[0])
        first = self.room(0).data_ptr()
        found = []
        for value in values:
            if _is_tensor(value):
                place = next(inputs)
                start = place.data_ptr() - first
                value = packed[start : start + place.nbytes].view(place.dtype).view(place.shape)
            found.append(value)
        return found

    def outputs_in(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Return the outputs that lie in the bytes of a slot after its inputs."""
        return [
            row[start : start + place.nbytes].view(place.dtype).view(place.shape)
            for start, place in zip(self._output_starts, self.parts(0)[1], strict=True)
        ]

    def poisoned(self) -> torch.Tensor:
        """Return the words of a slot's outputs with values that no kernel would compute."""
        import torch

        if self._poisoned is None:
            nbytes = self.nbytes - self._input_bytes
            row = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
            for output in self.outputs_in(row):
                poison(output)
            self._poisoned = _words_of(row)
        return self._poisoned

    def peeker(self, slot: int, number: int, start: int, nbytes: int) -> Callable[[], bytes]:
        """Return what reads bytes of an output of a slot, on the CPU."""
        first = self.parts(slot)[1][number].data_ptr() - self._memory.tensor.data_ptr()
        return partial(self._memory.peek, first + start, nbytes)

    def late_words(self, rng: random.Random, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which words of a slot's inputs are written last on a GPU, some of each input.

        Returns
        -------
        places : torch.Tensor
            Where they are, in a row for each of `count` calls.
        others : torch.Tensor
            The same in another order: of what lies there until then, which looks like what is to
            come.
        """
        import torch

        if self._late_places is None or self._late_left < count:
            self._late_places, self._late_left = self._drawn_late_places(rng), _DRAWN
        self._late_left -= count
        places = self._late_places[self._late_left : self._late_left + count]
        # Another one each time: who has seen what was written last would know it.
        order = torch.randperm(places.shape[1], generator=self._chance, device=self.device)
        return places, places[:, order]

    def _drawn_late_places(self, rng: random.Random) -> torch.Tensor:
        """Return them for many calls: few launches, each of which takes microseconds."""
        import torch

        if self._chance is None:
            self._chance = torch.Generator(self.device)
        chance = self._chance.manual_seed(rng.getrandbits(62))
        first, rows = self.room(0).data_ptr(), []

        def drawn(below: int) -> torch.Tensor:
            shape = _DRAWN, 1
            return torch.randint(below, shape, generator=chance, device=self.device)

        for place in self.parts(0)[0]:
            count = -(-place.nbytes // _WORD)
            wanted = min(count, _LATE)
            # From any word on, all around; strides are odd, and others each time, or all may lie in
            # one column of a matrix.
            far = count // max(1, wanted)
            step = (drawn(far // 8 + 1) + far + 1) | 1 if wanted < count else 1  # else all are
            numbers = torch.arange(wanted, device=self.device)
            places = (drawn(max(1, count)) + step * numbers) % max(1, count)
            rows.append(places + (place.data_ptr() - first) // _WORD)
        empty = torch.empty((_DRAWN, 0), dtype=torch.int64, device=self.device)
        return torch.cat([empty, *rows], dim=1)

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
        self._flushed.fill_(0)


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


def _nbytes(spec: OutputSpec) -> int:
    return spec.dtype.itemsize * math.prod(spec.shape)


def _some(length: int, count: int, rng: random.Random) -> slice:
    step = max(1, length // count)
    # Odd, and another one each time, or all may lie in one column of a matrix.
    step = (step - rng.randrange(step // 8 + 1)) | 1
    return slice(rng.randrange(step), None, step)


def _shuffled(values: torch.Tensor) -> torch.Tensor:
    """Return them in an order that nobody can undo: they look like what is to come."""
    import torch

    return values[torch.randperm(len(values), device=values.device)]


_Glimpse = tuple[int, Optional[bytes]]
"""Address of an output in the process, and what was there; None if it cannot be read."""

_NOTHING_THERE: _Glimpse = (0, b"")


class Turn(Release, ABC):
    """One call in a slot; see `Ring.turn`.

    Attributes
    ----------
    slot : int
        Which.
    into : bool
        Whether outputs are to be written into the slot.
    waited_ms : float
        How long the main thread of the process, or this one, could have run during the call while
        others had its core; on the CPU.
    late : bool
        Whether an output was seen to be written after the answer.
    """

    waited_ms = 0.0
    late = False

    def __init__(self, ring: Ring, slot: int, rng: random.Random, *, into: bool) -> None:
        self.slot, self.into = slot, into
        self._ring, self._rng = ring, rng
        self._inputs, self._outputs = ring.parts(slot)

    @property
    def packed(self) -> Optional[torch.Tensor]:
        """On a GPU, the inputs as bytes of the slot."""
        return None

    @property
    def outputs(self) -> list[torch.Tensor]:
        """On a GPU, what was in the slot's outputs at the answer."""
        return []

    @abstractmethod
    def problem(self) -> Optional[str]:
        """Return what has changed, or must not have changed, since the answer; None if nothing has.

        Asked while a process on the CPU still stands still for the look at its outputs.
        """

    @abstractmethod
    def overwritten(self) -> set[int]:
        """Return which of the inputs that are tensors are not as they were, by number."""


class HostTurn(Turn):
    """One call on the CPU.

    Parameters
    ----------
    ring, slot, rng, into
        As of `Ring.turn`.
    draw, secured
        As of `Ring.turn`.
    """

    def __init__(
        self,
        ring: Ring,
        slot: int,
        rng: random.Random,
        draw: Callable[[], list[Any]],
        *,
        secured: bool,
        into: bool,
    ) -> None:
        super().__init__(ring, slot, rng, into=into)
        self._draw, self._secured = draw, secured
        self.stopped = ring.nbytes > _AT_ONCE
        self.drawn: list[Any] = []
        self._given: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._words: list[int] = []
        self._waits: Sequence[float] = ()

    def prepare(self) -> None:
        """Draw inputs, and choose what of them is written last and what is looked at."""
        ring, rng, slot, into = self._ring, self._rng, self.slot, self.into
        self.drawn = self._draw()
        tensors = [value for value in self.drawn if _is_tensor(value)]
        self._pairs = [
            (_flat(place), _flat(value.contiguous()))
            for place, value in zip(self._inputs, tensors, strict=True)
        ]
        # What is written last: where, what, and what lies there until then.
        self._late: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        if self.stopped:
            for place, value in self._pairs:
                part = _some(len(place), _LATE, rng)
                last = value[part].clone()
                self._late.append((place[part], last, _shuffled(last)))
        elif self._pairs:
            packed = ring.packed(tensors, slot)
            self._late.append((ring.room(slot), packed, packed))
        # What is looked at is chosen before, as the clock runs then.
        self._views: list[torch.Tensor] = []
        self._pieces: list[_Piece] = []
        if into:
            flat = [_flat(output) for output in self._outputs]
            self._views = [each[_some(len(each), _LOOKED_AT, rng)] for each in flat]
        else:
            specs = enumerate(ring.specs[: memory.MOST_OUTPUTS])
            found = (self._piece(number, spec) for number, spec in specs)
            self._pieces = [piece for piece in found if piece is not None]
        self._kept: list[Any] = []
        self._look = self._look_at_one()
        self._glimpse: Optional[_Glimpse] = None

    def fill(self) -> None:
        """Write inputs, but for some elements, and poison outputs."""
        if self.stopped:
            for into, value in self._pairs:
                into.copy_(value)
            for into, _, until_then in self._late:
                into.copy_(until_then)
            self._poison()  # now that it stands still: it could make this take long

    def _poison(self) -> None:
        """Poison outputs, and have what is secured in this core's caches."""
        for output in self._outputs if self.into else ():
            poison(output)
        self._secure(self._ring.addresses)

    def before(self) -> None:
        """See how long there has been no core."""
        if not self.stopped:
            self._poison()  # only now: calls are rehearsed until then
        self._waits = self._ring.waits_ms()

    def last(self) -> None:
        """Write what is left."""
        for into, value, _ in self._late:
            into.copy_(value)

    def _look_at_one(self) -> Callable[[Sequence[int]], _Glimpse]:
        """Return what reads a place of an output at once, by the addresses of all of them."""
        specs = enumerate(self._ring.specs[: memory.MOST_OUTPUTS])
        # A number may come for what has no dimensions, and it has no address.
        sizes = [(number, _nbytes(spec)) for number, spec in specs if self.into or spec.shape]
        filled = [(number, nbytes) for number, nbytes in sizes if nbytes]
        if not filled:
            return lambda addresses: _NOTHING_THERE
        number, nbytes = self._rng.choice(filled)
        size = min(_GLIMPSE, nbytes)
        # What is written in order is late at the end; who writes in another one does not know.
        start = self._rng.choice((nbytes - size, self._rng.randrange(nbytes - size + 1)))
        if self.into:
            there = self._ring.peeker(self.slot, number, start, size)
            return lambda addresses: (0, there())
        read = self._ring.attempt.candidate.peeker([start], size)
        if read is None:
            return lambda addresses: _NOTHING_THERE

        def look(addresses: Sequence[int]) -> _Glimpse:
            address = addresses[number] if number < len(addresses) else 0
            return address, read(address) if address else b""

        return look

    def glance(self, addresses: Sequence[int]) -> None:
        """Look at one place of an output."""
        self._glimpse = self._look(addresses)

    def answered(self, addresses: Sequence[int]) -> None:
        """Copy parts of outputs away, before anything could still be written there."""
        self._words = self._ring.addresses = list(addresses)
        self._secure(self._words)

    def _secure(self, addresses: Sequence[int]) -> None:
        self._kept = [view.clone() for view in self._views]
        for number, _, read in self._pieces:
            # Of a tensor every process tells an address: what comes without one is hidden.
            address = addresses[number] if number < len(addresses) else 0
            self._kept.append(read(address) if address else None)

    def after(self) -> None:
        """See how long there has been no core, and whether all is as it was."""
        if self._glimpse is not None:
            # At the address that counts, and where it can be read: else it would be hidden there.
            self.late = self._look(self._words) != self._glimpse or self._glimpse[1] is None
        pairs = zip(self._ring.waits_ms(), self._waits, strict=True)
        self.waited_ms = max(now - before for now, before in pairs)
        for into, value in self._pairs if self._secured else ():
            part = _some(len(into), _LATE, self._rng)
            self._given.append((into[part].clone(), value[part]))

    def _piece(self, number: int, spec: OutputSpec) -> Optional[_Piece]:
        whole = _nbytes(spec)
        starts, size = [0], whole
        if whole > _AT_ONCE:
            size = _PIECE
            starts = sorted(self._rng.randrange(whole // size) * size for _ in range(_PIECES))
        read = self._ring.attempt.candidate.peeker(starts, size)
        return _Piece(number, whole, read) if whole and read is not None else None

    def problem(self) -> Optional[str]:
        """See `Turn.problem`."""
        for number, (kept, given) in enumerate(self._given):
            if number not in self._ring.written and not kept.equal(given):
                return _OVERWRITTEN
        candidate = self._ring.attempt.candidate
        views = zip(self._kept, self._views, strict=False)
        late = self.late or any(not kept.equal(now) for kept, now in views)
        for number, one in enumerate(candidate.returned()[: len(self._words)]):
            if isinstance(one, (bool, int, float)):
                late = late or memory.word_of(one) != self._words[number]
        places = candidate.places()
        for piece, kept in zip(self._pieces, self._kept, strict=False):
            place = places[piece.number] if piece.number < len(places) else None
            late = late or (place is not None and not self._is_as_it_was(piece, kept, *place))
        return LATE if late else None

    def overwritten(self) -> set[int]:
        """See `Turn.overwritten`."""
        return {number for number, (into, value) in enumerate(self._pairs) if not into.equal(value)}

    def _is_as_it_was(self, piece: _Piece, kept: Any, address: int, span: int) -> bool:
        if address != self._words[piece.number] or span != piece.whole:  # it was to have no gaps
            return False
        return kept is not None and bool(kept == piece.read(address))


class DeviceTurns(Release):
    """Calls on a GPU, where nobody stands still: outputs are copied away at the answer.

    There is one for each slot from the first on.

    Parameters
    ----------
    ring : Ring
        Has the slots.
    packed : sequence of torch.Tensor
        The inputs of each call as bytes of a slot, see `Ring.packed`.
    rng, secured, into
        As of `Ring.turn`.
    clocked : bool
        Whether the judge's clock runs while the last words are written.
    """

    def __init__(
        self,
        ring: Ring,
        packed: Sequence[torch.Tensor],
        rng: random.Random,
        *,
        secured: bool,
        into: Optional[bool] = None,
        clocked: bool = False,
    ) -> None:
        import torch

        self._ring, self._secured, self._clocked = ring, secured, clocked
        # Few launches, however many calls: each takes microseconds.
        self._all = ring.rows
        rows = self._all[: len(packed)]
        self.given = torch.stack(list(map(_words_of, packed)))
        words = self.given.shape[1]
        self._room, self._outputs = rows[:, :words], rows[:, words:]
        places, others = ring.late_words(rng, len(packed))
        self._late, self._others = self.given.gather(1, places), self.given.gather(1, others)
        starts = torch.arange(len(packed), device=places.device) * rows.shape[1]
        self._places = places + starts[:, None]
        self.changed: Optional[torch.Tensor] = None
        self.kept = torch.empty_like(self._outputs, memory_format=torch.contiguous_format)
        self._rng, self._into = rng, ring.writes_there if into is None else into

    @property
    def parts(self) -> list[DeviceTurn]:
        """Each of the calls; not kept, as what refers to itself frees its memory late."""
        given = self._rng, self._into
        return [DeviceTurn(self, self._ring, slot, *given) for slot in range(len(self.given))]

    def fill(self) -> None:
        """Write inputs, but for some words, and poison outputs."""
        self._room.copy_(self.given)
        self._write(self._others)
        self._outputs.copy_(self._ring.poisoned())

    def _write(self, words: torch.Tensor) -> None:
        self._all.view(-1).index_copy_(0, self._places.view(-1), words.view(-1))

    def before(self) -> None:
        """Empty the caches, if they are to be cold; each call finds inputs that none has read."""
        if self._ring.attempt.baseline.config.cache == "cold":
            self._ring.flush()
        if self._clocked:
            self._ring.wait()

    def last(self) -> None:
        """Write what is left."""
        self._write(self._late)
        self._ring.wait()

    def answered(self, addresses: Sequence[int]) -> None:
        """Copy outputs away before anything could still be written there."""
        self.kept.copy_(self._outputs)
        self._ring.wait()

    def after(self) -> None:
        """See whether inputs are as they were."""
        if self._secured:
            self.changed = (self._room != self.given).any(1)


class DeviceTurn(Turn):
    """One of several calls on a GPU.

    Parameters
    ----------
    turns : DeviceTurns
        All of them.
    ring, slot, rng, into
        As of `Ring.turn`.
    """

    def __init__(
        self, turns: DeviceTurns, ring: Ring, slot: int, rng: random.Random, into: bool
    ) -> None:
        super().__init__(ring, slot, rng, into=into)
        self._turns = turns

    @property
    def packed(self) -> torch.Tensor:
        """See `Turn`."""
        import torch

        return self._turns.given[self.slot].view(torch.uint8)

    @property
    def outputs(self) -> list[torch.Tensor]:
        """See `Turn`."""
        import torch

        return self._ring.outputs_in(self._turns.kept[self.slot].view(torch.uint8))

    def problem(self) -> Optional[str]:
        """See `Turn.problem`."""
        return _OVERWRITTEN if self.overwritten() - self._ring.written else None

    def overwritten(self) -> set[int]:
        """See `Turn.overwritten`."""
        changed = self._turns.changed
        if changed is not None and not bool(changed[self.slot]):
            return set()
        given = self._ring.unpacked(self.packed, self._inputs)
        pairs = enumerate(zip(self._inputs, given, strict=True))
        return {number for number, (now, value) in pairs if not _flat(now).equal(_flat(value))}


def _words_of(room: torch.Tensor) -> torch.Tensor:
    import torch

    return room.view(torch.int32)


class _Piece(NamedTuple):
    """Which bytes of an output that a solution makes are looked at."""

    number: int
    whole: int
    read: Callable[[int], Optional[bytes]]
