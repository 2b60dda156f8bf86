"""The seam between the judge and the processes that run untrusted code.

An `Executor` knows how to start processes on one device; a `Candidate` is the judge's handle to one
such process. The judge hands over plain data and gets plain data back: nothing that a candidate
sends is unpickled, evaluated or imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Optional

from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from flashinfer_bench.bench.transport.messages import FailureClass
    from flashinfer_bench.data import Definition, Solution

Stage = Literal["start", "confine", "compile", "load", "inputs", "call", "time"]


class CandidateError(RunnerError):
    """A candidate process did not do what it was asked.

    Parameters
    ----------
    message : str
        What happened.
    stage : str
        What it had been asked to do: ``start``, ``confine``, ``compile``, ``load``, ``inputs``,
        ``call`` or ``time``.

    Attributes
    ----------
    kind, traceback, about, builder : str
        As of `CandidateFailed`; empty for all others.
    building : bool
        Likewise; False for all others.
    """

    kind: str = ""
    traceback: str = ""
    about: str = ""
    builder: str = ""
    building: bool = False

    def __init__(self, message: str, *, stage: Stage) -> None:
        super().__init__(message)
        self.stage = stage

    @property
    def reason(self) -> str:
        """The message without the name of the exception's class."""
        return self.message.removeprefix(f"{self.kind}: ")

    @property
    def is_no_fault(self) -> bool:
        """Whether the solution could not be built for lack of something on this machine."""
        return self.building and self.about in ("capability", "storage")


class CandidateTimeout(CandidateError):
    """It did not answer in time; its whole process group has been killed."""


class CandidateCrashed(CandidateError):
    """Its process ended without an answer.

    Parameters
    ----------
    exit_code : int or None
        As of `subprocess.Popen.returncode`: negative for a signal, None when it is not known.
    """

    def __init__(self, message: str, *, stage: Stage, exit_code: Optional[int]) -> None:
        super().__init__(message, stage=stage)
        self.exit_code = exit_code


class CandidateFailed(CandidateError):
    """The solution raised; the process is still usable.

    Parameters
    ----------
    kind : str
        Name of the exception's class, as the candidate tells it (untrusted text).
    traceback : str
        Formatted traceback, or the output of a compiler (untrusted text).
    about : str
        What the candidate says it is about: code that ``raised``, a ``build`` that failed, or what
        this machine lacks: a ``capability``, such as a compiler, or ``storage``.
    builder : str
        Name of the builder that was compiling; empty if that is not known (untrusted text).

    Attributes
    ----------
    building : bool
        Whether the solution was still being built. Whoever makes the first call of an evaluation
        sets it: some languages compile when they are first called.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: Stage,
        kind: str,
        traceback: str,
        about: FailureClass = "raised",
        builder: str = "",
    ) -> None:
        super().__init__(message, stage=stage)
        self.kind = kind
        self.traceback = traceback
        self.about = about
        self.builder = builder
        self.building = stage in ("compile", "load")


class CandidateMisbehaved(CandidateError):
    """It broke the protocol; its process group has been killed."""


@dataclass(frozen=True)
class Loaded:
    """Answer to `Candidate.load`.

    Attributes
    ----------
    destination_passing_style : bool
        Whether the built callable takes its outputs as arguments.
    seconds : float
        Wall time of the build as the judge saw it.
    """

    destination_passing_style: bool
    seconds: float


@dataclass(frozen=True)
class Compiled:
    """Answer to `Candidate.compile`.

    Attributes
    ----------
    builder : str
        Name of the builder; empty if it is not known.
    fresh : bool
        Whether something was compiled; if not, it was there, or there is nothing to compile.
    """

    builder: str
    fresh: bool


@dataclass(frozen=True)
class TimedCall:
    """What is known of one timed call.

    Attributes
    ----------
    sample_ms : float
        Its latency in milliseconds, as the candidate tells it: untrusted.
    wall_ms : float
        Milliseconds by the judge's own clock from before `Release.last` until its answer was seen;
        of inputs that were put, from the request until the answer was read.
    secured_ms : float
        … until `Release.answered` was done.
    enqueued_ms : float
        Milliseconds that the call took to return to the host, as the candidate tells, where a
        device works by itself; elsewhere 0.
    woken_ms : float
        Milliseconds from just before the process was let go on, after it had stood still for
        `Release.fill`, until it waited for its release again.
    timer, timer_version : str
        What took the latency, as the candidate tells it.
    notes : tuple of str
        Remarks of the timer (untrusted text).
    waited_ms : float
        Milliseconds that the process, or the judge, could have run while others had its core.
    glance_ms : float
        Milliseconds, within `wall_ms`, that `Release.glance` took.
    shared : int
        How many calls, one after the other, these times are those of: `wall_ms`, `secured_ms`.
    gated : bool
        Whether it was enqueued before its release, so that `enqueued_ms` is no part of them.
    """

    sample_ms: float
    wall_ms: float
    secured_ms: float
    enqueued_ms: float
    woken_ms: float
    timer: str
    timer_version: str
    notes: tuple[str, ...] = ()
    waited_ms: float = 0.0
    glance_ms: float = 0.0
    shared: int = 1
    gated: bool = False


@dataclass(frozen=True)
class Round:
    """Several calls in attached memory that are released together.

    Attributes
    ----------
    slots : sequence of int
        The sets of inputs, one for each call.
    gated : bool
        Have the device wait for the release behind a gate, with all calls enqueued: their latencies
        are the timer's. Otherwise the process waits for the device after each.
    touch : bool
        Whether the process reads the inputs just before each call.
    patience_s : float
        Seconds after which a process that has not enqueued all of them is released nevertheless.
    """

    slots: Sequence[int]
    gated: bool
    touch: bool
    patience_s: float


@dataclass(frozen=True)
class Attachment:
    """Sets of inputs in memory of the judge's, as a candidate is told of them.

    Attributes
    ----------
    page, memory : object
        As of `flashinfer_bench.bench.memory`.
    inputs : sequence
        Tensors, of which only type and shape count, and Python scalars, in the order of the
        definition.
    places : sequence of list of int
        For each set where its tensors begin, in bytes: inputs, then outputs.
    axes : mapping
        Value of every variable axis.
    """

    page: Any
    memory: Any
    inputs: Sequence[Any]
    places: Sequence[list[int]]
    axes: Mapping[str, int]


class Release:
    """What the judge does around one call in attached memory; by default nothing.

    Attributes
    ----------
    stopped : bool
        Whether the process tree stands still during `fill`, where the system allows it.
    """

    stopped = False

    def prepare(self) -> None:
        """Make what is to be written, while the process gets ready; for `Candidate.fire`."""

    def fill(self) -> None:
        """Write the inputs; the process waits for its release meanwhile."""

    def before(self) -> None:
        """Do what is to be done at once before the judge's clock runs."""

    def last(self) -> None:
        """Write what is left, at once before the release; the clock runs."""

    def glance(self, addresses: Sequence[int]) -> None:
        """Look at one place of what is there, before anything else is done after the answer.

        Parameters
        ----------
        addresses : sequence of int
            As of `answered`; they may still change.
        """

    def after(self) -> None:
        """Do what is to be done at once after the clock has stopped."""

    def answered(self, addresses: Sequence[int]) -> None:
        """Keep what is there right after the answer; the clock runs until it is done.

        Parameters
        ----------
        addresses : sequence of int
            Where the tensors that were returned begin in its memory, as the process tells: 0 where
            that is not known.
        """


