"""Mapping mode: one chosen solution per definition instead of the best recorded ones.

``enable_apply({"rmsnorm_h4096": my_rmsnorm})`` routes every call of that definition to
``my_rmsnorm``: calls of decorated functions, and of functions that an adapter has wrapped.
`conventions` maps the arguments of the function to those of the definition, and delivers the
outputs the way the function would.

If a dataset provides the definition, its dispatcher first checks dtypes, devices, constant axes and
layouts, as for recorded solutions. Otherwise the definition of a solution is derived from the first
call, by the library's description of the function; a callable is matched by the definition's name
alone.

Errors are not hidden: if a solution cannot be built, raises, or returns invalid outputs, the
program gets the exception. Calls that do not match go to the original, and are counted.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.apply.config import ApplyConfig, as_registry
from flashinfer_bench.apply.conventions import Convention, bind
from flashinfer_bench.apply.dispatch.stats import OUTPUTS, REENTRANT, Counters
from flashinfer_bench.apply.runtime import BaseRuntime
from flashinfer_bench.apply.wrappers import returns_later
from flashinfer_bench.errors import (
    BuildCapabilityError,
    BuildError,
    ConfigError,
    DataError,
    DatasetNotFoundError,
    DuplicateNameError,
)
from flashinfer_bench.routing.binding import Canonical
from flashinfer_bench.routing.patch_manager import UnroutableError
from flashinfer_bench.routing.patch_points import Everything, no_fallback, opaque, router

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from flashinfer_bench.apply.conventions import Takes
    from flashinfer_bench.apply.dispatch import Dispatcher, Target
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.table import Config
    from flashinfer_bench.data import Definition, Solution, TraceSet
    from flashinfer_bench.routing.patch_points import Args, Call, Fallback, Kwargs, PatchPoint
    from flashinfer_bench.routing.routes import Made

    Value = Union[Callable[..., Any], Solution, str, Path]
    Dataset = Union[TraceSet, str, Path, None]
    Take = Callable[[Args, Kwargs, Fallback], Any]
    """Answers a call, or raises an `UnroutableError` with the reason.

    It does not call the object that it receives as the original.
    """

logger = logging.getLogger(__name__)

_NOT_MAPPED = "not in the mapping"
_SIGNATURE = "signature"  # no call of that function can match the definition
_ALLOWED = "a callable, a Solution, or the path of a solution's JSON file"
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# ------------------------------------------------------------------------------------- candidates


@dataclass(frozen=True)
class Candidate:
    """The solution chosen for a definition.

    Parameters
    ----------
    definition : str
        Name of the definition.
    function : callable, optional
        A user's function, called with keyword arguments.
    solution : Solution, optional
        Set if there is no function.
    """

    definition: str
    function: Optional[Callable[..., Any]] = None
    solution: Optional[Solution] = None

    @property
    def name(self) -> str:
        """Name used in messages."""
        if self.solution is not None:
            return self.solution.name
        function: Any = self.function
        return str(getattr(function, "__qualname__", None) or type(function).__qualname__)

    @property
    def takes(self) -> Takes:
        """Parameters of a function, in order, and whether each is required; None if unknown."""
        signature = _signature_of(self.function)
        parameters = signature.parameters.values() if signature is not None else ()
        if signature is None or any(each.kind is each.VAR_KEYWORD for each in parameters):
            return None
        by_name = [each for each in parameters if each.kind in _BY_KEYWORD]
        return {each.name: each.default is each.empty for each in by_name}

    def check(self, definition: Optional[Definition]) -> None:
        """Check that it can be called for its definition, which is None if unknown.

        Raises
        ------
        ConfigError
            If it cannot; the message names the input or the parameter.
        """
        signature = _signature_of(self.function)
        if definition is None or signature is None:
            return
        try:
            signature.bind(**dict.fromkeys(definition.inputs))
        except TypeError as error:
            raise ConfigError(
                f"{self.name}{signature} cannot be called with the inputs of definition "
                f"'{definition.name}' ({', '.join(definition.inputs)}): {error}",
                hint="name its parameters as the definition names the inputs; others need defaults",
            ) from None


def _signature_of(function: Optional[Callable[..., Any]]) -> Optional[inspect.Signature]:
    try:
        return None if function is None else inspect.signature(function)
    except (ValueError, TypeError):  # compiled functions and some callables have no signature
        return None


def _candidate(name: Any, value: Any) -> Candidate:
    from flashinfer_bench.data import Solution
    from flashinfer_bench.data.json_codec import decode

    if not isinstance(name, str) or not name:
        raise ConfigError(f"{name!r} is not a definition name; the keys of a mapping are names")
    path = Path(value) if isinstance(value, (str, os.PathLike)) else None
    solution = value if path is None else _read_solution(path)
    if all(hasattr(value, field) for field in ("to_dict", "definition", "spec", "sources")):
        solution = decode(Solution, json.dumps(value.to_dict()).encode())  # FlashInfer's
    if isinstance(solution, Solution):
        if solution.definition != name:
            raise DataError(
                f"solution '{solution.name}' is for definition '{solution.definition}', "
                f"not for '{name}'",
                path=path,
                field="definition",
                hint=f"put it under '{solution.definition}', or give one for '{name}'",
            )
        return Candidate(name, solution=solution)
    if not callable(value):
        raise ConfigError(f"the solution of '{name}' is a {type(value).__name__}; give {_ALLOWED}")
    if returns_later(value):
        raise ConfigError(
            f"the solution of '{name}' returns a coroutine or a generator, not outputs",
            hint=f"give {_ALLOWED} that returns the outputs",
        )
    return Candidate(name, function=value)


def _read_solution(path: Path) -> Solution:
    from flashinfer_bench.data import Solution
    from flashinfer_bench.data.json_codec import decode
    from flashinfer_bench.data.loader import unreadable

    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    return decode(Solution, data, path=path)


def _read_folder(folder: Path) -> dict[str, Candidate]:
    """Read all files below ``solutions/`` of a folder: the chosen solution of each definition."""
    from flashinfer_bench.data import layout

    root = folder.expanduser() / layout.SOLUTIONS
    if not root.is_dir():
        raise DatasetNotFoundError(
            f"{root} is not a folder",
            hint="put the chosen solutions, one for each definition, into a folder 'solutions'",
        )
    found: dict[str, Candidate] = {}
    paths: dict[str, Path] = {}
    for path in layout.files(root, ".json"):
        solution = _read_solution(path)
        name = solution.definition
        if paths.setdefault(name, path) is not path:
            raise DuplicateNameError(
                f"definition '{name}' already has a solution: {paths[name]}",
                path=path,
                field="definition",
                hint="remove one of the two: a definition has one solution",
            )
        found[name] = Candidate(name, solution=solution)
    if not found:
        raise DataError(f"there is no solution in {root}", path=root.parent)
    return found


def _find_definitions(names: Iterable[str], *datasets: Dataset) -> dict[str, Definition]:
    """Return each definition from the first dataset that has it, else from the usual dataset."""
    from flashinfer_bench.data import layout
    from flashinfer_bench.data.loader import Problems, load_definitions

    found: dict[str, Definition] = {}
    for dataset in (*(each for each in datasets if each is not None), env.dataset_path()):
        lacking = [name for name in names if name not in found]
        if not lacking:
            break
        definitions: Any = getattr(dataset, "definitions", None)
        if definitions is None:
            root, problems = Path(str(dataset)).expanduser(), Problems("collect")
            if not root.is_dir() and dataset in datasets:
                raise DatasetNotFoundError(f"there is no dataset at {root}")
            definitions = load_definitions(root, problems)
            files = {layout.safe_segment(name) for name in lacking}
            for error in problems.errors:  # other problems are irrelevant here
                if error.path is not None and Path(error.path).stem in files:
                    raise error
        found |= {name: definitions[name] for name in lacking if name in definitions}
    return found


# ------------------------------------------------------------------------------- the runtime


class MappingRuntime(BaseRuntime):
    """Sends calls to the one solution of each definition, while it is active.

    Parameters
    ----------
    candidates : dict of str to Candidate
        By definition name.
    definitions : dict of str to Definition
        The definitions that are known.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings by definition. A mapping is always strict, and compares nothing.

    Raises
    ------
    ConfigError
        If a candidate cannot be used for its definition.
    """

    def __init__(
        self,
        candidates: dict[str, Candidate],
        definitions: dict[str, Definition],
        config: Config = None,
    ) -> None:
        self._candidates = candidates
        self._definitions = definitions
        self._made: dict[str, Made] = {}
        self._configs = as_registry(config)
        self._counters: dict[str, Counters] = {}
        self._called: set[str] = set()
        self._refused: dict[str, bool] = {}  # by label: whether it may match a mapped definition
        # By definition, also if several functions share it: calls that a solution makes itself are
        # not answered. `now` is True while this thread runs the solution.
        self._running = {name: threading.local() for name in candidates}
        for name, candidate in candidates.items():
            candidate.check(definitions.get(name))

    def __repr__(self) -> str:
        return f"<MappingRuntime of {len(self._candidates)} definitions>"

    def start(self) -> MappingRuntime:
        """Become the innermost active runtime, replacing any other mapping.

        Raises
        ------
        ConfigError
            If the definition of a solution is neither known nor can be derived.
        """
        with router.changing:
            if self._candidates:
                router.push(self)
                try:
                    self._require_definitions()
                except ConfigError:
                    router.remove(self)
                    raise
            for other in router.active:  # one inside its `with` body resumes later
                if isinstance(other, MappingRuntime) and other is not self and not other.entered:
                    other.stop()
        return self

    def _require_definitions(self) -> None:
        from flashinfer_bench.routing import installation

        for name, candidate in self._candidates.items():
            if candidate.function is not None or name in self._definitions:
                continue
            problems = {
                p.label: p.lacks(name) for p in router.points() if p.lacks and p.takes(name)
            }
            states = (status.state for status in installation.default().statuses())
            if None in problems.values() or (not problems and "waiting" in states):
                continue
            reasons = [f"{label}: {problem}" for label, problem in problems.items()]
            reason = "; ".join(reasons) or "no function that adapters route can have that name"
            raise _not_known(candidate, reason)

    def __enter__(self) -> MappingRuntime:
        if self._candidates:
            super().__enter__()
        return self

    def stop(self) -> None:
        """Deactivate; log definitions that were never called, because they may be mistakes."""
        if not router.remove(self):
            return
        refused = [point for point in router.points() if self._refused.get(point.label)]
        never = [
            name
            for name in self._candidates
            if name not in self._called and not any(point.takes(name) for point in refused)
        ]
        if never:
            logger.warning("apply: no call of %s was seen while it was mapped", ", ".join(never))

    def refused(self, label: str, reason: str) -> None:
        """Count a library call that its adapter could not match to any definition."""
        if label not in self._refused:
            points = [point for point in router.points() if point.label == label]
            matters = any(point.takes(name) for point in points for name in self._candidates)
            self._refused[label] = matters
        if self._refused[label]:
            counters = self._counters.setdefault(label, Counters())
            counters.miss(reason)
            counters.fallbacks += 1

    @property
    def wrapped(self) -> int:
        """Number of decorated and adapter-wrapped functions whose calls it may answer."""
        return sum(any(map(point.takes, self._candidates)) for point in router.points())

    def names(self) -> Collection[str]:
        """Return a collection of all names: calls of other definitions are counted, too."""
        return Everything(self._candidates)

    def definition(self, name: str) -> Optional[Definition]:
        """Return a definition of the mapping, or None if unknown."""
        return self._definitions.get(name)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the counters of each API that has been called, by name.

        Returns
        -------
        dict of str to dict
            ``hit``: calls that a solution answered. ``fallback``: calls that went to the original,
            and ``misses``: the reasons, as a number by reason. ``error``: calls that raised because
            a solution could not be built, raised, or returned invalid outputs.
        """
        counts = {name: each.snapshot() for name, each in sorted(dict(self._counters).items())}
        return {
            name: {"hit": n.hits, "fallback": n.fallbacks, "error": n.errors, "misses": n.misses}
            for name, n in counts.items()
        }

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return the callable for the calls of a point; see `routing.patch_points.Runtime`."""
        candidate = self._candidates.get(name)
        if candidate is None and (point is None or point.name is not None):
            return None
        label = f"apply({name!r})" if point is None else point.label
        counters = self._counters.setdefault(label, Counters())
        running = self._running.get(name)
        is_routed = point is not None and isinstance(point.signature, Canonical)
        take: Optional[Take] = None

        @opaque
        def call(args: Args, kwargs: Kwargs, fallback: Fallback) -> Any:
            nonlocal take
            if candidate is None or running is None:
                reason = _NOT_MAPPED
            elif getattr(running, "now", False):
                reason = REENTRANT
            else:
                running.now = True
                try:
                    if take is None:  # if two threads compute it, the last one wins
                        self._called.add(name)
                        args = self._define(candidate, args, fallback)
                        dispatcher = self._dispatcher(candidate, label)
                        take = _plan(candidate, label, point, dispatcher, fallback)
                    result = take(args, kwargs, fallback)
                except UnroutableError as error:
                    reason = error.reason
                except Exception:
                    counters.errors += 1
                    raise
                else:
                    counters.hits += 1
                    if is_routed and fallback is not None:
                        again: Any = fallback
                        again.strict = counters
                        if name not in self._definitions:  # its outputs have not been checked
                            again.unseen = True
                    return result
                finally:
                    running.now = False
            counters.miss(reason)
            counters.fallbacks += 1
            if fallback is None:
                why = f"its solution does not handle this call ({reason})"
                raise RuntimeError(no_fallback(name, why))
            return fallback(*args, **(kwargs or {}))

        return call

    def _define(self, candidate: Candidate, args: Args, fallback: Any) -> Args:
        """Derive a solution's definition from its first call; return the inputs of the call."""
        name = candidate.definition
        if candidate.function is not None or name in self._definitions:
            return args
        if not hasattr(fallback, "define"):
            raise _not_known(candidate, "none is made for a decorated function or a single call")
        try:
            made = fallback.define()
        except ConfigError as error:
            raise _not_known(candidate, error.message) from error
        with router.changing:
            self._made.setdefault(name, made)
            self._definitions.setdefault(name, made.definition)
        router.publish(self)  # adapters match calls with it from now on
        return tuple(fallback.understand_anew())

    def _dispatcher(self, candidate: Candidate, label: str) -> Optional[Dispatcher]:
        definition = self._definitions.get(candidate.definition)
        if definition is None:
            return None
        from flashinfer_bench.apply.dispatch import Dispatcher

        given = self._configs.get(definition.name) or ApplyConfig()  # enabled by the mapping itself
        config = replace(given, strict=True, shadow_calls=0, shadow_share=0.0)
        resolver = _Resolver(candidate, label, definition, self._made.get(definition.name))
        # One solution serves all sizes, on any device.
        stats = _Refusing()
        return Dispatcher(definition, resolver, config, key_builder=None, device=None, stats=stats)


