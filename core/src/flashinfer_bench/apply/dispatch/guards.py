"""The guard of a definition in Python: whether a substitute may take a call, and why not.

It is the authority on that. What is quicker (`recognition`) only recognises calls like those that
it has let through.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.dispatch import stats
from flashinfer_bench.apply.dispatch.codegen import compile_source, indented
from flashinfer_bench.apply.dispatch.ordinary import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.apply.dispatch.devices import Devices
    from flashinfer_bench.apply.dispatch.layout import Layout, Operand

    Guard = Callable[..., Optional[str]]


def span(tensor: Any) -> tuple[int, int]:
    """Return the address of a contiguous tensor's first byte, and that after its last one."""
    start: int = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def overlap(left: Any, right: Any) -> bool:
    """Return whether two contiguous tensors have a byte in common."""
    (start, stop), (other_start, other_stop) = span(left), span(right)
    return max(start, other_start) < min(stop, other_stop)


def make_guard(layout: Layout, devices: Devices, *, into: bool, strided: bool = False) -> Guard:
    """Return the guard of a definition.

    Parameters
    ----------
    layout : Layout
        Of the definition.
    devices : Devices
        Where tensors may be.
    into : bool
        Whether outputs follow the inputs.
    strided : bool
        Whether inputs may have gaps between their elements, and their axes in any order.

    Returns
    -------
    callable
        Of as many arguments as the call has; returns None, or one of `stats.REASONS`. Asks nothing
        of an argument whose type is wrong, and raises nothing unless torch does.
    """
    asked = facts()
    namespace = {
        "Tensor": asked.tensor,
        "Parameter": asked.parameter,
        "clean": asked.clean,
        "keys_of": asked.keys_of,
        "grad_enabled": asked.grad_enabled,
        "inference": asked.inference,
        "keys_on": devices.keys_on,
        "overlap": overlap,
    }
    writer = _Writer(layout, into, strided)
    namespace.update(writer.dtypes)
    source = "\n".join(writer.lines()) + "\n"
    return compile_source(source, "guard", f"guard of {layout.name!r}", namespace)


class _Writer:
    """Writes the source of a guard: cheap and safe questions first."""

    def __init__(self, layout: Layout, into: bool, strided: bool) -> None:
        outputs = layout.outputs if into else ()
        operands = [*layout.inputs, *outputs]
        self.layout = layout
        self.strided = strided
        self.arguments = [f"a{index}" for index in range(len(operands))]
        self.operands = list(zip(self.arguments, operands, strict=True))
        first_output = len(layout.inputs)
        # A scalar output that is passed in is a tensor without dimensions.
        self.tensors = [
            (argument, operand)
            for index, (argument, operand) in enumerate(self.operands)
            if operand.shape is not None or index >= first_output
        ]
        self.outputs = self.arguments[first_output:]
        self.mutated = {self.arguments[index] for index in layout.mutated}
        self.dtypes = {f"dtype_{name}": operand.dtype for name, operand in self.tensors}

    def lines(self) -> list[str]:
        if not self.tensors:
            # Nothing says where such a call is to be computed.
            body = [*self._types(), f"return {stats.DEVICE!r}"]
        else:
            body = [*self._types(), *self._places(), *self._shapes(), *self._rest(), "return None"]
        return [f"def guard({', '.join(self.arguments)}):", *indented(body)]

    def _refuse(self, condition: str, reason: str) -> list[str]:
        return [f"if {condition}:", *indented([f"return {reason!r}"])]

    def _types(self) -> list[str]:
        found = []
        tensors = {name for name, _ in self.tensors}
        for name, operand in self.operands:
            if name in tensors:
                wrong = f"type({name}) is not Tensor and type({name}) is not Parameter"
            else:
                wrong = f"type({name}) is not {operand.scalar.__name__}"
            found += [f"# {name}: {operand.name!r}", *self._refuse(wrong, stats.TYPE)]
        return found

    def _places(self) -> list[str]:
        first = self.tensors[0][0]
        others = [f"{name}.device != device" for name, _ in self.tensors[1:]]
        odd = [f"keys_of({name}) not in ordinary" for name, _ in self.tensors]
        return [
            f"device = {first}.device",
            "ordinary = keys_on(device)",
            *self._refuse(" or ".join(["ordinary is None", *others]), stats.DEVICE),
            *self._refuse(" or ".join(["not clean()", *odd]), stats.MODE),
        ]

    def _shapes(self) -> list[str]:
        found: list[str] = []
        known: dict[str, str] = {}
        for name, operand in self.tensors:
            found += self._refuse(f"{name}.dtype is not dtype_{name}", stats.DTYPE)
            found += self._shape(name, operand, known)
        return found

    def _shape(self, name: str, operand: Operand, known: dict[str, str]) -> list[str]:
        shape = operand.shape or ()
        wrong, after = [f"len(shape) != {len(shape)}"], []
        fresh: dict[str, str] = {}
        for dimension, size in enumerate(shape):
            here = f"shape[{dimension}]"
            if isinstance(size, int):
                wrong.append(f"{here} != {size}")
            elif size in known or size in fresh:
                wrong.append(f"{here} != {known.get(size) or fresh[size]}")
            else:
                fresh[size] = here
        for size, here in fresh.items():
            known[size] = f"n{len(known)}"
            after.append(f"{known[size]} = {here}")
        return [f"shape = {name}.shape", *self._refuse(" or ".join(wrong), stats.SHAPE), *after]

    def _rest(self) -> list[str]:
        # Elements that share memory, as those of an expanded tensor do, are another matter.
        question = "0 in {0}.stride()" if self.strided else "not {0}.is_contiguous()"
        loose = " or ".join(question.format(name) for name, _ in self.tensors)
        graded = " or ".join(f"{name}.requires_grad" for name, _ in self.tensors)
        found = self._refuse(loose, stats.LAYOUT)
        found += self._refuse(f"grad_enabled() and ({graded})", stats.GRAD)
        written = [*self.outputs, *sorted(self.mutated)]
        if written:  # torch itself refuses such writes
            made = " or ".join(f"{name}.is_inference()" for name in written)
            found += self._refuse(f"({made}) and not inference()", stats.MODE)
        pairs = [f"overlap({left}, {right})" for left, right in self._apart()]
        return found + (self._refuse(" or ".join(pairs), stats.OVERLAP) if pairs else [])

    def _apart(self) -> list[tuple[str, str]]:
        """Return the pairs of tensors that may not share memory: where one of them is written."""
        names = [name for name, _ in self.tensors]
        written = {*self.outputs, *self.mutated}
        return [pair for pair in combinations(names, 2) if written & {*pair}]
