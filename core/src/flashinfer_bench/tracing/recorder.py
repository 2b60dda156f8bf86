"""Turns the calls of definitions into entries, which wait in bounded memory to be written."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.patch_points import is_capturing
from flashinfer_bench.tracing.layout import Layout, OtherCallError, scalar_of
from flashinfer_bench.tracing.policies import (
    OnlinePolicy,
    PolicyRegistry,
    WorkloadEntry,
    is_number,
)
from flashinfer_bench.tracing.shutdown import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tracing.config import (
        TracingConfig,
        TracingConfigRegistry,
        TracingLimits,
    )
    from flashinfer_bench.tracing.policies import FastPath

    Args = tuple[Any, ...]
    Kwargs = Optional[Mapping[str, Any]]
    Order = Callable[[Args, Kwargs], Optional[Sequence[Any]]]
    """Returns all inputs, in declaration order; None for a call that is not of the definition."""

logger = logging.getLogger(__name__)

_ANYTHING = (Exception,)


@dataclass
class Counters:
    """What became of the calls of a definition; `docs/reference/tracing.md` says what is what."""

    duplicates: int = 0  # added to without a lock
    recorded: int = 0
    too_large: int = 0
    errors: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def _record_of(parts: Sequence[Counters]) -> dict[str, Any]:
    """Return the counts of some definitions together, as plain data."""
    names = ("recorded", "duplicates", "too_large", "errors")
    counts = {name: sum(getattr(each, name) for each in parts) for name in names}
    rejected = sum((each.rejected for each in parts), Counter[str]())
    calls = sum(counts.values()) + rejected.total()
    return {"calls": calls, **counts, "rejected": dict(rejected)}


class Recorder:
    """Records the calls of one definition.

    Parameters
    ----------
    owner : Recorders
        Holds what all recorders share.
    definition : Definition
        The definition.
    config : TracingConfig
        What is recorded of it.
    """

    def __init__(self, owner: Recorders, definition: Definition, config: TracingConfig) -> None:
        self.layout = Layout(definition)
        self.counters = Counters()
        self.policy = owner.policies.make_filter_policy(config)
        self.fast_path: Optional[FastPath] = None
        self._owner = owner
        self._pick = owner.policies.make_picker(config, self.layout)
        self._kinds = {each.name: each.scalar for each in self.layout.inputs if each.shape is None}
        self._told = False
        if hasattr(self.policy, "begin"):  # not of users' policies that subclass nothing
            self.policy.begin(self.layout)
        if isinstance(self.policy, OnlinePolicy):
            self.policy.bound(owner.limits.max_keys)
            self.fast_path = self.policy.fast_path(self.layout)

    def record(self, args: Args, kwargs: Kwargs, order: Order) -> None:
        """Take a call that the fast path has not recognised, as it came. Never raises."""
        owner = self._owner
        with held_back(), owner.lock:
            if owner.busy:  # copying an input, or a user's policy, has called something traced
                return
            owner.busy = True
            try:
                self._record(order(args, kwargs))
            except _ANYTHING as error:
                self.fail(error)
            finally:
                owner.busy = False
        owner.relieve()

    def fail(self, error: Exception) -> None:
        """Count a call that is none of the definition, or could not be recorded.

        The first of the latter is logged.
        """
        if isinstance(error, OtherCallError):
            self.counters.rejected[error.reason] += 1
            return
        self.counters.errors += 1
        if not self._told:
            self._told = True
            message = "a call of '%s' was not recorded; told once"
            logger.warning(message, self.layout.name, exc_info=error)

    def _record(self, args: Optional[Sequence[Any]]) -> None:
        owner, policy = self._owner, self.policy
        axes, scalars = self.layout.read(args)
        inputs = dict(zip(self.layout.names, args or (), strict=True))
        if isinstance(policy, OnlinePolicy) and not policy.admit(axes, inputs):
            self.counters.duplicates += 1
            return
        picked = {name: inputs[name] for name in self._pick(inputs)}
        if sum(each.nbytes for each in picked.values()) > owner.limits.max_bytes:
            self.counters.too_large += 1
            return
        values, deferred = {**picked, **scalars}, owner.deferring()
        if not deferred:
            values |= self._copies(values)
        order = next(owner.orders)
        entry = WorkloadEntry(self.layout.name, axes, values, order, is_deferred=deferred)
        self.counters.recorded += 1
        displaced = None
        if isinstance(policy, OnlinePolicy):
            displaced = policy.keep(entry)
        else:
            policy.submit(entry)
        owner.took(entry, displaced)

    def _copies(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the program's tensors; of scalars that are on a GPU, numbers."""
        copies: dict[str, Any] = {}
        for name, value in values.items():
            if not is_number(value):
                copied = copy_of(value)
                kind = self._kinds.get(name)
                copies[name] = copied if kind is None else scalar_of(copied, kind)
        return copies

    def drain(self) -> list[WorkloadEntry]:
        """Return what is kept; what cannot be had, or is not what it should be, is counted."""
        try:
            entries = list(self.policy.drain())
        except _ANYTHING as error:  # a user's policy
            self.fail(error)
            return []
        sound = []
        for entry in entries:
            try:
                own = entry.def_name == self.layout.name and type(entry.order) is int
            except AttributeError:
                own = False
            if own:
                sound.append(entry)
            else:  # it must not cost what others have recorded
                self.fail(ValueError(f"the policy keeps {entry!r}, which was not submitted to it"))
        return sound

    def settle(self, entry: WorkloadEntry) -> bool:
        """Copy what a deferred entry refers to, now; return whether that could be done."""
        try:
            entry.cuda_graph_snapshot = self._copies(entry.inputs_to_dump)
        except _ANYTHING as error:  # its memory is gone, say
            self.fail(error)
            return False
        return True

    def finish(self, entry: WorkloadEntry) -> bool:
        """Make a deferred entry one that can be written: with the last snapshot, or one of now."""
        if entry.is_deferred:
            if entry.cuda_graph_snapshot is None and not self.settle(entry):
                return False
            entry.inputs_to_dump, entry.is_deferred = entry.values(), False
        return True