def _not_known(candidate: Candidate, reason: str) -> ConfigError:
    return ConfigError(
        f"solution '{candidate.name}' cannot be built: its definition '{candidate.definition}' is "
        f"not known, and cannot be created ({reason})",
        hint="name a dataset that has it (dataset= or FIB_DATASET_PATH), or give a callable",
    )


def _plan(
    candidate: Candidate,
    label: str,
    point: Optional[PatchPoint],
    dispatcher: Optional[Dispatcher],
    original: Fallback,
) -> Take:
    """Return the callable for an API's calls, with their arguments mapped to the definition."""
    signature = None if point is None else point.signature
    function: Any = candidate.function
    if dispatcher is None and signature is None:
        return lambda args, kwargs, _original: function(*args, **(kwargs or {}))
    try:
        if dispatcher is None:
            assert signature is not None
            takes = candidate.takes
            meaning = Convention(label, signature, candidate.definition, None, takes, original)

            def take(args: Args, kwargs: Kwargs, _original: Fallback) -> Any:
                bound = meaning.bind(args, kwargs)
                if bound.buffers:
                    meaning.require_places(bound)
                return meaning.deliver(bound, function(**bound.inputs))

            return take
        definition = dispatcher.definition
        if signature is None and any(spec.param for spec in definition.outputs.values()):
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            names = [inspect.Parameter(name, kind) for name in definition.inputs]
            signature = inspect.Signature(names)
        if signature is None and point is None:
            # A library's arguments may differ; the arguments of apply are the definition's.
            return dispatcher.call
        call: Callable[..., Any] = bind(dispatcher, label, signature, original)
    except ConfigError as error:
        logger.warning("apply: its calls go to the original: %s", error)

        def refuse(_args: Args, _kwargs: Kwargs, _original: Fallback) -> Any:
            raise UnroutableError(_SIGNATURE)

        return refuse
    if isinstance(signature, Canonical):
        return lambda args, _kwargs, original: call(args, None, _Later(original))
    return call


