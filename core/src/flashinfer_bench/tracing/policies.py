"""The recorded form of a call, and the policies that decide which calls become workloads.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Union

from flashinfer_bench._lazy import old_names
from flashinfer_bench._providers import not_installed, provider_of
from flashinfer_bench.errors import ConfigError, DuplicateNameError, UnknownNameError
from flashinfer_bench.plugins import Registered, TracingPolicySpec, default_catalog
from flashinfer_bench.tracing.config import TracingConfig, positive

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    import torch

    from flashinfer_bench.tracing.recorder import Layout

    InputValue = Union[torch.Tensor, bool, int, float]
    Axes = Mapping[str, int]
    Inputs = Mapping[str, Any]
    Picker = Callable[[Inputs], "tuple[str, ...]"]
    """Returns the names of the inputs to dump, given all inputs by name."""

__getattr__ = old_names(__name__)


@dataclass(eq=False)
class WorkloadEntry:
    """One recorded call, before it becomes a workload.

    Parameters
    ----------
    def_name : str
        Name of the definition that was called.
    axes : dict of str to int
        Value of each variable axis, in the order of the definition.
    inputs_to_dump : dict of str to tensor or number
        Tensors selected by the dump policy, and the value of each scalar input. Inputs that are
        missing here become random. Tensors are private copies on the CPU; during CUDA graph capture
        they are the program's own tensors, see `is_deferred`.
    order : int
        Index of the call among all calls kept by this process, from 0.
    cuda_graph_snapshot : dict of str to tensor or number, optional
        Copies of the program's tensors in `inputs_to_dump`, taken after the graph has run. They are
        also in `inputs_to_dump` when the entry is passed to the store.
    is_deferred : bool
        Whether `inputs_to_dump` still refers to the program's tensors. Never True in an entry that
        is passed to the store.
    """

    def_name: str
    axes: dict[str, int]
    inputs_to_dump: dict[str, InputValue]
    order: int
    cuda_graph_snapshot: Optional[dict[str, InputValue]] = None
    is_deferred: bool = field(default=False, repr=False)

    def values(self) -> dict[str, InputValue]:
        """Return the values to write, by input; snapshots take precedence."""
        return {**self.inputs_to_dump, **(self.cuda_graph_snapshot or {})}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors to write, by input."""
        return {name: value for name, value in self.values().items() if not is_number(value)}  # type: ignore[misc]

    def nbytes(self) -> int:
        """Return the total bytes of all tensors in the entry."""
        return sum(each.numel() * each.element_size() for each in self.tensors().values())


def is_number(value: object) -> bool:
    """Return whether `value` is a plain number, not a tensor."""
    return isinstance(value, (bool, int, float))


# ------------------------------------------------------------------------------------ policies


class FilterPolicy(ABC):
    """Decides which calls of one definition become workloads, as they arrive.

    Each definition has its own policy object, which is used by one thread at a time. If a method
    raises, the error is counted and the current call is not recorded.
    """

    def begin(self, layout: Layout) -> None:  # noqa: B027  # optional: most policies need no layout
        """Receive the layout of the definition; called once, before anything else."""

    @abstractmethod
    def submit(self, entry: WorkloadEntry) -> None:
        """Process one call and decide whether to keep it. All inputs to dump have been copied."""

    @abstractmethod
    def drain(self) -> list[WorkloadEntry]:
        """Return the kept entries and forget them.

        Called when the runtime is flushed, and whenever the limit of buffered entries is reached.
        Keys that have been seen are remembered, so that no call is kept twice.
        """


