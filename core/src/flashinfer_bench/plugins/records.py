"""The records that plugins register: small frozen dataclasses that name code by string.

A record describes what a piece of code handles and where it is, without importing it. All plugins
can thus be loaded and listed without importing a compiler, a driver or torch.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional, get_type_hints

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition

CacheMode = Literal["cold", "warm"]
CACHE_MODES: tuple[CacheMode, ...] = ("cold", "warm")
"""State of the device's caches before a timed call: flushed, or with the inputs of the call."""

_NAME = r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?"
_Name = Annotated[str, Meta(pattern=rf"(?i)\A{_NAME}\Z")]
_Binding = Annotated[str, Meta(pattern=rf"(?i)\A(?:\*|{_NAME})\Z")]
_Device = Annotated[str, Meta(pattern=r"(?i)\A[a-z][a-z0-9_]*\Z")]
_Word = Annotated[str, Meta(min_length=1)]
_SOME = Meta(min_length=1)


@dataclass(frozen=True)
class Availability:
    """A probe's result: whether a record can be used on this machine now.

    Parameters
    ----------
    ok : bool
        Whether it can be used.
    reason : str
        Why not (required if `ok` is False), or what was found: ``"triton 3.4 on an H200"``.
    remedy : str
        What the user can do about it: ``"install the CUDA driver"``.

    Raises
    ------
    ValueError
        If a value is of the wrong type, or `ok` is False and no reason is given.
    """

    ok: bool
    reason: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        _check(self, "Availability")
        if not self.ok and not self.reason.strip():
            raise ValueError("Availability: a reason is required if ok is False")

    def __bool__(self) -> bool:
        return self.ok


_kinds: dict[str, type[Record]] = {}
KINDS: Mapping[str, type[Record]] = MappingProxyType(_kinds)
"""Record type of each kind, in the order of listings."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records.

    Parameters
    ----------
    name : str
        Unique within its kind, in all installed distributions. Letters, digits, ``.``, ``_`` and
        ``-``; stored in lower case.
    factory : str
        The code: ``"package.module:Name"``. Imported on first use.
    summary : str
        One line for listings.
    probe : str, optional
        ``"package.module:function"``, called without arguments; returns an `Availability`. It must
        be fast (by default, the time limit is one second), and must not create a device context.
        A record without a probe is always available.
    priority : int
        Of several suitable records, the available one with the highest priority is used, and the
        first by name among equals. 0 is for fallbacks, 50 the default, 100 for special cases.

    Raises
    ------
    ValueError
        If a field has a wrong type or a value that is not allowed; the message names the record
        and the field.
    """

    kind: ClassVar[str] = ""
    """Kind of the record, in the singular: ``key_builder``."""

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
        # For messages, with the name as given.
        owner = f"{type(self).__name__} {self.name!r}"
        _check(self, owner)
        if not all(re.fullmatch(_NAME, word) for word in self._words()):
            raise ValueError(
                f"{owner}: a name may have letters, digits, '.', '_' and '-', "
                "and must start and end with a letter or digit"
            )
        for field in self._path_fields():
            path = getattr(self, field)
            module, _, attribute = (path or "").partition(":")
            parts = [*module.split("."), *attribute.split(".")]
            is_left_out = path == getattr(type(self), field, None)
            if not (is_left_out or all(part.isidentifier() for part in parts)):
                raise ValueError(
                    f"{owner}: {field} {path!r} is not of the form 'package.module:Name'"
                )

    def serves(self, device: Optional[str]) -> bool:
        """Return whether it supports `device`, such as ``cuda:1``; None stands for any device.

        A record without devices supports all of them.
        """
        devices = getattr(self, "devices", ())
        return device is None or not devices or device_type(device) in devices

    @property
    def paths(self) -> tuple[str, ...]:
        """The ``"package.module:Name"`` strings of its fields, except for the probe."""
        named = (getattr(self, field) for field in self._path_fields() if field != "probe")
        return tuple(filter(None, named))

    def _path_fields(self) -> Iterator[str]:
        for each in fields(self):
            if each.name == "factory" or each.type == "Optional[str]":
                yield each.name

    def _words(self) -> list[str]:
        return [self.name]


