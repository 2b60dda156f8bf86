"""Turns the calls of one definition into entries."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.integration.capture import is_capturing
from flashinfer_bench.tracing.entry import WorkloadEntry
from flashinfer_bench.tracing.layout import Layout, OtherCallError, scalar_of
from flashinfer_bench.tracing.policies import OnlinePolicy
from flashinfer_bench.tracing.signals import held_back
from flashinfer_bench.tracing.snapshots import copy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tracing.buffer import Buffer
    from flashinfer_bench.tracing.policies import FastPath, FilterPolicy
    from flashinfer_bench.tracing.registry import Picker

    Args = tuple[Any, ...]
    Kwargs = Optional[Mapping[str, Any]]
    Order = Callable[[Args, Kwargs], Optional[Sequence[Any]]]

logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)


@dataclass
class Counters:
    """What became of the calls of a definition.

    Attributes
    ----------
    duplicates : int
        Calls that the policy did not want. Added to without a lock.
    recorded : int
        Calls that were kept, or handed to the user's policy.
    rejected : dict of str to int
        Calls that were none of the definition, by reason.
    too_large : int
        Calls with more bytes to dump than may be buffered.
    errors : int
        Calls that could not be recorded.
    """

    duplicates: int = 0
    recorded: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    too_large: int = 0
    errors: int = 0

    @property
    def calls(self) -> int:
        """All of them."""
        others = self.recorded + sum(self.rejected.values()) + self.too_large + self.errors
        return self.duplicates + others

    def to_record(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "calls": self.calls,
            "recorded": self.recorded,
            "duplicates": self.duplicates,
            "rejected": dict(self.rejected),
            "too_large": self.too_large,
            "errors": self.errors,
        }


class Recorder:
    """Records the calls of one definition.

    Parameters
    ----------
    definition : Definition
        The definition.
    policy : FilterPolicy
        Which calls are kept; its own.
    make_picker : callable
        Returns what picks the inputs that are dumped; see `PolicyRegistry.make_picker`.
    buffer : Buffer
        Counts what all recorders hold, and has their lock.
    deferring : callable
        Whether copies must wait, as a CUDA graph is captured.
    """

    def __init__(
        self,
        definition: Definition,
        policy: FilterPolicy,
        make_picker: Callable[[Layout], Picker],
        buffer: Buffer,
        deferring: Callable[[], bool] = is_capturing,
    ) -> None:
        self.layout = Layout(definition)
        self.policy = policy
        self.counters = Counters()
        self._online = policy if isinstance(policy, OnlinePolicy) else None
        self._pick = make_picker(self.layout)
        self._buffer = buffer
        self._deferring = deferring
        self._told = False
        if self._online is not None:
            self._online.bound(buffer.limits.max_keys)
        begin = getattr(policy, "begin", None)  # not of users' policies that subclass nothing
        if begin is not None:
            begin(self.layout)
        self.fast_path = self._fast_path()

    def _fast_path(self) -> Optional[FastPath]:
        return None if self._online is None else self._online.fast_path(self.layout)

    def record(self, args: Args, kwargs: Kwargs, order: Order) -> None:
        """Take a call that the fast path has not recognised. Never raises.

        Parameters
        ----------
        args, kwargs
            As they came.
        order : callable
            Returns all inputs, in declaration order; None for a call that is not of the definition.
        """
        buffer = self._buffer
        with held_back(), buffer.lock:
            if buffer.busy:  # copying an input, or a user's policy, has called something traced
                return
            buffer.busy = True
            try:
                self._record(order(args, kwargs))
            except OtherCallError as error:
                self.reject(error.reason)
            except _ANYTHING as error:
                self.fail(error)
            finally:
                buffer.busy = False
        buffer.relieve()

    def reject(self, reason: str) -> None:
        """Count a call that is none of the definition."""
        rejected = self.counters.rejected
        rejected[reason] = rejected.get(reason, 0) + 1

    def fail(self, error: BaseException) -> None:
        """Count a call that could not be recorded; the first one is logged."""
        self.counters.errors += 1
        if not self._told:
            self._told = True
            message = "a call of '%s' was not recorded; told once"
            logger.warning(message, self.layout.name, exc_info=error)

    def _record(self, args: Optional[Sequence[Any]]) -> None:
        if args is None:
            raise OtherCallError("arguments")
        axes, scalars = self.layout.read(args)
        inputs = dict(zip(self.layout.names, args, strict=True))
        if self._online is not None and not self._online.admit(axes, inputs):
            self.counters.duplicates += 1
            return
        picked = {name: inputs[name] for name in self._pick(inputs)}
        if sum(each.nbytes for each in picked.values()) > self._buffer.limits.max_bytes:
            self.counters.too_large += 1
            return
        self._keep(self._entry(axes, scalars, picked))

    def _entry(
        self, axes: dict[str, int], scalars: dict[str, Any], picked: Mapping[str, Any]
    ) -> WorkloadEntry:
        deferred = self._deferring()
        values = {**picked, **scalars}
        if not deferred:
            values = {name: value_of(value) for name, value in values.items()}
            values.update((name, _number(self.layout, name, values[name])) for name in scalars)
        order = self._buffer.next_order()
        return WorkloadEntry(self.layout.name, axes, values, order, is_deferred=deferred)

    def _keep(self, entry: WorkloadEntry) -> None:
        self.counters.recorded += 1
        if self._online is None:
            self.policy.submit(entry)
            self._buffer.took(entry)
            return
        displaced = self._online.keep(entry)
        self._buffer.took(entry, displaced)

    def drain(self) -> list[WorkloadEntry]:
        """Return what is kept, in the order of the calls; what cannot be had is counted."""
        try:
            entries = list(self.policy.drain())
        except _ANYTHING as error:  # a user's policy
            self.fail(error)
            return []
        sound = []
        for entry in entries:
            try:
                self._require_own(entry)
                sound.append(entry)
            except _ANYTHING as error:  # it must not cost what others have recorded
                self.fail(error)
        return sorted(sound, key=lambda entry: entry.order)

    def _require_own(self, entry: Any) -> None:
        """Refuse what a user's policy may return, but the store could do nothing with."""
        if not isinstance(entry, WorkloadEntry):
            raise TypeError(f"the policy keeps a {type(entry).__name__}, not a WorkloadEntry")
        if entry.def_name != self.layout.name or type(entry.order) is not int:
            raise ValueError(
                f"the policy keeps an entry of {entry.def_name!r} with order {entry.order!r}; it "
                f"must be one of '{self.layout.name}' that was submitted"
            )

    def settle(self, entry: WorkloadEntry) -> bool:
        """Copy what a deferred entry refers to, now; return whether that could be done."""
        try:
            snapshot = {
                name: copy_of(value)
                for name, value in entry.inputs_to_dump.items()
                if not isinstance(value, (bool, int, float))
            }
        except _ANYTHING as error:  # its memory is gone, say
            self.fail(error)
            return False
        entry.cuda_graph_snapshot = snapshot
        return True

    def finish(self, entry: WorkloadEntry) -> bool:
        """Make a deferred entry one that can be written: with the last snapshot, or one of now."""
        if not entry.is_deferred:
            return True
        if entry.cuda_graph_snapshot is None and not self.settle(entry):
            return False
        values = entry.values()
        try:
            for name in (each.name for each in self.layout.inputs if each.shape is None):
                values[name] = _number(self.layout, name, values[name])
        except OtherCallError as error:
            self.reject(error.reason)
            return False
        numbers = {name for name, value in values.items() if isinstance(value, (bool, int, float))}
        snapshot = entry.cuda_graph_snapshot or {}
        entry.cuda_graph_snapshot = {n: each for n, each in snapshot.items() if n not in numbers}
        entry.inputs_to_dump, entry.is_deferred = values, False
        return True


def value_of(value: Any) -> Any:
    """Return a copy of a tensor; of anything else, itself."""
    return value if isinstance(value, (bool, int, float)) else copy_of(value)


def _number(layout: Layout, name: str, value: Any) -> Any:
    """Return a scalar, which may have been copied from a GPU, as a number."""
    kind = layout.inputs[layout.names.index(name)].scalar
    return scalar_of(value, kind)