class InputDumpPolicy(ABC):
    """Selects the inputs of a call that are stored with their values. A function works as well."""

    @abstractmethod
    def get_inputs_to_dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Return the names of the inputs to store, given all inputs by name."""

    def __call__(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """See `get_inputs_to_dump`."""
        return self.get_inputs_to_dump(inputs)


class FastPath(NamedTuple):
    """A quick test for calls that need not be recorded, run before any other work.

    Parameters
    ----------
    condition : str
        Python expression that is true for such a call, with ``a0``, ``a1``, … for the inputs by
        position. If it raises, the call is processed normally.
    positions : tuple of int
        Positions of the inputs used in it.
    namespace : dict
        Other names used in it.
    """

    condition: str
    positions: tuple[int, ...]
    namespace: dict[str, Any]


class OnlinePolicy(FilterPolicy):
    """A policy that decides by axes and inputs before anything is copied.

    Attributes
    ----------
    entries : list of WorkloadEntry
        The kept entries.
    """

    def __init__(self) -> None:
        self.entries: list[WorkloadEntry] = []

    @abstractmethod
    def admit(self, axes: Axes, inputs: Inputs) -> bool:
        """Return whether to keep a call; if True, the call counts as kept.

        Parameters
        ----------
        axes : mapping of str to int
            Value of each variable axis.
        inputs : mapping of str to Any
            The program's own arguments: do not store or change them.
        """

    def keep(self, entry: WorkloadEntry) -> Optional[WorkloadEntry]:
        """Store an admitted call; return the entry that it displaces, if any."""
        self.entries.append(entry)
        return None

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """Return a quick test for calls that `admit` would reject, or None.

        Called once, before anything else.
        """
        return None

    def bound(self, max_keys: int) -> None:
        """Limit the number of remembered keys; see `TracingLimits`."""

    def submit(self, entry: WorkloadEntry) -> None:
        """See `FilterPolicy.submit`."""
        if self.admit(entry.axes, entry.values()):
            self.keep(entry)

    def drain(self) -> list[WorkloadEntry]:
        """See `FilterPolicy.drain`."""
        drained, self.entries = self.entries, []
        return drained


class KeepAllPolicy(OnlinePolicy):
    """Keeps each call."""

    def admit(self, axes: Axes, inputs: Inputs) -> bool:
        """See `OnlinePolicy.admit`."""
        return True


class KeepNonePolicy(OnlinePolicy):
    """Keeps nothing; calls are not even inspected."""

    def admit(self, axes: Axes, inputs: Inputs) -> bool:
        """See `OnlinePolicy.admit`."""
        return False


class KeepFirstKPolicy(OnlinePolicy):
    """Keeps the first `k` calls.

    Parameters
    ----------
    k : int
        How many.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.left = positive("k", k)

    def admit(self, axes: Axes, inputs: Inputs) -> bool:
        """See `OnlinePolicy.admit`."""
        if not self.left:
            return False
        self.left -= 1
        return True

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        return FastPath("not policy.left", (), {"policy": self})