def _parameters_of(solution: Solution) -> set[str]:
    """Return the parameter names of a Python solution's function, without importing it."""
    entry, symbol = solution.get_entry_source(), solution.get_entry_symbol()
    with suppress(SyntaxError, ValueError):  # reported by the build
        for node in reversed(ast.parse("" if entry is None else entry.content).body):
            if isinstance(node, ast.FunctionDef) and node.name == symbol:
                every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                return {each.arg for each in every}
    return set()


class _Refusing(Counters):
    """Counters of a dispatcher that raises on misses: such calls go to the original later."""

    def miss(self, reason: str) -> None:
        """Refuse the call; it is an error if outputs cannot be allocated."""
        if reason == OUTPUTS:
            raise RuntimeError("its outputs cannot be allocated: have the solution return them")
        raise UnroutableError(reason)


class _Later:
    """Stands in for the original in a dispatcher; refuses the calls that a solution cannot answer.

    Parameters
    ----------
    original : callable
        The original in the context of the routed call; may be asked for the outputs of other
        inputs.
    """

    __slots__ = ("_original",)

    def __init__(self, original: Any) -> None:
        self._original = original

    order = property(fset=lambda self, order: setattr(self._original, "order", order))

    def decline(self, reason: str) -> Any:
        raise UnroutableError(reason)

    def outputs(self, *inputs: Any) -> Any:
        """Return the outputs of the definition, computed by the original."""
        return self._original.outputs(*inputs)


