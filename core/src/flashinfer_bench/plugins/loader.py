"""Loading one plugin: importing it, checking its hooks, and calling them one by one.

Whatever goes wrong costs this plugin alone, and no more of it than necessary. What a step had
already gathered when it failed is dropped, so nothing is ever registered by half.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import fields
from itertools import islice
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import pluggy

from flashinfer_bench.errors import PluginLoadError
from flashinfer_bench.plugins import hookspecs
from flashinfer_bench.plugins._guard import PASSED_ON, full_traceback, one_line
from flashinfer_bench.plugins.records import KINDS, Record, hook_of
from flashinfer_bench.plugins.status import PluginStatus, State

if TYPE_CHECKING:
    from flashinfer_bench.plugins.sources import Source

Hook = Callable[[], Any]

HOOKS = {hook_of(kind): spec for kind, spec in KINDS.items()}
"""Record type of each hook."""

MAX_RECORDS = 1000
"""Records that one hook may return; more come from a generator that does not end."""

HEAVY = ("torch", "numpy", "triton", "tvm_ffi", "flashinfer", "jax", "cupy", "tilelang")
"""Libraries that are too slow to import for a plugin that may not even be used."""


class Loaded:
    """A plugin after the attempt to load it.

    Parameters
    ----------
    source : Source
        Where it comes from.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.records: list[Record] = []
        self.errors: list[BaseException] = []
        self.blocked = False
        self._reasons: list[str] = []
        self._tracebacks: list[str] = []
        self._load_ms = 0.0
        self._heavy: tuple[str, ...] = ()

    def block(self, reason: str) -> None:
        """Note that the user does not want it."""
        self.blocked = True
        self._reasons.append(reason)

    def fail(self, reason: str, error: BaseException, *, raised: bool = True) -> None:
        """Note something that is wrong with it.

        Parameters
        ----------
        reason : str
            Reads on after the plugin's name.
        error : BaseException
            What was raised.
        raised : bool
            Whether the plugin raised it, so that its traceback is of use.
        """
        self._reasons.append(reason)
        self.errors.append(error)
        if raised:
            self._tracebacks.append(full_traceback(error))

    def status(self, refused: Collection[tuple[str, str]] = ()) -> PluginStatus:
        """Return what became of it; `refused` are kind and name of records in a conflict."""
        mine = [(record.kind, record.name) for record in self.records]
        state: State = "blocked" if self.blocked else "broken" if self._reasons else "ok"
        return PluginStatus(
            name=self.source.name,
            distribution=self.source.distribution,
            version=self.source.version,
            target=self.source.target,
            state=state,
            reason="; ".join(self._reasons),
            traceback="\n".join(self._tracebacks),
            records=tuple(key for key in mine if key not in refused),
            load_ms=self._load_ms,
            heavy_imports=self._heavy,
        )

    def run(self) -> None:
        """Import the plugin and gather its records."""
        before = {name for name in HEAVY if name in sys.modules}
        started = time.perf_counter()
        for hook, function in self._hooks().items():
            self.records += self._call(hook, function)
        self._load_ms = (time.perf_counter() - started) * 1e3
        self._heavy = tuple(name for name in HEAVY if name in sys.modules and name not in before)

    def _hooks(self) -> dict[str, Hook]:
        try:
            plugin = self.source.load()
        except PASSED_ON:
            raise
        except BaseException as error:  # noqa: BLE001 - the plugin's code
            self.fail(f"failed to load: {one_line(error)}", error)
            return {}
        try:
            return hooks_of(plugin, self.source.name)
        except PASSED_ON:
            raise
        except _Refused as error:
            self.fail(f"was refused: {error}", error, raised=False)
        except BaseException as error:  # noqa: BLE001 - the plugin's code
            self.fail(f"was refused: {one_line(error)}", error)
        return {}

    def _call(self, hook: str, function: Hook) -> list[Record]:
        try:
            return gather(hook, function)
        except PASSED_ON:
            raise
        except _Refused as error:
            self.fail(str(error), error, raised=False)
        except BaseException as error:  # noqa: BLE001 - the plugin's code
            self.fail(f"raised in {hook}: {one_line(error)}", error)
        return []


