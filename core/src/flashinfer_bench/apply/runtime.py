"""A dataset, put to work: what `enable_apply` starts."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench.apply.arguments import arguments, resolve
from flashinfer_bench.apply.config import as_registry
from flashinfer_bench.apply.generation import Generation
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.integration.slots import board

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import TracebackType

    from flashinfer_bench.apply.arguments import Named, Positional, Resolver
    from flashinfer_bench.apply.config import ApplyConfig, ApplyConfigRegistry
    from flashinfer_bench.apply.dispatch import Counters, Stats
    from flashinfer_bench.apply.explanation import Explanation
    from flashinfer_bench.data import Definition, TraceSet
    from flashinfer_bench.integration.slots import Call, Fallback, Runtime, Slot

    Config = Union[ApplyConfig, ApplyConfigRegistry, None]
    Dataset = Union[TraceSet, str, Path]

_rebuilding = threading.RLock()


def _renew_lock() -> None:
    global _rebuilding
    _rebuilding = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread of the parent may hold it, and is not in the child
    os.register_at_fork(after_in_child=_renew_lock)


def get_runtime() -> Optional[Runtime]:
    """Return the runtime that takes calls now, or None."""
    board.settle()
    return board.top()


def set_runtime(rt: Optional[Runtime]) -> None:
    """Make `rt` the only active runtime; None for none.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    wanted = ("names", "route", "stop")
    if rt is not None and not all(callable(getattr(rt, name, None)) for name in wanted):
        raise ConfigError(
            f"{type(rt).__name__} is no runtime of apply: it lacks {', '.join(wanted)}",
            hint="make an ApplyRuntime, or call enable_apply",
        )
    board.clear()
    if rt is not None:
        board.push(rt)


