"""The records that plugins register: small, frozen, and naming code by string.

A record says what a piece of code handles and where it is, without importing it. So all plugins can
be loaded, listed and compared without importing a compiler, a driver or torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Optional

from flashinfer_bench.plugins import _fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flashinfer_bench.data import Definition

CACHE_MODES = ("cold", "warm")
"""What a timed call can find in the caches of its device: nothing of its own, or its inputs."""


@dataclass(frozen=True)
class Availability:
    """A probe's answer to "can this be used on this machine, now?".

    Parameters
    ----------
    ok : bool
        Whether it can be used.
    reason : str
        Why not (required when `ok` is False), or what was found: ``"triton 3.4 on an H200"``.
    remedy : str
        What the user can do about it: ``"install the CUDA driver"``.

    Raises
    ------
    TypeError
        If `ok` is not a bool, or a text is not a string.
    ValueError
        If `ok` is False and no reason is given.
    """

    ok: bool
    reason: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.ok, bool):
            raise TypeError(f"Availability: ok must be True or False, not {self.ok!r}")
        for field in ("reason", "remedy"):
            _fields.text("Availability", field, getattr(self, field))
        if not self.ok and not self.reason.strip():
            raise ValueError("Availability: ok=False needs a reason that the user can read")

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, kw_only=True)
class Record:
    """What all records have in common.

    Parameters
    ----------
    name : str
        Unique within its kind, over all installed distributions. Letters, digits, ``.``, ``_``
        and ``-``; stored in lower case.
    factory : str
        Where the code is: ``"package.module:Name"``. Imported when it is first needed.
    summary : str
        One line for listings.
    probe : str, optional
        ``"package.module:function"``, called without arguments; returns an `Availability`. It must
        be quick (a second is the default limit), and must not create a device context. Without
        a probe the record counts as available.
    priority : int
        Among records that could do a job, the available one of highest priority is taken, and
        the first by name among equals. 0 is for fallbacks, 50 the default, 100 for special cases.

    Raises
    ------
    TypeError, ValueError
        If a field is of the wrong type or has a value that is not allowed; the message names
        the record and the field.
    """

    kind: ClassVar[str] = ""

    name: str
    factory: str
    summary: str = ""
    probe: Optional[str] = None
    priority: int = 50

    def __post_init__(self) -> None:
        self._store("name", _fields.name(self._owner(), "name", self.name))
        _fields.import_path(self._owner(), "factory", self.factory)
        if self.probe is not None:
            _fields.import_path(self._owner(), "probe", self.probe)
        _fields.integer(self._owner(), "priority", self.priority)
        self._store("summary", _fields.line(self._owner(), "summary", self.summary))

    def _owner(self) -> str:
        """How error messages call this record."""
        return f"{type(self).__name__} {self.name!r}"

    def _store(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _store_words(self, field: str, *, required: bool = True) -> None:
        value = getattr(self, field)
        self._store(field, _fields.words(self._owner(), field, value, required=required))


@dataclass(frozen=True, kw_only=True)
class BuilderSpec(Record):
    """A builder, which turns a Solution into something that can be called.

    Parameters
    ----------
    handles : tuple of (str, str or None)
        Pairs of language and binding. The binding is None for solutions that name none, and
        ``"*"`` for any, none included.
    devices : tuple of str
        Device types on which its solutions work: ``("cuda",)``. Empty means any.
    compiles : bool
        Whether a build leaves on disk what other processes load. Such solutions are compiled ahead
        of their evaluation, several at a time, by `Builder.compile`.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.compile.Builder`, made without
        arguments.
    """

    kind: ClassVar[str] = "builder"

    handles: tuple[tuple[str, Optional[str]], ...]
    devices: tuple[str, ...] = ()
    compiles: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store("handles", _fields.handles(self._owner(), "handles", self.handles))
        devices = _fields.devices(self._owner(), "devices", self.devices, required=False)
        self._store("devices", devices)
        _fields.flag(self._owner(), "compiles", self.compiles)

    def accepts(self, language: str, binding: Optional[str] = None) -> bool:
        """Return whether solutions in `language` with `binding` are handled."""
        return (language, binding) in self.handles or (language, "*") in self.handles

    def serves(self, device: Optional[str]) -> bool:
        """Return whether its solutions work on `device`: ``cuda``, ``cuda:1``; None: anywhere."""
        return device is None or not self.devices or _fields.device_type(device) in self.devices


@dataclass(frozen=True, kw_only=True)
class TimerSpec(Record):
    """A timing backend.

    Parameters
    ----------
    devices : tuple of str
        Device types that it can time: ``("cpu",)``, ``("cuda",)``.
    resolution_ms : float, optional
        Smallest difference between two latencies that its clock tells, in milliseconds, as its
        maker says; ``fib timers check`` measures it.
    overhead : str
        One line: what of its own cost is in a latency, and what is taken out of it.
    repeats : bool
        Whether it calls a function more than once for one latency. A call that is made again with
        the same values can be answered from memory, so such timers are for trusted solutions.
    trusting : bool
        Whether a solution could work outside of what it times: another reason to be for trusted
        solutions only.
    caches : tuple of str
        Which caches a call can find with it: ``"cold"``, ``"warm"``, or both.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.timing.base.Timer`, made
        without arguments.
    """

    kind: ClassVar[str] = "timer"

    devices: tuple[str, ...]
    resolution_ms: Optional[float] = None
    overhead: str = ""
    repeats: bool = False
    trusting: bool = False
    caches: tuple[str, ...] = CACHE_MODES

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = self._owner()
        self._store("devices", _fields.devices(owner, "devices", self.devices))
        if self.resolution_ms is not None:
            resolution = _fields.duration(owner, "resolution_ms", self.resolution_ms)
            self._store("resolution_ms", resolution)
        self._store("overhead", _fields.line(owner, "overhead", self.overhead))
        for field in ("repeats", "trusting"):
            _fields.flag(owner, field, getattr(self, field))
        self._store("caches", _fields.some_of(owner, "caches", self.caches, CACHE_MODES))

    @property
    def why_trust(self) -> Optional[str]:
        """Why it is for solutions only that are trusted; None if it is for all."""
        if self.repeats:
            return (
                "calls a solution more than once for a latency, "
                "and a call that is made again can be answered from memory"
            )
        return "sees only a part of what a solution may do" if self.trusting else None


@dataclass(frozen=True, kw_only=True)
class KeyBuilderSpec(Record):
    """A key builder, which reduces the inputs of a call to the key of an apply table.

    Parameters
    ----------
    op_types : tuple of str
        The op types whose keys it builds.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.apply.ApplyKeyBuilder`; it is
        made with the definition.
    """

    kind: ClassVar[str] = "key_builder"

    op_types: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store_words("op_types")


@dataclass(frozen=True, kw_only=True)
class AdapterSpec(Record):
    """An API adapter, which routes the calls of a library through apply and tracing.

    Parameters
    ----------
    targets : tuple of str
        The functions and methods that it patches, as dotted names.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.integration.Adapter`; it is
        made without arguments, also where the library is not installed, and patches nothing.
    """

    kind: ClassVar[str] = "adapter"

    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store_words("targets")


@dataclass(frozen=True, kw_only=True)
class EvaluatorSpec(Record):
    """An evaluator, which decides whether a solution's outputs are correct.

    Parameters
    ----------
    op_types, definitions, dtypes : tuple of str
        Shell-style patterns of the op types, of the definition names, and of the element types of
        inputs that it is for. One match in any of the three suffices.
    inputs, outputs : tuple of str
        Patterns of the names of inputs, and of outputs. Where given, a definition must have at
        least one input, and one output, that matches: so an evaluator is asked only about what it
        can read. With all five empty it is a fallback, used where no other evaluator matches.
    **common
        See `Record`. The factory subclasses `flashinfer_bench.bench.evaluators.base.Evaluator`; it
        is made without arguments.
    """

    kind: ClassVar[str] = "evaluator"

    op_types: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("op_types", "definitions", "dtypes", "inputs", "outputs"):
            self._store_words(field, required=False)

    @property
    def is_fallback(self) -> bool:
        """Whether it is meant for everything that no other evaluator matches."""
        return not (self._is_for_some or self.inputs or self.outputs)

    @property
    def _is_for_some(self) -> bool:
        return bool(self.op_types or self.definitions or self.dtypes)

    def accepts(self, definition: Definition) -> bool:
        """Return whether it is meant for this definition in particular.

        Parameters
        ----------
        definition : Definition
            Its name, op type, and the names and element types of its tensors decide.
        """
        if self.is_fallback or (self._is_for_some and not self._is_for(definition)):
            return False
        if self.inputs and not _any_matches(definition.inputs, self.inputs):
            return False
        return not self.outputs or _any_matches(definition.outputs, self.outputs)

    def _is_for(self, definition: Definition) -> bool:
        return (
            _fields.matches(definition.op_type, self.op_types)
            or _fields.matches(definition.name, self.definitions)
            or (bool(self.dtypes) and self._reads(definition))
        )

    def _reads(self, definition: Definition) -> bool:
        dtypes = {str(spec.dtype.value) for spec in definition.inputs.values()}
        return _any_matches(dtypes, self.dtypes)


def _any_matches(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    return any(_fields.matches(name, patterns) for name in names)


@dataclass(frozen=True, kw_only=True)
class ExecutorSpec(Record):
    """An executor, which starts the processes that solutions run in.

    Parameters
    ----------
    devices : tuple of str
        Device types that its processes can use: ``("cpu", "cuda")``.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.executors.base.Executor`,
        made with the device.
    """

    kind: ClassVar[str] = "executor"

    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store("devices", _fields.devices(self._owner(), "devices", self.devices))


@dataclass(frozen=True, kw_only=True)
class CommandSpec(Record):
    """A command of ``fib``.

    Parameters
    ----------
    **common
        See `Record`. The name is what the user types; the factory is a function with Typer
        annotations, or a `typer.Typer`; the summary is shown by ``fib --help``.
    """

    kind: ClassVar[str] = "command"


KINDS: Mapping[str, type[Record]] = MappingProxyType(
    {
        spec.kind: spec
        for spec in (
            BuilderSpec,
            TimerSpec,
            KeyBuilderSpec,
            AdapterSpec,
            EvaluatorSpec,
            ExecutorSpec,
            CommandSpec,
        )
    }
)
"""Record type of each kind, in the order in which listings show them."""


def hook_of(kind: str) -> str:
    """Return the name of the hook that registers records of `kind`."""
    return f"fib_register_{kind}s"