@dataclass(frozen=True)
class _Resolver:
    """Returns the one candidate of a definition for all keys."""

    candidate: Candidate
    label: str
    definition: Definition
    made: Optional[Made]

    def resolve(self, _key: Optional[ApplyKey]) -> Target:
        """Return the candidate, built.

        Raises
        ------
        BuildError
            If it cannot be built, or does not accept the inputs.
        """
        from flashinfer_bench.apply.dispatch.target import Target, by_names
        from flashinfer_bench.compile import default_registry

        label = f"{self.candidate.name} (for {self.label})"
        function, solution = self.candidate.function, self.candidate.solution
        if function is not None:
            function = by_names(function, [*self.definition.inputs])
            return Target(function, self.definition, label)
        assert solution is not None
        if self.made is not None:
            return self._build_made(solution, self.made, label)
        runnable = default_registry().build(self.definition, solution)
        return Target.from_runnable(runnable, self.definition, label)

    def _build_made(self, solution: Solution, made: Made, label: str) -> Target:
        """Build a solution that is written for a library function, without a dataset's definition.

        Python functions are called by name with the arguments for which they have parameters;
        compiled code is called by position with all arguments of the library function.
        """
        from flashinfer_bench.apply.dispatch.target import Target, by_names
        from flashinfer_bench.compile import default_registry

        registry, forms = default_registry(), [made.definition]
        if made.fixed and solution.requires_build():
            forms.insert(0, made.full)
        elif asked := _parameters_of(solution) & made.fixed.keys():
            inputs = {
                n: spec for n, spec in made.full.inputs.items() if n not in made.fixed or n in asked
            }
            forms = [made.full.model_copy(update={"inputs": inputs})]
        failure: Optional[BuildError] = None
        for form in forms:
            try:
                runnable = registry.build(form, solution)
                break
            except BuildCapabilityError:
                raise
            except BuildError as error:  # the first error is about the preferred form
                failure = failure or error
        else:
            assert failure is not None
            raise failure
        target = Target.from_runnable(runnable, made.definition, label)
        outputs = [*form.outputs] if target.destination_passing else []
        names, order = [*made.definition.inputs, *outputs], [*form.inputs, *outputs]
        fixed = made.fixed
        signature = _signature_of(target.function) if inspect.isfunction(target.function) else None
        taken = {} if signature is None else signature.parameters
        anything = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        known = [each.name for each in taken.values() if each.kind in _BY_KEYWORD]
        if known and (anything or {*names} <= {*known}):
            given = {n: v for n, v in fixed.items() if n in known or (anything and v is not None)}
            if given or [*taken][: len(names)] != names:
                target.function = by_names(target.function, names, given)
        elif any(each in order and order.index(each) != i for i, each in enumerate(known)):
            raise BuildError(
                f"solution {solution.name!r} takes {', '.join(known)}, but the inputs of "
                f"{made.definition.name!r} are {', '.join(made.definition.inputs)}",
                hint="name its parameters as the inputs are named",
            )
        elif order != names:
            target.function = by_names(target.function, names, fixed, order)
        return target