class ApplyRuntime:
    """Sends calls to the best solutions of a dataset, while it is active.

    Of several active runtimes the one that started last decides, alone. As a context manager it is
    active in the body, and whatever was active before is so again afterwards. Called like `apply`,
    it answers with its own dataset, active or not.

    Parameters
    ----------
    trace_set : TraceSet, str or Path, optional
        The dataset, or its folder; by default that of ``FIB_DATASET_PATH``.
    config : ApplyConfig or ApplyConfigRegistry, optional
        Settings for all definitions, or for each. Default: `get_default_registry`.
    device : str or torch.device, optional
        Where the tensors of calls are: ``cpu``, ``cuda`` or ``cuda:N``. Records of its hardware
        count; calls elsewhere go to the original, but other GPUs of the same name are as good. By
        default the current GPU if there is one, else the CPU.

    Raises
    ------
    DatasetNotFoundError, DataError
        If there is no such dataset, or it is not one. Single files of it that are not valid, and
        solutions that cannot be built, cost only themselves; `problems` has the reasons.
    ConfigError
        If the settings are something else.
    CapabilityError
        If there is no such device.
    """

    def __init__(
        self,
        trace_set: Optional[Dataset] = None,
        config: Config = None,
        *,
        device: object = None,
    ) -> None:
        from flashinfer_bench.apply.hardware import device_named

        self._dataset: Dataset = env.dataset_path() if trace_set is None else trace_set
        self._config: Config = config
        self._device = device_named(device)
        self._entered = 0
        self._counters: dict[str, Counters] = {}
        self._generation = self._load(self._dataset, config)

    def __repr__(self) -> str:
        dataset = self._dataset
        root = dataset if isinstance(dataset, (str, os.PathLike)) else dataset.root
        return f"<ApplyRuntime of {'a dataset in memory' if root is None else str(root)!r}>"

    # ------------------------------------------------------------------------------ activity

    @property
    def is_active(self) -> bool:
        """Whether it has been started, and not stopped; an inner one may take the calls."""
        return any(each is self for each in board.active)

    def start(self) -> ApplyRuntime:
        """Become the innermost active runtime; nothing happens if it is one."""
        board.push(self)
        return self

    def stop(self) -> None:
        """Be active no more, wherever it is among the active ones; nothing happens if it is not.

        Calls that are running go on.
        """
        board.remove(self)

    def __enter__(self) -> ApplyRuntime:
        self._entered += 1
        if not self.is_active:
            self.start()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._entered -= 1
        if self._entered <= 0:
            self.stop()

    @classmethod
    def get_instance(cls) -> Optional[ApplyRuntime]:
        """Return the innermost active runtime of a dataset, or None."""
        board.settle()
        return next((each for each in reversed(board.active) if isinstance(each, cls)), None)

    # ------------------------------------------------------------------------------- content

    def _load(self, dataset: Dataset, config: Config) -> Generation:
        from flashinfer_bench.apply.building import Builds
        from flashinfer_bench.apply.hardware import this_hardware
        from flashinfer_bench.apply.table import ApplyTable

        settings = as_registry(config)
        hardware = this_hardware(self._device)
        table = ApplyTable.load_or_build(dataset, settings, hardware=hardware)
        builds = Builds(table.source)
        generation = Generation(table, settings, builds, self._device, self._counters)
        generation.build_ahead()
        return generation

    def rebuild(self, trace_set: Optional[Dataset] = None, config: Config = None) -> None:
        """Read the dataset again, and use what it holds now.

        Calls go on meanwhile: each is answered by what there was before, or by what there is now,
        as a whole. If it fails, nothing changes.

        Parameters
        ----------
        trace_set : TraceSet, str or Path, optional
            Another dataset from now on.
        config : ApplyConfig or ApplyConfigRegistry, optional
            Other settings from now on.

        Raises
        ------
        DatasetNotFoundError, DataError, ConfigError
            As of the class.
        """
        with _rebuilding:
            dataset = self._dataset if trace_set is None else trace_set
            settings = self._config if config is None else config
            generation = self._load(dataset, settings)
            self._dataset, self._config, self._generation = dataset, settings, generation
            board.publish(self)

    def names(self) -> Collection[str]:
        """Return the definitions for which there is anything to substitute."""
        return self._generation.names()

    def route(self, name: str, slot: Optional[Slot]) -> Optional[Call]:
        """Return what takes the calls of a slot; see `slots.Runtime`."""
        return self._generation.route(name, slot)

    def definition(self, name: str) -> Optional[Definition]:
        """Return one of the definitions for which there is anything to substitute."""
        return self._generation.table.source.definition(name) if name in self.names() else None

    @property
    def problems(self) -> dict[str, str]:
        """Why definitions, decorated functions and solutions are not used, by their names."""
        return self._generation.problems

    def stats(self) -> dict[str, Stats]:
        """Return hits, fallbacks, errors and misses with their reasons, by definition."""
        return self._generation.stats()

    def explain(self, name: str, axes: Optional[Mapping[str, int]] = None) -> Explanation:
        """Return who is chosen for a definition, and why the others are not.

        The dataset is read anew for that.

        Parameters
        ----------
        name : str
            The definition.
        axes : mapping of str to int, optional
            Only for these sizes.

        Raises
        ------
        UnknownNameError
            If there is no such definition.
        """
        from flashinfer_bench.apply.explain import explain

        hardware = self._generation.table.hardware
        return explain(self._dataset, name, self._config, hardware=hardware, axes=axes)

    # --------------------------------------------------------------------------------- calls

    def dispatch(
        self,
        name: str,
        args: Positional = (),
        kwargs: Named = None,
        fallback: Fallback = None,
    ) -> Any:
        """Answer one call of a definition.

        Parameters
        ----------
        name : str
            The definition.
        args : sequence
            Inputs in declaration order, or inputs and outputs. In the old form
            ``dispatch(name, runtime_kwargs, fallback)``, a mapping.
        kwargs : mapping, optional
            Arguments by the names of the definition.
        fallback : callable, optional
            Called with the very arguments if there is nothing to substitute.

        Raises
        ------
        RuntimeError
            If there is nothing to substitute and no fallback.
        ValueError
            If the number of arguments is neither that of the inputs nor of inputs and outputs.
        """
        given, named, instead = arguments(args, kwargs, fallback)
        innermost = board.top() is self
        call = board.call_of(name) if innermost else self.route(name, None)
        if call is not None:
            return call(given, named, instead)
        if instead is None:
            reason = self.problems.get(name, f"{self!r} has nothing to substitute for it")
            raise RuntimeError(f"definition '{name}': {reason}, and no fallback is given")
        return instead(*given, **(named or {}))

    def __call__(
        self,
        name_or_resolver: Union[str, Resolver],
        args: Positional = (),
        kwargs: Named = None,
        fallback: Fallback = None,
        *,
        runtime_kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        """Answer one call, as `apply` does."""
        by_name = kwargs if runtime_kwargs is None else runtime_kwargs
        given, named, instead = arguments(args, by_name, fallback)
        name = resolve(name_or_resolver, given, named, instead)
        if name is None:
            assert instead is not None
            return instead(*given, **(named or {}))
        return self.dispatch(name, given, named, instead)
