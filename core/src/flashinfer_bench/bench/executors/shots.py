"""Timed calls of a candidate, one exchange each, and the look at what they returned."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.executors.base import Shot
from flashinfer_bench.bench.executors.conversation import Conversation, new_token
from flashinfer_bench.bench.executors.frozen import FrozenTree, why_not
from flashinfer_bench.bench.executors.log import printable
from flashinfer_bench.bench.executors.threads import (
    cores_of,
    keep_on,
    thread_times,
    waiting_times,
)
from flashinfer_bench.bench.timing.base import collector_paused
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.channel import pack
from flashinfer_bench.bench.transport.frames import PeerClosed
from flashinfer_bench.bench.transport.messages import encode
from flashinfer_bench.bench.transport.values import describe, rebuild
from flashinfer_bench.errors import ProtocolError
from flashinfer_bench.tensors import span_of, tensor_from_span, to_torch_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from flashinfer_bench.bench.transport.deadline import Deadline
    from flashinfer_bench.data import Definition
    from flashinfer_bench.tensors.vary import Variation

# Outputs of a wrong shape are received, too, so that they can be looked at; up to this.
_SPARE_BYTES = 2**26
# A tensor may be spread out, such as a column of a matrix; what lies between is read with it.
_LONGEST_SPAN = 2**30
_FREEZE_TIMEOUT_S = 10.0
_SPIN_S = 0.02


@dataclass(frozen=True)
class _Returned:
    """What the last timed call has returned, as the process tells it."""

    slot: int
    values: list[wire.Value]
    places: list[Optional[wire.Place]]

    @property
    def tensors(self) -> list[tuple[wire.TensorValue, Optional[wire.Place]]]:
        return [
            (value, place)
            for value, place in zip(self.values, self.places, strict=True)
            if isinstance(value, wire.TensorValue)
        ]


class Shooting(Conversation):
    """The part of a process's handle that stages, fires and collects calls."""

    def __init__(self, *process: Any, **options: Any) -> None:
        super().__init__(*process, **options)
        self._definition: Optional[Definition] = None
        self._axes: dict[int, dict[str, int]] = {}
        self._returned: Optional[_Returned] = None
        self._readable = False

    def stage(self, variation: Variation, *, timeout_s: float) -> float:
        """Make everything ready for one timed call; see `Candidate.stage`."""
        where = list(variation.shifts), variation.output_shift, variation.warm
        request = wire.Stage(new_token(), variation.slot, *where)
        self._returned = None
        started = time.perf_counter()
        with self._exchange("time", timeout_s) as deadline:
            self._ask("time", request, wire.Done, deadline)
        return time.perf_counter() - started

    def fire(self, variation: Variation, *, timer: str, timeout_s: float) -> Shot:
        """Make and time the call that was staged; see `Candidate.fire`."""
        request, packed = _fire_request(variation, timer)
        with self._exchange("time", timeout_s) as deadline:
            seconds, payload = self._timed_exchange(request, packed, deadline)
            reply = self._expect("time", request, wire.Fired, self._channel.decode(payload))
            if len(reply.places) != len(reply.values):
                raise ProtocolError(f"{len(reply.places)} places of {len(reply.values)} outputs")
        self._returned = _Returned(variation.slot, reply.values, reply.places)
        notes = tuple(map(printable, reply.notes))
        version = printable(reply.timer_version)
        return _shot_of(seconds, reply.sample_ms, timer, version, notes)

    def _timed_exchange(
        self, request: wire.Fire, packed: bytes, deadline: Deadline
    ) -> tuple[list[float], bytearray]:
        """Send, and receive; what takes time but need not be in between is done elsewhere.

        Return the seconds from the request to each reply, and the last of these.
        """
        steps: list[type[wire.Message]] = [wire.Changed]
        if self._device != "cpu":
            steps += [wire.Enqueued, wire.Finished]
        expected = [(step, encode(step(request.token))) for step in steps]
        channel = self._channel
        with collector_paused():
            if self._device != "cpu":  # whose cores are all wanted
                channel.spin(min(_SPIN_S, deadline.remaining))
            heard = [time.perf_counter()]
            channel.send_packed(packed, deadline)
            for step, message in expected:
                payload = channel.receive_undecoded(deadline)
                heard.append(channel.heard_at)
                if payload != message:  # nothing follows what is something else
                    self._expect("time", request, step, channel.decode(payload))
            payload = channel.receive_undecoded(deadline)
        return [at - heard[0] for at in (*heard[1:], channel.heard_at)], payload

    def collect(self, *, timeout_s: float) -> list[Any]:
        """Return what the last timed call returned; see `Candidate.collect`."""
        returned = self._returned
        slot = returned.slot if returned is not None else -1
        budget = self._output_budget(slot)
        with self._exchange("time", timeout_s) as deadline:
            if returned is None or not self._readable:
                return self._ask_for_outputs(budget, deadline)
            if all(place is not None for _, place in returned.tensors):
                return self._read(returned, budget, deadline)
            # What has no address on the CPU cannot be sent either: the process says why.
            self._ask_for_outputs(budget, deadline)
            raise ProtocolError("it sent a tensor that it had told no address of")

    def _ask_for_outputs(self, budget: int, deadline: Deadline) -> list[Any]:
        request = wire.Collect(new_token(), budget)
        reply = self._ask("time", request, wire.Outputs, deadline)
        return self._channel.receive_values(reply.values, deadline, budget=budget)

    def _read(self, returned: _Returned, budget: int, deadline: Deadline) -> list[Any]:
        """Stop the process tree until the next request, and read the outputs from its memory."""
        limit = min(deadline.remaining, _FREEZE_TIMEOUT_S)
        try:
            self._frozen = frozen = FrozenTree(self.pid, timeout_s=limit)
            values = []
            for value, place in zip(returned.values, returned.places, strict=True):
                values.append(_read_value(frozen, value, place, budget))
                budget -= _size_of(values[-1])
            frozen.require_still()
        except ProcessLookupError as error:
            raise PeerClosed("the process has ended") from error
        except PermissionError as error:
            raise ProtocolError("it has made its memory unreadable") from error
        return values

    def rest(self, *, timeout_s: float) -> None:
        """Stop the process tree until the next request; see `Candidate.rest`."""
        if not self._readable or self._frozen is not None:
            return
        with self._exchange("time", timeout_s) as deadline:
            limit = min(deadline.remaining, _FREEZE_TIMEOUT_S)
            try:
                self._frozen = FrozenTree(self.pid, timeout_s=limit)
            except ProcessLookupError as error:
                raise PeerClosed("the process has ended") from error

    def thread_times(self) -> dict[int, int]:
        """Return the processor time of each thread; see `Candidate.thread_times`."""
        return thread_times(self.pid)

    def waiting_times(self) -> dict[int, int]:
        """Return how long each thread has waited for a core; see `Candidate.waiting_times`."""
        return waiting_times(self.pid)

    def keep_on(self, cores: Set[int]) -> bool:
        """Keep the process on some cores; see `Candidate.keep_on`."""
        return self.alive and keep_on(cores, self.pid)

    def cores(self) -> frozenset[int]:
        """Return the cores that it may be on; see `Candidate.cores`."""
        return cores_of(self.pid)

    def changed_inputs(self, *, timeout_s: float) -> list[int]:
        """Return the inputs that the last call has changed; see `Candidate.changed_inputs`."""
        request = wire.Inspect(new_token())
        with self._exchange("time", timeout_s) as deadline:
            reply = self._ask("time", request, wire.Inspected, deadline)
        return sorted(set(reply.changed))

    def _look_at_memory(self) -> None:
        """Find out whether memory can be read, as long as no solution could prevent it."""
        self._readable = False
        if self._device != "cpu" or why_not() is not None:
            return
        try:
            os.close(os.open(f"/proc/{self.pid}/mem", os.O_RDONLY))
        except OSError:
            return
        self._readable = True

    def _output_budget(self, slot: int) -> int:
        """Return how many bytes of outputs to take: what is declared, and room for mistakes."""
        axes = self._axes.get(slot)
        if self._definition is None or axes is None:
            return _SPARE_BYTES  # there will be none
        return _declared_bytes(self._definition, axes)