class KeyedPolicy(OnlinePolicy):
    """Keeps the first `k` calls for each key; calls with the same key are interchangeable.

    If there are more keys than `bound` allows, the older half is forgotten, and its calls may be
    kept again. Unless a subclass overrides `keep` or `drain`, entries are written within seconds.

    Parameters
    ----------
    k : int
        Calls kept per key.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self._k = positive("k", k)
        self._most: Optional[int] = None
        # Both in the order in which keys arrived. Fast paths hold a reference to the first, so it
        # is changed in place.
        self._full: dict[Hashable, None] = {}
        self._counts: dict[Hashable, int] = {}

    @abstractmethod
    def key_of(self, axes: Axes, inputs: Inputs) -> Hashable:
        """Return the key of a call."""

    def key_source(self, layout: Layout) -> Optional[tuple[str, tuple[int, ...]]]:
        """Return a Python expression for the key and the positions of its inputs, or None.

        Its value must equal that of `key_of`. ``policy`` refers to the policy.
        """
        return None

    def admit(self, axes: Axes, inputs: Inputs) -> bool:
        """See `OnlinePolicy.admit`."""
        key = self.key_of(axes, inputs)
        if key in self._full:
            return False
        count = self._counts.pop(key, 0) + 1
        if count < self._k:
            self._counts[key] = count
        else:
            self._full[key] = None
        if self._most is not None and len(self._full) + len(self._counts) > self._most:
            for keys in (self._full, self._counts):
                for old in list(islice(keys, (len(keys) + 1) // 2)):
                    del keys[old]
        return True

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """See `OnlinePolicy.fast_path`."""
        found = self.key_source(layout)
        if found is None:
            return None
        source, positions = found
        return FastPath(f"{source} in full", positions, {"full": self._full, "policy": self})

    def bound(self, max_keys: int) -> None:
        """See `OnlinePolicy.bound`."""
        self._most = max_keys


class KeepFirstKByAxesPolicy(KeyedPolicy):
    """Keeps the first `k` calls for each combination of values of all variable axes.

    Parameters
    ----------
    k : int
        Calls kept per combination.
    """

    def key_of(self, axes: Axes, inputs: Inputs) -> Hashable:
        """See `KeyedPolicy.key_of`."""
        values = tuple(axes.values())
        return values[0] if len(values) == 1 else values

    def key_source(self, layout: Layout) -> Optional[tuple[str, tuple[int, ...]]]:
        """See `KeyedPolicy.key_source`."""
        positions = tuple({position: None for position, _ in layout.places.values()})
        sizes = [layout.size_of(axis) for axis in layout.places]
        return sizes[0] if len(sizes) == 1 else f"({', '.join(sizes)})", positions


def stays_kept(policy: FilterPolicy) -> bool:
    """Return whether everything the policy keeps will be written, so that it can be written early.

    Other policies may still discard entries until they are drained, as a random sample does.
    """
    if not isinstance(policy, (KeepAllPolicy, KeepFirstKPolicy, KeyedPolicy)):
        return False
    own = type(policy)
    return own.keep is OnlinePolicy.keep and own.drain is OnlinePolicy.drain


# ------------------------------------------------------------------------------------ registry

DUMPS: Mapping[str, Optional[tuple[str, ...]]] = {
    "dump_none": (),
    "dump_all": None,
    "dump_int32": ("int32",),
    "dump_integers": ("int32", "int64"),
}
"""Dtypes of the tensors that each built-in dump policy writes; None for all."""


class PolicyRegistry:
    """Registry of the policies that a `TracingConfig` can name; one per process.

    A registration applies to runtimes that start afterwards.
    """

    # By the field they apply to, as in `TracingPolicySpec`.
    _own: ClassVar[dict[str, dict[str, Callable[..., Any]]]] = {"calls": {}, "inputs": {}}

    @classmethod
    def get_instance(cls) -> type[PolicyRegistry]:
        """Return the registry: the class itself."""
        return cls

    @classmethod
    def list_filter_policies(cls) -> list[str]:
        """Return the names of all filter policies."""
        return sorted({*cls._own["calls"], *_registered("calls")})

    @classmethod
    def list_input_dump_policies(cls) -> list[str]:
        """Return the names of all dump policies."""
        return sorted({*DUMPS, *cls._own["inputs"], *_registered("inputs")})

    @classmethod
    def get_filter_policy(cls, name: str) -> Callable[..., FilterPolicy]:
        """Return the factory of a filter policy.

        Raises
        ------
        UnknownNameError
            If the policy does not exist.
        """
        return cls._find("calls", name)

    @classmethod
    def get_input_dump_policy(cls, name: str) -> Callable[..., Any]:
        """Return the function of a dump policy that is not built in.

        Raises
        ------
        UnknownNameError
            If the policy does not exist.
        """
        return cls._find("inputs", name)

    @classmethod
    def register_filter_policy(
        cls,
        name: str,
        factory: Optional[Callable[..., FilterPolicy]] = None,
        override: bool = False,
    ) -> Any:
        """Add a filter policy.

        Parameters
        ----------
        name : str
            For `TracingConfig.filter_policy`.
        factory : callable, optional
            Creates a policy for each definition, for example a subclass of `FilterPolicy`. Called
            with ``filter_policy_kwargs``. If omitted, a decorator is returned.
        override : bool
            Whether to replace a policy of the same name; built-in policies cannot be replaced.

        Raises
        ------
        ConfigError
            If the name is invalid, or the factory is not callable.
        DuplicateNameError
            If a policy of that name exists.
        """
        return cls._register("calls", name, factory, override)

    @classmethod
    def register_input_dump_policy(
        cls, name: str, function: Optional[Callable[..., Any]] = None, override: bool = False
    ) -> Any:
        """Add a dump policy.

        Parameters
        ----------
        name : str
            For `TracingConfig.input_dump_policy`.
        function : callable, optional
            Called with the inputs of a call by name and ``input_dump_policy_kwargs``; returns the
            names of the inputs to store. A subclass of `InputDumpPolicy` gets the keyword arguments
            when it is instantiated. If omitted, a decorator is returned.
        override : bool
            As for `register_filter_policy`.

        Raises
        ------
        ConfigError, DuplicateNameError
            As for `register_filter_policy`.
        """
        return cls._register("inputs", name, function, override)

    @classmethod
    def _register(
        cls, decides: str, name: str, function: Optional[Callable[..., Any]], override: bool
    ) -> Any:
        if not (isinstance(name, str) and name):  # type: ignore[redundant-expr]
            raise ConfigError(f"{name!r} is not a policy name")
        if name in _registered(decides) or (decides == "inputs" and name in DUMPS):
            raise DuplicateNameError(f"policy '{name}' is built in", hint="choose another name")
        if name in cls._own[decides] and not override:
            raise DuplicateNameError(
                f"policy '{name}' already exists", hint="pass override=True to replace it"
            )
        if function is None:
            return partial(cls._register, decides, name, override=override)
        if not callable(function):
            raise ConfigError(f"policy '{name}': {type(function).__name__} cannot be called")
        cls._own[decides][name] = function
        return function

    @classmethod
    def make_filter_policy(cls, config: TracingConfig) -> FilterPolicy:
        """Return a new policy object for one definition.

        Raises
        ------
        UnknownNameError
            If the policy does not exist.
        ConfigError
            If its parameters are invalid, or it lacks a method.
        """
        named = config.filter_policy
        factory = cls.get_filter_policy(named) if isinstance(named, str) else named
        try:
            policy: FilterPolicy = factory(**config.filter_policy_kwargs)
        except TypeError as error:
            raise ConfigError(f"filter_policy={named!r} cannot be created: {error}") from error
        lacking = [each for each in ("submit", "drain") if not callable(getattr(policy, each, 0))]
        if lacking:
            raise ConfigError(
                f"filter_policy={named!r} creates a {type(policy).__name__}, which lacks "
                f"{', '.join(lacking)}",
                hint="subclass flashinfer_bench.tracing.FilterPolicy",
            )
        return policy

    @classmethod
    def make_picker(cls, config: TracingConfig, layout: Layout) -> Picker:
        """Return the function that selects the inputs to dump from a call of one definition.

        Raises
        ------
        UnknownNameError
            If the policy does not exist.
        """
        wanted = config.input_dump_policy
        if isinstance(wanted, list):
            always = tuple(name for name in layout.tensors() if name in wanted)
            return lambda inputs: always
        if isinstance(wanted, str) and wanted in DUMPS:
            dumped = layout.tensors(DUMPS[wanted])
            return lambda inputs: dumped
        function = cls.picking(config)
        tensors = layout.tensors()

        def pick(inputs: Inputs) -> tuple[str, ...]:
            picked = set(function(dict(inputs)) or ())
            return tuple(name for name in tensors if name in picked)

        return pick

    @classmethod
    def picking(cls, config: TracingConfig) -> Callable[[Inputs], Any]:
        """Return the function of a dump policy that is not built in, bound to its settings."""
        wanted: Any = config.input_dump_policy
        function = cls.get_input_dump_policy(wanted) if isinstance(wanted, str) else wanted
        settings = config.input_dump_policy_kwargs
        return function(**settings) if isinstance(function, type) else partial(function, **settings)

    @classmethod
    def _find(cls, decides: str, name: str) -> Callable[..., Any]:
        own = cls._own[decides].get(name)
        if own is not None:
            return own
        entry = _registered(decides).get(name)
        if entry is not None:
            found: Callable[..., Any] = entry.load()
            return found
        calls = decides == "calls"
        known = cls.list_filter_policies() if calls else cls.list_input_dump_policies()
        missing = f"there is no {'filter' if calls else 'dump'} policy '{name}'"
        if provider := provider_of("tracing_policy", name):
            raise not_installed(f"{missing}: it", provider)
        raise UnknownNameError(
            f"{missing}; available: {', '.join(known)}",
            hint="register your own with PolicyRegistry",
        )


def _registered(decides: str) -> dict[str, Registered[TracingPolicySpec]]:
    """Return the policies that core and plugins register."""
    found = default_catalog().tracing_policies
    return {entry.name: entry for entry in found if entry.spec.decides == decides}