class _Refused(PluginLoadError):
    """The plugin does not keep to the rules; it is our own check that raised."""


_FUNCTIONS = (FunctionType, MethodType, staticmethod, classmethod)


class _Manager(pluggy.PluginManager):
    """A plugin manager that looks at attributes without computing them.

    Otherwise registering a module with lazy exports would import all of them.
    """

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if not isinstance(inspect.getattr_static(plugin, name, None), _FUNCTIONS):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def hooks_of(plugin: Any, name: str = "plugin") -> dict[str, Hook]:
    """Return the hook implementations of `plugin`.

    Parameters
    ----------
    plugin : object
        A module, or another object with functions marked with `hookimpl`.
    name : str
        Its name, for messages.

    Returns
    -------
    dict of str to callable
        Implementations by name of the hook.

    Raises
    ------
    PluginLoadError
        If it implements a hook that does not exist, or none, or forgot to mark one.
    """
    # A manager of its own for each plugin: when registering raises, some versions of pluggy keep
    # what they have registered until then, and here it is dropped along with the manager.
    manager = _Manager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name=name)
    found: dict[str, Hook] = {}
    for caller in manager.get_hookcallers(plugin) or ():
        impls = caller.get_hookimpls()
        if not caller.has_spec():
            if not all(impl.optionalhook for impl in impls):
                raise _Refused(_unknown_hook(caller.name))
        elif len(impls) > 1 or impls[0].wrapper or impls[0].hookwrapper:
            raise _Refused(f"{caller.name} is implemented twice or as a wrapper")
        else:
            found[caller.name] = impls[0].function
    _check_marks(plugin, found)
    return found


def _unknown_hook(name: str) -> str:
    near = difflib.get_close_matches(name, HOOKS, n=1)
    advice = f"did you mean {near[0]}?" if near else f"there are: {', '.join(HOOKS)}"
    return f"there is no hook {name}; {advice}"


def _check_marks(plugin: Any, found: dict[str, Hook]) -> None:
    """Raise if a function has the name of a hook but was not marked as one, or none was."""
    for name in HOOKS:
        if name not in found and callable(inspect.getattr_static(plugin, name, None)):
            raise _Refused(f"{name} is not marked with @hookimpl")
    if not found:
        raise _Refused("it has no function that is marked with @hookimpl")


def gather(hook: str, function: Hook) -> list[Record]:
    """Call one registration hook and return its records, all or none.

    Parameters
    ----------
    hook : str
        Name of the hook.
    function : callable
        Its implementation.

    Returns
    -------
    list of Record
        Of the hook's record type.

    Raises
    ------
    PluginLoadError
        If it returns something else. What it raises itself goes on to the caller.
    """
    expected = HOOKS[hook]
    records = list(islice(_iterate(hook, function()), MAX_RECORDS + 1))
    if len(records) > MAX_RECORDS:
        raise _Refused(f"{hook} returned more than {MAX_RECORDS} records")
    for record in records:
        if not isinstance(record, expected):
            raise _Refused(
                f"{hook} returned {_described(record)} where a {expected.__name__} belongs"
            )
    # Made anew, so that everything is checked even where a plugin found a way round the checks.
    names = [field.name for field in fields(expected)]
    return [expected(**{name: getattr(record, name) for name in names}) for record in records]


def _iterate(hook: str, returned: Any) -> Iterator[Any]:
    if inspect.iscoroutine(returned):
        returned.close()
    if isinstance(returned, (str, bytes)) or not isinstance(returned, Iterable):
        expected = HOOKS[hook].__name__
        raise _Refused(f"{hook} returned {_described(returned)}, not an iterable of {expected}")
    return iter(returned)


def _described(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
