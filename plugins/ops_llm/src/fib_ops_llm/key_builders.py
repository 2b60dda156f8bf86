"""Built-in key builders, registered by records like those of any plugin (`plugins.builtin`).

All keys contain all variable axes unchanged. A solution has been judged only at the sizes of its
traces. It may be wrong at other sizes, where an offset may no longer fit into 32 bits or a tile may
no longer divide an axis. Sizes are therefore grouped only on request: by the miss policy
``nearest``, or by a plugin's key builder.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.keys import ApplyKey, AxesOnlyKeyBuilder, Feature
from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from flashinfer_bench.data import Definition, Workload


class GEMMKeyBuilder(AxesOnlyKeyBuilder):
    """Keys of matrix products: only the sizes decide which kernel is fastest."""


class AttentionKeyBuilder(AxesOnlyKeyBuilder):
    """Keys of attention: the variable axes, and each integer or boolean scalar.

    Such a scalar (``causal``, ``window_left``) selects what a kernel does, and its value is on the
    host. Float scalars (``sm_scale``) change the results but not the speed, so they are not part of
    keys. Nor are values of tensors, such as the lengths in ``kv_indptr``: reading them would wait
    for the device. The average length of a sequence follows from the axes (``num_kv_indices`` over
    ``batch_size``), so the key already determines it.

    Parameters
    ----------
    definition : Definition
        The definition of the calls. Most have no such scalars; their keys equal those of
        `AxesOnlyKeyBuilder`.

    Attributes
    ----------
    flags : tuple of (str, int, type)
        Name, index among the inputs, and type (int or bool) of each such scalar.
    """

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.flags: tuple[tuple[str, int, type], ...] = tuple(
            (name, index, int if spec.dtype.is_integer else bool)
            for index, (name, spec) in enumerate(definition.inputs.items())
            if spec.shape is None and not spec.dtype.is_floating
        )

    @property
    def axes_only(self) -> bool:
        """Whether a key is only its axes: no such scalars, and no overriding subclass."""
        return not self.flags and self._makes_keys_as(AttentionKeyBuilder)

    def build_from_workload(self, workload: Workload, root: Optional[Path] = None) -> ApplyKey:
        """Return the key of a recorded call; see `ApplyKeyBuilder.build_from_workload`.

        Raises
        ------
        DataError
            If an axis is missing, or a scalar of the key has no value.
        """
        # A random scalar, or one read from a file, has no value in the workload.
        values = [getattr(workload.inputs.get(name), "value", None) for name, _, _ in self.flags]
        return ApplyKey(self.axes_in(workload), self._feats(values))

    def features(self, args: Sequence[Any]) -> tuple[tuple[str, Feature], ...]:
        """Return the scalars in the key, by name.

        Raises
        ------
        DataError
            If one is missing, or is not a number on the host.
        """
        return self._feats(
            [args[index] if index < len(args) else None for _, index, _ in self.flags]
        )

    def _feats(self, values: Sequence[Any]) -> tuple[tuple[str, Feature], ...]:
        found = []
        for (name, _, kind), value in zip(self.flags, values, strict=True):
            # A tensor also has a value, but reading it may wait for the device.
            whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
            if not whole or (kind is bool and value not in (0, 1)):
                plain = value is None or isinstance(value, (bool, int, float, str))
                shown = repr(value) if plain else f"a {type(value).__name__}"
                raise DataError(
                    f"input {name!r} of {self.definition.name!r} must be of type {kind.__name__}, "
                    f"not {shown}",
                    field=f"inputs.{name}",
                )
            found.append((name, kind(value)))
        return tuple(found)


class GQAKeyBuilder(AttentionKeyBuilder):
    """Keys of grouped-query attention, paged and ragged; see `AttentionKeyBuilder`."""


class MLAKeyBuilder(AttentionKeyBuilder):
    """Keys of multi-head latent attention, paged and ragged; see `AttentionKeyBuilder`."""
