"""Serve calls with the solutions of a dataset: the runtime that `enable_apply` starts."""

from __future__ import annotations

import inspect
import logging
import math
import os
import threading
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench._lazy import import_provided, old_parameters
from flashinfer_bench.apply.conventions import bind
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    ConfigError,
    FibError,
    StorageError,
)
from flashinfer_bench.routing.patch_points import Everything, Runtime, no_fallback, opaque, router

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from flashinfer_bench.apply.config import ApplyConfig
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


def get_runtime() -> Optional[Runtime]:
    """Return the runtime that answers calls now, or None."""
    router.settle()
    top = router.top()
    return top.dispatcher if isinstance(top, _Dispatching) else top


def set_runtime(rt: Any) -> None:
    """Make `rt` the only active runtime; None deactivates all.

    Parameters
    ----------
    rt : Runtime, object or None
        Any object with ``dispatch(name, args, kwargs, fallback)`` receives all calls of decorated
        functions and of `apply`. In the older form, ``dispatch(name, runtime_kwargs, fallback)``,
        arguments come by name.

    Raises
    ------
    ConfigError
        If it has no such method.
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
    """Passes all calls to an object with a `dispatch` method, without using routes."""

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


# ------------------------------------------------------------------------------------- call forms


def make_call(
    find: Callable[[str], Optional[Call]],
    refusal: Callable[[str], str],
    target: Union[str, Resolver],
    args: Positional,
    kwargs: Named,
    fallback: Fallback,
) -> Any:
    """Make a call in any of its accepted forms.

    Parameters
    ----------
    find : callable
        Returns the callable for a definition; None if there is none.
    refusal : callable
        Returns the message for a call without a callable and without a fallback.
    target : str or callable
        Name of the definition, or a resolver, which receives the arguments.
    args : sequence, mapping or None
        Arguments by position; in the older form ``(name, runtime_kwargs, fallback)``, by name.
    kwargs : mapping, callable or None
        Arguments by name; in the older form, the fallback.
    fallback : callable, optional
        Called instead if necessary. If given, a failing resolver is only logged, once.

    Raises
    ------
    TypeError
        If the arguments have the wrong type.
    ConfigError
        If `target` has the wrong type.
    RuntimeError
        If there is no solution, or the resolver returns no name, and there is no fallback.
    Exception
        Whatever the resolver raises, if there is no fallback.
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
        except Exception as error:
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
    """Answers calls while it is active.

    If several runtimes are active, only the most recently started one is used. As a context manager
    it is active in the body, and the previous runtime is restored afterwards. It is callable like
    `apply`, active or not.
    """

    problems: Mapping[str, str] = {}
    entered = 0  # number of `with` bodies still running

    @property
    def is_active(self) -> bool:
        """Whether it is started and not stopped; an inner runtime may still take precedence."""
        return any(each is self for each in router.active)

    def start(self) -> Any:
        """Become the innermost active runtime; return the runtime itself."""
        router.push(self)
        return self

    def stop(self) -> None:
        """Deactivate; does nothing if it is not active. Running calls continue.

        Raises
        ------
        RuntimeError
            If another runtime was started later and is still active.
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
        except RuntimeError:  # another runtime was started in the body or in another thread
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
            Name of the definition.
        args : sequence
            Inputs in declaration order, or inputs and outputs. In the older form, ``dispatch(name,
            runtime_kwargs, fallback)``, a mapping.
        kwargs : mapping, optional
            Arguments by their names in the definition.
        fallback : callable, optional
            Called with the same arguments if there is no solution.

        Raises
        ------
        RuntimeError
            If there is neither a solution nor a fallback.
        ValueError
            If the number of arguments matches neither the inputs nor the inputs and outputs.
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
        """Answer one call, like `apply`."""

        def find(name: str) -> Optional[Call]:
            return router.call_of(name) if router.top() is self else self.route(name, None)

        def refusal(name: str) -> str:
            reason = self.problems.get(name, f"{self!r} has nothing to substitute for it")
            return no_fallback(name, reason)

        return make_call(find, refusal, name_or_resolver, args, kwargs, fallback)


# ---------------------------------------------------------------------------------- datasets


class ApplyRuntime(BaseRuntime):
    """Sends calls to the best solutions of a dataset, while it is active.

    If several runtimes are active, only the most recently started one is used. As a context manager
    it is active in the body, and the previous runtime is restored afterwards. It is callable like
    `apply`: it answers from its own dataset, active or not.

    Parameters
    ----------
    trace_set : TraceSet, str or Path, optional
        The dataset, or its folder; default: ``FIB_DATASET_PATH``.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings for all definitions, or by definition. Default: `get_default_registry`.
    device : str or torch.device, optional
        Device of the tensors of calls: ``cpu``, ``cuda`` or ``cuda:N``. Records of its hardware are
        used. Calls on other devices go to the original, except on GPUs of the same name. Default:
        the current GPU if there is one, else the CPU.

    Raises
    ------
    DatasetNotFoundError, DataError
        If the dataset does not exist or is not valid. Invalid files in it, and solutions that
        cannot be built, are skipped; `problems` gives the reasons.
    ConfigError
        If the settings are invalid.
    CapabilityError
        If the device does not exist.
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

        table = ApplyTable.load_or_build(dataset, config, hardware=this_hardware(self._device))
        generation = Generation(table, self._device, self._counters)
        generation.build_ahead()
        return generation

    @old_parameters
    def rebuild(self, trace_set: Optional[Dataset] = None, config: Config = None) -> None:
        """Read the dataset again, and use its current content.

        Calls continue meanwhile: each is answered entirely by the old or entirely by the new
        content. If reading fails, nothing changes.

        Parameters
        ----------
        trace_set : TraceSet, str or Path, optional
            A different dataset to use from now on.
        config : ApplyConfig or ApplyConfigRegistry, optional
            Different settings to use from now on.

        Raises
        ------
        DatasetNotFoundError, DataError, ConfigError
            As for the class.
        """
        with router.changing:
            dataset = self._dataset if trace_set is None else trace_set
            settings = self._config if config is None else config
            generation = self._load(dataset, settings)
            self._dataset, self._config, self._generation = dataset, settings, generation
            router.publish(self)

    def names(self) -> Collection[str]:
        """Return the definitions that have at least one solution to substitute."""
        return self._generation.names

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return the callable for the calls of a point; see `routing.patch_points.Runtime`."""
        return self._generation.route(name, point)

    def definition(self, name: str) -> Optional[Definition]:
        """Return the definition of that name if it has a solution to substitute, else None."""
        return self._generation.table.source.definition(name) if name in self.names() else None

    @property
    def problems(self) -> dict[str, str]:  # type: ignore[override]
        """Reasons why definitions, decorated functions and solutions are not used, by name."""
        return {**self._generation.problems, **self._generation.builds.failed}

    def stats(self) -> dict[str, Stats]:
        """Return hits, fallbacks, errors and misses with their reasons, by definition."""
        return {name: each.snapshot() for name, each in sorted(dict(self._counters).items())}

    def explain(self, name: str, axes: Optional[Mapping[str, int]] = None) -> dict[str, Any]:
        """Return the solutions chosen for a definition, and why others were not.

        Reads the dataset again.

        Parameters
        ----------
        name : str
            Name of the definition.
        axes : mapping of str to int, optional
            Restrict the result to these sizes.

        Raises
        ------
        UnknownNameError
            If the definition does not exist.
        ImportError
            If the distribution ``fib-report``, which provides the explanation, is not installed.
        """
        explain = import_provided("fib_report.apply_choices", "ApplyRuntime.explain").explain

        hardware = self._generation.table.hardware
        found: dict[str, Any]
        found = explain(self._dataset, name, self._config, hardware=hardware, axes=axes)
        return found


class Generation:
    """The content of a runtime between two rebuilds: one table and its dispatchers.

    The dispatcher of a definition is created on its first call. A generation is never closed:
    running calls keep it and its builds alive.

    Parameters
    ----------
    table : ApplyTable
        The solutions to substitute, and the settings of the safeguards.
    device : str
        Device of the tensors of calls: ``cpu``, or ``cuda:N`` for that GPU and others of the same
        name.
    counters : dict of str to Counters
        Counters of the previous generation, which are continued.
    """

    def __init__(self, table: ApplyTable, device: str, counters: dict[str, Counters]) -> None:
        self.table = table
        self.builds = Builds(table.source)
        self.names = frozenset(
            name for name, each in table.definitions.items() if each.choices or each.best
        )
        self.problems: dict[str, str] = {}
        self._device = device
        self._counters = counters
        self._dispatchers: dict[str, Optional[Dispatcher]] = {}

    def dispatcher(self, name: str) -> Optional[Dispatcher]:
        """Return the dispatcher of a definition, or None if there cannot be one.

        All threads get the same object; two may exist briefly during creation.
        """
        if name in self.names and name not in self._dispatchers:
            made = None
            try:
                made = self._make_dispatcher(name)
            except Exception as error:  # noqa: BLE001 - affects only this definition
                self._tell(name, f"{type(error).__name__}: {error}")
            self._dispatchers.setdefault(name, made)
        return self._dispatchers.get(name)

    def _make_dispatcher(self, name: str) -> Dispatcher:
        from flashinfer_bench.apply.dispatch import Counters, Dispatcher
        from flashinfer_bench.apply.keys import ApplyKeyFactory

        definition, config = self.table.source.definition(name), self.table.configs.get(name)
        assert config is not None  # otherwise nothing would be chosen
        return Dispatcher(
            definition,
            TableResolver(definition, self.table.definitions[name], self.builds, config),
            config,
            key_builder=ApplyKeyFactory.specialize(definition),
            device=self._device,
            stats=self._counters.setdefault(name, Counters()),
        )

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return the callable for the calls of a point; see `routing.patch_points.Runtime`."""
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
        """Build the solutions that win most keys, as many as the settings specify."""
        wanted: Counter[str] = Counter()
        for name in self.names:
            table, config = self.table.definitions[name], self.table.configs.get(name)
            assert config is not None  # otherwise nothing would be chosen
            wins = Counter(table.winners)
            if table.best is not None and config.on_miss_policy == "use_def_best":
                wins[table.best] += len(table.choices)
            # Break ties by name.
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
    """Finds the target for a key: from the table, or by the policy for keys not in it."""

    definition: Definition
    table: Candidates
    builds: Builds
    config: ApplyConfig

    def resolve(self, key: Optional[ApplyKey]) -> Optional[Target]:
        """Return the built target for a key, or None; see `dispatch.Resolver`.

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
            # It may be the solution that failed for this key.
            if solution in self.table.barred.get(key, ()):
                solution = None
        if solution is None:
            return None
        return Target.from_runnable(self.builds.get(solution), self.definition, solution)


def nearest_key(keys: Iterable[ApplyKey], key: ApplyKey, ratio: float) -> Optional[ApplyKey]:
    """Return the element of `keys` nearest to `key`, or None.

    A key is a candidate if it has the same axes and features, and each axis differs by a factor of
    at most `ratio`. A size of 0 only matches 0. The nearest key has the smallest product of these
    factors, that is, the smallest sum of distances on logarithmic scales; ties go to the smaller
    sizes, axis by axis. The order of `keys` does not matter.

    Parameters
    ----------
    keys : iterable of ApplyKey
        The recorded keys.
    key : ApplyKey
        The key of a call.
    ratio : float
        Maximum factor by which an axis may differ, at least 1.
    """
    from fractions import Fraction  # exact: no ties by rounding

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
    """Solutions of a dataset, built and cached by the registry of builders.

    Thread-safe. A solution that cannot be built does not affect others; the reason is stored, and
    it is not tried again during calls.

    Parameters
    ----------
    source : Source
        Provides definitions and solutions by name.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        # Factories of exceptions: raising the same object again would let its traceback grow, and
        # keep frames and inputs alive.
        self._failures: dict[str, partial[BuildError]] = {}
        self._building: dict[tuple[str, int], bool] = {}  # by solution and thread

    def get(self, solution_name: str, *, again: bool = False) -> Runnable:
        """Return a built solution.

        Parameters
        ----------
        solution_name : str
            Name of the solution.
        again : bool
            Whether to retry a build that failed because this machine lacked something.

        Returns
        -------
        Runnable
            The same object each time, until it is cleaned up.

        Raises
        ------
        BuildError
            If the solution does not exist, cannot be read, or could not be built now or earlier; or
            if this thread is currently building it.
        BuildCapabilityError
            If this machine lacks something that the build needs.
        """
        name, this = solution_name, (solution_name, threading.get_ident())
        failure = self._failures.get(name)
        if failure is None or (again and failure.func is BuildCapabilityError):
            if this in self._building:
                # On import its module calls the function that it is to replace.
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
        """Build several solutions concurrently, in the given order.

        Builds that failed earlier because this machine lacked something are retried. When the
        caller stops iterating, for example on Ctrl-C, no further build is started. Builds in
        progress finish in daemon threads, which do not delay the end of the process.

        Parameters
        ----------
        names : iterable of str
            Names of solutions.
        jobs : int, optional
            Number of concurrent builds. Default: one per core, as far as memory allows.

        Yields
        ------
        (str, Exception or None)
            Each finished solution: its name, and the error, if any.

        Raises
        ------
        ConfigError
            If `jobs` is invalid.
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
        except Exception as error:  # noqa: BLE001 - returned to the caller
            return error
        except BaseException as error:  # noqa: BLE001 - a module may raise KeyboardInterrupt, too
            self._failures[name] = _failure(name, error)
            return self._failures[name]()
        return None

    @property
    def failed(self) -> dict[str, str]:
        """The reason of each failed build, by solution name."""
        return {name: failure.args[0] for name, failure in dict(self._failures).items()}


def _failure(name: str, error: BaseException) -> partial[BuildError]:
    if isinstance(error, (BuildError, StorageError)):
        lacking = isinstance(error, (BuildCapabilityError, StorageError))
        kind = BuildCapabilityError if lacking else BuildError
        return partial(kind, error.message, hint=error.hint, log=getattr(error, "log", ""))
    if isinstance(error, FibError):  # raised by the source
        message = f"solution {name!r} cannot be read: {error.message}"
        return partial(BuildError, message, hint=error.hint)
    message = f"solution {name!r} cannot be built: {type(error).__name__}: {error}"
    return partial(BuildError, message, log="".join(traceback.format_exception(error)))
