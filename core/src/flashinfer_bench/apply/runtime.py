"""A dataset, put to work: what `enable_apply` starts."""

from __future__ import annotations

import inspect
import logging
import math
import os
import threading
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench._lazy import import_provided, old_parameters
from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.conventions import bind
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    ConfigError,
    FibError,
    StorageError,
)
from flashinfer_bench.routing.patch_points import (
    Everything,
    Runtime,
    no_fallback,
    opaque,
    router,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.dispatch import Counters, Dispatcher, Stats, Target
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.table import ApplyTable, Candidates, Config, Dataset, Source
    from flashinfer_bench.apply.wrappers import Resolver
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition
    from flashinfer_bench.routing.patch_points import Args, Call, Fallback, Kwargs, PatchPoint

    Positional = Union[Sequence[Any], Mapping[str, Any], None]
    Named = Union[Mapping[str, Any], Fallback]

logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)

changing = threading.RLock()
"""Held while a runtime is exchanged for another, or its content."""


def _renew_lock() -> None:
    global changing
    changing = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread of the parent may hold it, and is not in the child
    os.register_at_fork(after_in_child=_renew_lock)


def get_runtime() -> Optional[Runtime]:
    """Return the runtime that takes calls now, or None."""
    router.settle()
    top = router.top()
    return top.dispatcher if isinstance(top, _Dispatching) else top


