"""Calls that the guard has refused, recognised when they come again.

The guard asks of a call one thing after the other, in Python. What it refuses for the dtypes,
shapes or strides of tensors it refuses each time, so that one check of all tensors tells as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch import stats
from flashinfer_bench.apply.dispatch.ordinary import facts
from flashinfer_bench.apply.dispatch.recognition import recogniser_of
from flashinfer_bench.apply.dispatch.routes import never

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.apply.dispatch.layout import Layout
    from flashinfer_bench.apply.dispatch.recognition import Recognition

    Check = Callable[..., bool]
    Guard = Callable[..., Optional[str]]
    Known = tuple[Check, Optional[Callable[[], bool]], str]

# When the guard comes to these, it has found that all tensors are ordinary ones.
_LASTING = frozenset({stats.DTYPE, stats.SHAPE, stats.LAYOUT, stats.GRAD})
_MOST = 256
_MOST_ALIKE = 4  # whose first tensors have the same shape


class Refusals:
    """A guard that recognises calls it has refused before: the first so many.

    Parameters
    ----------
    guard : callable
        Examines a call; see `guards.make_guard`.
    layout : Layout
        Of the definition.
    by : Recognition, optional
        How they are recognised; None: they are not.
    """

    def __init__(self, guard: Guard, layout: Layout, by: Optional[Recognition]) -> None:
        self._guard = guard
        self._layout = layout
        self._by = by
        self._known: dict[Any, tuple[Known, ...]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __call__(self, *args: Any) -> Optional[str]:
        """Return what the guard returns."""
        reason = self._find(args) if self._known else None
        if reason is None:
            reason = self._guard(*args)
            if self._by is not None and reason in _LASTING and self._count < _MOST:
                self._learn(self._by, args, reason)
        return reason

    def _find(self, args: Sequence[Any]) -> Optional[str]:
        tensors = self._tensors(args)
        if not _has_shape(tensors[0]):
            return None
        for check, asked, reason in self._known.get(tensors[0].shape, ()):
            if check(*tensors) and (asked is None or asked()):
                return reason
        return None

    def _learn(self, by: Recognition, args: Sequence[Any], reason: str) -> None:
        tensors = self._tensors(args)
        shape = tensors[0].shape
        alike = self._known.get(shape, ())
        check = recogniser_of(by, tensors) if len(alike) < _MOST_ALIKE else never
        if check is not never:
            asked = facts().grad_enabled if reason == stats.GRAD else None
            self._known[shape] = (*alike, (check, asked, reason))
            self._count += 1

    def _tensors(self, args: Sequence[Any]) -> list[Any]:
        layout = self._layout
        return [args[index] for index in layout.tensors] + list(args[len(layout.inputs) :])


def _has_shape(value: Any) -> bool:
    """Return whether a value may be asked for its shape: subclasses and nested tensors may not."""
    asked, kind = facts(), type(value)
    return (kind is asked.tensor or kind is asked.parameter) and not value.is_nested