@dataclass(frozen=True)
class Confinement:
    """Answer to `Candidate.confine`; given before any code of a solution has run, so it is true.

    Attributes
    ----------
    applied : tuple of str
        Names of the measures that hold.
    missing : dict of str to str
        Measures that this system does not offer, and why.
    """

    applied: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


class Candidate(ABC):
    """The judge's handle to one untrusted process that holds one solution.

    Every method that asks the process for something raises a `CandidateError`: `CandidateFailed`
    leaves the process usable (unless `alive` says otherwise: a GPU context may be lost), the others
    mean that it is gone. Requests come from one thread at a time; `close` may come from any.
    """

    pid: int

    def confine(
        self, writable: Sequence[str], *, hidden: Sequence[str] = (), timeout_s: float
    ) -> Confinement:
        """Have the process give up what a solution does not need; before anything else.

        Without an override nothing is given up, and nothing is reported.

        Parameters
        ----------
        writable : sequence of str
            Folders that stay writable besides its own.
        hidden : sequence of str
            Folders that are empty for it.
        """
        return Confinement()

    def compile(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Compiled:
        """Do the part of the build that other processes can use; load and call nothing.

        `load` may follow, for the same solution. Without an override nothing is done, and all of
        the work is left to `load`.
        """
        return Compiled("", fresh=False)

    @abstractmethod
    def load(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Loaded:
        """Build `solution` for `definition` in the process."""

    @abstractmethod
    def put_inputs(
        self,
        slot: int,
        inputs: Sequence[Any],
        axes: Mapping[str, int],
        *,
        timeout_s: float,
    ) -> None:
        """Copy one set of inputs into the process, on its device.

        Parameters
        ----------
        slot : int
            Number by which `call` and `fire` refer to this set; an old set of that number is
            dropped.
        inputs : sequence
            CPU tensors and Python scalars in the order of the definition's inputs.
        axes : mapping
            Value of every variable axis, for allocating outputs.
        """

    @abstractmethod
    def call(self, slot: int, *, timeout_s: float) -> list[Any]:
        """Call the solution once and return its outputs.

        Returns
        -------
        list
            CPU tensors and Python scalars, as many as the solution returned (destination-passing
            solutions: one per declared output). Shapes, dtypes and count are *not* checked here.
            A tensor far larger than what is declared comes without its data, on device ``meta``.
        """

    @abstractmethod
    def attach(self, attachment: Attachment, *, timeout_s: float) -> None:
        """Have the process map memory of the judge's, in place of what it mapped before."""

    @abstractmethod
    def fire(
        self,
        slot: int,
        *,
        timer: str,
        timeout_s: float,
        release: Optional[Release] = None,
        cold: bool = False,
        empty: Optional[bool] = None,
    ) -> TimedCall:
        """Make and time one call.

        Parameters
        ----------
        slot : int
            Which inputs: with a `release` a set of what is attached, else one that was put.
        timer : str
            Takes the latency in the process.
        release : Release, optional
            What the judge does before and after.
        cold : bool
            Whether the process empties the caches before.
        empty : bool, optional
            Do everything but the call, as what that takes is not the solution's: like a solution
            that is handed its outputs (True), or returns them (False).
        """

    def fire_round(
        self,
        calls: Round,
        *,
        timer: str,
        timeout_s: float,
        release: Release,
        empty: Optional[bool] = None,
    ) -> list[TimedCall]:
        """Make calls one after the other, and time each; not every kind of candidate can.

        Parameters
        ----------
        calls : Round
            Which.
        timer, timeout_s, release, empty
            As of `fire`; `release` is for all of them. The judge's clock runs from after
            `Release.last` here.

        Returns
        -------
        list of TimedCall
            One for each; `gated` is false where the process waited for the device, though it was
            asked to enqueue them.
        """
        raise NotImplementedError

    @property
    def has_gate(self) -> bool:
        """Whether it can enqueue calls behind a gate, as the last `fire_round` has told."""
        return True

    @abstractmethod
    def collect(self, *, timeout_s: float, call: int = 0) -> list[Any]:
        """Return what a call of the last exchange returned; as of `call`.

        On the CPU, where the system allows it, the whole process tree is stopped and its memory
        read; it goes on with the next request. Elsewhere the process is asked.
        """

    def peeker(
        self, starts: Sequence[int], nbytes: int
    ) -> Optional[Callable[[int], Optional[bytes]]]:
        """Return what reads pieces of the process's memory, from an address on, while it runs.

        It returns None if they cannot be read. None if no memory of the process can.

        Parameters
        ----------
        starts : sequence of int
            Where each piece begins, in bytes from there.
        nbytes : int
            How many bytes each piece has.
        """
        return None

    def places(self) -> list[Optional[tuple[int, int]]]:
        """Return address and bytes of what the last `fire` returned, as the process tells.

        None stands for what is no tensor in plain memory.
        """
        return []

    def returned(self, call: int = 0) -> list[Any]:
        """Return what a call of the last exchange returned, as told: tensors without elements."""
        return []

    def rest(self, *, timeout_s: float) -> None:
        """Keep the process from working until its next request, so that it disturbs nobody.

        Without an override, and where the system does not allow it, nothing is done.
        """
        return

    def thread_times(self) -> dict[int, int]:
        """Return the processor time of each of its threads in nanoseconds, as far as it is known.

        Those of its descendants count; all that have ended are under 0. By default none is known.
        """
        return {}

    def keep_on(self, cores: Set[int]) -> bool:
        """Keep the process on some cores of the CPU; return whether that is done.

        Its threads of the future are kept there too, unless they themselves do otherwise. Without
        an override it is not done.
        """
        return False

    def cores(self) -> frozenset[int]:
        """Return the cores that it may be on, as far as they are known.

        Without an override none is.
        """
        return frozenset()

    @abstractmethod
    def log(self) -> str:
        """Return what the process has printed so far; long output is cut in the middle."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the process can take another request."""

    @abstractmethod
    def close(self) -> None:
        """Kill the whole process group; idempotent, never raises.

        May be called from any thread: a request in progress then ends as a `CandidateCrashed`.
        """


class Executor(ABC):
    """Starts candidates on one device; its methods may be called from any thread.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    """

    ahead: bool = False
    """Whether a process is there in milliseconds, so that the next one may be started meanwhile."""

    def __init__(self, device: str) -> None:
        self.device = device

    def begin(self) -> None:  # noqa: B027 - most have nothing to begin with
        """Begin with what `start` does, and do not wait for it; nothing by default."""

    @abstractmethod
    def start(self) -> None:
        """Pay once what all candidates share, such as importing torch; idempotent.

        Raises
        ------
        RunnerFatalError
            If no candidate can be started on this device at all.
        """

    @abstractmethod
    def spawn(self) -> Candidate:
        """Start one process.

        Raises
        ------
        RunnerFatalError
            If that cannot be done, even after one restart.
        """

    def spawn_compiler(self) -> Candidate:
        """Start one process for `Candidate.compile` alone; by default the same as `spawn`.

        Where such a process needs less, as without torch, it starts sooner.

        Raises
        ------
        RunnerFatalError
            As of `spawn`.
        """
        return self.spawn()

    @abstractmethod
    def close(self) -> None:
        """End every process it started; idempotent, never raises."""