@dataclass(frozen=True, kw_only=True)
class BuilderSpec(Record, kind="builder"):
    """A builder, which turns a solution into a callable.

    The probe of the record, not the hook, checks for the compiler. If two builders have the same
    name, neither is used.

    Parameters
    ----------
    handles : tuple of (str, str or None)
        Pairs of language and binding. The binding is None for solutions without one, and ``"*"``
        for any or none.
    devices : tuple of str
        Device types that its solutions support: ``("cuda",)``. Empty means any.
    compiles : bool
        Whether a build writes files that other processes load. Such solutions are compiled before
        their evaluation, several at a time, by `Builder.compile`.
    preloads : tuple of (str, str)
        Pairs of device type and module. The module, which its solutions import, is loaded into the
        process from which workers for such a device are forked. Importing it must neither start a
        thread nor open the device; for ``cpu``, no GPU is visible.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.compile.Builder`, created
        without arguments.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_builders():
            yield BuilderSpec(
                name="mojo",
                handles=(("mojo", None),),
                compiles=True,
                factory="fib_builder_mojo.builder:MojoBuilder",
                probe="fib_builder_mojo.probe:check",
                summary="Mojo kernels, compiled ahead of time",
            )

    .. versionadded:: 0.2
    """

    handles: Annotated[tuple[tuple[_Name, Optional[_Binding]], ...], _SOME]
    devices: tuple[_Device, ...] = ()
    compiles: bool = False
    preloads: tuple[tuple[_Device, _Word], ...] = ()

    def accepts(self, language: str, binding: Optional[str] = None) -> bool:
        """Return whether solutions in `language` with `binding` are handled."""
        return (language, binding) in self.handles or (language, "*") in self.handles


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(Record, kind="language"):
    """A language of solutions, with the libraries that results in it depend on.

    Solutions can be built and measured without such a record; apply then uses their results with
    any versions of libraries.

    Parameters
    ----------
    libraries : tuple of str
        Names of libraries. A result that was recorded with one of them is used only with the same
        series of it: the same major version or, below 1.0, the same minor version.
    gpu_only : tuple of str
        Those of the `libraries` that matter on GPUs only, such as ``cuda``.
    **common
        See `Record`. The name is the language. The factory is a function without arguments that
        returns the versions of the installed `libraries` by name. If it is left out, versions are
        those of the installed distributions.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_languages():
            yield LanguageSpec(
                name="mojo",
                libraries=("mojo", "cuda"),
                gpu_only=("cuda",),
                factory="fib_builder_mojo.versions:installed",
                summary="Mojo",
            )

    .. versionadded:: 0.3
    """

    libraries: tuple[_Word, ...] = ()
    gpu_only: tuple[_Word, ...] = ()
    factory: str = ""


@dataclass(frozen=True, kw_only=True)
class TimerSpec(Record, kind="timer"):
    """A timing backend.

    The factory is imported in the process that measures, before any code of a solution. The name
    is recorded in every trace that the timer measures.

    Parameters
    ----------
    devices : tuple of str
        Device types that it supports: ``("cpu",)``, ``("cuda",)``.
    resolution_ms : float, optional
        Nominal resolution of its clock, in milliseconds; ``fib timers check`` measures it.
    overhead : str
        One line: how much of its own cost a latency includes, and how much is subtracted.
    repeats : bool
        Whether it calls a function more than once for one latency. A repeated call with the same
        values can be answered from memory, so such timers are for trusted solutions only.
    trusting : bool
        Whether a solution could do work that it does not time; such timers are also for trusted
        solutions only.
    caches : tuple of str
        Supported states of the caches before a call: ``"cold"``, ``"warm"``, or both.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.timing.base.Timer`,
        created without arguments.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_timers():
            yield TimerSpec(
                name="cupti",
                devices=("cuda",),
                priority=100,
                factory="fib_timing_cuda.cupti.timer:CuptiTimer",
                probe="fib_timing_cuda.cupti.probe:check",
                summary="Kernel times from CUPTI activity records",
            )

    .. versionadded:: 0.2
    """

    devices: Annotated[tuple[_Device, ...], _SOME]
    resolution_ms: Optional[Annotated[float, Meta(gt=0, le=sys.float_info.max)]] = None
    overhead: str = ""
    repeats: bool = False
    trusting: bool = False
    caches: Annotated[tuple[CacheMode, ...], _SOME] = CACHE_MODES

    @property
    def why_trust(self) -> Optional[str]:
        """Why it is for trusted solutions only; None if it is for all."""
        if self.repeats:
            return (
                "calls a solution more than once for a latency, "
                "and a repeated call can be answered from memory"
            )
        return "times only a part of what a solution may do" if self.trusting else None