def _shot_of(
    seconds: Sequence[float],
    sample_ms: float,
    timer: str,
    timer_version: str,
    notes: tuple[str, ...],
) -> Shot:
    """Return what took how long, of the seconds from the request to each of its replies."""
    changed, fired = seconds[0], seconds[-1]
    enqueued, finished = seconds[1:-1] or (changed, fired)
    return Shot(
        sample_ms,
        changed,
        finished - enqueued,
        timer,
        timer_version,
        notes,
        enqueue_s=enqueued - changed,
        describe_s=fired - finished,
    )


def _declared_bytes(definition: Definition, axes: Mapping[str, int]) -> int:
    sizes = (
        prod(shape or ()) * to_torch_dtype(spec.dtype).itemsize
        for shape, spec in zip(
            definition.get_output_shapes(dict(axes)), definition.outputs.values(), strict=True
        )
    )
    return 2 * sum(sizes) + _SPARE_BYTES


def _fire_request(variation: Variation, timer: str) -> tuple[wire.Fire, bytes]:
    tensors = [part for patch in variation.patches for part in (patch.positions, patch.values)]
    described = [describe(tensor) for tensor in tensors]
    numbers = [patch.input for patch in variation.patches]
    records, mixes = [record for record, _ in described], list(variation.mixes)
    request = wire.Fire(new_token(), timer, mixes, numbers, records)
    return request, pack(request, [blob for _, blob in described])


def _read_value(
    frozen: FrozenTree, value: wire.Value, place: Optional[wire.Place], budget: int
) -> Any:
    """Return one output; nothing that the process tells about it is believed.

    Raises
    ------
    ProtocolError
        If shape, size, strides and address cannot all be true.
    """
    if not isinstance(value, wire.TensorValue):
        return rebuild(value, None)
    shown = rebuild(wire.TensorValue(value.dtype, value.shape, value.nbytes, True), None)
    if value.nbytes != shown.numel() * shown.element_size():
        raise ProtocolError(f"{value.nbytes} bytes are not those of {value.dtype} {value.shape}")
    if value.nbytes > budget:
        return shown  # on device meta, as of `Candidate.call`
    assert place is not None
    if len(place.strides) != len(value.shape):
        raise ProtocolError(f"strides {place.strides} of a tensor of shape {value.shape}")
    span = span_of(value.shape, place.strides, shown.element_size())
    if span != place.span or span > budget + _LONGEST_SPAN:
        raise ProtocolError(
            f"{value.dtype} {value.shape} with strides {place.strides} has {span} bytes from first "
            f"to last; it told {place.span}, and {budget + _LONGEST_SPAN} are allowed"
        )
    memory = frozen.read(place.address, span)
    return tensor_from_span(value.dtype, value.shape, place.strides, memory)


def _size_of(value: Any) -> int:
    if not hasattr(value, "element_size") or value.is_meta:
        return 0
    return int(value.numel() * value.element_size())
