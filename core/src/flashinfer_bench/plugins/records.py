"""The records that plugins register: small, frozen, and naming code by string.

A record says what a piece of code handles and where it is, without importing it. So all plugins can
be loaded, listed and compared without importing a compiler, a driver or torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Optional

if TYPE_CHECKING:
    from dataclasses import Field

    from flashinfer_bench.data import Definition

CACHE_MODES = ("cold", "warm")
"""What a timed call can find in the caches of its device: nothing of its own, or its inputs."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*")


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
        _of_type("Availability", "ok", self.ok, bool, "True or False")
        _text("Availability", "reason", self.reason)
        _text("Availability", "remedy", self.remedy)
        if not self.ok and not self.reason.strip():
            raise ValueError("Availability: ok=False needs a reason that the user can read")

    def __bool__(self) -> bool:
        return self.ok


_kinds: dict[str, type[Record]] = {}
KINDS: Mapping[str, type[Record]] = MappingProxyType(_kinds)
"""Record type of each kind, in the order in which listings show them."""


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
    """What it is a record of, in the singular: ``key_builder``."""
    choices: ClassVar[dict[str, tuple[str, ...]]] = {}
    """The words that fields of some kinds may hold."""

    name: str
    factory: str
    summary: str = ""
    probe: Optional[str] = None
    priority: int = 50

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind = kind
            _kinds[kind] = cls

    def __post_init__(self) -> None:
        # How messages call this record, with the name as it was given.
        owner = f"{type(self).__name__} {self.name!r}"
        for each in fields(self):
            value = self._checked(owner, each, getattr(self, each.name))
            object.__setattr__(self, each.name, value)

    @property
    def paths(self) -> tuple[str, ...]:
        """What it names by ``"package.module:Name"``, but for the probe."""
        named = (each.name for each in fields(self) if _is_path(each) and each.name != "probe")
        return tuple(filter(None, (getattr(self, name) for name in named)))

    def _checked(self, owner: str, field: Field[Any], value: object) -> Any:
        """Return the value of a field as it is stored, or raise what is wrong with it."""
        allowed = self.choices.get(field.name)
        required = field.default is MISSING
        if field.name in ("name", "layer"):
            return _name(owner, field.name, value)
        if _is_path(field):
            return value if value == field.default else _path(owner, field.name, value)
        if field.name == "devices":
            return _devices(owner, field.name, value, required)
        if allowed is not None:
            single = isinstance(field.default, str)
            given = (_text(owner, field.name, value),) if single else value
            found = _words(owner, field.name, given)
            for word in found:
                if word not in allowed:
                    listed = ", ".join(allowed)
                    raise ValueError(f"{owner}: {field.name} holds {word!r}; allowed: {listed}")
            return found[0] if single else found
        if field.type == "tuple[str, ...]":
            return _words(owner, field.name, value, required)
        return _BY_TYPE[str(field.type)](owner, field.name, value)


@dataclass(frozen=True, kw_only=True)
class BuilderSpec(Record, kind="builder"):
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

    handles: tuple[tuple[str, Optional[str]], ...]
    devices: tuple[str, ...] = ()
    compiles: bool = False

    def accepts(self, language: str, binding: Optional[str] = None) -> bool:
        """Return whether solutions in `language` with `binding` are handled."""
        return (language, binding) in self.handles or (language, "*") in self.handles

    def serves(self, device: Optional[str]) -> bool:
        """Return whether its solutions work on `device`: ``cuda``, ``cuda:1``; None: anywhere."""
        return device is None or not self.devices or device_type(device) in self.devices


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(Record, kind="language"):
    """A language of solutions: what decides whether a result in it holds with other libraries.

    Parameters
    ----------
    libraries : tuple of str
        Names of libraries. A result that was recorded with one of them is used only with the same
        series of it: the same major version, or the same minor one below 1.0.
    gpu_only : tuple of str
        Those of the `libraries` that matter on GPUs only, such as ``cuda``.
    **common
        See `Record`. The name is the language. The factory may be left out: versions are then
        those of the installed distributions. Otherwise it is a function without arguments that
        returns the versions of the `libraries` that are installed, by name.
    """

    libraries: tuple[str, ...] = ()
    gpu_only: tuple[str, ...] = ()
    factory: str = ""


