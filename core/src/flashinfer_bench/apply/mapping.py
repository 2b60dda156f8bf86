"""Mapping mode: one chosen solution for each definition, instead of the best recorded ones.

``enable_apply({"rmsnorm_h4096": my_rmsnorm})`` routes every call of that definition to
``my_rmsnorm``: calls of decorated functions, and of the functions that an adapter has wrapped.
Whatever is called differently in the definition and in the function is told apart by
`conventions`; outputs are put where the function would have put them.

Where the definition is known, from a dataset, its dispatcher looks at dtypes, devices, constant
axes and layouts first, as for recorded solutions. Where it is not, the name alone decides.

Nothing is hidden: a solution that cannot be built, raises, or returns something else than it
should, raises in the program. What was not meant for it goes to the original, and is counted.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from dataclasses import dataclass, replace
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.apply import runtime
from flashinfer_bench.apply.config import ApplyConfig, as_registry
from flashinfer_bench.apply.conventions import ARGUMENTS, Convention
from flashinfer_bench.apply.dispatch.stats import REENTRANT, Counters
from flashinfer_bench.apply.runtime import BaseRuntime
from flashinfer_bench.apply.wrappers import returns_later
from flashinfer_bench.errors import ConfigError, DataError, DatasetNotFoundError, DuplicateNameError
from flashinfer_bench.routing.binding import Canonical, reordered
from flashinfer_bench.routing.patch_manager import UnroutableError
from flashinfer_bench.routing.patch_points import Everything, no_fallback, opaque, router

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from flashinfer_bench.apply.conventions import Bound, Takes
    from flashinfer_bench.apply.dispatch import Target
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.table import Config
    from flashinfer_bench.data import Definition, Solution, TraceSet
    from flashinfer_bench.routing.patch_points import Args, Call, Fallback, Kwargs, PatchPoint

    Value = Union[Callable[..., Any], Solution, str, Path]
    Dataset = Union[TraceSet, str, Path, None]
    Take = Callable[[Args, Kwargs, Fallback], Any]
    """Answers a call, or refuses it by an `UnroutableError` that says why.

    What it is told as the original, it does not call.
    """

logger = logging.getLogger(__name__)

_NOT_MAPPED = "not in the mapping"
_SIGNATURE = "signature"  # no call of that function can be of the definition
_ALLOWED = "a callable, a Solution, or the path of a solution's JSON file"
_ANYTHING = (Exception,)
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# ------------------------------------------------------------------------- what is to be run


@dataclass(frozen=True)
class Candidate:
    """What is to be run for a definition.

    Parameters
    ----------
    definition : str
        Name of the definition.
    function : callable, optional
        A function of the user, called by keyword.
    solution : Solution, optional
        If there is no function.
    """

    definition: str
    function: Optional[Callable[..., Any]] = None
    solution: Optional[Solution] = None

    @property
    def name(self) -> str:
        """What it is called in messages."""
        if self.solution is not None:
            return self.solution.name
        function: Any = self.function
        return str(getattr(function, "__qualname__", None) or type(function).__qualname__)

    @property
    def takes(self) -> Takes:
        """What a function takes by name, in order, and whether it needs it; None if not known."""
        signature = _signature_of(self.function)
        parameters = signature.parameters.values() if signature is not None else ()
        if signature is None or any(each.kind is each.VAR_KEYWORD for each in parameters):
            return None
        by_name = [each for each in parameters if each.kind in _BY_KEYWORD]
        return {each.name: each.default is each.empty for each in by_name}

    def check(self, definition: Optional[Definition]) -> None:
        """Check that it can be run for its definition, None if that is not known.

        Raises
        ------
        ConfigError
            If it cannot; the message names the input or the parameter.
        """
        if self.function is None and definition is None:
            raise ConfigError(
                f"solution '{self.name}' cannot be built: its definition '{self.definition}' is "
                "not known",
                hint="name a dataset with it by dataset= or FIB_DATASET_PATH, or give a callable",
            )
        signature = _signature_of(self.function)
        if definition is None or signature is None:
            return
        try:
            signature.bind(**dict.fromkeys(definition.inputs))
        except TypeError as error:
            raise ConfigError(
                f"{self.name}{signature} cannot be called with the inputs of definition "
                f"'{definition.name}' ({', '.join(definition.inputs)}): {error}",
                hint="name its parameters as the definition names the inputs; further ones need a "
                "default",
            ) from None


def _signature_of(function: Optional[Callable[..., Any]]) -> Optional[inspect.Signature]:
    try:
        return None if function is None else inspect.signature(function)
    except (ValueError, TypeError):  # compiled functions and some callable objects do not tell
        return None


def _candidate(name: Any, value: Any) -> Candidate:
    from flashinfer_bench.data import Solution

    if not isinstance(name, str) or not name:
        raise ConfigError(f"{name!r} is no name of a definition; the keys of a mapping are names")
    path = Path(value) if isinstance(value, (str, os.PathLike)) else None
    solution = value if path is None else _read_solution(path)
    if isinstance(solution, Solution):
        if solution.definition != name:
            raise DataError(
                f"solution '{solution.name}' is one of definition '{solution.definition}', "
                f"not of '{name}'",
                path=path,
                field="definition",
                hint=f"put it under '{solution.definition}', or take one of '{name}'",
            )
        return Candidate(name, solution=solution)
    if not callable(value):
        raise ConfigError(f"the solution of '{name}' is a {type(value).__name__}; give {_ALLOWED}")
    if returns_later(value):
        raise ConfigError(
            f"the solution of '{name}' returns a coroutine or a generator, and no outputs",
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
            f"{root} is no folder",
            hint="put the chosen solutions, one for each definition, into a folder 'solutions'",
        )
    found: dict[str, Candidate] = {}
    paths: dict[str, Path] = {}
    for path in layout.files(root, ".json"):
        solution = _read_solution(path)
        name = solution.definition
        if paths.setdefault(name, path) is not path:
            raise DuplicateNameError(
                f"there is another solution for definition '{name}': {paths[name]}",
                path=path,
                field="definition",
                hint="remove one of the two: there is one solution for each definition",
            )
        found[name] = Candidate(name, solution=solution)
    if not found:
        raise DataError(f"there is no solution in {root}", path=root.parent)
    return found


def _find_definitions(names: Iterable[str], *datasets: Dataset) -> dict[str, Definition]:
    """Return each definition from the first dataset that has it, or else from the usual one."""
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
            for error in problems.errors:  # others do not matter here
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
        By name of the definition.
    definitions : dict of str to Definition
        Those that are known.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings of the definitions. A mapping is always strict, and compares nothing.

    Raises
    ------
    ConfigError
        If a candidate cannot be one of its definition.
    """

    def __init__(
        self,
        candidates: dict[str, Candidate],
        definitions: dict[str, Definition],
        config: Config = None,
    ) -> None:
        self._candidates = candidates
        self._definitions = definitions
        self._configs = as_registry(config)
        self._counters: dict[str, Counters] = {}
        self._called: set[str] = set()
        # By definition, also where several functions are of it: what a solution calls itself is not
        # taken. `now` says whether this thread is in it.
        self._running = {name: threading.local() for name in candidates}
        for name, candidate in candidates.items():
            candidate.check(definitions.get(name))

    def __repr__(self) -> str:
        return f"<MappingRuntime of {len(self._candidates)} definitions>"

    def start(self) -> MappingRuntime:
        """Become the innermost active runtime, in the place of another mapping."""
        with runtime.changing:
            self.stop_others()
            router.push(self)
        return self

    def stop_others(self) -> None:
        """Stop other mappings; one whose body has not ended yet is back when this one stops."""
        for other in router.active:
            if isinstance(other, MappingRuntime) and other is not self and not other.entered:
                other.stop()

    def stop(self) -> None:
        """Be active no more; what no call has asked for is logged, as it may be a mistake."""
        if not router.remove(self):
            return
        if never := [name for name in self._candidates if name not in self._called]:
            logger.warning("apply: there was no call of %s while it was mapped", ", ".join(never))

    @property
    def wrapped(self) -> int:
        """How many decorated functions and adapters' functions there are that it may take."""
        return sum(
            point.name in self._candidates
            if point.name is not None
            else any(point.could_be is None or point.could_be(name) for name in self._candidates)
            for point in router.points()
            if self._candidates  # else not even those of which any call may be of any definition
        )

    def names(self) -> Collection[str]:
        """Return every name: calls of other definitions are counted, too."""
        return Everything(self._candidates)

    def definition(self, name: str) -> Optional[Definition]:
        """Return a definition of the mapping, if it is known."""
        return self._definitions.get(name)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return the counters of each API that has been called, by its name.

        Returns
        -------
        dict of str to dict
            ``hit``: calls that a solution answered. ``fallback``: calls that went to the original,
            and ``misses``: why, as a number by reason. ``error``: calls in which a solution could
            not be built, raised, or returned something else than it should; they raised.
        """
        found = {}
        for name, one in sorted(self._counters.items()):
            own = one.snapshot()
            counts = {"hit": own.hits, "fallback": own.fallbacks, "error": own.errors}
            found[name] = {**counts, "misses": own.misses}
        return found

    def route(self, name: str, point: Optional[PatchPoint]) -> Optional[Call]:
        """Return what takes the calls of a point; see `routing.patch_points.Runtime`."""
        candidate = self._candidates.get(name)
        if candidate is None and (point is None or point.name is not None):
            return None
        label = f"apply({name!r})" if point is None else point.label
        counters = self._counters.setdefault(label, Counters())
        definition, running = self._definitions.get(name), self._running.get(name)
        given = self._configs.get(name) or ApplyConfig()  # it is wanted: the mapping says so
        config = replace(given, strict=True, shadow_calls=0, shadow_share=0.0)
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
                    if take is None:  # of two threads that work it out, the last one counts
                        self._called.add(name)
                        dispatched = None
                        if definition is not None:
                            dispatched = _Dispatched(candidate, label, definition, config)
                        take = _plan(candidate, label, point, dispatched, fallback)
                    result = take(args, kwargs, fallback)
                except UnroutableError as error:
                    reason = error.reason
                except _ANYTHING:
                    counters.error()
                    raise
                else:
                    counters.hits += 1
                    if is_routed and fallback is not None:
                        again: Any = fallback
                        again.strict = True
                        if definition is None:  # nobody has looked at what it returned
                            again.blame = counters.error_after_all
                    return result
                finally:
                    running.now = False
            counters.miss(reason)
            counters.fallback()
            if fallback is None:
                why = f"the call is not what its solution is for ({reason})"
                raise RuntimeError(no_fallback(name, why))
            return fallback(*args, **(kwargs or {}))

        return call


def _plan(
    candidate: Candidate,
    label: str,
    point: Optional[PatchPoint],
    dispatched: Optional[_Dispatched],
    original: Fallback,
) -> Take:
    """Work out what the calls of an API mean."""
    signature = None if point is None else point.signature
    function: Any = candidate.function
    layout = None if dispatched is None else dispatched.layout
    if dispatched is None:
        if signature is None:
            return lambda args, kwargs, _original: function(*args, **(kwargs or {}))
        compute: Callable[[Bound], Any] = lambda bound: function(**bound.inputs)  # noqa: E731
    else:
        compute, inputs = dispatched.run, list(dispatched.layout.definition.inputs)
        if signature is None:
            if all(spec.param is None for spec in dispatched.layout.definition.outputs.values()):
                # A library's own arguments may be others; apply has been given the definition's.
                return dispatched.take if point is None else dispatched.take_all
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            signature = inspect.Signature([inspect.Parameter(name, kind) for name in inputs])
    try:
        if dispatched is not None and isinstance(signature, Canonical):
            call: Callable[..., Any] = reordered(dispatched.call, signature, inputs)
            return lambda args, _kwargs, original: call(args, None, _Later(original))
        takes = None if dispatched is not None else candidate.takes
        meaning = Convention(label, signature, candidate.definition, layout, takes, original)
    except ConfigError as error:
        logger.warning("apply: its calls go to the original: %s", error)

        def refuse(_args: Args, _kwargs: Kwargs, _original: Fallback) -> Any:
            raise UnroutableError(_SIGNATURE)

        return refuse
    usual = None if point is None or dispatched is None else meaning.usual_call()
    count, idle = usual or (0, ())
    direct = dispatched.call if dispatched is not None and usual is not None else None

    def take(args: Args, kwargs: Kwargs, _original: Fallback) -> Any:
        # A default that is an equal, but another object, is found out the long way.
        if direct is not None and not kwargs and all(map(is_, args[count:], idle)):
            return direct(args[:count])
        bound = meaning.bind(args, kwargs)
        return meaning.deliver(bound, compute(bound))

    return take


class _Refusing(Counters):
    """What a dispatcher counts misses with here: such calls go to the original later."""

    def miss(self, reason: str) -> None:
        """Refuse the call."""
        raise UnroutableError(reason)


class _Later:
    """Stands for the original of a routed call in a dispatcher, which refuses what it cannot take.

    Parameters
    ----------
    original : callable
        What stands for it in the routed call: may be asked for the outputs of other inputs.
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