# ---------------------------------------------------------------------------------- enabling


class WrappedCount(int):
    """The number of functions whose calls a mapping may answer; also a handle to disable it.

    As a context manager it disables the mapping at the end of the body. It is callable like `apply`
    to answer a single call.

    Attributes
    ----------
    runtime : MappingRuntime
        The enabled runtime.
    """

    runtime: MappingRuntime

    def __new__(cls, runtime: MappingRuntime) -> WrappedCount:
        """Count the functions that `runtime` may serve now."""
        made = super().__new__(cls, runtime.wrapped)
        made.runtime = runtime
        return made

    def __enter__(self) -> WrappedCount:
        self.runtime.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.runtime.__exit__(*error)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call, like `apply`."""
        return self.runtime(*args, **kwargs)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the counters of each API; see `MappingRuntime.stats`."""
        return self.runtime.stats()

    def stop(self) -> None:
        """Disable the mapping."""
        self.runtime.stop()


def enable_mapping(
    mapping: Union[Mapping[str, Value], Path], config: Config = None, *, dataset: Dataset = None
) -> WrappedCount:
    """Route calls to the solutions of a mapping, replacing any active mapping.

    Parameters
    ----------
    mapping : mapping of str to callable, Solution or path, or Path
        The solution of each definition. Or a folder with these in its ``solutions/``; definitions
        in its ``definitions/`` take precedence over those of the dataset.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings; a mapping is always strict, has no misses by size, and compares nothing.
    dataset : TraceSet, str or Path, optional
        Source of definitions; missing ones are taken from the dataset of ``FIB_DATASET_PATH``. A
        callable works without a definition; that of a solution is derived from the first call if
        possible.

    Returns
    -------
    WrappedCount
        The number of functions whose calls it may answer now. An empty mapping enables nothing.

    Raises
    ------
    ConfigError
        If a key or value is invalid, a callable does not accept the inputs of its definition, or
        the definition of a solution is neither known nor can be derived.
    DataError, DatasetNotFoundError
        If a file, or the dataset, cannot be read.
    """
    if isinstance(mapping, Path):
        candidates = _read_folder(mapping)
        definitions = _find_definitions(candidates, mapping, dataset)
    else:
        candidates = {name: _candidate(name, value) for name, value in mapping.items()}
        definitions = _find_definitions(candidates, dataset)
    return WrappedCount(MappingRuntime(candidates, definitions, config).start())


def stats() -> dict[str, Any]:
    """Return the counters of the active runtime; empty if nothing is enabled."""
    top: Any = router.top()
    return dict(top.stats()) if hasattr(top, "stats") else {}