def set_runtime(rt: Any) -> None:
    """Make `rt` the only active runtime; None for none.

    Parameters
    ----------
    rt : Runtime, object or None
        Any object that has ``dispatch(name, args, kwargs, fallback)`` gets all calls of decorated
        functions and of `apply`; in the old form ``dispatch(name, runtime_kwargs, fallback)``, with
        arguments by name.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    wanted = ("names", "route", "stop")
    made: Any = rt
    if rt is not None and not all(callable(getattr(rt, name, None)) for name in wanted):
        if not callable(getattr(rt, "dispatch", None)):
            raise ConfigError(
                f"{type(rt).__name__} is not an apply runtime: it has no dispatch method",
                hint="create an ApplyRuntime, or call enable_apply",
            )
        made = _Dispatching(rt)
    router.clear()
    if made is not None:
        router.push(made)


class _Dispatching(Runtime):
    """Has all calls answered by an object that has `dispatch`, and knows nothing of routes."""

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        parameters = inspect.signature(dispatcher.dispatch).parameters
        self._by_name = "runtime_kwargs" in parameters

    def names(self) -> Collection[str]:
        return Everything()

    def stop(self) -> None:
        router.remove(self)

    def route(self, name: str, point: Optional[PatchPoint]) -> Call:
        @opaque
        def call(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            if not self._by_name:
                return self.dispatcher.dispatch(name, args, kwargs or {}, fallback)
            signature = None if point is None else point.signature
            if args and signature is None:
                raise TypeError(f"{self.dispatcher!r} takes arguments of '{name}' by name alone")
            names = [
                each.name
                for each in (signature.parameters.values() if signature else ())
                if each.kind is not each.VAR_POSITIONAL
            ]
            if len(args) > len(names):
                raise TypeError(f"{self.dispatcher!r} takes arguments of '{name}' by name alone")
            named = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            return self.dispatcher.dispatch(name, named, fallback)

        return call


# ----------------------------------------------------------------------- the forms of a call


def make_call(
    find: Callable[[str], Optional[Call]],
    refusal: Callable[[str], str],
    target: Union[str, Resolver],
    args: Positional,
    kwargs: Named,
    fallback: Fallback,
) -> Any:
    """Make a call in any of its forms.

    Parameters
    ----------
    find : callable
        Returns what takes the calls of a definition; None if nothing does.
    refusal : callable
        Returns the message for a call of a definition that nothing takes, without a fallback.
    target : str or callable
        Name of the definition, or a resolver, which gets the arguments.
    args : sequence, mapping or None
        By position; in the old form ``(name, runtime_kwargs, fallback)`` those by name.
    kwargs : mapping, callable or None
        By name; in the old form the fallback.
    fallback : callable, optional
        What to call instead. If there is one, a resolver that fails is logged, once.

    Raises
    ------
    TypeError
        If the arguments are something else.
    ConfigError
        If `target` is something else.
    RuntimeError
        If there is nothing to substitute, or the resolver returns no name, and no fallback.
    Exception
        What the resolver raises, if there is no fallback.
    """
    if isinstance(args, Mapping):
        old = callable(kwargs) and not isinstance(kwargs, Mapping)
        args, kwargs, fallback = (), args, kwargs if old else fallback  # type: ignore[assignment]
    if isinstance(args, str):
        raise TypeError(f"args={args!r} is a string; give the arguments as a tuple")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(
            f"kwargs is a {type(kwargs).__name__}; give the arguments by name in a dict"
        )
    if fallback is not None and not callable(fallback):
        raise TypeError(f"fallback is a {type(fallback).__name__}, which cannot be called")
    given, named = tuple(args or ()), dict(kwargs) if kwargs else None
    name: Any = target
    if not isinstance(target, str):
        if not callable(target):
            raise ConfigError(f"{target!r} is neither the name of a definition nor a resolver")
        from flashinfer_bench.apply.wrappers import label_of, tell_once

        try:
            name = target(*given, **(named or {}))
        except _ANYTHING as error:
            if fallback is None:
                raise
            told = f"the resolver {label_of(target)} failed; its calls go to the original"
            tell_once(told, error)
            name = None
        if not isinstance(name, str) and fallback is None:
            told = f"the resolver {label_of(target)} returned {name!r}, not a definition name"
            raise RuntimeError(f"{told}, and no fallback is given")
    call = find(str(name)) if isinstance(name, str) else None
    if call is not None:
        return call(given, named, fallback)
    if fallback is None:
        raise RuntimeError(refusal(name))
    return fallback(*given, **named) if named else fallback(*given)


class BaseRuntime(Runtime):
    """Takes calls while it is active.

    Of several active runtimes the one that started last decides, alone. As a context manager it is
    active in the body, and whatever was active before is so again afterwards. Called like `apply`,
    it answers itself, active or not.
    """

    problems: Mapping[str, str] = {}
    entered = 0  # bodies of `with` that have not ended

    @property
    def is_active(self) -> bool:
        """Whether it has been started, and not stopped; an inner one may take the calls."""
        return any(each is self for each in router.active)

    def start(self) -> Any:
        """Become the innermost active runtime; return the runtime itself."""
        router.push(self)
        return self

    def stop(self) -> None:
        """Be active no more; nothing happens if it is not. Calls that are running go on.

        Raises
        ------
        RuntimeError
            If another one was started later, and is still active.
        """
        top = router.top()
        if self.is_active and top is not self:
            raise RuntimeError(
                f"{self!r} cannot be stopped before {top!r}: the one that started last stops first "
                "(LIFO)"
            )
        router.remove(self)

    def __enter__(self) -> Any:
        self.entered += 1
        if not self.is_active:
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.entered -= 1
        if self.entered > 0:
            return
        try:
            self.stop()
        except RuntimeError:  # another was started in the body, or in another thread
            router.remove(self)

    @old_parameters
    def dispatch(
        self,
        name: str,
        args: Positional = (),
        kwargs: Named = None,
        fallback: Fallback = None,
    ) -> Any:
        """Answer one call of a definition.

        Parameters
        ----------
        name : str
            The definition.
        args : sequence
            Inputs in declaration order, or inputs and outputs. In the old form
            ``dispatch(name, runtime_kwargs, fallback)``, a mapping.
        kwargs : mapping, optional
            Arguments by the names of the definition.
        fallback : callable, optional
            Called with the same arguments if there is nothing to substitute.

        Raises
        ------
        RuntimeError
            If there is nothing to substitute and no fallback.
        ValueError
            If the number of arguments is neither that of the inputs nor of inputs and outputs.
        """
        return self(name, args, kwargs, fallback)

    @old_parameters
    def __call__(
        self,
        name_or_resolver: Union[str, Resolver],
        args: Positional = (),
        kwargs: Named = None,
        fallback: Fallback = None,
    ) -> Any:
        """Answer one call, as `apply` does."""

        def find(name: str) -> Optional[Call]:
            return router.call_of(name) if router.top() is self else self.route(name, None)

        def refusal(name: str) -> str:
            reason = self.problems.get(name, f"{self!r} has nothing to substitute for it")
            return no_fallback(name, reason)

        return make_call(find, refusal, name_or_resolver, args, kwargs, fallback)


# ---------------------------------------------------------------------------------- datasets


class ApplyRuntime(BaseRuntime):
    """Sends calls to the best solutions of a dataset, while it is active.

    Of several active runtimes the one that started last decides, alone. As a context manager it is
    active in the body, and whatever was active before is so again afterwards. Called like `apply`,
    it answers with its own dataset, active or not.

    Parameters
    ----------
    trace_set : TraceSet, str or Path, optional
        The dataset, or its folder; by default that of ``FIB_DATASET_PATH``.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings for all definitions, or for each. Default: `get_default_registry`.
    device : str or torch.device, optional
        Where the tensors of calls are: ``cpu``, ``cuda`` or ``cuda:N``. Records of its hardware
        count; calls elsewhere go to the original, but other GPUs of the same name are as good. By
        default the current GPU if there is one, else the CPU.

    Raises
    ------
    DatasetNotFoundError, DataError
        If there is no such dataset, or it is not one. Single files of it that are not valid, and
        solutions that cannot be built, cost only themselves; `problems` has the reasons.
    ConfigError
        If the settings are something else.
    CapabilityError
        If there is no such device.
    """

    @old_parameters
    def __init__(
        self,
        trace_set: Optional[Dataset] = None,
        config: Config = None,
        *,
        device: object = None,
    ) -> None:
        from flashinfer_bench.tensors.devices import device_named

        self._dataset: Dataset = env.dataset_path() if trace_set is None else trace_set
        self._config = config
        self._device = device_named(device)
        self._counters: dict[str, Counters] = {}
        self._generation = self._load(self._dataset, config)

    def __repr__(self) -> str:
        dataset = self._dataset
        root = dataset if isinstance(dataset, (str, os.PathLike)) else dataset.root
        return f"<ApplyRuntime of {'a dataset in memory' if root is None else str(root)!r}>"

    @classmethod
    def get_instance(cls) -> Optional[ApplyRuntime]:
        """Return the innermost active runtime of a dataset, or None."""
        router.settle()
        return next((each for each in reversed(router.active) if isinstance(each, cls)), None)

    def _load(self, dataset: Dataset, config: Config) -> Generation:
        from flashinfer_bench.apply.table import ApplyTable
        from flashinfer_bench.tensors.devices import this_hardware

        configs = as_registry(config)
        table = ApplyTable.load_or_build(dataset, configs, hardware=this_hardware(self._device))
        generation = Generation(table, configs, self._device, self._counters)
        generation.build_ahead()
        return generation

    @old_parameters
    def rebuild(self, trace_set: Optional[Dataset] = None, config: Config = None) -> None:
        """Read the dataset again, and use what it holds now.

        Calls go on meanwhile: each is answered by what there was before, or by what there is now,
        as a whole. If it fails, nothing changes.

        Parameters
        ----------
        trace_set : TraceSet, str or Path, optional
            Another dataset from now on.
        config : ApplyConfig or ApplyConfigRegistry, optional
            Other settings from now on.

        Raises
        ------
        DatasetNotFoundError, DataError, ConfigError
            As of the class.
        """
        with changing:
            dataset = self._dataset if trace_set is None else trace_set
            settings = self._config if config is None else config
            generation = self._load(dataset, settings)
            self._dataset, self._config, self._generation = dataset, settings, generation
            router.publish(self)

    def names(self) -> Collection[str]:
        """Return the definitions for which there is anything to substitute."""
        return self._generation.names

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return what takes the calls of a point; see `routing.patch_points.Runtime`."""
        return self._generation.route(name, point)

    def definition(self, name: str) -> Optional[Definition]:
        """Return one of the definitions for which there is anything to substitute."""
        return self._generation.table.source.definition(name) if name in self.names() else None

    @property
    def problems(self) -> dict[str, str]:  # type: ignore[override]
        """Why definitions, decorated functions and solutions are not used, by their names."""
        return {**self._generation.problems, **self._generation.builds.failed}

    def stats(self) -> dict[str, Stats]:
        """Return hits, fallbacks, errors and misses with their reasons, by definition."""
        return {name: each.snapshot() for name, each in sorted(dict(self._counters).items())}

    def explain(self, name: str, axes: Optional[Mapping[str, int]] = None) -> dict[str, Any]:
        """Return which solutions are chosen for a definition, and why others are not.

        The dataset is read anew for that.

        Parameters
        ----------
        name : str
            The definition.
        axes : mapping of str to int, optional
            Only for these sizes.

        Raises
        ------
        UnknownNameError
            If there is no such definition.
        ImportError
            If the distribution ``fib-report`` is not installed, which explains it.
        """
        explain = import_provided("fib_report.apply_choices", "ApplyRuntime.explain").explain

        hardware = self._generation.table.hardware
        found: dict[str, Any]
        found = explain(self._dataset, name, self._config, hardware=hardware, axes=axes)
        return found