class Recorders:
    """Makes the recorder of a definition when its first call comes, and drains them all.

    Parameters
    ----------
    definitions : mapping of str to Definition
        Of the dataset.
    config : TracingConfigRegistry
        What is recorded of each.
    limits : TracingLimits
        How much memory may be used.
    deferring : callable
        Whether copies must wait, as a CUDA graph is captured.
    overflow : callable
        Called, without the lock, when too much is held; drains.

    Attributes
    ----------
    lock : threading.RLock
        Held while a call is recorded, not while anything is written.
    busy : bool
        Whether a call is being recorded; read and written under the lock.

    Raises
    ------
    ConfigError, UnknownNameError
        If a policy cannot be made, or a definition's own settings name an input that it lacks.
    """

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        config: TracingConfigRegistry,
        limits: TracingLimits,
        deferring: Callable[[], bool],
        overflow: Callable[[], object],
    ) -> None:
        self.policies = PolicyRegistry.get_instance()
        self.limits = limits
        self.deferring = deferring
        self.orders = count()
        self._definitions = definitions
        self._config = config
        self._overflow = overflow
        self._made: dict[str, Recorder] = {}
        self._waiting: list[WorkloadEntry] = []
        self._begin()
        self._check()
        self.names = {name: None for name in definitions if self._wants(name)}

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self.busy = False
        self._emptied()

    def _emptied(self) -> None:
        self._entries = self._nbytes = 0
        self._deferred: list[WorkloadEntry] = []

    def _check(self) -> None:
        """Have mistakes in the settings show now, and not in a log during the run."""
        for config in self._config.configs():
            self.policies.make_filter_policy(config)
            if isinstance(config.input_dump_policy, str):
                self.policies.require_dump_policy(config.input_dump_policy)
        for name, config in self._config.per_definition.items():
            definition, wanted = self._definitions.get(name), config.input_dump_policy
            if definition is None or not isinstance(wanted, list):
                continue
            tensors = [each for each, spec in definition.inputs.items() if spec.shape is not None]
            missing = [each for each in wanted if each not in tensors]
            if missing:
                raise ConfigError(
                    f"input_dump_policy of '{name}': it has no tensor input '{missing[0]}'; "
                    f"it has {', '.join(tensors) or 'none'}"
                )

    def _wants(self, name: str) -> bool:
        config = self._config.get(name)
        return config is not None and config.filter_policy != "keep_none"

    def get(self, name: str) -> Recorder:
        """Return the recorder of a definition, one of `names`."""
        with held_back(), self.lock:
            if name not in self._made:
                config = self._config.get(name)
                assert config is not None
                self._made[name] = Recorder(self, self._definitions[name], config)
            return self._made[name]

    def took(self, entry: WorkloadEntry, displaced: Optional[WorkloadEntry]) -> None:
        """Note that an entry is held now, perhaps in the place of another."""
        self._entries += 1
        self._nbytes += entry.nbytes()
        if entry.is_deferred:
            self._deferred.append(entry)
        if displaced is not None:
            self._entries -= 1
            self._nbytes -= displaced.nbytes()

    def relieve(self) -> None:
        """Have everything written if it is too much."""
        if self._entries >= self.limits.max_entries or self._nbytes >= self.limits.max_bytes:
            self._overflow()

    def settle(self) -> int:
        """Copy now what deferred entries refer to; return how many there were."""
        with held_back(), self.lock:
            deferred = [*self._waiting, *self._deferred]
            return sum(self._made[entry.def_name].settle(entry) for entry in deferred)

    def drain(self, *, last: bool) -> list[WorkloadEntry]:
        """Return what is kept, ready to be written, in the order of the calls.

        Entries of CUDA graphs that cannot be read now, or need not yet, are kept for the next time.

        Parameters
        ----------
        last : bool
            Whether they are read although nobody has asked for a snapshot of them.
        """
        with held_back(), self.lock:
            entries = [*self._waiting]
            for recorder in list(self._made.values()):
                entries += recorder.drain()
            self._emptied()
            self._waiting = []
            readable = not is_capturing()
            ready = []
            for entry in sorted(entries, key=lambda entry: entry.order):
                fresh = entry.is_deferred and entry.cuda_graph_snapshot is None
                early = fresh and not last and len(self._waiting) < self.limits.max_entries // 2
                if entry.is_deferred and (early or not readable):
                    self._waiting.append(entry)
                elif self._made[entry.def_name].finish(entry):
                    ready.append(entry)
            return ready

    def stats(self) -> dict[str, Any]:
        """Return what became of all calls, and of those of each definition."""
        counters = {name: made.counters for name, made in list(self._made.items())}
        return {
            **_record_of(list(counters.values())),
            "buffered": {"entries": self._entries, "bytes": self._nbytes},
            "definitions": {name: _record_of([each]) for name, each in counters.items()},
        }

    def after_fork(self) -> None:
        """Forget what is kept, but not what has been seen."""
        self._begin()
        self._waiting = []
        for recorder in self._made.values():
            recorder.drain()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy on the CPU, which shares nothing with `tensor`.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any device and strides. On a GPU this waits for what its current stream has to do.

    Raises
    ------
    RuntimeError
        If its memory has been given back, as sharded training does with ``resize_(0)``: to read it
        would end the process.
    """
    import torch

    if tensor.numel():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = tensor.storage_offset() + sum((size - 1) * step for size, step in steps)
        if (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise RuntimeError("the memory of a tensor has been given back")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