@dataclass(frozen=True, kw_only=True)
class TimerSpec(Record, kind="timer"):
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

    choices: ClassVar[dict[str, tuple[str, ...]]] = {"caches": CACHE_MODES}

    devices: tuple[str, ...]
    resolution_ms: Optional[float] = None
    overhead: str = ""
    repeats: bool = False
    trusting: bool = False
    caches: tuple[str, ...] = CACHE_MODES

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
class MeasurementSpec(Record, kind="measurement"):
    """A way to take the latency of a solution, from the first call to the record of it.

    Parameters
    ----------
    devices : tuple of str
        Device types that it can measure on.
    verified : bool
        Whether it holds against a solution that wants a false latency. Results of others are
        marked wherever they are ranked.
    **common
        See `Record`. The name goes into every trace. The factory is called with the device.
    """

    devices: tuple[str, ...]
    verified: bool = False


@dataclass(frozen=True, kw_only=True)
class StopRuleSpec(Record, kind="stop_rule"):
    """A rule that says when a solution has been timed often enough.

    Parameters
    ----------
    **common
        See `Record`. The factory is a subclass of
        `flashinfer_bench.bench.stopping.StoppingRule` of the same name; it is made with its
        own parameters.
    """


@dataclass(frozen=True, kw_only=True)
class MonitorSpec(Record, kind="monitor"):
    """A monitor, which watches the machine while a solution is timed.

    Parameters
    ----------
    devices : tuple of str
        Types of the devices whose timings it is of use for.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.watch.base.Watcher`, made
        without arguments.
    """

    devices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KeyBuilderSpec(Record, kind="key_builder"):
    """A key builder, which reduces the inputs of a call to the key of an apply table.

    Parameters
    ----------
    op_types : tuple of str
        The op types whose keys it builds.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.apply.ApplyKeyBuilder`; it is
        made with the definition.
    """

    op_types: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AdapterSpec(Record, kind="adapter"):
    """An API adapter, which routes the calls of a library through apply and tracing.

    Parameters
    ----------
    targets : tuple of str
        The functions and methods that it patches, as dotted names.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.routing.Adapter`; it is
        made without arguments, also where the library is not installed, and patches nothing.
    """

    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OpFamilySpec(Record, kind="op_family"):
    """What is known of some op types, so that their solutions can be judged and applied.

    Parameters
    ----------
    op_types : tuple of str
        Shell-style patterns of the op types.
    key_axes : tuple of str
        Axes whose values decide which solution is the fastest, where no key builder is registered
        for the op type. Empty: all variable axes.
    evaluator : str
        Name of the evaluator of their outputs. Empty: the one whose record matches.
    settings : str, optional
        ``"package.module:name"``: a mapping of op types to settings, as in `EvalConfig`; they are
        below whatever a user sets.
    work : str, optional
        ``"package.module:function"``: called with the definition and the value of each variable
        axis, returns the bytes that any right solution has to move and the operations that it has
        to make, at least.
    inputs : str, optional
        As above: called with the definition, the value of each variable axis and a seed, returns
        tensors on the CPU by name, in place of some or all of the random inputs.
    **common
        See `Record`. The factory may be left out.
    """

    op_types: tuple[str, ...]
    key_axes: tuple[str, ...] = ()
    evaluator: str = ""
    settings: Optional[str] = None
    work: Optional[str] = None
    inputs: Optional[str] = None
    factory: str = ""

    def accepts(self, op_type: str) -> bool:
        """Return whether an op type belongs to the family."""
        return _matches([op_type], self.op_types)


@dataclass(frozen=True, kw_only=True)
class EvaluatorSpec(Record, kind="evaluator"):
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

    op_types: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

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
        if self.inputs and not _matches(definition.inputs, self.inputs):
            return False
        return not self.outputs or _matches(definition.outputs, self.outputs)

    def _is_for(self, definition: Definition) -> bool:
        if _matches([definition.op_type], self.op_types):
            return True
        if _matches([definition.name], self.definitions):
            return True
        inputs = definition.inputs.values() if self.dtypes else ()
        return _matches((str(spec.dtype.value) for spec in inputs), self.dtypes)