class _Dispatched:
    """Runs a candidate behind the dispatcher of its definition, wherever the tensors are."""

    def __init__(
        self,
        candidate: Candidate,
        label: str,
        definition: Definition,
        config: ApplyConfig,
    ) -> None:
        from flashinfer_bench.apply.dispatch import Dispatcher

        self._label = f"{candidate.name} (for {label})"
        self._candidate = candidate
        self._definition = definition
        self._target: Optional[Target] = None
        # There is one solution for all sizes.
        made = Dispatcher(
            definition, self, config, key_builder=None, device=None, stats=_Refusing()
        )
        self.layout, self.call, self._accepts = made.layout, made.call, made.accepts

    def resolve(self, key: Optional[ApplyKey]) -> Target:
        """Return the candidate, built at the first time: it is the one for all keys.

        Raises
        ------
        BuildError
            If it cannot be built.
        """
        from flashinfer_bench.apply.dispatch.target import Target, by_names

        if self._target is None:
            function, solution = self._candidate.function, self._candidate.solution
            if function is not None:
                function = by_names(function, [*self._definition.inputs])
                self._target = Target(function, self._definition, self._label)
            else:
                from flashinfer_bench.compile import default_registry

                assert solution is not None
                runnable = default_registry().build(self._definition, solution)
                self._target = Target.from_runnable(runnable, self._definition, self._label)
        return self._target

    def take(self, args: Args, kwargs: Kwargs, _original: Fallback) -> Any:
        """Answer a call with the arguments of the definition."""
        return self.call(args, kwargs)

    def take_all(self, args: Args, kwargs: Kwargs, _original: Fallback) -> Any:
        """Answer a call with all arguments of the definition, and refuse any other."""
        inputs, named = list(self._definition.inputs), kwargs or {}
        for names in ([*inputs, *self._definition.outputs], inputs):
            if len(args) + len(named) == len(names) and named.keys() == {*names[len(args) :]}:
                return self.call(args, kwargs)
        raise UnroutableError(ARGUMENTS)

    def run(self, bound: Bound) -> Any:
        """Return the outputs of a call."""
        args, places = tuple(bound.inputs.values()), tuple(bound.buffers.values())
        direct = self._target is not None and self._target.destination_passing
        # What is refused with these buffers may do without, which is asked, and counted, once.
        direct = direct and [*bound.buffers] == [*range(len(self.layout.outputs))]
        if direct and self._accepts(*args, *places):
            self.call((*args, *places))
            return places
        return self.call(args)


