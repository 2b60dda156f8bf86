"""Which calls become workloads: what is kept of a call, and the policies that decide.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Union

from flashinfer_bench._lazy import old_names
from flashinfer_bench._providers import install_hint, provider_of
from flashinfer_bench.errors import (
    CapabilityError,
    ConfigError,
    DuplicateNameError,
    UnknownNameError,
)
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
    """One call, as it will become a workload.

    Parameters
    ----------
    def_name : str
        The definition that the call is of.
    axes : dict of str to int
        Value of each variable axis, in the order of the definition.
    inputs_to_dump : dict of str to tensor or number
        What the workload has to say of single inputs: the tensors that the dump policy picked, and
        the number of each scalar input. Inputs that are missing here become random ones. A tensor
        is a copy on the CPU that nobody else writes to; while a CUDA graph is captured it is the
        program's own, see `is_deferred`.
    order : int
        Number of the call among all that were kept by this process, from 0 on.
    cuda_graph_snapshot : dict of str to tensor or number, optional
        Copies of what was the program's own above, taken after the graph had run. They are in
        `inputs_to_dump` as well when the entry is handed to the store.
    is_deferred : bool
        Whether `inputs_to_dump` still refers to tensors of the program. Never set in an entry that
        is handed to the store.
    """

    def_name: str
    axes: dict[str, int]
    inputs_to_dump: dict[str, InputValue]
    order: int
    cuda_graph_snapshot: Optional[dict[str, InputValue]] = None
    is_deferred: bool = field(default=False, repr=False)

    def values(self) -> dict[str, InputValue]:
        """Return what is written, by input: snapshots where there are some."""
        return {**self.inputs_to_dump, **(self.cuda_graph_snapshot or {})}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors that are written, by input."""
        return {name: value for name, value in self.values().items() if not is_number(value)}  # type: ignore[misc]

    def nbytes(self) -> int:
        """Return the bytes of all tensors that the entry holds."""
        return sum(each.numel() * each.element_size() for each in self.tensors().values())


def is_number(value: object) -> bool:
    """Return whether a value is a plain number, and no tensor."""
    return isinstance(value, (bool, int, float))


# ------------------------------------------------------------------------------------ policies


class FilterPolicy(ABC):
    """Decides which of the calls of one definition become workloads, as they come.

    Each definition has its own policy object, which is used by one thread at a time. What it
    raises is counted, and costs the call that it was about.
    """

    def begin(self, layout: Layout) -> None:  # noqa: B027  # most need not know
        """Learn which definition it is for; called once, before anything else."""

    @abstractmethod
    def submit(self, entry: WorkloadEntry) -> None:
        """Take one call, to keep it or not. All inputs that are to be dumped have been copied."""

    @abstractmethod
    def drain(self) -> list[WorkloadEntry]:
        """Return what is kept, and keep it no more.

        Called when the runtime is flushed, and whenever as many entries as may be buffered have
        been submitted. What has been seen is remembered, so that it is not kept twice.
        """