@dataclass(frozen=True, kw_only=True)
class ExecutorSpec(Record, kind="executor"):
    """An executor, which starts the processes that solutions run in.

    Parameters
    ----------
    devices : tuple of str
        Device types that its processes can use: ``("cpu", "cuda")``.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.executors.base.Executor`,
        made with the device.
    """

    devices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SandboxSpec(Record, kind="sandbox"):
    """A sandbox, which takes from the process of a solution what it does not need.

    Parameters
    ----------
    platforms : tuple of str
        Values of `sys.platform` where it works: ``("linux",)``.
    **common
        See `Record`. The factory is made without arguments, in the process that is confined.
    """

    platforms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CommandSpec(Record, kind="command"):
    """A command of ``fib``, or a subcommand of one of its groups.

    Parameters
    ----------
    **common
        See `Record`. The name is what the user types after ``fib``: ``"roofline"``, or, for a
        subcommand of an existing group, ``"report roofline"``. The factory is a function with
        Typer annotations, or a `typer.Typer`. The summary is shown by ``fib --help``, where
        commands stand by falling priority, then by name.
    """

    @property
    def group(self) -> str:
        """The group that it is a subcommand of: ``report``; empty for a command of ``fib``."""
        return self.name.rpartition(" ")[0]

    def _checked(self, owner: str, field: Field[Any], value: object) -> Any:
        if field.name != "name":
            return super()._checked(owner, field, value)
        group, blank, word = _text(owner, "name", value).strip().partition(" ")
        checked = _name(owner, "name", group)
        return f"{checked} {_name(owner, 'name', word)}" if blank else checked


@dataclass(frozen=True, kw_only=True)
class CheckSpec(Record, kind="check"):
    """A check of datasets, for ``fib validate``.

    Parameters
    ----------
    layer : str
        The layer that it belongs to: ``layout``, ``definition``, ``workload``, ``solution``,
        ``trace``, ``baseline``, ``benchmark``, or one of its own, which comes after these.
    records : bool
        Whether it looks at workloads and traces. A check is a function of the `Contents` of the
        dataset that yields findings, or a `RecordCheck`, which is shown them one by one.
    **common
        See `Record`.
    """

    layer: str
    records: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceSpec(Record, kind="source"):
    """A place that datasets are fetched from.

    Parameters
    ----------
    **common
        See `Record`. The name is what stands before ``://`` in the value of ``--hub``; without
        one it is ``hub``. The factory is a function: called with the rest of the value, it returns
        the `Path` of a folder with the dataset.
    """


@dataclass(frozen=True, kw_only=True)
class FormatSpec(Record, kind="format"):
    """A format of datasets other than our own, for ``fib import``.

    Parameters
    ----------
    **common
        See `Record`. The factory is a function: called with the `Path` of a folder, it returns what
        it has read from it, or None if the folder is of another format.
    """


@dataclass(frozen=True, kw_only=True)
class ReportSpec(Record, kind="report"):
    """A report, drawn from recorded traces: ``fib report NAME`` writes it.

    Parameters
    ----------
    **common
        See `Record`. The factory is a function: called with a `TraceSet`, it returns the text.
    """


@dataclass(frozen=True, kw_only=True)
class TracingPolicySpec(Record, kind="tracing_policy"):
    """A policy of tracing: which calls are kept, or which of their inputs are written.

    Parameters
    ----------
    decides : str
        ``"calls"``: a filter policy. The factory makes a `flashinfer_bench.tracing.FilterPolicy`,
        given ``filter_policy_kwargs``. ``"inputs"``: a dump policy. The factory is a function of
        the inputs by name that returns the names of those to write.
    **common
        See `Record`. The name is for `TracingConfig.filter_policy` or ``input_dump_policy``.
    """

    choices: ClassVar[dict[str, tuple[str, ...]]] = {"decides": ("calls", "inputs")}

    decides: str = "calls"


