"""Generates the function that every call of a definition passes through.

It contains everything known in advance: the number of arguments, which of them are tensors, and
where to read the sizes that form the key. A call like the previous one costs a single check of all
its tensors; a call like any earlier one costs an additional look-up.

The data for calls of a known pattern form a *route*. It is a tuple, so that threads can read and
replace it as a whole without a lock::

    (check, extra, run, good, entry)

``check(*tensors)`` recognises the tensors of a call. ``extra()``, unless it is None, returns
whether this particular call may use the route. ``run(*args)`` makes the call, and
``good(*outputs)`` recognises the returned outputs, if there are any.
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
"""Exceptions of a solution that must not end the program."""


State = Literal["shadow", "plain", "out"]
"""States: compared with the original at each call; used without comparison; disabled."""


class Entry:
    """A target chosen for a key.

    Parameters
    ----------
    key, target
        The key, and the target to call.
    config : ApplyConfig
        Settings for comparisons and failures.
    comparable : bool
        Whether it can be compared at all.

    Attributes
    ----------
    state : str
        Its state.
    failures, checked : int
        Number of calls that raised or returned something that is not a valid output of the
        definition; and number of comparisons with the original that agreed.
    problem : str
        The reason why it was disabled.
    due : bool
        Whether to compare the next call.
    layouts : dict
        Whether it agreed with the original, by strides of non-contiguous inputs.
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
        """Decide at random whether to compare the next call of a plain entry."""
        if self.share and random.random() < self.share:
            self.due = True
        return self.due

    def agreed(self) -> None:
        """Count a successful comparison; after enough of them, the entry becomes plain."""
        with self._lock:
            self.checked += 1
            if self.state == "shadow" and self.checked >= self._wanted:
                self.state = "plain"

    def failed(self) -> bool:
        """Count a failure; return whether the limit is reached."""
        with self._lock:
            self.failures += 1
            return self.failures >= self._max_failures

    def take_out(self, problem: str) -> bool:
        """Disable the entry; return whether it was enabled before."""
        with self._lock:
            if self.state == "out":
                return False
            self.state, self.problem = "out", problem
            return True

    def __str__(self) -> str:
        """Return a description of the calls that the entry is for."""
        if self.key is None or not self.key.axes:
            return "any call"
        return ", ".join(f"{axis}={size}" for axis, size in (*self.key.axes, *self.key.feats))


NOWHERE: Route = (never, None, None, never, None)
"""A route that matches no call."""

_MOST_SIZES = 1024  # about 3 KB each; beyond it all routes are dropped, and learned again
_MOST_PATTERNS = 4  # per size: with and without inference mode, on two devices


class Routes:
    """The routes of one definition, for calls in one convention.

    Attributes
    ----------
    hot : tuple
        The route of the most recent call.
    known : dict
        The routes of each size, newest first; or, as a string, the reason why such calls always go
        to the original.
    """

    __slots__ = ("_lock", "hot", "known")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.clear()

    def add(self, key: Any, route: Route) -> None:
        """Add a route, unless its entry is not plain, or this size has enough routes."""
        with self._lock:
            others = self.known.get(key, ())
            others = () if isinstance(others, str) else others
            # An entry's state is changed before its routes are removed.
            if len(others) < _MOST_PATTERNS and route[4].state == "plain":
                self._set(key, (route, *others))

    def close(self, key: Any, reason: str) -> None:
        """Send all calls of this size to the original from now on."""
        with self._lock:
            self._set(key, reason)

    def _set(self, key: Any, found: Union[tuple[Route, ...], str]) -> None:
        if key not in self.known and len(self.known) >= _MOST_SIZES:
            self.clear()
        self.known[key] = found

    def retire(self, entry: Entry) -> None:
        """Remove all routes of every size that has one to a disabled entry."""
        with self._lock:
            for key, found in list(self.known.items()):
                if not isinstance(found, str) and any(route[4] is entry for route in found):
                    del self.known[key]
            # Last: a thread that sets one of these as hot then checks that it is still known.
            self.hot = NOWHERE

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.known: dict[Any, Union[tuple[Route, ...], str]] = {}
            self.hot = NOWHERE


# -------------------------------------------------------------------------------- code generation


def write_call(
    layout: Layout, keying: Keying, namespace: Mapping[str, Any], by: Optional[Maker]
) -> Callable[..., Any]:
    """Return the function ``call(args, kwargs=None, fallback=None)`` of a definition.

    Parameters
    ----------
    layout : Layout
        Layout of the definition.
    keying : Keying
        How calls are looked up.
    namespace : mapping
        ``slow``, ``failed``, ``checked``, ``missed``: methods of the dispatcher; ``counters``;
        ``returning`` and ``writing``: its routes.
    by : Maker, optional
        How calls are recognised. None: there are no routes, and each call takes the slow path.
    """
    lines = [
        "def call(args, kwargs=None, fallback=None):",
        "    if not kwargs:",
        "        a = args",
        *_indented(_by_name(layout)),
        "    n = len(a)",
    ]
    inputs, outputs = len(layout.inputs), len(layout.outputs)
    # Without outputs the two conventions are identical.
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
    """Accept all inputs by name, the most common form, without checking their order."""
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
        "        a = by_name(args, kwargs)",  # reports the error
    ]


def _quick(layout: Layout, keying: Keying, into: bool, slow: str) -> list[str]:
    """Generate one convention's part of the function."""
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
    # Conditions that no check of tensors covers: scalars, and forward-mode gradients.
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
        f"    result = run({', '.join(names)})",  # faster than `run(*a)`
        *_indented(_checking(0 if into else len(layout.outputs))),
        "except FAILURES as error:",
        "    caught = error",
        "else:",
        "    counters.hits += 1",
        "    return result",
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
            # It may have been removed since the look-up.
            f"if {routes}.known.get(key) is not found:",
            f"    {routes}.hot = NOWHERE",
        ]
    return lines


def _checking(returned: int) -> list[str]:
    """Check the outputs in full unless they match earlier ones."""
    if not returned:
        return ["result = None"]
    good = "good(result)"
    if returned > 1:
        good = f"type(result) is tuple and len(result) == {returned} and good(*result)"
    return [f"if not ({good}):", "    result = checked(result, a)"]
