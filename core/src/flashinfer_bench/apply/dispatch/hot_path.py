"""Writes the function that every call of a definition goes through.

It holds what can be decided beforehand: how many arguments there are, which of them are tensors,
where the sizes stand by which a call is looked up. A call like the one before it costs one check of
all its tensors and nothing else; one like any other before it, a look-up more.

What calls of a known pattern take is a *route*, a tuple, so that it is read and replaced as a whole
by threads that hold no lock::

    (check, extra, run, good, entry)

``check(*tensors)`` recognises the tensors of a call. ``extra()``, unless it is None, says whether
this one may be taken as well. ``run(*args)`` makes the call, and ``good(*outputs)`` recognises what
it returned, if outputs are returned.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from flashinfer_bench.apply.dispatch.guards import facts
from flashinfer_bench.apply.dispatch.recognition import never
from flashinfer_bench.apply.dispatch.stats import NO_CHOICE
from flashinfer_bench.routing.binding import compile_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.dispatch.layout import Keying, Layout
    from flashinfer_bench.apply.dispatch.recognition import Maker
    from flashinfer_bench.apply.dispatch.target import Target
    from flashinfer_bench.apply.keys import ApplyKey

    Route = tuple[Any, ...]

FAILURES = (Exception, SystemExit)
"""What a solution may raise without taking the program down."""


State = Literal["shadow", "plain", "out"]
"""Compared with the original at each call; used as it is; not used any more."""


class Entry:
    """A target chosen for a key.

    Parameters
    ----------
    key, target
        What it was chosen for, and what is called.
    config : ApplyConfig
        How often it is compared, and how often it may fail.
    comparable : bool
        Whether it can be compared at all.

    Attributes
    ----------
    state : str
        How far it is trusted.
    failures, checked : int
        How often it raised, or returned something that is no output of the definition; and how
        often it was compared with the original, and agreed.
    problem : str
        Why it is out.
    due : bool
        Whether the next call is to be compared.
    layouts : dict
        Whether it agreed with the original, by strides of inputs that are not contiguous.
    """

    def __init__(
        self,
        key: Optional[ApplyKey],
        target: Target,
        config: ApplyConfig,
        *,
        comparable: bool = True,
    ) -> None:
        self.key, self.target = key, target
        self._wanted = config.shadow_calls if comparable else 0
        self.share = config.shadow_share if comparable else 0.0
        self._max_failures = config.max_failures
        self.state: State = "shadow" if self._wanted else "plain"
        self.failures = self.checked = 0
        self.problem = ""
        self.due = False
        self.layouts: dict[tuple[tuple[int, ...], ...], bool] = {}
        self._lock = threading.Lock()

    def draw(self) -> bool:
        """Draw whether the coming call of a plain entry is to be compared."""
        if self.share and random.random() < self.share:
            self.due = True
        return self.due

    def agreed(self) -> None:
        """Note that a comparison went well: after so many, the entry is plain."""
        with self._lock:
            self.checked += 1
            if self.state == "shadow" and self.checked >= self._wanted:
                self.state = "plain"

    def failed(self) -> bool:
        """Note a failure; return whether there have been too many."""
        with self._lock:
            self.failures += 1
            return self.failures >= self._max_failures

    def take_out(self, problem: str) -> bool:
        """Use the entry no more; return whether it was used before."""
        with self._lock:
            if self.state == "out":
                return False
            self.state, self.problem = "out", problem
            return True

    def __str__(self) -> str:
        """Return what people call the calls that it is for."""
        if self.key is None or not self.key.axes:
            return "any call"
        return ", ".join(f"{axis}={size}" for axis, size in (*self.key.axes, *self.key.feats))


NOWHERE: Route = (never, None, None, never, None)
"""The route that no call takes."""

_MOST_PATTERNS = 4  # of one size: inference mode and others, two devices


class Routes:
    """The routes of one definition, for calls in one convention.

    Parameters
    ----------
    most : int
        For how many sizes there may be routes. Beyond that all are forgotten, and learned anew.

    Attributes
    ----------
    hot : tuple
        The route that the last call took.
    known : dict
        For each size its routes, the newest first; or, a string, the reason for which such calls
        always go to the original.
    """

    __slots__ = ("_lock", "_most", "hot", "known")

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.RLock()
        self.clear()

    def add(self, key: Any, route: Route) -> None:
        """Add a route, unless its entry is not in plain use, or there are enough of this size."""
        with self._lock:
            others = self.known.get(key, ())
            others = () if isinstance(others, str) else others
            # Whoever takes an entry out changes its state first, and then comes here.
            if len(others) < _MOST_PATTERNS and route[4].state == "plain":
                self._set(key, (route, *others))

    def close(self, key: Any, reason: str) -> None:
        """Send all calls of this size to the original from now on."""
        with self._lock:
            self._set(key, reason)

    def _set(self, key: Any, found: Union[tuple[Route, ...], str]) -> None:
        if key not in self.known and len(self.known) >= self._most:
            self.clear()
        self.known[key] = found

    def retire(self, entry: Entry) -> None:
        """Take out all routes of sizes that have one to an entry, which is out."""
        with self._lock:
            for key, found in list(self.known.items()):
                if not isinstance(found, str) and any(route[4] is entry for route in found):
                    del self.known[key]
            # Last: who has made one of these hot meanwhile looks whether it is still there.
            self.hot = NOWHERE

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.known: dict[Any, Union[tuple[Route, ...], str]] = {}
            self.hot = NOWHERE


# ----------------------------------------------------------------------------- writing it


def write_call(
    layout: Layout, keying: Keying, namespace: Mapping[str, Any], by: Optional[Maker]
) -> Callable[..., Any]:
    """Return the function ``call(args, kwargs=None, fallback=None)`` of a definition.

    Parameters
    ----------
    layout : Layout
        Of the definition.
    keying : Keying
        By what calls are looked up.
    namespace : mapping
        ``slow``, ``failed``, ``settle``, ``missed``: methods of the dispatcher; ``counters``;
        ``returning`` and ``writing``: its routes.
    by : Maker, optional
        How calls are recognised. None: there are no routes, each call goes the slow way.
    """
    lines = [
        "def call(args, kwargs=None, fallback=None):",
        "    if not kwargs:",
        "        a = args",
        *_indented(_by_name(layout)),
        "    n = len(a)",
    ]
    inputs, outputs = len(layout.inputs), len(layout.outputs)
    # Without outputs both conventions are the same.
    for into in (False, True) if outputs else (False,):
        slow = f"return slow(a, {into}, args, kwargs, fallback)"
        body = [slow] if by is None else _quick(layout, keying, into, slow)
        count = inputs + outputs if into else inputs
        lines += [f"    if n == {count}:", *_indented(body, 2)]
    lines.append("    wrong_count(n)\n")
    names = {
        **namespace,
        **keying.namespace,
        "by_name": layout.definition.merge_kwargs_to_args,
        "wrong_count": layout.wrong_count,
        "NOWHERE": NOWHERE,
        "NO_CHOICE": NO_CHOICE,
        "FAILURES": FAILURES,
        "forward": facts().forward,
    }
    return compile_source("\n".join(lines), "call", names, f"call of {layout.name!r}")


def _indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def _by_name(layout: Layout) -> list[str]:
    """Take all inputs by name, the commonest way, without looking at how they are ordered."""
    names = [repr(operand.name) for operand in layout.inputs]
    if not names:
        return ["else:", "    a = by_name(args, kwargs)"]
    given = ", ".join(f"kwargs[{name}]" for name in names)
    return [
        f"elif args or len(kwargs) != {len(names)}:",
        "    a = by_name(args, kwargs)",
        "else:",
        "    try:",
        f"        a = ({given},)",
        "    except KeyError:",
        "        a = by_name(args, kwargs)",  # says what is wrong
    ]


def _quick(layout: Layout, keying: Keying, into: bool, slow: str) -> list[str]:
    """Write one convention's part of the function."""
    inputs = len(layout.inputs)
    names = [f"a{index}" for index in range(inputs + (len(layout.outputs) if into else 0))]
    outputs = names[inputs:]
    tensors = [*(names[index] for index in layout.tensors), *outputs]
    if not tensors:
        return [slow]
    check = "check(*a)" if len(tensors) == len(names) else f"check({', '.join(tensors)})"
    routes = "writing" if into else "returning"
    body, look_up = [f"{', '.join(names)}, = a"], _look_up(keying, routes, check, slow)
    if keying.sizes_decide:
        body += [f"{_ROUTE} = {routes}.hot", f"if not {check}:", *_indented(look_up)]
    else:
        body += look_up
    # What a call of one pattern has beside its tensors, and what no check sees: forward-mode
    # gradients.
    wrong = [
        f"type({name}) is not {operand.scalar.__name__}"
        for name, operand in zip(names, layout.inputs, strict=False)
        if operand.shape is None
    ]
    wrong += ["forward._current_level >= 0", "(extra is not None and not extra())"]
    return [
        *body,
        f"if {' or '.join(wrong)}:",
        f"    {slow}",
        "try:",
        f"    result = run({', '.join(names)})",  # quicker than `run(*a)`
        "except FAILURES as error:",
        "    caught = error",
        "else:",
        *_indented(_finish(0 if into else len(layout.outputs))),
        "return failed(entry, caught, args, kwargs, fallback)",
    ]