# ---------------------------------------------------------------------------------- enabling


class WrappedCount(int):
    """How many functions a mapping may take calls of; and the handle of what was enabled.

    As a context manager it disables the mapping at the end of the body. Called like `apply`, it
    answers one call.

    Attributes
    ----------
    runtime : MappingRuntime
        What was enabled.
    """

    runtime: MappingRuntime

    def __new__(cls, runtime: MappingRuntime) -> WrappedCount:
        """Count what `runtime` may take now."""
        made = super().__new__(cls, runtime.wrapped)
        made.runtime = runtime
        return made

    def __enter__(self) -> WrappedCount:
        self.runtime.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.runtime.__exit__(*error)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call, as `apply` does."""
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
    """Route calls to the solutions of a mapping, in the place of one that is active.

    Parameters
    ----------
    mapping : mapping of str to callable, Solution or path, or Path
        The one solution of each definition. Or a folder that has them in its ``solutions/``;
        definitions in its own ``definitions/`` come before those of the dataset.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings; a mapping is always strict, has no misses by size, and compares nothing.
    dataset : TraceSet, str or Path, optional
        Has definitions; what it lacks is looked for in the dataset of ``FIB_DATASET_PATH``. A
        callable may do without.

    Returns
    -------
    WrappedCount
        How many functions it may take calls of now. An empty mapping enables nothing.

    Raises
    ------
    ConfigError
        If a key or value is not allowed, a callable does not take the inputs of its definition, or
        the definition of a solution is not known.
    DataError, DatasetNotFoundError
        If a file, or the dataset, cannot be read.
    """
    if isinstance(mapping, Path):
        candidates = _read_folder(mapping)
        definitions = _find_definitions(candidates, mapping, dataset)
    else:
        candidates = {name: _candidate(name, value) for name, value in mapping.items()}
        definitions = _find_definitions(candidates, dataset)
    made = MappingRuntime(candidates, definitions, config)
    if candidates:
        made.start()
    else:
        made.stop_others()
    return WrappedCount(made)


def stats() -> dict[str, Any]:
    """Return the counters of what takes calls now; empty if nothing is enabled."""
    top: Any = router.top()
    return dict(top.stats()) if hasattr(top, "stats") else {}