def plural(kind: str) -> str:
    """Return the plural of `kind`: ``op_families``."""
    if kind.endswith("y"):
        return f"{kind[:-1]}ies"
    return f"{kind}es" if kind.endswith("x") else f"{kind}s"


def hook_of(kind: str) -> str:
    """Return the name of the hook that registers records of `kind`."""
    return f"fib_register_{plural(kind)}"


def device_type(device: str) -> str:
    """Return the type of a device: ``cuda`` of ``cuda:1``."""
    return device.partition(":")[0].strip().lower()


def _matches(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


# What fields may hold: each function returns the value as it is stored, or says what is wrong.


def _is_path(field: Field[Any]) -> bool:
    return field.name == "factory" or field.type == "Optional[str]"


def _of_type(owner: str, field: str, value: object, kind: Any, called: str) -> Any:
    # A bool is an int to Python, and a mistake wherever a number belongs.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{owner}: {field} must be {called}, not {type(value).__name__}")
    return value


def _text(owner: str, field: str, value: object) -> str:
    return str(_of_type(owner, field, value, str, "a string"))


def _line(owner: str, field: str, value: object) -> str:
    stripped = _text(owner, field, value).strip()
    if len(stripped.splitlines()) > 1:
        raise ValueError(f"{owner}: {field} must be a single line")
    return stripped


def _name(owner: str, field: str, value: object) -> str:
    normalised = _text(owner, field, value).strip().lower()
    if not _NAME.fullmatch(normalised):
        raise ValueError(
            f"{owner}: {field} may hold letters, digits, '.', '_' and '-', "
            "and starts and ends with a letter or digit"
        )
    return normalised


def _path(owner: str, field: str, value: object) -> str:
    module, colon, attribute = _text(owner, field, value).partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{owner}: {field} {value!r} is not of the form 'package.module:Name'")
    return f"{module}:{attribute}"


def _duration(owner: str, field: str, value: object) -> Optional[float]:
    if value is None:
        return None
    number = float(_of_type(owner, field, value, (int, float), "a number"))
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{owner}: {field} must be finite and above 0, not {value!r}")
    return number


def _items(owner: str, field: str, value: object) -> tuple[object, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{owner}: {field} must be a tuple, not {type(value).__name__}")
    return tuple(value)


def _words(owner: str, field: str, value: object, required: bool = True) -> tuple[str, ...]:
    items = _items(owner, field, value)
    found = tuple(_text(owner, f"each of {field}", word).strip() for word in items)
    if required and not found:
        raise ValueError(f"{owner}: {field} must name at least one")
    if not all(found):
        raise ValueError(f"{owner}: {field} holds an empty string")
    return found


def _devices(owner: str, field: str, value: object, required: bool) -> tuple[str, ...]:
    found = tuple(device.lower() for device in _words(owner, field, value, required))
    for device in found:
        if not _DEVICE.fullmatch(device):
            raise ValueError(
                f"{owner}: {field} holds {device!r}; write the type alone, 'cpu' or 'cuda'"
            )
    return found


def _handles(owner: str, field: str, value: object) -> tuple[tuple[str, Optional[str]], ...]:
    found: list[tuple[str, Optional[str]]] = []
    for item in _items(owner, field, value):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise TypeError(
                f"{owner}: {field} holds {item!r}; write pairs: ('python', None), ('cuda', 'torch')"
            )
        language = _name(owner, f"the language in {field}", item[0])
        free = item[1] is None or item[1] == "*"
        found.append(
            (language, item[1] if free else _name(owner, f"the binding in {field}", item[1]))
        )
    if not found:
        raise ValueError(f"{owner}: {field} must hold at least one (language, binding)")
    return tuple(found)


_BY_TYPE: Mapping[str, Callable[[str, str, object], Any]] = {
    "str": _line,
    "int": partial(_of_type, kind=int, called="an int"),
    "bool": partial(_of_type, kind=bool, called="True or False"),
    "Optional[float]": _duration,
    "tuple[tuple[str, Optional[str]], ...]": _handles,
}
