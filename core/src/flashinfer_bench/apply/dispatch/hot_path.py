"""Writes the function that every call of a definition goes through.

It holds what can be decided beforehand: how many arguments there are, which of them are tensors,
where the sizes stand by which a call is looked up. A call like the one before it costs one check of
all its tensors and nothing else; one like any other before it, a look-up more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch.entries import NOWHERE
from flashinfer_bench.apply.dispatch.ordinary import facts
from flashinfer_bench.apply.dispatch.stats import NO_CHOICE
from flashinfer_bench.routing.generated import compile_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flashinfer_bench.apply.dispatch.layout import Keying, Layout
    from flashinfer_bench.apply.dispatch.recognition import Maker

FAILURES = (Exception, SystemExit)
"""What a solution may raise without taking the program down."""


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
        "by_name": layout.by_name,
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
    look_up = _look_up(keying, "writing" if into else "returning", check, tensors, slow)
    body = [f"{', '.join(names)}, = a"]
    if keying.sizes_decide:
        hot = "writing.hot" if into else "returning.hot"
        body += [f"{_ROUTE} = {hot}", f"if not {check}:", *_indented(look_up)]
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


def _look_up(keying: Keying, routes: str, check: str, tensors: list[str], slow: str) -> list[str]:
    lines = [
        "try:",
        f"    key = {keying.expression}",
        f"    route = {routes}.latest.get(key)",
        "except Exception:  # not what the definition declares",
        "    route = None",
        "if route is None:",
        f"    {slow}",
        "if type(route) is str:",
        "    if route is NO_CHOICE and fallback is not None:",
        "        counters.unknown += 1",
        "        return fallback(*args, **kwargs) if kwargs else fallback(*args)",
        "    return missed(route, args, kwargs, fallback)",
        f"{_ROUTE} = route",
        f"if not {check}:",
        f"    route = {routes}.find(key, ({', '.join(tensors)},))",
        "    if route is None:",
        f"        {slow}",
        f"    {_ROUTE} = route",
    ]
    if keying.sizes_decide:
        lines += [
            f"{routes}.hot = route",
            # It may have been retired since it was looked up.
            f"if {routes}.latest.get(key) is not route:",
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
