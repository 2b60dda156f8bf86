"""Writes the function that every call of a definition goes through.

It holds what can be decided beforehand: how many arguments there are, which of them are tensors,
where the sizes stand by which a call is looked up. A call like the one before it costs one check of
all its tensors and nothing else; one like any other before it, a look-up more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch.codegen import compile_source, indented
from flashinfer_bench.apply.dispatch.ordinary import facts
from flashinfer_bench.apply.dispatch.routes import NOWHERE
from flashinfer_bench.apply.dispatch.stats import NO_CHOICE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashinfer_bench.apply.dispatch.keying import Keying
    from flashinfer_bench.apply.dispatch.layout import Layout
    from flashinfer_bench.apply.dispatch.recognition import Recognition

FAILURES = (Exception, SystemExit)
"""What a solution may raise without taking the program down."""


def write_call(
    layout: Layout,
    keying: Keying,
    namespace: Mapping[str, Any],
    by: Optional[Recognition],
) -> Callable[..., Any]:
    """Return the function ``call(args, kwargs=None, fallback=None)`` of a definition.

    Parameters
    ----------
    layout : Layout
        Of the definition.
    keying : Keying
        By what calls are looked up.
    namespace : mapping
        ``by_name``, ``slow``, ``failed``, ``settle``, ``missed``, ``wrong_count``: methods of the
        dispatcher; ``counters``; ``returning`` and ``writing``: its routes.
    by : Recognition, optional
        How calls are recognised. None: there are no routes, each call goes the slow way.
    """
    lines = [
        "def call(args, kwargs=None, fallback=None):",
        "    if not kwargs:",
        "        a = args",
        *indented(_by_name(layout)),
        "    n = len(a)",
    ]
    inputs, outputs = len(layout.inputs), len(layout.outputs)
    # Without outputs both conventions are the same.
    for into, count in ((False, inputs), (True, inputs + outputs))[: 2 if outputs else 1]:
        writer = _Branch(layout, keying, into=into, sees_all=by is not None and by.sees_all)
        body = (writer.quick() if by is not None else []) or [writer.slow()]
        lines += indented([f"if n == {count}:", *indented(body)])
    lines.append("    wrong_count(n)")
    asked = facts()
    names = {
        **namespace,
        **keying.namespace,
        "NOWHERE": NOWHERE,
        "NO_CHOICE": NO_CHOICE,
        "FAILURES": FAILURES,
        "modes": asked.modes,
        "forward": asked.forward,
    }
    return compile_source("\n".join(lines) + "\n", "call", f"call of {layout.name!r}", names)


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


class _Branch:
    """Writes one convention's part of the function."""

    def __init__(self, layout: Layout, keying: Keying, *, into: bool, sees_all: bool) -> None:
        self._sees_all = sees_all
        self._layout = layout
        self._keying = keying
        self._into = into
        self._routes = "writing" if into else "returning"
        inputs = len(layout.inputs)
        count = inputs + (len(layout.outputs) if into else 0)
        self._names = [f"a{index}" for index in range(count)]
        self._outputs = self._names[inputs:]
        self._written = [*self._outputs, *(self._names[index] for index in sorted(layout.mutated))]
        self._tensors = [*(self._names[index] for index in layout.tensors), *self._outputs]
        # What a call of one pattern has beside its tensors.
        self._scalars = [
            f"type(a{index}) is not {operand.scalar.__name__}"
            for index, operand in enumerate(layout.inputs)
            if operand.shape is None
        ]

    def slow(self) -> str:
        return f"return slow(a, {self._into}, args, kwargs, fallback)"

    def quick(self) -> list[str]:
        if not self._names or not self._tensors:
            return []
        all_tensors = len(self._tensors) == len(self._names)
        check = "check(*a)" if all_tensors else f"check({', '.join(self._tensors)})"
        found = "check, extra, run, good, spans, entry"
        body = [f"{', '.join(self._names)}, = a"]
        looked_up = self._look_up(found, check)
        if self._keying.sizes_decide:
            body += [f"{found} = {self._routes}.hot", f"if not {check}:", *indented(looked_up)]
        else:
            body += looked_up
        # What the check does not see: modes of compilers, forward-mode gradients.
        modes = [*([] if self._sees_all else ["modes()"]), "forward._current_level >= 0"]
        wrong = [*self._scalars, *modes, "(extra is not None and not extra())"]
        body += [f"if {' or '.join(wrong)}:", f"    {self.slow()}"]
        return [*body, *self._apart(), *self._run()]

    def _look_up(self, found: str, check: str) -> list[str]:
        lines = [
            "try:",
            f"    key = {self._keying.expression}",
            f"    route = {self._routes}.latest.get(key)",
            "except Exception:  # not what the definition declares",
            "    route = None",
            "if route is None:",
            f"    {self.slow()}",
            "if type(route) is str:",
            "    if route is NO_CHOICE and fallback is not None:",
            "        counters.unknown += 1",
            "        return fallback(*args, **kwargs) if kwargs else fallback(*args)",
            "    return missed(route, args, kwargs, fallback)",
            f"{found} = route",
            f"if not {check}:",
            f"    route = {self._routes}.find(key, ({', '.join(self._tensors)},))",
            "    if route is None:",
            f"        {self.slow()}",
            f"    {found} = route",
        ]
        if self._keying.sizes_decide:
            lines += [
                f"{self._routes}.hot = route",
                # It may have been retired since it was looked up.
                f"if {self._routes}.latest.get(key) is not route:",
                f"    {self._routes}.hot = NOWHERE",
            ]
        return lines

    def _apart(self) -> list[str]:
        """Check that what is written shares memory with no other tensor.

        Sizes are those of the route. Empty tensors between others go the slow way.
        """
        if self._sees_all or not self._written:
            return []
        sizes = [f"z{name}" for name in self._tensors]
        lines, known = [f"{', '.join(sizes)}, = spans"], set()
        for name in self._written:
            known.add(name)
            lines += [f"p{name} = {name}.data_ptr()", f"q{name} = p{name} + z{name}"]
        for name in self._written:
            # Each other one begins behind it, or ends before it.
            apart = [
                f"(p{other} >= q{name} or q{other} <= p{name})"
                if other in known
                else f"((p := {other}.data_ptr()) >= q{name} or p + z{other} <= p{name})"
                for other in self._tensors
                if other != name and (other not in known or other < name)
            ]
            lines += [f"if not ({' and '.join(apart) or True}):", f"    {self.slow()}"]
        return lines

    def _run(self) -> list[str]:
        return [
            "try:",
            f"    result = run({', '.join(self._names)})",  # quicker than `run(*a)`
            "except FAILURES as error:",
            "    caught = error",
            "else:",
            *indented(self._finish()),
            "return failed(entry, caught, args, kwargs, fallback)",
        ]

    def _finish(self) -> list[str]:
        count = len(self._layout.outputs)
        hit = ["counters.hits += 1"]
        if self._into or not count:
            return [*hit, "return None"]
        good = "good(result)"
        if count > 1:
            good = f"type(result) is tuple and len(result) == {count} and good(*result)"
        return [
            f"if {good}:",
            *indented([*hit, "return result"]),
            "return settle(entry, result, a, args, kwargs, fallback)",
        ]
