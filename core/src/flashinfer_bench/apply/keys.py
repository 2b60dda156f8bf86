"""Keys: what two calls have in common if the same solution is best for both."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Optional, Union

from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Definition, Workload

Feature = Union[str, int, float, bool, None]
"""What a feature's value may be: it is hashed, compared, and written to JSON."""


@dataclass(frozen=True)
class ApplyKey:
    """A key of the table in which a call's solution is looked up.

    Keys are equal if all axes and all features are, in the same order.

    Parameters
    ----------
    axes : tuple of (str, int)
        Size of each variable axis.
    feats : tuple of (str, value)
        Whatever else decides which solution is best. Values are strings, numbers, booleans or None;
        no NaN, which equals nothing.
    """

    axes: tuple[tuple[str, int], ...]
    feats: tuple[tuple[str, Feature], ...] = ()

    def to_json(self) -> str:
        """Return the key as one line of JSON."""
        record = {"axes": [list(pair) for pair in self.axes]}
        feats = [list(pair) for pair in self.feats]
        return json.dumps({**record, "feats": feats}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ApplyKey:
        """Return the key that `to_json` wrote.

        Raises
        ------
        DataError
            If `text` is something else.
        """
        try:
            record = json.loads(text)
            axes, feats = (tuple(map(_pair, record[name])) for name in ("axes", "feats"))
            return cls(axes, feats)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"not an apply key: {text[:200]!r} ({error})") from error

    @property
    def encode(self) -> str:
        """The key as JSON, under its old name."""
        return self.to_json()

    @classmethod
    def from_encoded(cls, s: str) -> ApplyKey:
        """Return the key that `encode` gave, under its old name."""
        return cls.from_json(s)


def _pair(pair: Any) -> tuple[str, Any]:
    name, value = pair
    if not isinstance(name, str) or not isinstance(value, (str, int, float, bool, type(None))):
        raise TypeError(f"{pair!r} is no name with a plain value")
    return name, value


class ApplyKeyBuilder(ABC):
    """Reduces the inputs of a call to a key.

    A key is built from the arguments of a running call, and from each recorded workload when the
    table is made: both must give the same. On a running call it must be quick, whatever the sizes:
    reading a tensor's values would wait for the device.

    Parameters
    ----------
    definition : Definition
        Of the calls. Whatever can be worked out from it should be, here.

    Attributes
    ----------
    axis_places : tuple of (str, int, int)
        Where `axes_of` reads each variable axis: its name, the index of the input, the dimension.
        An axis that no input shows is left out. A subclass that takes others out has them left out
        of all keys.
    reads_data : bool
        Whether `features` reads the values of tensors. Such keys cost a synchronisation at each
        call, and are not built while a CUDA graph is captured.
    """

    reads_data: ClassVar[bool] = False

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        positions = {name: index for index, name in enumerate(definition.inputs)}
        self.axis_places: tuple[tuple[str, int, int], ...] = tuple(
            (axis, positions[name], dimension)
            for axis, (name, dimension) in definition.var_axes_bindings.items()
        )

    @property
    def axes_only(self) -> bool:
        """Whether a call's key is the sizes at `axis_places`, in that order, and nothing else.

        If so, look-ups are compiled from `axis_places`, and `build_from_args` is not called for
        each call. A builder that makes its keys itself says no, as this one does.
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
            If they are not inputs of the definition.
        """

    @abstractmethod
    def build_from_workload(self, workload: Workload, root: Optional[Path] = None) -> ApplyKey:
        """Return the key of a recorded call.

        Parameters
        ----------
        workload : Workload
            Gives the axes, and says how the inputs came about.
        root : Path, optional
            Root of the dataset, for features that are read from recorded tensors.

        Raises
        ------
        DataError
            If it is no workload of the definition.
        """

    @abstractmethod
    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Feature], ...]:
        """Return what counts besides the axes, as pairs of name and value."""

    def axes_of(self, args: Sequence[Any]) -> tuple[tuple[str, int], ...]:
        """Read the variable axes off the shapes of `args`, in the definition's order.

        An axis that no input shows is left out.

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
        """Return the same axes as `axes_of`, as a workload gives them.

        Raises
        ------
        DataError
            If one is missing.
        """
        return self.axes_from(workload.axes, source=f"workload {workload.uuid!r}")

    def axes_from(
        self, sizes: Mapping[str, int], *, source: str = "what is given"
    ) -> tuple[tuple[str, int], ...]:
        """Return the same axes as `axes_of`, from sizes by name; other names are ignored.

        Parameters
        ----------
        sizes : mapping of str to int
            Size of each variable axis.
        source : str
            Where they are from, for the message.

        Raises
        ------
        DataError
            If one is missing.
        """
        try:
            return tuple([(axis, sizes[axis]) for axis, _, _ in self.axis_places])
        except KeyError as error:
            (axis,) = error.args
        raise DataError(
            f"{source} has no value for axis {axis!r} of {self.definition.name!r}",
            field=f"axes.{axis}",
        )

    def build_from_runtime(self, runtime_kwargs: Mapping[str, Any]) -> ApplyKey:
        """Return the key of a call with arguments by name, under its old name."""
        return self.build_from_args(self.definition.merge_kwargs_to_args((), runtime_kwargs))

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
        raise DataError(f"these are no inputs of {self.definition.name!r}")


# Whatever the key of a call, or of a recorded one, goes through.
_STEPS = (
    *("build_from_args", "axes_of", "features"),
    *("build_from_workload", "axes_in", "axes_from"),
)


class AxesOnlyKeyBuilder(ApplyKeyBuilder):
    """Keys of the variable axes alone: right wherever the speed follows from the shapes."""

    @property
    def axes_only(self) -> bool:
        """Whether a call's key is its axes; a subclass that overrides how keys are made says no."""
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
