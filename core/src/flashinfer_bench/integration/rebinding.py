"""Functions that modules hold by value: ``from library import function`` keeps what it got.

Only the global names of modules are looked at. What is kept elsewhere cannot be found: in closures,
default arguments, containers, objects, `functools.partial`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_bench.integration.targets import namespace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

logger = logging.getLogger(__name__)

_OWN = "flashinfer_bench"
_OWN_PLUGINS = "fib_"
_ANYTHING = (Exception,)


class Place(NamedTuple):
    """A global name of a module whose value was replaced."""

    module: Any
    name: str
    label: str
    """``"module.name"``."""


def replace_everywhere(
    replacements: dict[int, tuple[Any, Any]], leave: Collection[tuple[int, str]] = ()
) -> dict[int, list[Place]]:
    """Replace values of global names in all imported modules, in one pass.

    Our own modules are left out, and modules that wake up when they are looked at stay asleep.

    Parameters
    ----------
    replacements : dict
        By the identity of a value: that value, which is thereby kept alive, and what to put in its
        place.
    leave : collection of (int, str)
        Places, by the identity of the module and the name, that stay as they are.

    Returns
    -------
    dict
        By the identity of the old value: where it was.
    """
    replaced: dict[int, list[Place]] = {}
    if not replacements:
        return replaced
    for label, module, name in _holders(replacements):
        if (id(module), name) in leave:
            continue
        value = namespace(module).get(name)
        if id(value) in replacements and swap(module, name, *replacements[id(value)]):
            replaced.setdefault(id(value), []).append(Place(module, name, f"{label}.{name}"))
    return replaced


def swap(module: Any, name: str, old: Any, new: Any) -> bool:
    """Give a global name of a module another value if it has the expected one; never raises."""
    try:
        if namespace(module).get(name) is not old:
            return False
        setattr(module, name, new)
    except _ANYTHING:  # a module may refuse, in any way
        logger.debug("%s.%s stays what it is", module, name, exc_info=True)
        return False
    return namespace(module).get(name) is new


def _holders(values: Collection[int]) -> Iterator[tuple[str, Any, str]]:
    """Yield the label, the module and the name of each place that has one of the values."""
    seen = set()
    for label, module in list(sys.modules.items()):
        if id(module) in seen or _is_ours(label):
            continue
        seen.add(id(module))
        for name, value in _items(module):
            if id(value) in values:
                yield label, module, name


def _items(module: Any) -> list[tuple[str, Any]]:
    for _ in range(3):
        try:
            return list(namespace(module).items())
        except RuntimeError:  # another thread has added a name meanwhile
            continue
    return []


def _is_ours(label: str) -> bool:
    return label == _OWN or label.startswith((f"{_OWN}.", _OWN_PLUGINS))
