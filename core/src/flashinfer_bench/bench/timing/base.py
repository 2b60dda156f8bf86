"""What a timer is."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

from flashinfer_bench.errors import ConfigError

ArgumentsOf = Callable[[int], tuple[Any, ...]]

# Looked up now: a solution that is imported later may replace them.
_gc_enabled, _gc_disable, _gc_enable = gc.isenabled, gc.disable, gc.enable


class EnqueuedCall(NamedTuple):
    """A call, and what is enqueued around it, which is not timed.

    Attributes
    ----------
    before : callable
        Enqueues what comes first.
    function : callable
        Is timed; called without arguments.
    after : callable
        Is called with what `function` has returned.
    """

    before: Callable[[], object]
    function: Callable[[], Any]
    after: Callable[[Any], object]


class Timer(ABC):
    """One way to measure how long a call takes on a device.

    A timer runs in the candidate's process. It is constructed without arguments, and has looked up
    every clock function it needs, before the solution is imported. All timers for a device are
    constructed in every candidate, so this must be quick and must not touch the device.

    Attributes
    ----------
    name : str
        Name under which it is registered; goes into every trace.
    version : str
        Changes whenever its numbers may change.
    resolution_ms : float, optional
        Smallest difference between two samples that its clock tells, in milliseconds; None if that
        is not known.
    repeats : bool
        Whether `time_call` calls the function more than once. Such a timer is used only for
        solutions that are trusted: the same call again can be answered from memory.
    caches : tuple of str
        What a call can find in the caches of the device: ``"cold"``, ``"warm"``, or both. Whoever
        asks for a call flushes them before it, or has the call made before; a timer that does
        something about them itself has only one.
    enqueues : bool
        Whether it has `enqueue_calls`, for calls that the device is to make later.

    Notes
    -----
    The record that a plugin registers says the same; see `flashinfer_bench.plugins.TimerSpec`.
    """

    name: str = ""
    version: str = "1"
    resolution_ms: Optional[float] = None
    repeats: bool = False
    caches: tuple[str, ...] = ("cold", "warm")
    enqueues: bool = False

    @property
    def removed_ms(self) -> float:
        """What it takes out of each sample for its own cost, in milliseconds."""
        return 0.0

    @abstractmethod
    def time_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, device: str
    ) -> tuple[float, Any]:
        """Call `function` once, time it, and wait until the device has finished.

        Parameters
        ----------
        function : callable
            What is timed.
        arguments : tuple
            Its positional arguments, ready on the device.
        device : str
            Where `function` works: ``cpu`` or ``cuda:N``.

        Returns
        -------
        milliseconds : float
            How long it took; everything it started counts until it has finished, on whatever
            stream.
        result : object
            What it returned.

        Raises
        ------
        TimingError
            If a measurement cannot be taken or makes no sense (not finite, negative).
        """

    def prepare(self, device: str) -> None:  # noqa: B027 - most have nothing to prepare
        """Do what has to be done before the first call on an idle device; nothing by default."""

    def enqueue_calls(
        self, calls: Sequence[EnqueuedCall], *, device: str
    ) -> Callable[[], list[float]]:
        """Enqueue calls one after the other, and do not wait for the device: it waits itself.

        `prepare` has been called.

        Parameters
        ----------
        calls : sequence of EnqueuedCall
            What is enqueued.
        device : str
            As of `time_call`.

        Returns
        -------
        callable
            Returns the milliseconds of each, as of `time_call`, once the device has finished; it
            may raise `TimingError`.
        """
        raise NotImplementedError

    def take_notes(self) -> list[str]:
        """Return what a reader of the numbers taken since the last time should know; forget it.

        Returns
        -------
        list of str
            Each remark once; at most 16, of at most 256 characters.
        """
        return []

    def measure(
        self,
        function: Callable[..., Any],
        arguments: ArgumentsOf,
        *,
        warmup: int,
        iterations: int,
        device: str,
    ) -> list[float]:
        """Time `iterations` calls of `function`, one by one.

        Parameters
        ----------
        function : callable
            What is timed.
        arguments : callable
            ``arguments(i)`` returns the positional arguments of call `i`, counted from 0, warm-up
            calls included. It is called outside the timed region.
        warmup : int
            Calls before the first timed one.
        iterations : int
            Timed calls, at least one.
        device : str
            Where `function` works: ``cpu`` or ``cuda:N``.

        Returns
        -------
        list of float
            Milliseconds of each timed call.

        Raises
        ------
        TimingError
            As of `time_call`.
        ConfigError
            If `warmup` is negative, or `iterations` less than 1.
        """
        if warmup < 0 or iterations < 1:
            raise ConfigError(
                f"warmup={warmup}, iterations={iterations}: need warmup >= 0 and iterations >= 1",
                hint="time at least one call",
            )
        samples = []
        with collector_paused():
            for index in range(warmup + iterations):
                sample, result = self.time_call(function, arguments(index), device=device)
                del result  # outside of the timed region, before the next call needs its memory
                samples.append(sample)
        return samples[warmup:]


class collector_paused:
    """Keep Python's garbage collector from running during the body of a ``with`` statement."""

    def __enter__(self) -> None:
        self._collecting = _gc_enabled()
        _gc_disable()

    def __exit__(self, *error: object) -> None:
        if self._collecting:
            _gc_enable()
