"""Calls with inputs that are views with gaps: halves of a cache, or one with its axes exchanged.

A solution was judged on contiguous inputs, and may take any for such. Engines have others: of one
tensor for keys and values each is a view. Where the original can be asked for its outputs without
side effects, the first call with such strides is answered by it, and compared with what the
solution makes of the very same inputs, without copies of them: a cache is most of a GPU's memory.
If they agree, the solution takes calls with these strides from then on.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch import stats
from flashinfer_bench.apply.dispatch.guards import make_guard
from flashinfer_bench.integration.capture import is_capturing

if TYPE_CHECKING:
    from flashinfer_bench.apply.dispatch.devices import Devices
    from flashinfer_bench.apply.dispatch.dispatcher import Dispatcher
    from flashinfer_bench.apply.dispatch.entries import Entry
    from flashinfer_bench.apply.dispatch.guards import Guard
    from flashinfer_bench.apply.dispatch.layout import Layout

    Args = tuple[Any, ...]
    Kwargs = Optional[dict[str, Any]]

_MOST_LAYOUTS = 64


class Strided:
    """Answers such calls, and remembers who has agreed with the original for which strides.

    Parameters
    ----------
    dispatcher : Dispatcher
        Whose calls they are.
    layout : Layout
        Of the definition.
    devices : Devices
        Where tensors may be.
    """

    def __init__(self, dispatcher: Dispatcher, layout: Layout, devices: Devices) -> None:
        self._dispatcher = dispatcher
        self._layout = layout
        self._devices = devices

    @cached_property
    def _guard(self) -> Guard:
        """The guard of the definition, which lets inputs through that are not contiguous."""
        return make_guard(self._layout, self._devices, into=False, strided=True)

    def answer(self, a: Args, args: Args, kwargs: Kwargs, fallback: Any) -> Any:
        """Make a call that was refused because its inputs are not contiguous.

        Parameters
        ----------
        a : tuple
            The inputs.
        args, kwargs
            The arguments as they came.
        fallback : callable
            The original; has ``outputs``, which computes the outputs without side effects.
        """
        answering = self._dispatcher
        if self._layout.mutated:  # copies would be needed
            return answering._missed(stats.LAYOUT, args, kwargs, fallback)
        found = answering._choose(a, False, self._guard)
        if isinstance(found, str):
            return answering._missed(found, args, kwargs, fallback)
        strides = tuple([a[index].stride() for index in self._layout.tensors])
        agrees = found.layouts.get(strides)
        if not is_capturing() and self._is_due(found, agrees):
            self._compare(found, strides, a, fallback)
        elif agrees and found.state == "plain":
            return answering._serve(found, a, False, args, kwargs, fallback)
        return answering._missed(stats.LAYOUT, args, kwargs, fallback)

    @staticmethod
    def _is_due(entry: Entry, agrees: Optional[bool]) -> bool:
        """Return whether a call is to be compared: the first ones, and those that are drawn."""
        if agrees is None:
            return len(entry.layouts) < _MOST_LAYOUTS
        return agrees and (entry.state == "shadow" or entry.due or entry.draw())

    def _compare(
        self, entry: Entry, strides: tuple[tuple[int, ...], ...], a: Args, fallback: Any
    ) -> None:
        """Compare a solution with the original, which answers the call."""
        answering = self._dispatcher
        # Or else whoever draws lots says so for ever, and no call is recognised any more.
        entry.due = False
        had_agreed = entry.layouts.get(strides, False)
        entry.layouts[strides] = agrees = self._agrees(entry, a, fallback)
        if agrees:
            entry.agreed()
        elif had_agreed:  # calls with these strides are recognised: only that ends it
            answering._counters.error()
            answering._retire(entry, "disagrees with the original", always=True)

    def _agrees(self, entry: Entry, a: Args, fallback: Any) -> bool:
        """Return whether a solution computes what the original does."""
        answering = self._dispatcher
        run = answering._run(entry, a, False)
        if run is None:
            return False
        try:
            answering._shadow.compare_outputs(answering._call(run, a), a, fallback.outputs(*a))
        except Exception as error:  # noqa: BLE001  # whatever the solution or the original raises
            answering._tell(
                f"solution {entry.target.solution!r} of {answering._name} takes no inputs with "
                f"such strides: {error}"
            )
            return False
        return True