@dataclass(frozen=True, kw_only=True)
class MeasurementSpec(Record, kind="measurement"):
    """A measurement, which takes the latency of a solution from the first call to the result.

    A measurement runs in the judge's process. Its name is recorded in every trace.

    Parameters
    ----------
    devices : tuple of str
        Device types that it supports.
    verified : bool
        Whether it protects against solutions that try to falsify their latency. Other results are
        marked wherever they are ranked.
    **common
        See `Record`. The factory is called with the device.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_measurements():
            yield MeasurementSpec(
                name="verified",
                devices=("cpu", "cuda"),
                verified=True,
                priority=100,
                factory="fib_judge.measurement:VerifiedMeasurement",
                summary="Fresh values for each call, by the judge's own clock",
            )

    .. versionadded:: 0.3
    """

    devices: Annotated[tuple[_Device, ...], _SOME]
    verified: bool = False


@dataclass(frozen=True, kw_only=True)
class StopRuleSpec(Record, kind="stop_rule"):
    """A stop rule, which decides when a solution has been timed often enough.

    Parameters
    ----------
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.stopping.StoppingRule`
        with the same name, created with its parameters.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_stop_rules():
            yield StopRuleSpec(
                name="deadline",
                factory="my_rules.deadline:Deadline",
                summary="Stop after a number of milliseconds",
            )

    .. versionadded:: 0.3
    """


@dataclass(frozen=True, kw_only=True)
class MonitorSpec(Record, kind="monitor"):
    """A monitor, which watches the machine while a solution is timed.

    A monitor runs in the judge's process.

    Parameters
    ----------
    devices : tuple of str
        Types of the devices that it is useful for.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.watch.base.Watcher`,
        created without arguments.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_monitors():
            yield MonitorSpec(
                name="power",
                devices=("cuda",),
                factory="my_monitors.power:PowerMonitor",
                probe="my_monitors.probe:nvml",
                summary="Power draw of the board",
            )

    .. versionadded:: 0.3
    """

    devices: Annotated[tuple[_Device, ...], _SOME]


@dataclass(frozen=True, kw_only=True)
class KeyBuilderSpec(Record, kind="key_builder"):
    """A key builder, which reduces the inputs of a call to the key of an apply table.

    Parameters
    ----------
    op_types : tuple of str
        The op types whose keys it builds.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.apply.ApplyKeyBuilder`, created
        with the definition.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_key_builders():
            yield KeyBuilderSpec(
                name="gqa_paged",
                op_types=("gqa_paged",),
                factory="my_keys.gqa:GQAPagedKeyBuilder",
                summary="Axes and the average length of the key-value cache",
            )

    .. versionadded:: 0.2
    """

    op_types: Annotated[tuple[_Word, ...], _SOME]


@dataclass(frozen=True, kw_only=True)
class AdapterSpec(Record, kind="adapter"):
    """An API adapter, which routes the calls of a library through apply and tracing.

    The hook must not import the library: the probe checks whether it is installed, and the factory
    patches it.

    Parameters
    ----------
    targets : tuple of str
        The functions and methods that it patches, as dotted names.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.routing.Adapter`, created
        without arguments even if the library is not installed; creating it patches nothing.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_adapters():
            yield AdapterSpec(
                name="flashinfer.rmsnorm",
                targets=("flashinfer.norm.rmsnorm",),
                factory="my_adapters.rmsnorm:RMSNormAdapter",
                probe="my_adapters.probe:flashinfer",
                summary="flashinfer.norm.rmsnorm",
            )

    .. versionadded:: 0.2
    """

    targets: Annotated[tuple[_Word, ...], _SOME]