class InputDumpPolicy(ABC):
    """Picks the inputs of a call that are written as they were. A function will do as well."""

    @abstractmethod
    def get_inputs_to_dump(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """Return names of inputs, given all inputs by name."""

    def __call__(self, inputs: Mapping[str, Any]) -> Iterable[str]:
        """See `get_inputs_to_dump`."""
        return self.get_inputs_to_dump(inputs)


class FastPath(NamedTuple):
    """How a call is known to be of no interest, before anything else is done with it.

    Parameters
    ----------
    condition : str
        Python, true for such a call, with ``a0``, ``a1``, … for the inputs by position. What it
        raises makes the call an ordinary one.
    positions : tuple of int
        The inputs in it.
    namespace : dict
        Other names in it.
    """

    condition: str
    positions: tuple[int, ...]
    namespace: dict[str, Any]


class OnlinePolicy(FilterPolicy):
    """A policy that decides by axes and inputs before anything is copied.

    Attributes
    ----------
    entries : list of WorkloadEntry
        Those kept.
    """

    def __init__(self) -> None:
        self.entries: list[WorkloadEntry] = []

    @abstractmethod
    def admit(self, axes: Axes, inputs: Inputs) -> bool:
        """Return whether a call is kept; if so it counts as kept from now on.

        Parameters
        ----------
        axes : mapping of str to int
            Value of each variable axis.
        inputs : mapping of str to Any
            The program's own arguments: they must be neither kept nor changed.
        """

    def keep(self, entry: WorkloadEntry) -> Optional[WorkloadEntry]:
        """Take a call that has been admitted; return the one that it displaces, if any."""
        self.entries.append(entry)
        return None

    def fast_path(self, layout: Layout) -> Optional[FastPath]:
        """Return how the calls that `admit` would refuse are recognised quickly, if that is so.

        Called once, before anything else.
        """
        return None

    def bound(self, max_keys: int) -> None:
        """Remember no more than so many keys; see `TracingLimits`."""

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
    """Keeps nothing; no call is even looked at."""

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
    """Keeps the first `k` calls of each key; calls with the same key are interchangeable.

    Of more keys than `bound` allows, the older half is forgotten: their calls may be kept again.
    Where a subclass changes neither `keep` nor `drain`, entries are taken and written within
    seconds.

    Parameters
    ----------
    k : int
        How many.
    """

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self._k = positive("k", k)
        self._most: Optional[int] = None
        # Both in the order in which keys came. The first is what fast paths look into: it is
        # changed in place.
        self._full: dict[Hashable, None] = {}
        self._counts: dict[Hashable, int] = {}

    @abstractmethod
    def key_of(self, axes: Axes, inputs: Inputs) -> Hashable:
        """Return the key of a call."""

    def key_source(self, layout: Layout) -> Optional[tuple[str, tuple[int, ...]]]:
        """Return Python for the key, and the positions of the inputs in it; None if there is none.

        Keys have the same form then as those of `key_of`. ``policy`` is the policy in it.
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
    """Keeps the first `k` calls of each size, that is, with the same values of all variable axes.

    Parameters
    ----------
    k : int
        How many.
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
    """Return whether what a policy has kept is written in any case, and so may be at any time.

    Of others that is not known: they may choose until they are drained, as a random sample does.
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
"""The tensors that each built-in dump policy writes: those of these dtypes, None for all."""


class PolicyRegistry:
    """Finds policies by the names that a `TracingConfig` gives. There is one, for the process.

    Names hold for the runtimes that start afterwards.
    """

    # By what they decide, as in `TracingPolicySpec`.
    _own: ClassVar[dict[str, dict[str, Callable[..., Any]]]] = {"calls": {}, "inputs": {}}

    @classmethod
    def get_instance(cls) -> type[PolicyRegistry]:
        """Return the registry that runtimes look into: the class itself."""
        return cls

    @classmethod
    def list_filter_policies(cls) -> list[str]:
        """Return the names of filter policies."""
        return sorted({*cls._own["calls"], *_registered("calls")})

    @classmethod
    def list_input_dump_policies(cls) -> list[str]:
        """Return the names of dump policies."""
        return sorted({*DUMPS, *cls._own["inputs"], *_registered("inputs")})

    @classmethod
    def get_filter_policy(cls, name: str) -> Callable[..., FilterPolicy]:
        """Return what makes the filter policy of a name.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        return cls._find("calls", name)

    @classmethod
    def get_input_dump_policy(cls, name: str) -> Callable[..., Any]:
        """Return the function of a dump policy that is not built in.

        Raises
        ------
        UnknownNameError
            If there is none.
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
            Makes a policy, one for each definition: a class of `FilterPolicy`, say. Gets
            ``filter_policy_kwargs``. Without it, a decorator of that is returned.
        override : bool
            Whether a policy of that name may be replaced; one that is built in never is.

        Raises
        ------
        ConfigError
            If the name is none, or the factory cannot be called.
        DuplicateNameError
            If there is a policy of that name.
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
            Gets the inputs of a call by name, and ``input_dump_policy_kwargs``; returns the names
            of those to write. A class of `InputDumpPolicy` gets the latter when an object is made.
            Without it, a decorator is returned.
        override : bool
            As of `register_filter_policy`.

        Raises
        ------
        ConfigError, DuplicateNameError
            As of `register_filter_policy`.
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
                f"there is a policy '{name}' already", hint="pass override=True to replace it"
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
            If there is no policy of that name.
        ConfigError
            If its parameters are not allowed, or it lacks a method.
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
    def require_known(cls, decides: str, name: str) -> None:
        """Check that there is a policy of a name, or that a plugin would have it.

        Parameters
        ----------
        decides : str
            The field of a `TracingConfig`.
        name : str
            The policy.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        with suppress(CapabilityError):
            if decides == "filter_policy":
                cls.get_filter_policy(name)
            elif name not in DUMPS:
                cls.get_input_dump_policy(name)

    @classmethod
    def make_picker(cls, config: TracingConfig, layout: Layout) -> Picker:
        """Return what picks the inputs to dump of a call of one definition.

        Raises
        ------
        UnknownNameError
            If there is no policy of that name.
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
        """Return the function of a dump policy that is not built in, with its settings."""
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
            raise CapabilityError(
                f"{missing}: it is provided by {provider}, which is not installed",
                hint=install_hint(provider),
            )
        raise UnknownNameError(
            f"{missing}; available: {', '.join(known)}",
            hint="register your own with PolicyRegistry",
        )


def _registered(decides: str) -> dict[str, Registered[TracingPolicySpec]]:
    """Return the policies that core and plugins register."""
    found = default_catalog().tracing_policies
    return {entry.name: entry for entry in found if entry.spec.decides == decides}