_ROUTE = "check, extra, run, good, entry"


def _look_up(keying: Keying, routes: str, check: str, slow: str) -> list[str]:
    lines = [
        "try:",
        f"    key = {keying.expression}",
        f"    found = {routes}.known.get(key, ())",
        "except Exception:  # not what the definition declares",
        "    found = ()",
        "if type(found) is str:",
        "    if found is NO_CHOICE and fallback is not None:",
        "        counters.unknown += 1",
        "        return fallback(*args, **kwargs) if kwargs else fallback(*args)",
        "    return missed(found, args, kwargs, fallback)",
        "for route in found:",
        f"    {_ROUTE} = route",
        f"    if {check}:",
        "        break",
        "else:",
        f"    {slow}",
    ]
    if keying.sizes_decide:
        lines += [
            f"{routes}.hot = route",
            # It may have been retired since it was looked up.
            f"if {routes}.known.get(key) is not found:",
            f"    {routes}.hot = NOWHERE",
        ]
    return lines


def _finish(returned: int) -> list[str]:
    """Count a hit, and return so many outputs if they are what they were before."""
    if not returned:
        return ["counters.hits += 1", "return None"]
    good = "good(result)"
    if returned > 1:
        good = f"type(result) is tuple and len(result) == {returned} and good(*result)"
    return [
        f"if {good}:",
        "    counters.hits += 1",
        "    return result",
        "return settle(entry, result, a, args, kwargs, fallback)",
    ]