@dataclass(frozen=True, kw_only=True)
class OpFamilySpec(Record, kind="op_family"):
    """An op family: data on op types, used to judge and apply their solutions.

    Each function that a record names is imported on first use. Of two families for the same op
    type, the one with the higher priority is used.

    Parameters
    ----------
    op_types : tuple of str
        Shell-style patterns of the op types.
    key_axes : tuple of str
        Axes whose sizes decide which solution is the fastest, if no key builder is registered for
        the op type. Empty: all variable axes.
    evaluator : str
        Name of the evaluator of their outputs. Empty: the one whose record matches.
    settings : str, optional
        ``"package.module:name"``: a mapping of op types to settings, as in `EvalConfig`; settings
        of the user take precedence.
    work : str, optional
        ``"package.module:function"``: called with the definition, the size of each variable axis
        and a mapping of recorded integers by name (page tables, lengths; empty if none are
        available); returns the minimum of bytes to move and operations to perform for any correct
        solution, or None for unknown values.
    inputs : str, optional
        ``"package.module:function"``: called with the definition, the size of each variable axis
        and a seed; returns CPU tensors by name, which replace some or all random inputs.
    **common
        See `Record`. The factory may be left out.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_op_families():
            yield OpFamilySpec(
                name="rope",
                op_types=("rope*",),
                key_axes=("num_tokens",),
                evaluator="default",
                settings="my_ops.rope:SETTINGS",
                work="my_ops.rope:work",
                inputs="my_ops.rope:inputs",
                summary="Rotary position embedding",
            )

    .. versionadded:: 0.3
    """

    op_types: Annotated[tuple[_Word, ...], _SOME]
    key_axes: tuple[_Word, ...] = ()
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

    An evaluator runs in the judge's process and is trusted: it sees the reference outputs. One with
    patterns goes before every fallback, whatever their priorities.

    Parameters
    ----------
    op_types, definitions, dtypes : tuple of str
        Shell-style patterns of op types, definition names, and dtypes of inputs. One match in any
        of the three suffices.
    inputs, outputs : tuple of str
        Patterns of the names of inputs, and of outputs. If given, a definition must also have at
        least one matching input, and one matching output. An evaluator with all five empty is a
        fallback, used if no other evaluator matches.
    **common
        See `Record`. The factory is a subclass of
        `flashinfer_bench.bench.evaluators.base.Evaluator`, created without arguments.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_evaluators():
            yield EvaluatorSpec(
                name="speculative",
                op_types=("sampling",),
                inputs=("draft_probs",),
                factory="my_evaluators.speculative:SpeculativeEvaluator",
                summary="Compares frequencies of accepted tokens, not single draws",
            )

    .. versionadded:: 0.2
    """

    op_types: tuple[_Word, ...] = ()
    definitions: tuple[_Word, ...] = ()
    dtypes: tuple[_Word, ...] = ()
    inputs: tuple[_Word, ...] = ()
    outputs: tuple[_Word, ...] = ()

    @property
    def is_fallback(self) -> bool:
        """Whether it is used if no other evaluator matches."""
        given = (self.op_types, self.definitions, self.dtypes, self.inputs, self.outputs)
        return not any(given)

    def accepts(self, definition: Definition) -> bool:
        """Return whether its patterns match a definition.

        Parameters
        ----------
        definition : Definition
            Its name, op type, and the names and dtypes of its tensors are matched.
        """
        dtypes = (str(spec.dtype.value) for spec in definition.inputs.values())
        one_of = (
            ([definition.op_type], self.op_types),
            ([definition.name], self.definitions),
            (dtypes, self.dtypes),
        )
        each_of = ((definition.inputs, self.inputs), (definition.outputs, self.outputs))
        is_for_all = not any(patterns for _, patterns in one_of)
        return (
            not self.is_fallback
            and (is_for_all or any(_matches(*each) for each in one_of))
            and all(not patterns or _matches(names, patterns) for names, patterns in each_of)
        )


@dataclass(frozen=True, kw_only=True)
class ExecutorSpec(Record, kind="executor"):
    """An executor, which starts the processes that solutions run in.

    Parameters
    ----------
    devices : tuple of str
        Device types that its processes can use: ``("cpu", "cuda")``.
    distributes : bool
        Whether it divides a whole run among devices of its own, such as those of other machines. It
        is then only used if requested.
    **common
        See `Record`. The factory is a subclass of `flashinfer_bench.bench.executors.base.Executor`,
        created with the device; if it distributes, one of
        `flashinfer_bench.bench.backends.Distributor`, created with the settings of the run.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_executors():
            yield ExecutorSpec(
                name="container",
                devices=("cpu",),
                factory="my_executors.container:ContainerExecutor",
                probe="my_executors.probe:podman",
                summary="Runs each candidate in a container without network",
            )

    .. versionadded:: 0.2
    """

    devices: Annotated[tuple[_Device, ...], _SOME]
    distributes: bool = False

    def serves(self, device: Optional[str]) -> bool:
        """Return whether it starts processes on `device`; one that distributes does not."""
        return not self.distributes and Record.serves(self, device)


@dataclass(frozen=True, kw_only=True)
class SandboxSpec(Record, kind="sandbox"):
    """A sandbox, which restricts the process of a solution.

    The factory is imported in the process that it confines, before any code of a solution.

    Parameters
    ----------
    platforms : tuple of str
        Supported values of `sys.platform`: ``("linux",)``.
    **common
        See `Record`. The factory is called without arguments, in the process to be confined.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_sandboxes():
            yield SandboxSpec(
                name="landlock",
                platforms=("linux",),
                factory="my_sandbox.landlock:LandlockSandbox",
                probe="my_sandbox.probe:landlock",
                summary="No writes outside the work folder, no network",
            )

    .. versionadded:: 0.3
    """

    platforms: Annotated[tuple[_Word, ...], _SOME]


@dataclass(frozen=True, kw_only=True)
class CommandSpec(Record, kind="command"):
    """A command of ``fib``, or a subcommand of one of its groups.

    Commands are cached, so that ``fib --help`` lists them without importing plugins. A command of
    core cannot be replaced.

    Parameters
    ----------
    **common
        See `Record`. The name is the words after ``fib``: ``"roofline"`` or, for a subcommand of an
        existing group, ``"report roofline"``. The factory is a function with Typer annotations, or
        a `typer.Typer`. The summary is shown by ``fib --help``, which lists commands by decreasing
        priority, then by name.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_commands():
            yield CommandSpec(
                name="roofline",
                factory="my_commands.roofline:app",
                summary="Plot traces against the device's roofline",
            )
            yield CommandSpec(
                name="report roofline",
                factory="my_commands.roofline:report",
                summary="Print how far each solution is from the roofline",
            )

    .. versionadded:: 0.2
    """

    @property
    def group(self) -> str:
        """The group of a subcommand: ``report``; empty for a command of ``fib``."""
        return self.name.rpartition(" ")[0]

    def _words(self) -> list[str]:
        return self.name.split(" ", 1)


@dataclass(frozen=True, kw_only=True)
class CheckSpec(Record, kind="check"):
    """A check of datasets, for ``fib validate``.

    Parameters
    ----------
    layer : str
        Its layer: ``layout``, ``definition``, ``workload``, ``solution``, ``trace``, ``baseline``,
        ``benchmark``, or a new one, which comes last.
    records : bool
        Whether it needs workloads and traces.
    **common
        See `Record`. The factory is a function that is called with the `Contents` of the dataset
        and yields findings, or a `RecordCheck`, which gets records one by one.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_checks():
            yield CheckSpec(
                name="licences",
                layer="solution",
                factory="my_checks.licences:check",
                summary="Each solution names its licence",
            )

    .. versionadded:: 0.3
    """

    layer: _Name
    records: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceSpec(Record, kind="source"):
    """A source from which datasets are downloaded.

    Parameters
    ----------
    **common
        See `Record`. The name is the part before ``://`` in the value of ``--hub``; the default is
        ``hub``. The factory is a function that is called with the rest of the value, and returns
        the `Path` of a folder with the dataset.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_sources():
            yield SourceSpec(
                name="s3",
                factory="my_sources.s3:download",
                summary="Datasets in a bucket: --hub s3://BUCKET/NAME",
            )

    .. versionadded:: 0.3
    """


@dataclass(frozen=True, kw_only=True)
class FormatSpec(Record, kind="format"):
    """A foreign format of datasets, for ``fib import``.

    The formats are tried by decreasing priority; the first that recognises a folder reads it.

    Parameters
    ----------
    **common
        See `Record`. The factory is a function that is called with the `Path` of a folder, and
        returns the imported dataset, or None if the folder has another format.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_formats():
            yield FormatSpec(
                name="kernelbench",
                factory="my_formats.kernelbench:read",
                summary="Problems of KernelBench",
            )

    .. versionadded:: 0.3
    """


@dataclass(frozen=True, kw_only=True)
class ReportSpec(Record, kind="report"):
    """A report on recorded traces, written by ``fib report NAME``.

    Parameters
    ----------
    **common
        See `Record`. The factory is a function that is called with a `TraceSet`, and returns the
        text.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_reports():
            yield ReportSpec(
                name="badges",
                factory="my_reports.badges:draw",
                summary="The best speed-up of each definition as a badge",
            )

    .. versionadded:: 0.3
    """


@dataclass(frozen=True, kw_only=True)
class TracingPolicySpec(Record, kind="tracing_policy"):
    """A tracing policy, which decides which calls are kept, or which of their inputs are written.

    Parameters
    ----------
    decides : str
        ``"calls"``: a filter policy. The factory returns a `flashinfer_bench.tracing.FilterPolicy`
        for ``filter_policy_kwargs``. ``"inputs"``: a dump policy. The factory is a function that is
        called with the inputs by name, and returns the names of those to write.
    **common
        See `Record`. The name is used in `TracingConfig`, as ``filter_policy`` or
        ``input_dump_policy``.

    Examples
    --------
    ::

        @hookimpl
        def fib_register_tracing_policies():
            yield TracingPolicySpec(
                name="keep_slow",
                decides="calls",
                factory="my_policies.slow:KeepSlow",
                summary="Keep the calls that took longest",
            )

    .. versionadded:: 0.3
    """

    decides: Literal["calls", "inputs"] = "calls"


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


@cache
def _schema(cls: Any) -> type[msgspec.Struct]:
    kinds = get_type_hints(cls, include_extras=True)
    return msgspec.defstruct(cls.__name__, [(one.name, kinds[one.name]) for one in fields(cls)])


def _check(record: Any, owner: str) -> None:
    """Convert the fields of a record to their annotated types; raise ValueError if not possible."""
    given = {each.name: _stripped(getattr(record, each.name)) for each in fields(record)}
    try:
        found = msgspec.convert(given, _schema(record.__class__))
    except msgspec.ValidationError as error:
        raise ValueError(f"{owner}: {str(error).replace('`$.', '`')}") from None
    for name in given:
        value = getattr(found, name)
        in_lower_case = name in ("name", "layer", "handles", "devices")
        object.__setattr__(record, name, _lowered(value) if in_lower_case else value)


def _stripped(value: Any) -> Any:
    """Normalise the white space of a string, or of the strings in a sequence."""
    if isinstance(value, str):
        return " ".join(value.split())
    is_sequence = isinstance(value, (list, tuple, Iterator))
    return tuple(map(_stripped, value)) if is_sequence else value


def _lowered(value: Any) -> Any:
    if isinstance(value, str):
        return value.lower()
    return tuple(map(_lowered, value)) if isinstance(value, tuple) else value


# ------------------------------------------------------------------------ exceptions of plugins

# A plugin may raise anything, and must not affect others. Some of it is not an Exception:
# sys.exit() at import, or a panic in an extension written in Rust, is a BaseException. The few
# places that call code of plugins therefore pass on only these two, and catch everything else.
PASSED_ON = (KeyboardInterrupt, GeneratorExit)

_LINE_LIMIT = 400
_TRACEBACK_LIMIT = 40_000


def one_line(error: BaseException) -> str:
    """Return type and message of `error` on one line of bounded length."""
    try:
        message = " ".join(str(error).split())
    except PASSED_ON:
        raise
    except BaseException:  # noqa: BLE001 - the __str__ of a plugin's exception is the plugin's code
        message = "(message not available)"
    if isinstance(error, SystemExit):
        return f"SystemExit: it called sys.exit({message})"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= _LINE_LIMIT else text[: _LINE_LIMIT - 1] + "…"


def full_traceback(error: BaseException) -> str:
    """Return the traceback of `error`, truncated if very long."""
    try:
        text = "".join(traceback.format_exception(error))
    except PASSED_ON:
        raise
    except BaseException:  # noqa: BLE001 - as above: it may have a __cause__ that raises
        text = f"{type(error).__name__}: traceback not available\n"
    return text[:_TRACEBACK_LIMIT]


def canonical(name: str) -> str:
    """Return `name` normalised like the names of distributions."""
    return re.sub(r"[-_.]+", "-", name).lower()


def spoken(kind: str) -> str:
    """Return `kind` as words: ``key builder``."""
    return kind.replace("_", " ")


def in_words(items: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