class Generation:
    """One table, put to work: what a runtime uses until it is rebuilt.

    The dispatcher of a definition is made when that is first called. A generation is never closed:
    whoever is in a call of it keeps it, and what it built.

    Parameters
    ----------
    table : ApplyTable
        What to substitute.
    configs : ApplyConfigRegistry
        How carefully.
    device : str
        Where the tensors of calls are: ``cpu``, or ``cuda:N`` for that GPU and those of its name.
    counters : dict of str to Counters
        Those of the generation before, which go on.
    """

    def __init__(
        self,
        table: ApplyTable,
        configs: ApplyConfigRegistry,
        device: str,
        counters: dict[str, Counters],
    ) -> None:
        self.table = table
        self.builds = Builds(table.source)
        self.names = frozenset(
            name for name, each in table.definitions.items() if each.choices or each.best
        )
        self.problems: dict[str, str] = {}
        self._configs = configs
        self._device = device
        self._counters = counters
        self._dispatchers: dict[str, Optional[Dispatcher]] = {}

    def dispatcher(self, name: str) -> Optional[Dispatcher]:
        """Return the dispatcher of a definition, or None if there cannot be one.

        The same object for all threads, but for a moment two may be made.
        """
        if name not in self._dispatchers:
            made = None
            if name in self.names:
                from flashinfer_bench.apply.dispatch import Counters, Dispatcher
                from flashinfer_bench.apply.keys import ApplyKeyFactory

                try:
                    definition = self.table.source.definition(name)
                    one, config = self.table.definitions[name], self._configs.get(name)
                    assert config is not None  # else nothing would be chosen
                    made = Dispatcher(
                        definition,
                        TableResolver(definition, one, self.builds, config),
                        config,
                        key_builder=ApplyKeyFactory.specialize(definition),
                        device=self._device,
                        stats=self._counters.setdefault(name, Counters()),
                    )
                except _ANYTHING as error:  # this one only: others still apply
                    self._tell(name, f"{type(error).__name__}: {error}")
            self._dispatchers.setdefault(name, made)
        return self._dispatchers[name]

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return what takes the calls of a point; see `routing.patch_points.Runtime`."""
        dispatcher = self.dispatcher(name)
        if dispatcher is None:
            return None
        if point is None:
            return opaque(dispatcher.call)
        try:
            return bind(dispatcher, point.label, point.signature)
        except ConfigError as error:
            self._tell(f"{name} ({point.label})", error.message)
            return None

    def _tell(self, what: str, why: str) -> None:
        if what not in self.problems:
            self.problems[what] = why
            logger.warning("apply: calls of %s go to the original: %s", what, why)

    def build_ahead(self) -> None:
        """Build the solutions that win most keys, as many as the settings say."""
        wanted: Counter[str] = Counter()
        for name in self.names:
            table, config = self.table.definitions[name], self._configs.get(name)
            assert config is not None  # else nothing would be chosen
            wins = Counter(table.winners)
            if table.best is not None and config.on_miss_policy == "use_def_best":
                wins[table.best] += len(table.choices)
            # Of equals always the same: by name.
            ranked = sorted(wins.items(), key=lambda item: (-item[1], item[0]))
            wanted.update(dict(ranked[: math.ceil(config.aot_ratio * len(ranked))]))
        names = [solution for solution, _ in wanted.most_common()]
        failures = [(name, error) for name, error in self.builds.ahead(names) if error is not None]
        if failures:
            logger.warning(
                "apply: %d of %d solutions cannot be built, such as %s: %s",
                *(len(failures), len(wanted), *failures[0]),
            )


@dataclass
class TableResolver:
    """Finds what is called for a key: by the table, or by the policy for keys not in it."""

    definition: Definition
    table: Candidates
    builds: Builds
    config: ApplyConfig
    targets: dict[str, Target] = field(default_factory=dict)

    def resolve(self, key: Optional[ApplyKey]) -> Optional[Target]:
        """Return what takes calls with a key, built, or None; see `dispatch.Resolver`.

        Raises
        ------
        BuildError
            If the winner cannot be built.
        """
        from flashinfer_bench.apply.dispatch import Target

        assert key is not None
        choices, policy = self.table.choices, self.config.on_miss_policy
        solution = choices.get(key)
        if key not in choices:
            if policy == "use_def_best":
                solution = self.table.best
            elif policy == "nearest":
                near = nearest_key(choices, key, self.config.nearest_ratio)
                solution = None if near is None else choices[near]
            # It may have failed for this very key.
            if solution in self.table.barred.get(key, ()):
                solution = None
        if solution is None:
            return None
        runnable = self.builds.get(solution)
        if solution not in self.targets:
            made = Target.from_runnable(runnable, self.definition, solution)
            self.targets.setdefault(solution, made)
        return self.targets[solution]


def nearest_key(keys: Iterable[ApplyKey], key: ApplyKey, ratio: float) -> Optional[ApplyKey]:
    """Return the one of `keys` that is nearest to `key`, or None.

    A key is near if it has the same axes and the same features, and each axis differs by a factor
    of at most `ratio`. Only 0 is near to a size of 0. The nearest has the smallest product of these
    factors, that is, the smallest sum of distances on logarithmic scales; of equals it is the one
    with the smaller sizes, axis by axis. The order in which keys are given does not matter.

    Parameters
    ----------
    keys : iterable of ApplyKey
        Those that were recorded.
    key : ApplyKey
        That of a call.
    ratio : float
        Factor by which an axis may differ, at least 1.
    """
    from fractions import Fraction  # exact: no two sizes are near by chance

    near = []
    for each in keys:
        pairs = list(zip(key.axes, each.axes, strict=False))
        same_kind = len(key.axes) == len(each.axes) and key.feats == each.feats
        if not same_kind or any(mine[0] != other[0] for mine, other in pairs):
            continue
        sizes = [sorted((mine[1], other[1])) for mine, other in pairs]
        if any(small == 0 < large for small, large in sizes):
            continue
        factors = [Fraction(large, small) for small, large in sizes if small]
        if all(factor <= ratio for factor in factors):
            near.append((math.prod(factors, start=Fraction(1)), each.axes, each))
    return min(near, key=lambda one: one[:2], default=(None, None, None))[2]


# ------------------------------------------------------------------------------------ builds


class Builds:
    """The solutions of a dataset, built by the registry of builders, which keeps what it built.

    Everything may be called from several threads. A solution that cannot be built costs itself
    only; the reason is kept, and it is not tried again on the way of a call.

    Parameters
    ----------
    source : Source
        Has definitions and solutions by name.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        # What makes an exception anew: raising one object again would let its traceback grow, and
        # keep frames and inputs alive.
        self._failures: dict[str, partial[BuildError]] = {}
        self._building: dict[tuple[str, int], bool] = {}  # by solution and thread

    def get(self, solution_name: str, *, again: bool = False) -> Runnable:
        """Return a solution, built.

        Parameters
        ----------
        solution_name : str
            Name of the solution.
        again : bool
            Whether to try again what failed for lack of something on this machine.

        Returns
        -------
        Runnable
            The same object each time, until it is cleaned up.

        Raises
        ------
        BuildError
            If there is no such solution, it cannot be read, or it cannot be built, now or before;
            if this thread is just building it.
        BuildCapabilityError
            If this machine lacks something for it.
        """
        name, this = solution_name, (solution_name, threading.get_ident())
        failure = self._failures.get(name)
        if failure is None or (again and failure.func is BuildCapabilityError):
            if this in self._building:
                # Its module calls, when it is imported, what it is to be substituted for.
                raise BuildError(f"solution {name!r} is needed while it is being built")
            self._building[this] = True
            try:
                from flashinfer_bench.compile import default_registry

                solution = self._source.solution(name)
                definition = self._source.definition(solution.definition)
                built = default_registry().build(definition, solution)
                self._failures.pop(name, None)
                return built
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a builder is a plugin
                failure = self._failures[name] = _failure(name, error)
            finally:
                del self._building[this]
        raise failure()

    def ahead(
        self, names: Iterable[str], jobs: Optional[int] = None
    ) -> Iterator[tuple[str, Optional[Exception]]]:
        """Build several solutions at the same time, the first ones first.

        What failed earlier for lack of something on this machine is tried again. Whoever stops
        iterating, by Ctrl-C for example, begins no further build. One that has begun goes on in a
        thread that keeps nobody waiting, not even the end of the process.

        Parameters
        ----------
        names : iterable of str
            Names of solutions.
        jobs : int, optional
            How many at the same time. Default: one for each core, as far as memory goes.

        Yields
        ------
        (str, Exception or None)
            Each that is done: its name, and why it failed, if it did.

        Raises
        ------
        ConfigError
            If `jobs` is not allowed.
        """
        from flashinfer_bench.compile.machine import in_threads

        wanted = dict.fromkeys(names)
        if jobs is not None and (type(jobs) is not int or jobs < 1):
            raise ConfigError(
                f"jobs={jobs!r} is not allowed; give a whole number, 1 or more, or None"
            )
        if jobs is None and len(wanted) > 1:
            from flashinfer_bench.bench.pool import default_jobs

            jobs = default_jobs()
        return in_threads(self._attempt, wanted, jobs or 1)

    def _attempt(self, name: str) -> Optional[Exception]:
        try:
            self.get(name, again=True)
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            return error
        except BaseException as error:  # noqa: BLE001 - a module may raise KeyboardInterrupt, too
            self._failures[name] = _failure(name, error)
            return self._failures[name]()
        return None

    @property
    def failed(self) -> dict[str, str]:
        """Why each solution that could not be built could not, by name."""
        return {name: failure.args[0] for name, failure in dict(self._failures).items()}


def _failure(name: str, error: BaseException) -> partial[BuildError]:
    if isinstance(error, (BuildError, StorageError)):
        lacking = isinstance(error, (BuildCapabilityError, StorageError))
        kind = BuildCapabilityError if lacking else BuildError
        return partial(kind, error.message, hint=error.hint, log=getattr(error, "log", ""))
    if isinstance(error, FibError):  # of the source
        message = f"solution {name!r} cannot be read: {error.message}"
        return partial(BuildError, message, hint=error.hint)
    message = f"solution {name!r} cannot be built: {type(error).__name__}: {error}"
    return partial(BuildError, message, log="".join(traceback.format_exception(error)))
