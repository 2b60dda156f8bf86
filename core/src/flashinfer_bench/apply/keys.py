"""Keys that group calls for which the same solution is best."""

from __future__ import annotations

import inspect
import json
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Optional, Union

from flashinfer_bench._lazy import old_parameters
from flashinfer_bench.errors import ConfigError, DataError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Definition, Workload

logger = logging.getLogger(__name__)

Feature = Union[str, int, float, bool, None]
"""Type of a feature's value: hashable, comparable, and JSON-compatible."""


@dataclass(frozen=True)
class ApplyKey:
    """The key of the table in which a call's solution is looked up.

    Two keys are equal if all axes and all features are equal, in the same order.

    Parameters
    ----------
    axes : tuple of (str, int)
        Size of each variable axis.
    feats : tuple of (str, value)
        Further properties that decide which solution is best. Values are strings, numbers, booleans
        or None; NaN is not allowed, because it is not equal to itself.
    """

    axes: tuple[tuple[str, int], ...]
    feats: tuple[tuple[str, Feature], ...] = ()

    def to_json(self) -> str:
        """Return the key as one line of JSON."""
        record = {"axes": self.axes, "feats": self.feats}
        return json.dumps(record, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ApplyKey:
        """Parse the output of `to_json`.

        Raises
        ------
        DataError
            If `text` is not a valid key.
        """
        import msgspec  # not needed to apply

        try:
            return msgspec.convert(json.loads(text), cls)
        except (ValueError, msgspec.ValidationError) as error:
            raise DataError(f"not an apply key: {text[:200]!r} ({error})") from error

    @property
    def encode(self) -> str:
        """Return the key as JSON; alias of `to_json` for older releases."""
        return self.to_json()

    @classmethod
    def from_encoded(cls, s: str) -> ApplyKey:
        """Parse the output of `encode`; alias of `from_json` for older releases."""
        return cls.from_json(s)


class ApplyKeyBuilder(ABC):
    """Reduces the inputs of a call to a key.

    A key is built from the arguments of a running call, and from each recorded workload when the
    table is made; both must agree. For a running call it must be fast, independent of sizes:
    reading a tensor's values would wait for the device.

    Parameters
    ----------
    definition : Definition
        The definition of the calls. Precompute everything that depends only on it in the
        constructor.

    Attributes
    ----------
    axis_places : tuple of (str, int, int)
        Where `axes_of` reads each variable axis: its name, the index of the input, the dimension.
        Axes that no input has are omitted. If a subclass removes an axis here, it is omitted from
        all keys.
    reads_data : bool
        Whether `features` reads the values of tensors. Such keys need a synchronisation in each
        call, and are not built during CUDA graph capture.
    """

    reads_data: ClassVar[bool] = False

    @old_parameters
    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        positions = {name: index for index, name in enumerate(definition.inputs)}
        self.axis_places: tuple[tuple[str, int, int], ...] = tuple(
            (axis, positions[name], dimension)
            for axis, (name, dimension) in definition.var_axes_bindings.items()
        )

    @property
    def axes_only(self) -> bool:
        """Whether a call's key consists only of the sizes at `axis_places`, in that order.

        If True, look-ups are compiled from `axis_places`, and `build_from_args` is not called for
        each call. False by default, and for builders that override how keys are made.
        """
        return False

    @abstractmethod
    def build_from_args(self, args: Sequence[Any]) -> ApplyKey:
        """Return the key of a running call.

        Parameters
        ----------
        args : sequence
            All inputs, in declaration order. Outputs may follow.

        Raises
        ------
        DataError
            If they are not valid inputs of the definition.
        """

    @abstractmethod
    def build_from_workload(self, workload: Workload, root: Optional[Path] = None) -> ApplyKey:
        """Return the key of a recorded call.

        Parameters
        ----------
        workload : Workload
            Gives the axes and the sources of the inputs.
        root : Path, optional
            Root of the dataset, for features that are read from recorded tensors.

        Raises
        ------
        DataError
            If it is not a valid workload of the definition.
        """

    @abstractmethod
    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Feature], ...]:
        """Return the key's parts besides the axes, as pairs of name and value."""

    def axes_of(self, args: Sequence[Any]) -> tuple[tuple[str, int], ...]:
        """Read the variable axes from the shapes of `args`, in the definition's order.

        Axes that no input has are omitted.

        Raises
        ------
        DataError
            If an argument is missing, or has no such dimension.
        """
        try:
            return tuple([(axis, args[index].shape[dim]) for axis, index, dim in self.axis_places])
        except (AttributeError, IndexError, TypeError):
            self._refuse(args)

    def axes_in(self, workload: Workload) -> tuple[tuple[str, int], ...]:
        """Return the axes of `axes_of` from a workload.

        Raises
        ------
        DataError
            If an axis is missing.
        """
        try:
            return tuple([(axis, workload.axes[axis]) for axis, _, _ in self.axis_places])
        except KeyError as error:
            (axis,) = error.args
        raise DataError(
            f"workload {workload.uuid!r} has no value for axis {axis!r} of "
            f"{self.definition.name!r}",
            field=f"axes.{axis}",
        )

    def build_from_runtime(self, runtime_kwargs: Mapping[str, Any]) -> ApplyKey:
        """Return the key of a call with arguments by name; from older releases."""
        return self.build_from_args(self.definition.merge_kwargs_to_args((), runtime_kwargs))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Support subclasses written for the first release, whose arguments came by name.

        They have ``build_from_runtime(runtime_kwargs)`` instead of `build_from_args`, and
        ``features(runtime_kwargs)``; their ``build_from_workload`` has no root.
        """
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        by_name: Any = own.get("build_from_runtime")
        of_workload: Any = own.get("build_from_workload")

        def build_from_args(self: ApplyKeyBuilder, args: Sequence[Any]) -> Any:
            return by_name(self, dict(zip(self.definition.inputs, args, strict=False)))

        def build_from_workload(self: Any, workload: Workload, root: Optional[Path] = None) -> Any:
            return of_workload(self, workload)

        if by_name and getattr(cls.build_from_args, "__isabstractmethod__", False):
            cls.build_from_args = build_from_args  # type: ignore[method-assign]
        if of_workload is not None and "root" not in inspect.signature(of_workload).parameters:
            cls.build_from_workload = build_from_workload  # type: ignore[method-assign]

    def _refuse(self, args: Sequence[Any]) -> NoReturn:
        names = list(self.definition.inputs)
        for axis, index, dimension in self.axis_places:
            place = f"input {names[index]!r} of {self.definition.name!r}"
            if index >= len(args):
                raise DataError(f"{place} is missing: {len(args)} arguments for {len(names)}")
            shape = getattr(args[index], "shape", None)
            if shape is None or len(shape) <= dimension:
                found = type(args[index]).__name__ if shape is None else list(shape)
                raise DataError(f"{place} has no dimension {dimension} ({axis}): {found}")
        raise DataError(f"these are not inputs of {self.definition.name!r}")


# The methods through which the keys of running and recorded calls are made.
_STEPS = ("build_from_args", "axes_of", "features", "build_from_workload", "axes_in")


class AxesOnlyKeyBuilder(ApplyKeyBuilder):
    """Makes keys from the variable axes alone: correct if the speed depends only on shapes."""

    @property
    def axes_only(self) -> bool:
        """Whether a key is only its axes; False if a subclass overrides how keys are made."""
        return self._makes_keys_as(AxesOnlyKeyBuilder)

    def build_from_args(self, args: Sequence[Any]) -> ApplyKey:
        """Return the key of a running call; see `ApplyKeyBuilder.build_from_args`."""
        return ApplyKey(self.axes_of(args), self.features(args))

    def build_from_workload(self, workload: Workload, root: Optional[Path] = None) -> ApplyKey:
        """Return the key of a recorded call; see `ApplyKeyBuilder.build_from_workload`."""
        return ApplyKey(self.axes_in(workload))

    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Feature], ...]:
        """Return nothing."""
        return ()

    def _makes_keys_as(self, base: type[ApplyKeyBuilder]) -> bool:
        """Return whether neither a subclass of `base` nor this object overrides a step."""
        mine = type(self)
        return all(
            getattr(mine, step) is getattr(base, step) and step not in self.__dict__
            for step in _STEPS
        )


class ApplyKeyFactory:
    """Selects the key builder for an op type.

    In order of precedence: classes set by `register` in this process; records of plugins and of
    core, by decreasing priority; `AxesOnlyKeyBuilder`. Records that cannot be used here, or whose
    class cannot be loaded, are skipped, with a warning if something is broken. Op types are
    case-insensitive.
    """

    _registered: ClassVar[dict[str, type[ApplyKeyBuilder]]] = {}
    _warned: ClassVar[set[str]] = set()

    @classmethod
    def register(cls, type_name: str, builder_cls: type[ApplyKeyBuilder]) -> None:
        """Use `builder_cls` for an op type in this process, replacing any earlier registration.

        Tables in use keep their keys, so register before enabling apply. A plugin that must work in
        other processes registers a `KeyBuilderSpec` instead.

        Parameters
        ----------
        type_name : str
            The op type.
        builder_cls : type
            A subclass of `ApplyKeyBuilder`; its constructor takes the definition.

        Raises
        ------
        ConfigError
            If it is not.
        """
        kind: object = builder_cls
        if not (isinstance(kind, type) and issubclass(kind, ApplyKeyBuilder)):
            raise ConfigError(
                f"{builder_cls!r} cannot make the keys of op type {type_name!r}: "
                "give a subclass of flashinfer_bench.apply.ApplyKeyBuilder"
            )
        cls._registered[_plain(type_name)] = builder_cls

    @classmethod
    def for_type(cls, type_name: str) -> type[ApplyKeyBuilder]:
        """Return the class that makes the keys of an op type."""
        return next(cls._candidates(type_name), AxesOnlyKeyBuilder)

    @classmethod
    @old_parameters
    def specialize(cls, defn: Definition) -> ApplyKeyBuilder:
        """Return a key builder for a definition.

        Parameters
        ----------
        defn : Definition
            Its op type determines the class.

        Returns
        -------
        ApplyKeyBuilder
            Instance of the first class that accepts the definition, else `AxesOnlyKeyBuilder`.
        """
        for candidate in cls._candidates(defn.op_type):
            try:
                return candidate(defn)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's class
                path = f"{candidate.__module__}:{candidate.__qualname__}"
                cls._warn(
                    f"key builder {path} cannot be created for definition {defn.name!r}: "
                    f"{type(error).__name__}: {error}"
                )
        return AxesOnlyKeyBuilder(defn)

    @classmethod
    def _candidates(cls, type_name: str) -> Iterator[type[ApplyKeyBuilder]]:
        """Yield classes in order of preference."""
        from flashinfer_bench.plugins import default_catalog

        wanted = _plain(type_name)
        if wanted in cls._registered:
            yield cls._registered[wanted]
        for entry in default_catalog().key_builders:
            if wanted not in map(_plain, entry.spec.op_types) or not entry.availability():
                continue
            try:
                yield entry.load_subclass(ApplyKeyBuilder)  # type: ignore[type-abstract]
            except PluginError as error:
                cls._warn(str(error))
        family = default_catalog().family_of(wanted)
        if family is not None and family.spec.key_axes:
            yield _builder_of(family.spec.key_axes)

    @classmethod
    def _warn(cls, message: str) -> None:
        if message not in cls._warned:
            cls._warned.add(message)
            logger.warning("%s", message)


def _builder_of(axes: tuple[str, ...]) -> type[ApplyKeyBuilder]:
    """Return a class whose keys use a subset of the variable axes, for an op family."""

    class FamilyKeyBuilder(AxesOnlyKeyBuilder):
        def __init__(self, definition: Definition) -> None:
            super().__init__(definition)
            self.axis_places = tuple(place for place in self.axis_places if place[0] in axes)

    return FamilyKeyBuilder


def _plain(op_type: str) -> str:
    return op_type.strip().lower()
