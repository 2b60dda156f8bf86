"""The recorders of all definitions of a runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.capture import is_capturing
from flashinfer_bench.tracing.buffer import Buffer
from flashinfer_bench.tracing.recorder import Counters, Recorder
from flashinfer_bench.tracing.registry import PolicyRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tracing.config import (
        TracingConfig,
        TracingConfigRegistry,
        TracingLimits,
    )
    from flashinfer_bench.tracing.entry import WorkloadEntry


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
        Whether copies must wait.
    overflow : callable
        Called when too much is held; drains.

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
        overflow: Callable[[], None],
    ) -> None:
        self._definitions = definitions
        self._config = config
        self._policies = PolicyRegistry.get_instance()
        self._deferring = deferring
        self._buffer = Buffer(limits, overflow)
        self._made: dict[str, Recorder] = {}
        self._waiting: list[WorkloadEntry] = []
        self._check()
        self.names: Collection[str] = {name: None for name in definitions if self._wants(name)}

    def _check(self) -> None:
        """Have mistakes in the settings show now, and not in a log during the run."""
        for config in self._config.configs():
            self._policies.make_filter_policy(config)
            if isinstance(config.input_dump_policy, str):
                self._policies.require_dump_policy(config.input_dump_policy)
        for name, config in self._config.per_definition.items():
            definition = self._definitions.get(name)
            wanted = config.input_dump_policy
            if definition is not None and isinstance(wanted, list):
                for each in wanted:
                    _require_input(each, definition)

    def _wants(self, name: str) -> bool:
        config = self._config.get(name)
        return config is not None and config.filter_policy != "keep_none"

    def get(self, name: str) -> Recorder:
        """Return the recorder of a definition, one of `names`."""
        with self._buffer.lock:
            found = self._made.get(name)
            if found is None:
                config = self._config.get(name)
                assert config is not None
                found = self._made[name] = self._make(name, config)
            return found

    def _make(self, name: str, config: TracingConfig) -> Recorder:
        policies = self._policies
        return Recorder(
            self._definitions[name],
            policies.make_filter_policy(config),
            lambda layout: policies.make_picker(config, layout),
            self._buffer,
            self._deferring,
        )

    def settle(self) -> int:
        """Copy now what deferred entries refer to; return how many there were."""
        with self._buffer.lock:
            deferred = [*self._waiting, *self._buffer.deferred]
            return sum(self._made[entry.def_name].settle(entry) for entry in deferred)

    def drain(self, *, last: bool) -> list[WorkloadEntry]:
        """Return what is kept, ready to be written, in the order of the calls.

        Entries of CUDA graphs that cannot be read now, or need not yet, are kept for the next time.

        Parameters
        ----------
        last : bool
            Whether they are read although nobody has asked for a snapshot of them.
        """
        with self._buffer.lock:
            entries = [*self._waiting]
            for recorder in list(self._made.values()):
                entries += recorder.drain()
            self._buffer.emptied()
            self._waiting = []
            return self._finished(sorted(entries, key=lambda entry: entry.order), last=last)

    def _finished(self, entries: Iterable[WorkloadEntry], *, last: bool) -> list[WorkloadEntry]:
        readable = not is_capturing()
        most = self._buffer.limits.max_entries // 2
        ready = []
        for entry in entries:
            fresh = entry.is_deferred and entry.cuda_graph_snapshot is None
            early = fresh and not last and len(self._waiting) < most
            if entry.is_deferred and (early or not readable):
                self._waiting.append(entry)
            elif self._made[entry.def_name].finish(entry):
                ready.append(entry)
        return ready

    def stats(self) -> dict[str, Any]:
        """Return what became of all calls, and of those of each definition."""
        each = {name: made.counters.to_record() for name, made in list(self._made.items())}
        totals = Counters().to_record()
        for counts in each.values():
            for key, value in counts.items():
                if key != "rejected":
                    totals[key] += value
            for reason, number in counts["rejected"].items():
                totals["rejected"][reason] = totals["rejected"].get(reason, 0) + number
        held = {"entries": self._buffer.entries, "bytes": self._buffer.nbytes}
        return {**totals, "buffered": held, "definitions": each}

    def after_fork(self) -> None:
        """Forget what is kept, but not what has been seen."""
        self._buffer.clear()
        self._waiting = []
        for recorder in self._made.values():
            recorder.drain()


def _require_input(name: str, definition: Definition) -> None:
    spec = definition.inputs.get(name)
    if spec is None or spec.shape is None:
        tensors = [each for each, spec in definition.inputs.items() if spec.shape is not None]
        raise ConfigError(
            f"input_dump_policy of '{definition.name}': it has no tensor input '{name}'; "
            f"it has {', '.join(tensors) or 'none'}"
        )
