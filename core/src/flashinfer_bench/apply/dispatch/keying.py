"""What the choice of a solution hangs on, in a form that is quick to make and to look up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch.codegen import compile_source
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.apply.dispatch.layout import Layout
    from flashinfer_bench.apply.keys import ApplyKey, ApplyKeyBuilder


class Keying:
    """How the calls of a definition are looked up.

    Parameters
    ----------
    layout : Layout
        Of the definition.
    builder : ApplyKeyBuilder, optional
        Makes the keys of the table. None if one target serves all calls.

    Attributes
    ----------
    expression : str
        Python for what a call is looked up by, with ``a`` the arguments and ``a0``, ``a1``, … each
        of them, ``features`` and ``build`` methods of the builder: the size of the only variable
        axis, a tuple of several; with features behind them; or the key itself.
    sizes_decide : bool
        Whether all calls with tensors of the same shapes have the same key.
    reads_data : bool
        Whether making a key waits for the device.
    one_for_all : bool
        Whether there are no keys.
    """

    def __init__(self, layout: Layout, builder: Optional[ApplyKeyBuilder]) -> None:
        self._builder = builder
        self.one_for_all = builder is None
        self.reads_data = builder is not None and builder.reads_data
        self.sizes_decide = builder is None or builder.axes_only
        self._sizes = [f"a{position}.shape[{dim}]" for _, position, dim in layout.places]
        self.expression = self._write()
        names = [f"a{index}" for index in range(len(layout.inputs))]
        unpack = f"    {', '.join(names)}, = a[:{len(names)}]\n" if names else ""
        source = f"def look_up_by(a):\n{unpack}    return {self.expression}\n"
        self.of: Callable[[Sequence[Any]], Any] = compile_source(
            source, "look_up_by", f"key of {layout.name!r}", self.namespace
        )

    @property
    def namespace(self) -> dict[str, Any]:
        """What the names in `expression` stand for."""
        builder = self._builder
        if builder is None:
            return {}
        return {"features": builder.features, "build": builder.build_from_args}

    def _write(self) -> str:
        sizes = ", ".join(self._sizes)
        if self.sizes_decide:
            return self._sizes[0] if len(self._sizes) == 1 else f"({sizes})"
        kind = type(self._builder)
        # Of such a builder the key follows from axes and features; another may do as it likes.
        if (
            issubclass(kind, AxesOnlyKeyBuilder)
            and kind.build_from_args is AxesOnlyKeyBuilder.build_from_args
            and kind.axes_of is AxesOnlyKeyBuilder.axes_of
        ):
            return f"({', '.join([*self._sizes, 'features(a)'])},)"
        return "build(a)"

    def key(self, args: Sequence[Any]) -> Optional[ApplyKey]:
        """Return the key in the form that tables have."""
        return None if self._builder is None else self._builder.build_from_args(args)
